"""The border of the guarantees: data, length-scales and partitions as users pass them."""

from __future__ import annotations

import math
import warnings
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning

from prismgp._random import Streams
from prismgp._types import AnyArray, Array, RandomState
from prismgp._validate import check_inputs
from prismgp.complexity._geometry import cluster_geometry
from prismgp.complexity._inputs import linear_inputs
from prismgp.core.kernels import Kernel
from prismgp.exceptions import DataError

if TYPE_CHECKING:
    from sklearn.cluster import KMeans

__all__ = ["check_count", "check_data", "check_lengthscale", "check_positive", "find_partition", "resolve_labels"]

_SAMPLE = 4096  # rows on which partitions are sought and compared
_FARTHEST = 1e30  # eighth powers of scaled inputs, summed over pairs, stay finite


class _Data(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Carries scikit-learn's validation of X."""


def check_data(X: Any) -> AnyArray:
    """X as a finite float array (n, d)."""
    return check_inputs(_Data(), X, reset=True)


def check_positive(name: str, value: Any, *, below: float = math.inf) -> float:
    """A number above zero and under ``below``."""
    number = _as_float(value)
    if number is None or not 0.0 < number < below:
        limit = "" if below == math.inf else f" and below {below:g}"
        raise DataError(f"{name}={value!r} must be a number above 0{limit}")
    return number


def check_count(name: str, value: Any) -> int:
    """An integer of at least 1."""
    number = _as_float(value) if isinstance(value, Integral) else None
    if number is None or number < 1:
        raise DataError(f"{name}={value!r} must be an integer of at least 1")
    return int(value)


def _as_float(value: Any) -> float | None:
    wrong = isinstance(value, bool) or not isinstance(value, Real)
    return None if wrong else float(value)


def check_lengthscale(name: str, value: Any, x: AnyArray) -> Array:
    """Length-scales of the d inputs, in the units of X: one number, or d."""
    try:
        scales = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}={value!r} must be a number or one number for each input") from error
    d = x.shape[1]
    if scales.ndim > 1 or (scales.ndim == 1 and scales.shape != (d,)):
        raise DataError(f"{name} has shape {scales.shape}; X has {d} inputs: pass one number or {d}")
    if not np.all(np.isfinite(scales) & (scales > 0)):
        raise DataError(f"{name} must be finite and above 0; its smallest value is {float(np.min(scales)):g}")
    scales = np.broadcast_to(scales, (d,)).copy()
    farthest = float(np.abs(x).max(axis=0).astype(np.float64) @ np.ones(d) / float(scales.min()))
    if farthest > _FARTHEST:
        raise DataError(f"inputs reach {farthest:.3g} times {name}; rescale X or pass a larger {name}")
    return scales


def resolve_labels(labels: Any, x: AnyArray, original: Any) -> AnyArray:
    """Cluster indices 0 to b - 1, from labels (n,) or a fitted clusterer with ``predict``."""
    if hasattr(labels, "predict"):
        labels = labels.predict(original)
    found = np.asarray(labels)
    if found.shape != (len(x),):
        raise DataError(f"labels has shape {found.shape}; X has {len(x)} rows: pass one label for each row")
    if found.dtype.kind == "f" and not np.all(np.isfinite(found)):
        raise DataError("labels holds NaN or infinity; give every row a label")
    return np.asarray(np.unique(found, return_inverse=True)[1], dtype=np.int64)


def find_partition(
    x: AnyArray, lengthscale: Array, kernel: Kernel, bound: float, n_clusters: int | None, random_state: RandomState
) -> AnyArray:
    """Clusters by k-means in the kernel's metric: ``n_clusters``, or as many as promise the fewest frequencies.

    Numbers of clusters up to ``2 log2 n`` are compared on a random sample of the rows, by ``V / (bound -
    tau_out)^2``; where no partition leaves room, by ``tau_out``. One cluster, which masks nothing, takes part.
    """
    from sklearn.cluster import KMeans  # loaded when asked for

    n = len(x)
    streams = Streams(random_state)
    rng = streams.generator("partition")
    rows = np.sort(rng.choice(n, _SAMPLE, replace=False)) if n > _SAMPLE else np.arange(n)
    sample = x[rows].astype(np.float64) / lengthscale
    distinct = len(np.unique(sample, axis=0))
    if n_clusters is not None:
        counts = [min(n_clusters, distinct)]
    else:
        most = min(distinct, max(2, math.ceil(2.0 * math.log2(max(n, 2)))))
        counts = sorted({1, *(k for k in (2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48) if k < most), most})

    ones, growth = np.ones(x.shape[1]), n / len(rows)
    best: tuple[tuple[bool, float], KMeans] | None = None
    for count in counts:
        model = KMeans(count, n_init=4, random_state=streams.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(sample)
        if len(counts) == 1:
            return _assign(x, lengthscale, model)
        labels = np.unique(model.labels_, return_inverse=True)[1]
        inputs = linear_inputs(cluster_geometry(sample, labels, ones, kernel), kernel)
        room = bound - inputs.tau_out * growth
        score = (room <= 0, inputs.variance * (growth / room) ** 2 if room > 0 else inputs.tau_out)
        if best is None or score < best[0]:
            best = (score, model)
    assert best is not None
    return _assign(x, lengthscale, best[1])


def _assign(x: AnyArray, lengthscale: Array, model: KMeans) -> AnyArray:
    """The nearest centre of every row, in chunks."""
    chunk = 65536
    parts = [model.predict(x[i : i + chunk].astype(np.float64) / lengthscale) for i in range(0, len(x), chunk)]
    return np.asarray(np.unique(np.concatenate(parts), return_inverse=True)[1], dtype=np.int64)

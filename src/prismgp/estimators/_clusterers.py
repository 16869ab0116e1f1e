"""Clusterers of the user as gates: by a rule where they are one, and else by asking them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.gating import RuleGate, hard_gates, soft_gates
from prismgp.data import Chunks, Standardiser
from prismgp.exceptions import DataError

__all__ = ["ClustererGate", "check_clusterer", "converted", "probabilities", "thawed"]

_DIGITS = {torch.float64: 12, torch.float32: 6}  # that survive standardising a row and undoing it
_TINY = 1e-300


def thawed(partition: Any) -> Any:
    """Without the wrapper that keeps it fitted when cloned."""
    return partition.estimator if isinstance(partition, FrozenEstimator) else partition


def check_clusterer(clusterer: Any, d: int) -> None:
    """It must be fitted, and to as many inputs."""
    name = type(clusterer).__name__
    if hasattr(clusterer, "fit"):
        try:
            check_is_fitted(clusterer)
        except NotFittedError as error:
            raise DataError(
                f"partition={name} is not fitted: fit it first; wrapped in sklearn.frozen.FrozenEstimator "
                "it stays fitted where estimators are cloned, as in a grid search"
            ) from error
    expected = getattr(clusterer, "n_features_in_", d)
    if expected != d:
        raise DataError(
            f"partition={name} was fitted to {expected} inputs, X has {d}; fit it to the inputs of the model"
        )


def probabilities(clusterer: Any) -> Callable[[Any], Any] | None:
    """Its method that gives those of the clusters, where it has one."""
    for name in ("predict_proba", "responsibilities"):
        method: Callable[[Any], Any] | None = getattr(clusterer, name, None)
        if method is not None:
            return method
    return None


def converted(clusterer: Any, kind: str, standardiser: Standardiser) -> RuleGate | None:
    """The clusterer as a rule (G2), where it is one; exact types, since a subclass may assign otherwise."""
    from sklearn.cluster import KMeans, MiniBatchKMeans  # loaded when asked for
    from sklearn.mixture import GaussianMixture

    if type(clusterer) in (KMeans, MiniBatchKMeans) and kind == "hard":
        centres = clusterer.cluster_centers_
        roots, offsets = np.ones(centres.shape), np.zeros(len(centres))
    elif type(clusterer) is GaussianMixture and clusterer.covariance_type in ("diag", "spherical"):
        centres, roots = clusterer.means_, clusterer.precisions_cholesky_
        roots = np.broadcast_to(roots if roots.ndim == 2 else roots[:, None], centres.shape)
        offsets = np.log(np.maximum(clusterer.weights_, _TINY)) + np.log(roots).sum(1)
    else:
        return None
    # The clusterer knows the user's units, the gate those of the model.
    s = standardiser
    tensors = ((centres - s.x_shift) / s.x_scale, roots * s.x_scale, offsets)
    return RuleGate(kind, *(torch.tensor(each, dtype=torch.float64) for each in tensors))


@dataclass(frozen=True)
class ClustererGate:
    """Gates by a clusterer that is no rule of ours: it is asked about every row, in the user's units.

    Attributes
    ----------
    kind : {"hard", "soft"}
    clusterer : object
        With ``predict``, or with ``predict_proba`` or ``responsibilities``.
    shift, scale, grid : ndarray, (d,)
        Back to the user's units, rounded to the digits that survive: grids stay grids.
    known : ndarray
        Labels of the training rows, sorted; other labels share one more cluster, without rows. For soft
        gates the numbers of the columns.
    """

    kind: str
    clusterer: Any
    shift: Array
    scale: Array
    grid: Array
    known: AnyArray

    @classmethod
    def hard(cls, clusterer: Any, standardiser: Standardiser, chunks: Chunks) -> ClustererGate:
        gate = cls._new("hard", clusterer, standardiser, chunks.dtype)
        return replace(gate, known=chunks.reduce(_Known(gate)))

    @classmethod
    def soft(cls, clusterer: Any, standardiser: Standardiser, chunks: Chunks) -> ClustererGate:
        gate = cls._new("soft", clusterer, standardiser, chunks.dtype)
        first = Chunks(
            chunks.source.take(np.arange(1)), standardiser, rows=1, dtype=chunks.dtype, device=chunks.device, once=True
        )
        x, _ = next(iter(first))
        return replace(gate, known=np.arange(gate._weights(x[:1]).shape[1]))

    @classmethod
    def _new(cls, kind: str, clusterer: Any, standardiser: Standardiser, dtype: torch.dtype) -> ClustererGate:
        shift, scale = standardiser.x_shift, standardiser.x_scale
        size = np.abs(shift) + np.where(standardiser.constant_inputs, 0.0, scale)
        places = _DIGITS[dtype] - np.ceil(np.log10(np.maximum(size, _TINY)))
        return cls(kind, clusterer, shift, scale, 10.0 ** np.clip(places, -150, 150), np.arange(0))

    @property
    def n_clusters(self) -> int:
        return len(self.known) + (self.kind == "hard")

    def labels(self, x: Tensor) -> Tensor:
        if self.kind == "soft":
            return self.gates(x).argmax(1)
        assigned = self._assigned(x)
        place = np.minimum(np.searchsorted(self.known, assigned), len(self.known) - 1)
        return torch.as_tensor(np.where(self.known[place] == assigned, place, len(self.known)), device=x.device)

    def gates(self, x: Tensor) -> Tensor:
        if self.kind == "hard":
            return hard_gates(self.labels(x), self.n_clusters)
        return soft_gates(torch.as_tensor(self._weights(x), device=x.device).log())

    def _assigned(self, x: Tensor) -> AnyArray:
        found = np.asarray(self.clusterer.predict(self._user_rows(x)))
        if found.shape != (len(x),) or found.dtype.kind not in "biu":
            raise DataError(
                f"partition: {type(self.clusterer).__name__}.predict gave {found.dtype} of shape {found.shape} "
                f"for {len(x)} rows; it must give one integer for each"
            )
        return found

    def _weights(self, x: Tensor) -> Array:
        method = probabilities(self.clusterer)
        assert method is not None
        found = np.asarray(method(self._user_rows(x)), dtype=np.float64)
        sound = found.ndim == 2 and len(found) == len(x) and found.shape[1] == (len(self.known) or found.shape[1])
        if not sound or not np.isfinite(found).all() or (found < 0).any() or not (found.sum(1) > 0).all():
            raise DataError(
                f"partition: {type(self.clusterer).__name__} gave no probabilities of clusters for some rows"
            )
        return found

    def _user_rows(self, x: Tensor) -> Any:
        values = np.rint((x.double().cpu().numpy() * self.scale + self.shift) * self.grid) / self.grid
        names = getattr(self.clusterer, "feature_names_in_", None)
        return values if names is None else pd.DataFrame(values, columns=names)


@dataclass(frozen=True)
class _Known:
    """A pass: the labels that a clusterer gives, sorted."""

    gate: ClustererGate

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> AnyArray:
        return np.unique(np.concatenate([np.unique(self.gate._assigned(x)) for x, _ in chunks]))

    def merge(self, first: AnyArray, second: AnyArray) -> AnyArray:
        return np.union1d(first, second)

"""From the arguments ``gating``, ``partition`` and ``n_components`` to a gate."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from prismgp._system import available_bytes, format_bytes
from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.features import Gating
from prismgp.core.gating import ClusterMoments, Gate, RuleGate, hard_gates, soft_gates
from prismgp.core.kernels import Parameters
from prismgp.core.models import Standardiser
from prismgp.core.rows import RowNoise
from prismgp.data import Chunks, StandardisedRows
from prismgp.exceptions import DataError, PrismGPWarning, TooLargeError

CLUSTERING_ROWS = 20_000  # rows on which clusters are found
_PASS_ROWS = 65_536
_CPU = torch.device("cpu")
_DIGITS = {torch.float64: 12, torch.float32: 6}  # that survive standardising a row and undoing it
_TINY = 1e-300


def number_labels(partition: Any, n: int, d: int) -> AnyArray | None:
    """Return the labels of the training rows, numbered from 0 without gaps, (n,); None where a clusterer is given."""
    if hasattr(partition, "predict"):
        _check_clusterer(_unfreeze(partition), d)
        return None
    values = partition.detach().cpu().numpy() if isinstance(partition, torch.Tensor) else np.asarray(partition)
    if values.ndim != 1:
        raise DataError(
            f"partition is {type(partition).__name__} of {values.ndim} dimension(s); pass one integer for each "
            "training row, a fitted clusterer with a predict method, or None"
        )
    if len(values) != n:
        raise DataError(f"partition has {len(values):,} labels for {n:,} training rows; pass one for each row")
    if values.dtype.kind not in "biuf":
        remedy = "number them, e.g. by numpy.unique(labels, return_inverse=True)[1]"
        raise DataError(f"partition holds {values[0]!r}, which is not an integer; {remedy}")
    bad = ~(np.isfinite(values) & (values >= 0) & (values == np.floor(values)))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"partition holds {values[row]!r} at row {row} (counting from 0); labels are integers from 0 on: "
            "give rows without a cluster a label of their own"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def fit_gate(
    kind: str,
    partition: Any,
    n_components: int,
    rows: StandardisedRows,
    n_frequencies: int,
    rng: np.random.Generator,
    start: Parameters,
) -> Gating:
    """Make the gate, "hard" or "soft", that the arguments ask for; labels are taken from the rows.

    Distances between rows are measured in the length-scales of ``start``; only their ratios matter.
    """
    # A length-scale that is given for a constant input would undo the scale by which the model ignores it.
    lengthscale = np.where(rows.standardiser.constant_inputs, start.lengthscale.max(), start.lengthscale)
    relative = torch.as_tensor(lengthscale / lengthscale.min())
    chunks = replace(rows, device=_CPU).chunks_of(_PASS_ROWS)  # on the CPU, where sums have one order
    gate: Gate
    if rows.labels is not None:
        gate, status = _gate_of_labels(kind, chunks, rows.labels, relative)
    elif partition is None:
        gate, status = _find(kind, n_components, rows, relative, rng)
    else:
        gate, status = _gate_of_clusterer(kind, _unfreeze(partition), chunks, rows.standardiser, relative)
    gating = Gating(gate, {"kind": kind, "clusters": gate.n_clusters, **status})
    _check_memory(gating, n_frequencies, rows.n_outputs)
    return gating


def _check_memory(gating: Gating, p: int, q: int) -> None:
    """Refuse before allocating when the matrices of all clusters would not fit."""
    if gating.gate is None:
        return
    b = gating.gate.n_clusters
    size = 2 * p * gating.widening + 1 + q
    # Statistics that are kept, a factor and a root for each output, temporaries.
    needed = 8 * size**2 * (8 + 3 * q) * (b // gating.widening)
    there = available_bytes(_CPU)
    if needed > 0.9 * there:
        raise TooLargeError(
            f"{gating.kind} gating with {b:,} clusters and {p:,} frequencies needs about {format_bytes(needed)} of "
            f"memory, {format_bytes(there)} are available; use fewer clusters or frequencies"
        )


_Labelled = tuple[Tensor, Tensor, Tensor | None]  # rows, their labels, and their weights if they have any


def _with_labels(chunks: Chunks, labels: AnyArray) -> Iterator[_Labelled]:
    """Iterate over the rows with their labels, once."""
    start = 0
    for x, y in chunks:
        noise = RowNoise.split(y, chunks.n_outputs)[1]
        yield x, torch.as_tensor(labels[start : start + len(x)]), None if noise is None else noise.weight
        start += len(x)


def _rule(kind: str, rows: Callable[[], Iterator[_Labelled]], n_clusters: int, relative: Tensor) -> RuleGate:
    moments = ClusterMoments.of(rows, n_clusters, len(relative))
    return moments.nearest_mean(relative) if kind == "hard" else moments.mixture(relative)


def _gate_of_labels(kind: str, chunks: Chunks, labels: AnyArray, relative: Tensor) -> tuple[RuleGate, dict[str, Any]]:
    """Learn a rule for new rows from labels; the training rows keep their labels under hard gates."""
    pairs = partial(_with_labels, chunks, labels)
    gate = _rule(kind, pairs, int(labels.max()) + 1, relative)
    differ = gate.disagreement(pairs())
    if differ and kind == "hard":
        warnings.warn(
            f"{differ:,} of {len(labels):,} training rows are nearer to the mean of another cluster than to that "
            "of their own: the fit uses the labels as given, predictions at such rows the nearest cluster",
            PrismGPWarning,
            stacklevel=8,
        )
    return gate, {"partition": "labels", "rows_nearer_to_another_cluster": differ}


def _gate_of_clusterer(
    kind: str, clusterer: Any, chunks: Chunks, standardiser: Standardiser, relative: Tensor
) -> tuple[Gate, dict[str, Any]]:
    status = {"partition": type(clusterer).__name__}
    rule = _to_rule(clusterer, kind, standardiser)
    if rule is not None:
        return rule, status
    clusterer = copy.deepcopy(clusterer)  # it may be fitted to something else later
    if kind == "soft" and _probabilities(clusterer) is not None:
        return ClustererGate.of("soft", clusterer, chunks, standardiser), status
    gate = ClustererGate.of("hard", clusterer, chunks, standardiser)
    if kind == "hard":
        return gate, status
    # Without probabilities, soft gates are learned from its labels of the training rows.
    if chunks.source.distributed:
        raise DataError(
            f"partition: {type(clusterer).__name__} has no probabilities; soft gates need labels of single rows then, "
            'which cannot be used with rows on a cluster; use gating="hard", a mixture, or partition=None'
        )
    labels = np.concatenate([gate.labels(x).numpy() for x, _ in chunks])
    return _rule(kind, partial(_with_labels, chunks, labels), int(labels.max()) + 1, relative), status


def _find(
    kind: str, n_components: int, rows: StandardisedRows, relative: Tensor, rng: np.random.Generator
) -> tuple[RuleGate, dict[str, Any]]:
    """Find clusters by k-means on a subsample, with inputs in length-scales."""
    from sklearn.cluster import KMeans  # takes memory and time to load; predictions do not need it

    sample = rows if rows.n_rows <= CLUSTERING_ROWS else rows.subsamples([CLUSTERING_ROWS], rng)[0]
    sample = replace(sample, device=_CPU)
    (x, _), noise = sample.tensors(), sample.noise()
    weights = None if noise is None else noise.weight
    clusterer = KMeans(min(n_components, len(x)), n_init=3, random_state=int(rng.integers(2**31 - 1)))
    # Sums of several threads have no fixed order. The warning is about rows that coincide, dealt with below.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        scaled = (x / relative).numpy()
        labels = clusterer.fit_predict(scaled, sample_weight=None if weights is None else weights.numpy())
    labels = torch.as_tensor(np.unique(labels, return_inverse=True)[1])
    gate = _rule(kind, lambda: iter([(x, labels, weights)]), int(labels.max()) + 1, relative)
    status = {"partition": "k-means"}
    if gate.n_clusters < n_components:
        status["message"] = f"{gate.n_clusters} of {n_components} clusters: there are no more distinct rows"
    return gate, status


# -- clusterers of the user: converted to a rule where possible, otherwise called ----------------


def _unfreeze(partition: Any) -> Any:
    """Return the clusterer without the wrapper that keeps it fitted when cloned."""
    return partition.estimator if isinstance(partition, FrozenEstimator) else partition


def _check_clusterer(clusterer: Any, d: int) -> None:
    """Check that the clusterer is fitted, to the same number of inputs."""
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


def _probabilities(clusterer: Any) -> Callable[[Any], Any] | None:
    """Return the method of a clusterer that computes the probabilities of its clusters; None if it has none."""
    for name in ("predict_proba", "responsibilities"):
        method: Callable[[Any], Any] | None = getattr(clusterer, name, None)
        if method is not None:
            return method
    return None


def _to_rule(clusterer: Any, kind: str, standardiser: Standardiser) -> RuleGate | None:
    """Convert a clusterer to a rule (G2) if it follows one; exact types, since a subclass may assign otherwise."""
    from sklearn.cluster import KMeans, MiniBatchKMeans  # loaded when asked for
    from sklearn.mixture import GaussianMixture  # the same

    if type(clusterer) in (KMeans, MiniBatchKMeans) and kind == "hard":
        centres = clusterer.cluster_centers_
        roots, offsets = np.ones(centres.shape), np.zeros(len(centres))
    elif type(clusterer) is GaussianMixture and clusterer.covariance_type in ("diag", "spherical"):
        centres, roots = clusterer.means_, clusterer.precisions_cholesky_
        roots = np.broadcast_to(roots if roots.ndim == 2 else roots[:, None], centres.shape)
        offsets = np.log(np.maximum(clusterer.weights_, _TINY)) + np.log(roots).sum(1)
    else:
        return None
    # From the user's units to those of the model.
    s = standardiser
    tensors = ((centres - s.x_shift) / s.x_scale, roots * s.x_scale, offsets)
    return RuleGate(kind, *(torch.tensor(each, dtype=torch.float64) for each in tensors))


@dataclass(frozen=True)
class ClustererGate:
    """Gates by a clusterer that is not one of the rules (G2): it predicts every row, in the user's units.

    Rows go back to these units rounded to the digits that survive, so that grids stay grids.
    """

    kind: str  # "hard" or "soft"
    clusterer: Any  # with predict, or with predict_proba or responsibilities
    shift: Array  # (d,)
    scale: Array  # (d,)
    grid: Array  # (d,), powers of ten
    # Labels of the training rows, sorted; other labels share one more cluster, without rows. For soft gates the
    # numbers of the columns.
    known: AnyArray

    @classmethod
    def of(cls, kind: str, clusterer: Any, chunks: Chunks, standardiser: Standardiser) -> ClustererGate:
        shift, scale = standardiser.x_shift, standardiser.x_scale
        size = np.abs(shift) + np.where(standardiser.constant_inputs, 0.0, scale)
        places = _DIGITS[chunks.dtype] - np.ceil(np.log10(np.maximum(size, _TINY)))
        gate = cls(kind, clusterer, shift, scale, 10.0 ** np.clip(places, -150, 150), np.arange(0))
        if kind == "hard":
            return replace(gate, known=chunks.reduce(_Known(gate)))
        first = chunks.source.take(np.arange(1))
        x, _ = next(iter(Chunks(first, standardiser, rows=1, dtype=chunks.dtype, device=chunks.device, once=True)))
        return replace(gate, known=np.arange(gate._weights(x).shape[1]))

    @property
    def n_clusters(self) -> int:
        return len(self.known) + (self.kind == "hard")

    def labels(self, x: Tensor) -> Tensor:
        if self.kind == "soft":
            return self.gates(x).argmax(1)
        assigned = self._assign(x)
        place = np.minimum(np.searchsorted(self.known, assigned), len(self.known) - 1)
        return torch.as_tensor(np.where(self.known[place] == assigned, place, len(self.known)), device=x.device)

    def gates(self, x: Tensor) -> Tensor:
        if self.kind == "hard":
            return hard_gates(self.labels(x), self.n_clusters)
        return soft_gates(torch.as_tensor(self._weights(x), device=x.device).log())

    def _assign(self, x: Tensor) -> AnyArray:
        found = np.asarray(self.clusterer.predict(self.user_rows(x)))
        if found.shape != (len(x),) or found.dtype.kind not in "biu":
            raise DataError(
                f"partition: {type(self.clusterer).__name__}.predict gave {found.dtype} of shape {found.shape} "
                f"for {len(x)} rows; it must give one integer for each"
            )
        return found

    def _weights(self, x: Tensor) -> Array:
        method = _probabilities(self.clusterer)
        assert method is not None
        if x.requires_grad:
            raise DataError(
                f"partition: probabilities of {type(self.clusterer).__name__} have no derivatives by the inputs; for "
                'gradients fit with partition labels, with gating="hard" or without gates'
            )
        found = np.asarray(method(self.user_rows(x)), dtype=np.float64)
        sound = found.ndim == 2 and len(found) == len(x) and found.shape[1] == (len(self.known) or found.shape[1])
        if not sound or not np.isfinite(found).all() or (found < 0).any() or not (found.sum(1) > 0).all():
            raise DataError(
                f"partition: {type(self.clusterer).__name__} gave no probabilities of clusters for some rows; they "
                "must be finite and at least 0, and not all 0 in a row"
            )
        return found

    def user_rows(self, x: Tensor) -> Any:
        values = np.rint((x.detach().double().cpu().numpy() * self.scale + self.shift) * self.grid) / self.grid
        names = getattr(self.clusterer, "feature_names_in_", None)
        return values if names is None else pd.DataFrame(values, columns=names)


@dataclass(frozen=True)
class _Known:
    """A pass: the labels that a clusterer gives, sorted."""

    gate: ClustererGate

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> AnyArray:
        return np.unique(np.concatenate([np.unique(self.gate._assign(x)) for x, _ in chunks]))

    def merge(self, first: AnyArray, second: AnyArray) -> AnyArray:
        return np.union1d(first, second)

"""From the arguments ``gating``, ``partition`` and ``n_components`` to a gate."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from prismgp._system import available_bytes, format_bytes
from prismgp._types import AnyArray, Array, Tensor
from prismgp._validate import check_choice, check_number
from prismgp.core.features import GATINGS, Gating
from prismgp.core.gating import ClusterMoments, Gate, RuleGate
from prismgp.core.statistics import Statistics
from prismgp.data import Chunks, Source, Standardiser
from prismgp.estimators._clusterers import ClustererGate, check_clusterer, converted, probabilities, thawed
from prismgp.exceptions import DataError, PrismGPWarning, TooLargeError
from prismgp.model.start import to_tensors

__all__ = ["check_gating", "check_memory", "connected_parts", "fit_gate", "gating_status", "given_labels"]

_FOUND_ROWS = 20_000  # rows on which clusters are found
_PASS_ROWS = 65_536
_CPU = torch.device("cpu")


def connected_parts(gating: Gating, source: Source, chunks: Callable[[Source], Chunks]) -> Sequence[Source]:
    """Independent rows: those of each cluster under hard gates, by their labels or else by the rule."""
    if gating.gate is None or gating.kind == "soft":
        return [source]
    labels = source.labels
    if labels is None:
        labels = chunks(source).reduce(_Labels(gating.gate))
    return source.split(labels, gating.gate.n_clusters)


def gating_status(gating: Gating, stats: Sequence[Statistics]) -> dict[str, Any]:
    """For ``fit_status_``."""
    if gating.gate is None:
        return {}
    rows = {"rows": [block.n for block in stats]} if gating.kind == "hard" else {}
    return {"gating": {**gating.about, **rows}}


@dataclass(frozen=True)
class _Labels:
    """A pass: the cluster of each row, (n,), int32."""

    gate: Gate

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> AnyArray:
        found = [self.gate.labels(x).cpu().numpy().astype(np.int32) for x, _ in chunks]
        return np.concatenate([np.empty(0, dtype=np.int32), *found])

    def merge(self, first: AnyArray, second: AnyArray) -> AnyArray:
        return np.concatenate([first, second])


def check_gating(name: str, gating: Any, partition: Any, n_components: Any) -> None:
    """Of the arguments, what can be said without the rows."""
    check_choice(name, "gating", gating, GATINGS)
    check_number(name, "n_components", n_components, low=1, integer=True)
    if partition is not None and gating == "none":
        raise DataError(
            f'{name}: partition is given, but gating="none" makes no use of it; '
            'set gating="hard" or gating="soft", or leave partition out'
        )


def given_labels(partition: Any, n: int, d: int) -> AnyArray | None:
    """Labels of the training rows, numbered from 0 without gaps, (n,); None where none are given."""
    if partition is None:
        return None
    if hasattr(partition, "predict"):
        check_clusterer(thawed(partition), d)
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
        raise DataError(f"partition holds {values[0]!r}, which is no integer; {remedy}")
    bad = ~(np.isfinite(values) & (values >= 0) & (values == np.floor(values)))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise DataError(
            f"partition holds {values[row]!r} at row {row} (counting from 0); labels are integers from 0 on: "
            "give rows without a cluster a label of their own"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def check_memory(gating: Gating, p: int, q: int) -> None:
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


def fit_gate(
    kind: str,
    partition: Any,
    n_components: int,
    source: Source,
    standardiser: Standardiser,
    lengthscale: Array,
    *,
    dtype: torch.dtype,
    rng: np.random.Generator,
) -> Gating:
    """The gate that the arguments ask for.

    Parameters
    ----------
    kind : {"none", "hard", "soft"}
    partition : None, labels or fitted clusterer
        Labels are taken from the source.
    lengthscale : ndarray, (d,)
        Distances between rows are measured in these; only their ratios matter.
    dtype : torch.dtype
        Of the model's rows.
    """
    if kind == "none":
        return Gating()
    rows = _Rows(source, standardiser, dtype)
    relative = torch.as_tensor(lengthscale / lengthscale.min())
    gate: Gate
    if source.labels is not None:
        gate, status = _of_labels(kind, rows, source.labels, relative)
    elif partition is None:
        gate, status = _found(kind, n_components, source, standardiser, relative, rng)
    else:
        gate, status = _of_clusterer(kind, thawed(partition), standardiser, rows, relative)
    return Gating(gate, {"kind": kind, "clusters": gate.n_clusters, **status})


class _Rows:
    """Standardised rows on the CPU, where sums have one order."""

    def __init__(self, source: Source, standardiser: Standardiser, dtype: torch.dtype) -> None:
        self.chunks = Chunks(source, standardiser, rows=_PASS_ROWS, dtype=dtype, device=_CPU)

    def labelled(self, labels: AnyArray) -> Callable[[], Iterator[tuple[Tensor, Tensor]]]:
        """Passes over rows with their labels."""

        def pairs() -> Iterator[tuple[Tensor, Tensor]]:
            start = 0
            for x, _ in self.chunks:
                yield x, torch.as_tensor(labels[start : start + len(x)])
                start += len(x)

        return pairs


def _rule(
    kind: str, pairs: Callable[[], Iterator[tuple[Tensor, Tensor]]], n_clusters: int, relative: Tensor
) -> RuleGate:
    moments = ClusterMoments.of(pairs, n_clusters, len(relative))
    return moments.nearest_mean(relative) if kind == "hard" else moments.mixture(relative)


def _of_labels(kind: str, rows: _Rows, labels: AnyArray, relative: Tensor) -> tuple[RuleGate, dict[str, Any]]:
    """A rule for new rows; the training rows keep their labels under hard gates."""
    pairs = rows.labelled(labels)
    gate = _rule(kind, pairs, int(labels.max()) + 1, relative)
    differ = gate.disagreement(pairs())
    if differ and kind == "hard":
        warnings.warn(
            f"{differ:,} of {len(labels):,} training rows are nearer to the mean of another cluster than to that "
            "of their own: the fit uses the labels as given, predictions at such rows the nearest cluster",
            PrismGPWarning,
            stacklevel=7,
        )
    return gate, {"partition": "labels", "rows_nearer_to_another_cluster": differ}


def _of_clusterer(
    kind: str, clusterer: Any, standardiser: Standardiser, rows: _Rows, relative: Tensor
) -> tuple[Gate, dict[str, Any]]:
    status = {"partition": type(clusterer).__name__}
    rule = converted(clusterer, kind, standardiser)
    if rule is not None:
        return rule, status
    clusterer = copy.deepcopy(clusterer)  # it may be fitted to something else later
    if kind == "soft" and probabilities(clusterer) is not None:
        return ClustererGate.soft(clusterer, standardiser, rows.chunks), status
    gate = ClustererGate.hard(clusterer, standardiser, rows.chunks)
    if kind == "hard":
        return gate, status
    # Without probabilities of its own, it is as good as the labels it gives; every one of them has a row.
    if rows.chunks.source.distributed:
        raise DataError(
            f"partition: {type(clusterer).__name__} has no probabilities; soft gates need labels of single rows then, "
            'which cannot be used with rows on a cluster; use gating="hard", a mixture, or partition=None'
        )
    labels = np.concatenate([gate.labels(x).numpy() for x, _ in rows.chunks])
    return _rule(kind, rows.labelled(labels), int(labels.max()) + 1, relative), status


def _found(
    kind: str,
    n_components: int,
    source: Source,
    standardiser: Standardiser,
    relative: Tensor,
    rng: np.random.Generator,
) -> tuple[RuleGate, dict[str, Any]]:
    """Clusters by k-means on a subsample, with inputs in length-scales."""
    from sklearn.cluster import KMeans  # takes memory and time to load; predictions do not need it

    sample = source if source.n_rows <= _FOUND_ROWS else source.subsamples([_FOUND_ROWS], rng)[0]
    x, _ = to_tensors(sample, standardiser, _CPU)
    clusterer = KMeans(min(n_components, len(x)), n_init=3, random_state=int(rng.integers(2**31 - 1)))
    # Sums of several threads have no fixed order. The warning is about rows that coincide, dealt with below.
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = clusterer.fit_predict((x / relative).numpy())
    labels = torch.as_tensor(np.unique(labels, return_inverse=True)[1])
    gate = _rule(kind, lambda: iter([(x, labels)]), int(labels.max()) + 1, relative)
    status = {"partition": "k-means"}
    if gate.n_clusters < n_components:
        status["message"] = f"{gate.n_clusters} of {n_components} clusters: there are no more distinct rows"
    return gate, status

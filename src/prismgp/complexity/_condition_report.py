"""The answer of ``check_conditions``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prismgp._types import AnyArray, Array
from prismgp.complexity._text import number, plain, table

__all__ = ["ClusterRow", "ConditionCheck", "ConditionReport"]

_SHOWN = 24  # clusters in the printed report


@dataclass(frozen=True)
class ConditionCheck:
    """One condition: what was measured in the worst place, its limit, and the margin, at least 1 where it holds."""

    name: str
    measured: float
    limit: float
    margin: float
    holds: bool
    meaning: str


@dataclass(frozen=True)
class ClusterRow:
    """One cluster, numbered by size from 1; distances in length-scales.

    ``width`` is the printed one, in the printed metric; ``spread`` the root mean square of the scaled squared
    distances of its pairs; ``nearest`` the distance to the nearest centre and ``gap`` that to the nearest cluster's
    ball.
    """

    index: int
    size: int
    expected_size: float
    width: float
    width_limit: float
    spread: float
    spread_limit: float
    nearest: float
    gap: float


@dataclass(frozen=True, repr=False)
class ConditionReport:
    """How far Conditions 1 to 3 hold.

    Attributes
    ----------
    n, d, n_clusters : int
    bound : float
        Target for ``|K - K'|``, in units of the signal variance.
    partition_found : bool
        Whether the partition was found here, by k-means.
    lengthscale : ndarray, (d,)
    printed, corrected : tuple of ConditionCheck
        The conditions of the paper, as printed and as corrected.
    sufficient : tuple of ConditionCheck
        What the corrected theorem uses of them (S17).
    clusters : tuple of ClusterRow
    box : tuple of two ndarrays (d,), or None
        Length-scales between the two, elementwise, satisfy what the corrected theorem uses; None: there are none.
    box_factors : tuple of two floats, or None
        The same as factors on the given length-scales.
    printed_factor : float
        Printed widths and separation hold up to this factor on the length-scales.
    labels : ndarray of int, (n,)
        The partition.
    """

    n: int
    d: int
    bound: float
    n_clusters: int
    partition_found: bool
    lengthscale: Array
    printed: tuple[ConditionCheck, ...]
    corrected: tuple[ConditionCheck, ...]
    sufficient: tuple[ConditionCheck, ...]
    clusters: tuple[ClusterRow, ...]
    box: tuple[Array, Array] | None
    box_factors: tuple[float, float] | None
    printed_factor: float
    labels: AnyArray

    @property
    def holds(self) -> bool:
        """Whether the corrected theorem applies (S17)."""
        return all(check.holds for check in self.sufficient)

    @property
    def holds_printed(self) -> bool:
        """Whether the conditions hold as printed. Theorem 2 as printed is false even then."""
        return all(check.holds for check in self.printed)

    @property
    def conclusion(self) -> str:
        """One plain sentence."""
        if self.holds:
            low, high = self.box_factors or (1.0, 1.0)
            until = "" if np.isinf(high) else f" and at most {number(high)}"
            return (
                "The corrected Theorem 2 applies to the cluster-masked kernel matrix, for length-scales at least "
                f"{number(low)}{until} times the given ones."
            )
        failing = min(self.sufficient, key=lambda check: check.margin)
        measured, limit = number(failing.measured), number(failing.limit)
        text = f"The corrected Theorem 2 does not apply: {failing.name} is {measured}, above {limit}"
        if self.box_factors is None:
            return f"{text}, and no common factor on the length-scales makes it apply to this partition."
        low, high = self.box_factors
        where = f"from {number(low)}" if np.isinf(high) else f"between {number(low)} and {number(high)}"
        return f"{text}; it would for length-scales {where} times the given ones."

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the labels."""
        found: dict[str, Any] = {
            "n": self.n,
            "d": self.d,
            "bound": self.bound,
            "n_clusters": self.n_clusters,
            "partition_found": self.partition_found,
            "holds": self.holds,
            "holds_printed": self.holds_printed,
            "conclusion": self.conclusion,
            "lengthscale": self.lengthscale,
            "box": self.box,
            "box_factors": self.box_factors,
            "printed_factor": self.printed_factor,
        }
        for name in ("printed", "corrected", "sufficient", "clusters"):
            found[name] = [asdict(item) for item in getattr(self, name)]
        return {key: plain(value) for key, value in found.items()}

    def __repr__(self) -> str:
        how = "found by k-means" if self.partition_found else "as given"
        partition = f"{self.n_clusters} clusters, {how}"
        head = f"Conditions 1-3 for {self.n} rows, {self.d} inputs, bound {self.bound:g}; {partition}"
        rows = [
            [
                f"{kind}: {c.name}",
                number(c.measured),
                number(c.limit),
                number(c.margin),
                "yes" if c.holds else "NO",
                c.meaning,
            ]
            for kind, checks in (("printed", self.printed), ("corrected", self.corrected), ("needed", self.sufficient))
            for c in checks
        ]
        shown = [
            [
                str(c.index),
                str(c.size),
                number(c.expected_size),
                number(c.spread),
                number(c.spread_limit),
                number(c.nearest),
                number(c.gap),
            ]
            for c in self.clusters[-_SHOWN:]
        ]
        columns = ["cluster", "size", "2^(i/2)", "rms s", "U(i)/2", "nearest centre", "gap"]
        more = [] if len(self.clusters) <= _SHOWN else [f"  ({len(self.clusters) - _SHOWN} smaller clusters not shown)"]
        return "\n".join(
            [
                head,
                table(["condition", "measured", "limit", "margin", "holds", "meaning"], rows),
                table(columns, shown),
                *more,
                self.conclusion,
            ]
        )

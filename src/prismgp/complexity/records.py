"""The results of ``sample_size`` and ``check_conditions``: records, as plain data and as text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from prismgp._system import to_plain
from prismgp._types import AnyArray, Array
from prismgp.complexity.formulas import least_delta
from prismgp.exceptions import DataError

_SHOWN = 24  # clusters in the printed report


@dataclass(frozen=True)
class SampleBound:
    """A number of frequencies, and what is known about it.

    Attributes
    ----------
    name : str
    formula : str
        Tag of the equation, in the documentation and in the code.
    p : int or None
        A sufficient number of frequencies; None where the bound does not hold.
    estimator : {"masked", "plain"}
        Which approximate kernel matrix: with the entries between clusters set to zero, or with all estimated.
    statement : str
        What the p frequencies achieve.
    parameters : str
        For which length-scales.
    kernel : str
        For which kernels the formula is proved.
    frequencies : str
        For which frequencies.
    probability : float
        Of the statement, at least.
    assumptions : tuple of str
        What is assumed; everything else was checked.
    holds : bool
        Whether the statement is proved for what was passed. Always False for the printed formula.
    reason : str
        Why it does not hold; empty where it does.
    """

    name: str
    formula: str
    p: int | None
    estimator: str
    statement: str
    parameters: str
    kernel: str
    frequencies: str
    probability: float
    assumptions: tuple[str, ...]
    holds: bool
    reason: str = ""

    def __int__(self) -> int:
        if self.p is None or not self.holds:
            raise DataError(f"{self.name} gives no guaranteed number of frequencies: {self.reason}")
        return self.p

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dict(to_plain(asdict(self)))


@dataclass(frozen=True, repr=False)
class SampleSizes:
    """How many frequencies bring ``|K - K'|`` under a bound, by every formula that applies.

    Attributes
    ----------
    bound, delta : float
        The target: ``|K - K'| <= bound`` with probability at least ``1 - delta``; the bound in units of the signal
        variance.
    n, n_clusters : int
    n_draws : int
        Draws of the frequencies among which the data may choose; delta is divided by it.
    kernel, frequencies : str
    inputs : dict
        What the formulas took: sizes, sums and norms, and how they were found.
    bounds : tuple of SampleBound
        For one set of length-scales, or any one in a box: those of the masked and of the plain kernel matrix.
    simultaneous : tuple of SampleBound
        For all length-scales of a set at once.
    printed : SampleBound
        The paper's number. It is no guarantee.
    corrected : SampleBound
        The smallest number that is proved for the masked kernel matrix.
    plain : SampleBound
        The smallest number that is proved for the plain kernel matrix.
    relative : SampleBound or None
        For a relative error, where the noise variance was passed.
    labels : ndarray of int, (n,), or None
        The partition behind ``corrected``.
    """

    bound: float
    delta: float
    n: int
    n_clusters: int
    n_draws: int
    kernel: str
    frequencies: str
    inputs: dict[str, Any]
    bounds: tuple[SampleBound, ...]
    simultaneous: tuple[SampleBound, ...]
    printed: SampleBound
    corrected: SampleBound
    plain: SampleBound
    relative: SampleBound | None
    labels: AnyArray | None

    @property
    def holds(self) -> bool:
        """Whether any number is proved, for either kernel matrix."""
        return self.corrected.holds or self.plain.holds

    @property
    def best(self) -> SampleBound:
        """The smaller of ``corrected`` and ``plain``; ``plain`` where they are equal, since it needs no mask."""
        both = [found for found in (self.plain, self.corrected) if found.p is not None]
        return min(both, key=lambda found: found.p or 0) if both else self.corrected

    @property
    def why(self) -> str:
        """One sentence: which number to take, and why."""
        best = self.best
        if not best.holds:
            return f"No number of frequencies is proved: {best.reason}."
        others = [f for f in self.bounds if f.holds and f.estimator == best.estimator]
        source = " assuming Conditions 1-3 as corrected" if self.inputs["source"] == "assumed" else ""
        noun = "frequency brings" if best.p == 1 else "frequencies bring"
        return (
            f"{best.p} {noun} the {best.estimator} kernel matrix within {self.bound:g} of the exact one with "
            f"probability {1.0 - self.delta:g}, for {best.parameters}{source}: {best.name} is the smallest of "
            f"{len(others)} proved numbers."
            + (" An exact GP is cheaper than so many." if 2 * int(best) >= self.n else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the labels."""
        found = asdict(self) | {"holds": self.holds, "why": self.why}
        del found["labels"]
        return dict(to_plain(found))

    def __repr__(self) -> str:
        draws = "" if self.n_draws == 1 else f", the best of {self.n_draws} draws may be used"
        head = (
            f"Frequencies for |K - K'| <= {self.bound:g} with probability {1.0 - self.delta:g}{draws}\n"
            f"{self.n} rows, {self.n_clusters} clusters, kernel {self.kernel}, frequencies {self.frequencies}; "
            f"inputs {self.inputs['source']}, off-cluster norm {_number(self.inputs['tau_out'])}"
        )
        records = [*self.bounds, *self.simultaneous, *([self.relative] if self.relative else [])]
        rows = []
        for r in (*records, self.printed):
            number, proved = "-" if r.p is None else str(r.p), r.parameters if r.holds else f"no: {r.reason}"
            rows.append([f"{r.name} ({r.formula})", r.estimator, number, proved])
        return "\n".join([head, _table(["bound", "matrix", "p", "proved for"], rows), self.why])


@dataclass(frozen=True)
class ConditionCheck:
    """One condition: the measured value in the worst place, its limit, and the margin, at least 1 where it holds."""

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
    def least_delta(self) -> float:
        """The delta from which on the printed Theorem 2 is stated, ``exp(b - sqrt d)``; above 1 it is empty."""
        return least_delta(self.n_clusters, self.d)

    @property
    def conclusion(self) -> str:
        """One plain sentence."""
        if self.holds:
            low, high = self.box_factors or (1.0, 1.0)
            until = "" if np.isinf(high) else f" and at most {_number(high)}"
            return (
                "The corrected Theorem 2 applies to the cluster-masked kernel matrix, for length-scales at least "
                f"{_number(low)}{until} times the given ones."
            )
        failing = min(self.sufficient, key=lambda check: check.margin)
        measured, limit = _number(failing.measured), _number(failing.limit)
        text = f"The corrected Theorem 2 does not apply: {failing.name} is {measured}, above {limit}"
        if self.box_factors is None:
            return f"{text}, and no common factor on the length-scales makes it apply to this partition."
        low, high = self.box_factors
        where = f"from {_number(low)}" if np.isinf(high) else f"between {_number(low)} and {_number(high)}"
        return f"{text}; it would for length-scales {where} times the given ones."

    def to_dict(self) -> dict[str, Any]:
        """As plain data, without the labels."""
        found = asdict(self)
        del found["labels"]
        names = ("holds", "holds_printed", "least_delta", "conclusion")
        found |= {name: getattr(self, name) for name in names}
        return dict(to_plain(found))

    def __repr__(self) -> str:
        partition = f"{self.n_clusters} clusters, {'found by k-means' if self.partition_found else 'as given'}"
        head = f"Conditions 1-3 for {self.n} rows, {self.d} inputs, bound {self.bound:g}; {partition}"
        rows = [
            [f"{kind}: {c.name}", *map(_number, (c.measured, c.limit, c.margin)), "yes" if c.holds else "NO", c.meaning]
            for kind, checks in (("printed", self.printed), ("corrected", self.corrected), ("needed", self.sufficient))
            for c in checks
        ]
        checks = _table(["condition", "measured", "limit", "margin", "holds", "meaning"], rows)
        shown = [
            [str(c.index), str(c.size), *map(_number, (c.expected_size, c.spread, c.spread_limit, c.nearest, c.gap))]
            for c in self.clusters[-_SHOWN:]
        ]
        clusters = _table(["cluster", "size", "2^(i/2)", "rms s", "U(i)/2", "nearest centre", "gap"], shown)
        more = [] if len(self.clusters) <= _SHOWN else [f"  ({len(self.clusters) - _SHOWN} smaller clusters not shown)"]
        return "\n".join([head, checks, clusters, *more, f"{describe_delta(self.least_delta)}.", self.conclusion])


def describe_delta(least: float) -> str:
    """The condition of the printed Theorem 2 on delta, of which ``least`` is the limit (``formulas.least_delta``)."""
    empty = ", so it is empty" if least > 1.0 else ""
    return f"The printed Theorem 2 also needs delta >= exp(b - sqrt d) = {_number(least)}{empty}"


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as their longest cell; the first is aligned to the left, numbers to the right."""
    columns = []
    for j, cells in enumerate(zip(header, *rows, strict=True)):
        width = max(map(len, cells))
        numeric = j > 0 and all(cell[:1] in "-.0123456789i" for cell in cells[1:])
        columns.append([cell.rjust(width) if numeric else cell.ljust(width) for cell in cells])
    return "\n".join(f"  {'  '.join(line)}".rstrip() for line in zip(*columns, strict=True))


def _number(value: float | None) -> str:
    """Four digits, or a dash where there is no number."""
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"

"""The answers of ``sample_size``: one record for each bound, and all of them together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from prismgp._types import AnyArray
from prismgp.complexity._text import number, plain, table
from prismgp.exceptions import DataError

__all__ = ["SampleBound", "SampleSizes"]


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
        What is taken for granted. Everything else was checked.
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
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


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
        What the formulas were fed with: sizes, sums and norms, and how they were found.
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
        found = {
            field.name: plain(getattr(self, field.name))
            for field in fields(self)
            if field.type in ("float", "int", "str")
        }
        found |= {"holds": self.holds, "why": self.why, "inputs": plain(self.inputs)}
        for name in ("printed", "corrected", "plain", "relative"):
            record = getattr(self, name)
            found[name] = None if record is None else record.to_dict()
        found["bounds"] = [record.to_dict() for record in self.bounds]
        found["simultaneous"] = [record.to_dict() for record in self.simultaneous]
        return found

    def __repr__(self) -> str:
        draws = "" if self.n_draws == 1 else f", the best of {self.n_draws} draws may be used"
        head = (
            f"Frequencies for |K - K'| <= {self.bound:g} with probability {1.0 - self.delta:g}{draws}\n"
            f"{self.n} rows, {self.n_clusters} clusters, kernel {self.kernel}, frequencies {self.frequencies}; "
            f"inputs {self.inputs['source']}, off-cluster norm {number(self.inputs['tau_out'])}"
        )
        records = [*self.bounds, *self.simultaneous, *([self.relative] if self.relative else [])]
        rows = [
            [f"{r.name} ({r.formula})", r.estimator, number_of(r), r.parameters if r.holds else "no: " + r.reason]
            for r in records
        ]
        rows.append(
            [
                f"{self.printed.name} ({self.printed.formula})",
                "plain",
                number_of(self.printed),
                "no: " + self.printed.reason,
            ]
        )
        return "\n".join([head, table(["bound", "matrix", "p", "proved for"], rows), self.why])


def number_of(record: SampleBound) -> str:
    """p, or a dash."""
    return "-" if record.p is None else str(record.p)

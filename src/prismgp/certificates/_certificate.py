"""Certificate: intervals that contain what the exact GP would have said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prismgp._types import AnyArray
from prismgp.certificates._interval import Interval

__all__ = ["Certificate"]

_INTERVALS = ("kernel_error", "kernel_error_frobenius", "log_evidence", "mean", "variance")


@dataclass(frozen=True, repr=False)
class Certificate:
    """What is proved about a fitted model, against the exact GP it approximates.

    All values are in the data's units but for the kernel errors, which are for a kernel of variance one.

    Attributes
    ----------
    name : str
        The model, or the member of an ensemble.
    statement : str
        Which exact GP the intervals are about.
    kernel_error, kernel_error_frobenius : Interval or None
        Norms of ``K - K'`` on the training rows; None where not asked for, and for an ensemble, whose members have
        their own.
    log_evidence : Interval or None
        Of the exact GP at the model's parameters, summed over outputs; None as above.
    mean, variance : Interval or None
        Of the function at the rows of ``X_test``, (m,) or (m, q).
    noise_variance : ndarray or None
        At those rows, as the model has it; it is the same for both.
    probability : float
        With which all intervals hold together.
    holds : bool
        False where an assumption fails; the intervals then say nothing.
    reason : str
        Why it does not hold.
    assumptions : tuple of str
    spent : dict
        Rank, products with the kernel matrix, seconds.
    members : tuple of Certificate
        Of an ensemble.
    paper_bounds : dict
        The paper's own quantities, with whether they are valid.
    """

    name: str
    statement: str
    rows: int
    kernel_error: Interval | None
    kernel_error_frobenius: Interval | None
    log_evidence: Interval | None
    mean: Interval | None
    variance: Interval | None
    noise_variance: AnyArray | None
    probability: float
    holds: bool
    reason: str
    assumptions: tuple[str, ...]
    spent: dict[str, Any]
    members: tuple[Certificate, ...] = ()
    paper_bounds: dict[str, Any] = field(default_factory=dict)

    @property
    def std(self) -> Interval | None:
        """Standard deviation of an observation at the rows of ``X_test``, noise included."""
        if self.variance is None or self.noise_variance is None:
            return None

        def root(interval: Interval) -> Interval:
            lower, upper, ours = (
                np.sqrt(np.asarray(each) + self.noise_variance)
                for each in (interval.lower, interval.upper, interval.ours)
            )
            certain = None if interval.certain is None else root(interval.certain)
            return Interval(lower, upper, interval.probability, interval.method, ours, certain)

        return root(self.variance)

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, lists and text; intervals without a finite end have null there."""
        out: dict[str, Any] = {
            "name": self.name,
            "statement": self.statement,
            "rows": self.rows,
            "holds": self.holds,
            "reason": self.reason,
            "probability": self.probability,
            "assumptions": list(self.assumptions),
            "spent": self.spent,
        }
        for name in _INTERVALS:
            value = getattr(self, name)
            out[name] = None if value is None else value.to_dict()
        out["noise_variance"] = None if self.noise_variance is None else np.asarray(self.noise_variance).tolist()
        out["paper_bounds"] = self.paper_bounds
        out["members"] = [member.to_dict() for member in self.members]
        return out

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """What `to_dict` gave, also after a way through JSON; further keys are left aside."""
        noise = values.get("noise_variance")
        intervals = {
            name: None if values.get(name) is None else Interval.from_dict(values[name]) for name in _INTERVALS
        }
        return cls(
            name=str(values["name"]),
            statement=str(values["statement"]),
            rows=int(values["rows"]),
            noise_variance=None if noise is None else np.asarray(noise, dtype=float),
            probability=float(values["probability"]),
            holds=bool(values["holds"]),
            reason=str(values["reason"]),
            assumptions=tuple(str(each) for each in values["assumptions"]),
            spent=dict(values["spent"]),
            members=tuple(cls.from_dict(each) for each in values.get("members", ())),
            paper_bounds=dict(values.get("paper_bounds", {})),
            **intervals,
        )

    def summary(self) -> list[tuple[str, str]]:
        """What people want to know, as pairs of a subject and a sentence."""
        lines = [("compared with", self.statement)]
        if not self.holds:
            return [*lines, ("does not hold", self.reason)]
        lines += self._predictions()
        if self.log_evidence is not None:
            found = self.log_evidence
            text = f"the exact one is in [{found.lower:.6g}, {found.upper:.6g}], ours is {found.ours:.6g} "
            lines.append(("log evidence", f"{text}(known to {found.width / self.rows:.2g} per row{_odds(found)})"))
        if self.kernel_error is not None:
            found = self.kernel_error
            text = f"|K - K'| is in [{found.lower:.4g}, {found.upper:.4g}] for {self.rows:,} rows{_odds(found)}"
            lines.append(("kernel matrix", text))
        if self.kernel_error_frobenius is not None:
            found = self.kernel_error_frobenius
            text = f"root mean square error {found.upper / self.rows:.3g} at most; Frobenius norm in "
            lines.append(("kernel entries", f"{text}[{found.lower:.4g}, {found.upper:.4g}]{_odds(found)}"))
        spent = self.spent
        text = (
            f"rank {spent['rank']:,}, {spent['products']:,} products with the kernel matrix, {spent['seconds']:.1f} s"
        )
        lines.append(("effort", text))
        odds = f"all of it together with probability {self.probability:.3g}"
        return [*lines, ("holds", "no randomness" if self.probability == 1.0 else odds)]

    def _predictions(self) -> list[tuple[str, str]]:
        lines = []
        for what, found in (("mean", self.mean), ("std", self.std)):
            if found is None or self.noise_variance is None:
                continue
            most, noise = found.difference, np.sqrt(self.noise_variance)
            # The two need not be reached at the same point, where the noise differs between points.
            largest, share = float(np.max(most)), float(np.max(most / noise))
            subject = f"predicted {what}"
            if not np.isfinite(share):
                lines.append((subject, "nothing is known; more rank or products are needed"))
                continue
            text = (
                f"the exact GP's {what} is within {largest:.3g} of ours, {_percent(share)} the noise std, at "
                f"{_every(len(most))}{_odds(found)}; the largest difference is at least "
                f"{np.max(found.difference_at_least):.3g}"
            )
            lines.append((subject, text))
        return lines

    def __repr__(self) -> str:
        lines = self.summary()
        width = max(len(subject) for subject, _ in lines)
        text = [f"Certificate of {self.name}", *(f"  {subject:<{width}}  {text}" for subject, text in lines)]
        for member in self.members:
            text += [f"  {line}" for line in repr(member).splitlines()]
        return "\n".join(text)


def _odds(found: Interval) -> str:
    return "" if found.probability == 1.0 else f", with probability {found.probability:.4g}"


def _every(points: int) -> str:
    return f"every one of {points:,} test points" if points > 1 else "the test point"


def _percent(share: float) -> str:
    return f"{100 * share:.2g}% of" if share < 0.995 else f"{share:.3g} times"

"""Intervals that contain the values of the exact GP, and certificates made of them, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np

from prismgp._system import format_amount, to_plain
from prismgp._types import AnyArray

MEMBER_HEADER = ("mean within", "std within", "log evidence within", "|K - K'| at most")
_INTERVALS = ("kernel_error", "kernel_error_frobenius", "log_evidence", "mean", "variance")


@dataclass(frozen=True)
class Interval:
    """Lower and upper bounds of a value of the exact GP.

    Attributes
    ----------
    lower, upper : float or ndarray
    probability : float
        That it contains the value; 1 for bounds without randomness. For an array, that it does so in all places.
    method : str
        How it was found.
    ours : float, ndarray or None
        The model's own value, where it has one.
    certain : Interval or None
        The bounds without randomness, where these are better and random.
    """

    lower: Any
    upper: Any
    probability: float
    method: str
    ours: Any = None
    certain: Interval | None = None

    @classmethod
    def unknown(cls, ours: Any = None, *, least: float = -math.inf) -> Interval:
        """Return the interval of all values from ``least`` up, of the shape of ``ours``: nothing is known."""
        if np.ndim(ours) == 0:
            return cls(least, math.inf, 1.0, "none", ours)
        return cls(np.full_like(ours, least), np.full_like(ours, math.inf), 1.0, "none", ours)

    @property
    def width(self) -> Any:
        return self.upper - self.lower

    @property
    def difference(self) -> Any:
        """Upper bound of the distance between the model's value and the exact one; None if the model has no value."""
        if self.ours is None:
            return None
        return np.maximum(np.abs(self.upper - self.ours), np.abs(self.ours - self.lower))

    @property
    def difference_at_least(self) -> Any:
        """Lower bound of the distance between the model's value and the exact one; None as for :attr:`difference`."""
        if self.ours is None:
            return None
        return np.maximum(np.maximum(self.lower - self.ours, self.ours - self.upper), 0.0)

    @property
    def finite(self) -> bool:
        """Whether all ends are finite."""
        return bool(np.all(np.isfinite(self.lower)) and np.all(np.isfinite(self.upper)))

    @property
    def ordered(self) -> bool:
        return bool(np.all(np.asarray(self.lower) <= np.asarray(self.upper)))

    def contains(self, value: Any) -> Any:
        """Whether the value is inside, elementwise."""
        return (np.asarray(self.lower) <= value) & (value <= np.asarray(self.upper))

    def within(self, other: Interval, *, method: str) -> Interval:
        """The intersection with a certain interval, which becomes :attr:`certain`; with the probability of this one."""
        return Interval(
            np.maximum(self.lower, other.lower),
            np.minimum(self.upper, other.upper),
            self.probability,
            method,
            self.ours if self.ours is not None else other.ours,
            other,
        )

    def map(self, function: Callable[[Any], Any]) -> Interval:
        """Apply an increasing function, or one that only reshapes, to all values."""
        return replace(
            self,
            lower=function(self.lower),
            upper=function(self.upper),
            ours=None if self.ours is None else function(self.ours),
            certain=None if self.certain is None else self.certain.map(function),
        )

    def to_dict(self) -> dict[str, Any]:
        """Numbers, lists and text only."""
        ends = {"lower": np.asarray(self.lower, dtype=float), "upper": np.asarray(self.upper, dtype=float)}
        out: dict[str, Any] = {**to_plain(ends), "probability": self.probability, "method": self.method}
        if self.ours is not None:
            out["ours"] = to_plain(np.asarray(self.ours, dtype=float))
        if self.certain is not None:
            out["certain"] = self.certain.to_dict()
        return out

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Interval:
        """The interval of which `to_dict` was stored; an end that is null is infinite, as it says nothing."""
        certain = values.get("certain")
        return cls(
            _from_plain(values["lower"], -np.inf),
            _from_plain(values["upper"], np.inf),
            float(values["probability"]),
            str(values["method"]),
            _from_plain(values["ours"], np.nan) if "ours" in values else None,
            None if certain is None else cls.from_dict(certain),
        )


def _from_plain(value: Any, missing: float) -> Any:
    array = np.asarray(value, dtype=float)  # null becomes NaN
    array = np.where(np.isnan(array), missing, array)
    return float(array) if array.ndim == 0 else array


@dataclass(frozen=True, repr=False)
class Certificate:
    """What is proved about a fitted model, compared with the exact GP it approximates.

    All values are in the data's units except the kernel errors, which are for a kernel of variance one.

    Attributes
    ----------
    name : str
        The model, or the member of an ensemble.
    statement : str
        Which exact GP the intervals are about.
    rows : int
        Number of training rows.
    kernel_error, kernel_error_frobenius : Interval or None
        Norms of ``K - K'`` on the training rows; None where not asked for, and for an ensemble, whose members have
        their own.
    log_evidence : Interval or None
        Of the exact GP at the model's parameters, summed over outputs; None as above.
    mean, variance : Interval or None
        Of the function at the rows of ``X_test``, (m,) or (m, q).
    noise_variance : ndarray or None
        At those rows, as the model has it; the exact GP has the same.
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
        noise = self.noise_variance
        if self.variance is None or noise is None:
            return None
        return self.variance.map(lambda variance: np.sqrt(np.asarray(variance) + noise))

    def of_output(self, output: int) -> Certificate:
        """The certificate with the predictions of one of several outputs, (m,)."""
        if self.noise_variance is None or np.ndim(self.noise_variance) == 1:
            return self
        mean, variance = (each and each.map(lambda values: values[:, output]) for each in (self.mean, self.variance))
        noise = np.asarray(self.noise_variance)[:, output]
        members = tuple(each.of_output(output) for each in self.members)
        return replace(self, mean=mean, variance=variance, noise_variance=noise, members=members)

    def noise_shares(self, found: Interval, levels: Sequence[float]) -> list[float]:
        """Quantiles over all test points of the largest possible difference, in noise standard deviations."""
        shares = np.ravel(found.difference / np.sqrt(np.asarray(self.noise_variance)))
        return [float(np.quantile(shares, level, method="higher")) for level in levels]

    def to_dict(self) -> dict[str, Any]:
        """Everything as numbers, lists and text; intervals without a finite end have null there."""
        out = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in _INTERVALS:
            out[name] = out[name] and out[name].to_dict()
        if self.noise_variance is not None:
            out["noise_variance"] = np.asarray(self.noise_variance).tolist()
        return out | {"assumptions": list(self.assumptions), "members": [each.to_dict() for each in self.members]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Certificate:
        """The certificate of which `to_dict` was stored, in JSON for example; further keys are ignored."""
        known: dict[str, Any] = dict.fromkeys((*_INTERVALS, "noise_variance"))
        known |= {field.name: values[field.name] for field in fields(cls) if field.name in values}
        for name in _INTERVALS:
            known[name] = known[name] and Interval.from_dict(known[name])
        if known["noise_variance"] is not None:
            known["noise_variance"] = np.asarray(known["noise_variance"], dtype=float)
        members = tuple(cls.from_dict(each) for each in values.get("members", ()))
        return cls(**known | {"assumptions": tuple(values["assumptions"]), "members": members})

    def summary(self) -> list[tuple[str, str]]:
        """The certificate in words, as pairs of a subject and a sentence."""
        lines = [("compared with", self.statement)]
        if not self.holds:
            return [*lines, ("does not hold", self.reason)]
        lines += self._predictions()
        if self.log_evidence is not None:
            found = self.log_evidence
            text = f"the exact one is {_range(found, 6)}, ours is {found.ours:.6g} "
            lines.append(("log evidence", f"{text}(known to {found.width / self.rows:.2g} per row{_odds(found)})"))
        if self.kernel_error is not None:
            found = self.kernel_error
            text = f"|K - K'| is {_range(found, 4)} for {self.rows:,} rows{_odds(found)}"
            lines.append(("kernel matrix", text))
        if self.kernel_error_frobenius is not None:
            found = self.kernel_error_frobenius
            text = f"root mean square error {found.upper / self.rows:.3g} at most; Frobenius norm {_range(found, 4)}"
            lines.append(("kernel entries", f"{text}{_odds(found)}"))
        rank, products, seconds = (self.spent[name] for name in ("rank", "products", "seconds"))
        lines.append(("effort", f"rank {rank:,}, {products:,} products with the kernel matrix, {seconds:.1f} s"))
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
            if not math.isfinite(share):
                text = "nothing is known; more rank or products are needed"
            else:
                percent = f"{100 * share:.2g}% of" if share < 0.995 else f"{share:.3g} times"
                points = f"every one of {len(most):,} test points" if len(most) > 1 else "the test point"
                least = f"the largest difference is at least {_number(np.max(found.difference_at_least))}"
                text = f"the exact GP's {what} is within {_number(largest)} of ours, {percent} the noise std, at "
                text += f"{points}{_odds(found)}; {least}"
            lines.append((f"predicted {what}", text))
        return lines

    def _repr_html_(self) -> str:
        """The summary as a table, with the assumptions and the members folded up below."""
        style = files("prismgp.certificates").joinpath("certificate.css").read_text(encoding="utf-8")
        return f'<div class="prismgp-certificate"><style>{style}</style>{_body(self)}</div>'

    def __repr__(self) -> str:
        lines = self.summary()
        width = max(len(subject) for subject, _ in lines)
        text = [f"Certificate of {self.name}", *(f"  {subject:<{width}}  {text}" for subject, text in lines)]
        for member in self.members:
            text += [f"  {line}" for line in repr(member).splitlines()]
        return "\n".join(text)


def certificate_lines(certificate: Certificate) -> list[tuple[str, str]]:
    """The summary, and the typical difference of the means, for the command line and for reports.

    The worst of many points is seldom the one that matters.
    """
    lines = [(subject.capitalize(), text) for subject, text in certificate.summary()]
    if certificate.holds and certificate.mean is not None and certificate.noise_variance is not None:
        levels = (0.5, 0.95)
        shares = zip(certificate.noise_shares(certificate.mean, levels), levels, strict=True)
        parts = [f"{_number(100 * share)}% of the noise std at {level:.0%}" for share, level in shares]
        lines.insert(2, ("Typical mean", f"within {' and '.join(parts)} of the test points"))
    return lines


def member_rows(certificate: Certificate) -> list[tuple[str, list[str]]]:
    """For every member, its name and the cells below ``MEMBER_HEADER``."""
    rows = []
    for member in certificate.members:
        bounds = [None if each is None else each.difference for each in (member.mean, member.std, member.log_evidence)]
        bounds.append(None if member.kernel_error is None else member.kernel_error.upper)
        name = member.name.split(", ")[-1]
        cells = ["-" if each is None else _number(np.max(each)) for each in bounds]
        rows.append((name if member.holds else f"{name} (fails)", cells))
    return rows


def _odds(found: Interval) -> str:
    return "" if found.probability == 1.0 else f", with probability {found.probability:.4g}"


def _range(found: Interval, digits: int) -> str:
    """Format an interval; as one number if both ends look the same."""
    lower, upper = f"{found.lower:.{digits}g}", f"{found.upper:.{digits}g}"
    return lower if lower == upper else f"in [{lower}, {upper}]"


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "unknown"
    return format_amount(value) if abs(value) >= 1e3 else f"{value:.3g}"


# -- HTML, for notebooks: self-contained, every text escaped -----------------------------------------


def _body(certificate: Certificate) -> str:
    state = "holds" if certificate.holds else "does not hold"
    rows = "".join(
        f'<tr><th scope="row">{escape(subject)}</th><td>{escape(text)}</td></tr>'
        for subject, text in certificate.summary()
    )
    parts = [
        f"<p><strong>Certificate of {escape(certificate.name)}</strong> <span>{state}</span></p>",
        f"<table><tbody>{rows}</tbody></table>",
    ]
    if certificate.assumptions:
        items = "".join(f"<li>{escape(each)}</li>" for each in certificate.assumptions)
        parts.append(f"<details><summary>Assumptions</summary><ul>{items}</ul></details>")
    for member in certificate.members:
        parts.append(f"<details><summary>{escape(member.name)}</summary>{_body(member)}</details>")
    return "".join(parts)

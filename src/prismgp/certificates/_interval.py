"""An interval that contains a value, and why it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from prismgp._types import Array

__all__ = ["Interval"]


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

    @property
    def width(self) -> Any:
        return self.upper - self.lower

    @property
    def difference(self) -> Any:
        """How far the model's value is from the exact one at most; None where the model has no such value."""
        if self.ours is None:
            return None
        return np.maximum(np.abs(self.upper - self.ours), np.abs(self.ours - self.lower))

    @property
    def difference_at_least(self) -> Any:
        """How far the model's value is from the exact one at least."""
        if self.ours is None:
            return None
        return np.maximum(np.maximum(self.lower - self.ours, self.ours - self.upper), 0.0)

    @property
    def finite(self) -> bool:
        """Whether it says anything."""
        return bool(np.all(np.isfinite(self.lower)) and np.all(np.isfinite(self.upper)))

    @property
    def ordered(self) -> bool:
        return bool(np.all(np.asarray(self.lower) <= np.asarray(self.upper)))

    def contains(self, value: Any) -> Any:
        """Whether the value is inside, elementwise."""
        return (np.asarray(self.lower) <= value) & (value <= np.asarray(self.upper))

    def within(self, other: Interval, *, method: str) -> Interval:
        """Both together: this one's randomness is kept, and the other, which is certain, is remembered."""
        return Interval(
            np.maximum(self.lower, other.lower),
            np.minimum(self.upper, other.upper),
            self.probability,
            method,
            self.ours if self.ours is not None else other.ours,
            other,
        )

    def scaled(self, factor: Any, shift: Any = 0.0) -> Interval:
        """In other units; the factor is positive."""
        certain = None if self.certain is None else self.certain.scaled(factor, shift)
        ours = None if self.ours is None else self.ours * factor + shift
        return replace(
            self, lower=self.lower * factor + shift, upper=self.upper * factor + shift, ours=ours, certain=certain
        )

    def to_dict(self) -> dict[str, Any]:
        """Numbers, lists and text only."""
        out: dict[str, Any] = {
            "lower": _plain(self.lower),
            "upper": _plain(self.upper),
            "probability": self.probability,
            "method": self.method,
        }
        if self.ours is not None:
            out["ours"] = _plain(self.ours)
        if self.certain is not None:
            out["certain"] = self.certain.to_dict()
        return out

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Interval:
        """What `to_dict` gave; an end that is null is infinite, as it says nothing."""
        certain = values.get("certain")
        return cls(
            _ends(values["lower"], -np.inf),
            _ends(values["upper"], np.inf),
            float(values["probability"]),
            str(values["method"]),
            _ends(values["ours"], np.nan) if "ours" in values else None,
            None if certain is None else cls.from_dict(certain),
        )


def _ends(value: Any, missing: float) -> Any:
    array = np.asarray(value, dtype=float)  # null becomes NaN
    array = np.where(np.isnan(array), missing, array)
    return float(array) if array.ndim == 0 else array


def _plain(value: Any) -> Any:
    array: Array = np.asarray(value, dtype=float)
    # JSON knows no infinity; a bound that says nothing is null.
    out = array.astype(object)
    out[~np.isfinite(array)] = None
    return out.tolist()

"""How the columns of a table become inputs of a model, as learned from the rows of the fit.

A column comes as one number for each cell (:meth:`~prismgp.data.TableEncoder.read`): of a category its place in the
list of levels, -1 for an unknown one and the number of levels for a missing cell; else NaN for a missing cell. In
inputs, NaN says that a cell is missing, and infinity that training did not have its level: the model then averages over
the values that it may have. Where training had missing numbers too, there is also an indicator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from prismgp._types import AnyArray, Array
from prismgp.data.moments import shrink_effects, weighted_median
from prismgp.data.sources import MOMENT_ROWS, Source
from prismgp.exceptions import DataError, ModelFileError

if TYPE_CHECKING:
    from prismgp.data.encoder import InputColumn

NUMBER, BOOLEAN, TIME, CATEGORY, LEVELS = "number", "boolean", "time", "category", "levels"
KINDS = (NUMBER, BOOLEAN, TIME, CATEGORY, LEVELS)  # CATEGORY has few levels, LEVELS many

_DAY = 86_400.0
_PERIODS = {"year": 365.2425 * _DAY, "week": 7 * _DAY, "day": _DAY}
_FOLDS = 5
_PART = 8  # the fold of a row is in the fraction of its codes, in eighths, which float64 represents exactly
_MEDIAN_ROWS = 65_536  # of a larger table the medians are those of a sample
_GOLDEN = 0.6180339887498949
_TINY = np.finfo(np.float64).tiny


def mark_folds(codes: AnyArray, first_row: int) -> Array:
    """Codes, (n,), of consecutive rows, with the fold of each row as their fraction.

    Folds follow the golden ratio, so that no period in the rows can put all those of a level into one fold.
    """
    turn = np.arange(first_row + 1, first_row + 1 + len(codes)) * _GOLDEN
    folds = np.floor(_FOLDS * (turn - np.floor(turn)))
    return np.asarray(codes + (1.0 + folds) / _PART)


def _split_codes(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Codes and folds; see :func:`mark_folds`."""
    codes = np.floor(values)
    return codes.astype(np.intp), np.rint((values - codes) * _PART).astype(np.intp) - 1


# -- one column --------------------------------------------------------------------------------------


class Encoding(ABC):
    """How a column is encoded, as learned by a fit."""

    kinds: ClassVar[tuple[str, ...]]  # of the columns that are encoded so
    has_indicator: bool = False  # whether the last input is an indicator of missing cells

    @abstractmethod
    def names(self, column: InputColumn) -> list[str]:
        """Names of the w inputs."""

    @abstractmethod
    def encode(self, values: AnyArray) -> Array:
        """Inputs, (n, w), of cells, (n,)."""

    def encode_training(self, values: AnyArray) -> Array:
        """Inputs of the rows of the fit, none of which may depend on the target of its own row."""
        return self.encode(values)

    def with_folds(self, other: Encoding) -> Encoding:  # noqa: ARG002
        """With the out-of-fold effects of another encoding of the same column, if it has any."""
        return self

    @property
    def fill(self) -> list[float]:
        """The value of each input that replaces NaN of a missing cell; NaN for inputs that stay unknown."""
        return []

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""


def _missing_name(column: InputColumn) -> str:
    return f"{column.name} is missing"


@dataclass(frozen=True)
class NumberEncoding(Encoding):
    """The number, and an indicator of missing cells where training had some."""

    median: float | None  # in place of missing cells; None: training had none

    kinds = (NUMBER, BOOLEAN)

    @property
    def has_indicator(self) -> bool:  # type: ignore[override]
        return self.median is not None

    def names(self, column: InputColumn) -> list[str]:
        return [column.name, _missing_name(column)] if self.has_indicator else [column.name]

    def encode(self, values: AnyArray) -> Array:
        return _with_indicator(values[:, None], values) if self.has_indicator else values[:, None]

    @property
    def fill(self) -> list[float]:
        return [np.nan] if self.median is None else [self.median, np.nan]

    def to_dict(self) -> dict[str, Any]:
        return {"median": self.median}

    @classmethod
    def from_dict(cls, item: dict[str, Any], column: InputColumn) -> NumberEncoding:  # noqa: ARG003
        return cls(_optional(item["median"]))


@dataclass(frozen=True)
class TimeEncoding(Encoding):
    """Seconds since the first row, and sine and cosine of the phases of year, week and day that training has seen."""

    origin: float  # seconds
    periods: tuple[str, ...]
    median: float | None  # as of numbers

    kinds = (TIME,)

    @property
    def has_indicator(self) -> bool:  # type: ignore[override]
        return self.median is not None

    def names(self, column: InputColumn) -> list[str]:
        phases = [f"{column.name} {part} of the {period}" for period in self.periods for part in ("sine", "cosine")]
        return [column.name, *phases, *([_missing_name(column)] if self.has_indicator else [])]

    def encode(self, values: AnyArray) -> Array:
        parts = [values - self.origin]
        for period in self.periods:
            # Of the time itself, not since the first row: the phase of the day is the hour.
            angle = 2.0 * np.pi * np.mod(values, _PERIODS[period]) / _PERIODS[period]
            parts += [np.sin(angle), np.cos(angle)]
        found = np.stack(parts, axis=1)
        return _with_indicator(found, values) if self.has_indicator else found

    @property
    def fill(self) -> list[float]:
        width = 1 + 2 * len(self.periods)
        if self.median is None:
            return [np.nan] * width
        return [*self.encode(np.array([self.median]))[0, :width].tolist(), np.nan]

    def to_dict(self) -> dict[str, Any]:
        return {"origin": self.origin, "periods": list(self.periods), "median": self.median}

    @classmethod
    def from_dict(cls, item: dict[str, Any], column: InputColumn) -> TimeEncoding:
        periods = item["periods"]
        if not isinstance(periods, list) or periods != [each for each in _PERIODS if each in periods]:
            raise ModelFileError(f"the periods of column {column.name!r} are unknown")
        return cls(_number(item["origin"]), tuple(periods), _optional(item["median"]))


def _with_indicator(inputs: Array, values: AnyArray) -> Array:
    return np.concatenate([inputs, np.isnan(values)[:, None].astype(np.float64)], axis=1)


@dataclass(frozen=True)
class IndicatorEncoding(Encoding):
    """An indicator for every level that training had; missing cells are a level if training had some."""

    n_levels: int
    seen: tuple[int, ...]  # levels of training, increasing; ``n_levels`` stands for missing cells

    kinds = (CATEGORY,)

    def names(self, column: InputColumn) -> list[str]:
        names = [*(f"{column.name}={level}" for level in column.categories), _missing_name(column)]
        return [names[code] for code in self.seen]

    def encode(self, values: AnyArray) -> Array:
        codes, _ = _split_codes(values)
        found: Array = (codes[:, None] == np.array(self.seen)).astype(np.float64)
        found[~found.any(axis=1)] = np.inf
        found[(codes == self.n_levels) & (self.seen[-1] != self.n_levels)] = np.nan
        return found

    @property
    def fill(self) -> list[float]:
        return [np.nan] * len(self.seen)

    def to_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    @classmethod
    def from_dict(cls, item: dict[str, Any], column: InputColumn) -> IndicatorEncoding:
        seen, levels = item["seen"], len(column.categories)
        whole = isinstance(seen, list) and all(type(code) is int for code in seen)
        if not whole or not seen or seen != sorted(set(seen)) or seen[0] < 0 or seen[-1] > levels:
            raise ModelFileError(f"the levels of column {column.name!r} are not those of its training")
        return cls(levels, tuple(seen))


@dataclass(frozen=True, eq=False)
class EffectEncoding(Encoding):
    """The effect of a level on every target, shrunken (M1), and the logarithm of its share of the rows.

    The effects in the training rows are out of fold: computed without the rows of their own fold.
    """

    counts: Array  # (L + 1,), rows of each level, or their weights; the last is that of missing cells
    effects: Array  # (L + 1, q), in the target's units
    fold_effects: Array | None = field(default=None, repr=False)  # (folds, L + 1, q); only known to the fit

    kinds = (LEVELS,)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EffectEncoding):
            return NotImplemented
        return np.array_equal(self.counts, other.counts) and np.array_equal(self.effects, other.effects)

    __hash__ = None  # type: ignore[assignment]  # as of arrays

    def names(self, column: InputColumn) -> list[str]:
        q = self.effects.shape[1]
        effects = [f"{column.name} effect" if q == 1 else f"{column.name} effect {k}" for k in range(q)]
        return [*effects, f"{column.name} log frequency"]

    def encode(self, values: AnyArray) -> Array:
        codes, _ = _split_codes(values)
        return self._inputs(codes, self.effects[codes])

    def encode_training(self, values: AnyArray) -> Array:
        if self.fold_effects is None:
            raise RuntimeError("out-of-fold effects are not saved with a model")
        codes, folds = _split_codes(values)
        return self._inputs(codes, self.fold_effects[folds, codes])

    def with_folds(self, other: Encoding) -> Encoding:
        assert isinstance(other, EffectEncoding)
        return replace(self, fold_effects=other.fold_effects)

    def _inputs(self, codes: AnyArray, effects: Array) -> Array:
        known = (codes >= 0) & (self.counts[codes] > 0)
        share = np.log(np.where(known, self.counts[codes], 1.0) / max(float(self.counts.sum()), _TINY))
        found = np.concatenate([effects, share[:, None]], axis=1)
        found[~known] = np.inf
        found[~known & (codes == len(self.counts) - 1)] = np.nan
        return found

    @property
    def fill(self) -> list[float]:
        return [np.nan] * (self.effects.shape[1] + 1)

    def to_dict(self) -> dict[str, Any]:
        return {"counts": self.counts.tolist(), "effects": self.effects.tolist()}

    @classmethod
    def from_dict(cls, item: dict[str, Any], column: InputColumn) -> EffectEncoding:
        counts, effects = _array(item["counts"], 1), _array(item["effects"], 2)
        if len(counts) != len(column.categories) + 1 or len(effects) != len(counts) or (counts < 0).any():
            raise ModelFileError(f"the effects of column {column.name!r} are not those of its levels")
        return cls(counts, effects)


_ENCODINGS: tuple[type[NumberEncoding | TimeEncoding | IndicatorEncoding | EffectEncoding], ...] = (
    NumberEncoding,
    TimeEncoding,
    IndicatorEncoding,
    EffectEncoding,
)


def encoding_from_dict(item: Any, column: InputColumn) -> Encoding:
    """Read what ``to_dict`` wrote; ModelFileError for anything else."""
    kind = next(each for each in _ENCODINGS if column.kind in each.kinds)
    try:
        return kind.from_dict(item, column)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"the encoding of column {column.name!r} is malformed") from error


def _number(value: Any) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not np.isfinite(value):
        raise ModelFileError(f"{value!r:.40} is not a finite number")
    return float(value)


def _optional(value: Any) -> float | None:
    return None if value is None else _number(value)


def _array(value: Any, ndim: int) -> Array:
    found = np.array(value, dtype=np.float64)
    if found.ndim != ndim or not np.isfinite(found).all():
        raise ModelFileError(f"an array of {ndim} dimension(s) is not one of finite numbers")
    return found


# -- learning ----------------------------------------------------------------------------------------


@dataclass
class _Tally:
    """Sums and counts of a column in one pass."""

    missing: int = 0
    low: float = np.inf
    high: float = -np.inf
    rows: Array = field(default_factory=lambda: np.zeros(_FOLDS))  # (folds,)
    counts: Array = field(default_factory=lambda: np.zeros((_FOLDS, 1)))  # (folds, L + 1), weights of each level
    sums: Array = field(default_factory=lambda: np.zeros((_FOLDS, 1, 0)))  # (folds, L + 1, q), of the targets
    squares: Array = field(default_factory=lambda: np.zeros((_FOLDS, 0)))  # (folds, q), of the targets

    def merge(self, other: _Tally) -> _Tally:
        return _Tally(
            self.missing + other.missing,
            min(self.low, other.low),
            max(self.high, other.high),
            self.rows + other.rows,
            self.counts + other.counts,
            self.sums + other.sums,
            self.squares + other.squares,
        )


def learn_encodings(source: Source, columns: Sequence[InputColumn]) -> tuple[Encoding, ...]:
    """Learn how to encode the columns of a source of numbers as they are read, in two passes."""
    size = min(source.n_rows, _MEDIAN_ROWS)
    sample = source.subsamples([size], np.random.default_rng(0))[0]
    weight = np.ones(sample.n_rows) if sample.noise is None else sample.noise[:, 0]
    center = sample.targets.mean(axis=0)  # without it, sums of squares of targets far from zero lose digits
    tallies = source.reduce(partial(_tally, columns=tuple(columns), center=center), _merge)
    return tuple(
        _learn(column, tally, sample.x[:, k], weight)
        for k, (column, tally) in enumerate(zip(columns, tallies, strict=True))
    )


def _tally(source: Source, *, columns: Sequence[InputColumn], center: Array) -> list[_Tally]:
    tallies: list[_Tally] | None = None
    for x, y in source.blocks(MOMENT_ROWS):
        weight = y[:, source.n_outputs] if source.n_noise else np.ones(len(y))
        targets = y[:, : source.n_outputs] - center
        found = [_tally_block(column, x[:, k], targets, weight) for k, column in enumerate(columns)]
        tallies = found if tallies is None else _merge(tallies, found)
    if tallies is None:
        raise DataError("there are no rows to learn from")
    return tallies


def _tally_block(column: InputColumn, values: AnyArray, y: Array, weight: AnyArray) -> _Tally:
    known = values[~np.isnan(values)]
    tally = _Tally(missing=len(values) - len(known))
    if column.kind == TIME and len(known):
        tally.low, tally.high = float(known.min()), float(known.max())
    elif column.kind in (CATEGORY, LEVELS):
        levels = len(column.categories)
        codes, folds = _split_codes(values)
        place, shape = folds * (levels + 1) + codes, (_FOLDS, levels + 1)
        tally.rows = np.bincount(folds, minlength=_FOLDS).astype(np.float64)
        tally.counts = np.asarray(np.bincount(place, weight, _FOLDS * (levels + 1)).reshape(shape), dtype=np.float64)
        if column.kind == LEVELS:
            tally.sums, tally.squares = np.zeros((*shape, y.shape[1])), np.zeros((_FOLDS, y.shape[1]))
            for k, each in enumerate(y.T):
                tally.sums[:, :, k] = np.bincount(place, weight * each, _FOLDS * (levels + 1)).reshape(shape)
                tally.squares[:, k] = np.bincount(folds, weight * each**2, _FOLDS)
    return tally


def _merge(first: list[_Tally], second: list[_Tally]) -> list[_Tally]:
    return [a.merge(b) for a, b in zip(first, second, strict=True)]


def _learn(column: InputColumn, tally: _Tally, sample: AnyArray, weight: AnyArray) -> Encoding:
    median = None
    if tally.missing and column.kind in (NUMBER, BOOLEAN, TIME):
        known = ~np.isnan(sample)
        median = weighted_median(sample[known], weight[known]) if known.any() else 0.0
    if column.kind == TIME:
        span = tally.high - tally.low
        seen = tuple(name for name, period in _PERIODS.items() if span >= 2.0 * period)
        return TimeEncoding(tally.low if np.isfinite(tally.low) else 0.0, seen, median)
    if column.kind == CATEGORY:
        counts = tally.counts.sum(axis=0)
        return IndicatorEncoding(len(column.categories), tuple(np.flatnonzero(counts).tolist()))
    if column.kind == LEVELS:
        folds = tally.counts, tally.sums, tally.squares, tally.rows
        counts, *rest = (each.sum(axis=0) for each in folds)
        # Sums over the other folds; differences would leave rounding errors for levels that they do not have.
        out = [shrink_effects(*(np.delete(each, k, axis=0).sum(axis=0) for each in folds)) for k in range(_FOLDS)]
        return EffectEncoding(counts, shrink_effects(counts, *rest), np.stack(out))
    return NumberEncoding(median)

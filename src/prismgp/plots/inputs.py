"""Which inputs matter to a fitted model, and how its predictions depend on them.

Both work with the columns of the user's table, not with those that an encoder makes of them, and only rearrange cells
that are there: whatever kind of column the model can encode, it can be permuted and varied.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from prismgp._types import AnyArray, Array
from prismgp._validate import check_choice, check_number, check_output
from prismgp.core.models import central_levels, normal_quantile
from prismgp.exceptions import DataError
from prismgp.metrics import rmse
from prismgp.plots.columns import InputTable, sample_rows
from prismgp.plots.style import FAINT, INK, OURS, finish, get_axes, label, require_matplotlib

_MOST_PANELS = 12
_MOST_BARS = 20
_MEASURES = {"nlpd": "increase of the NLPD, if permuted", "rmse": "increase of the RMSE, if permuted"}


# -- relevance -------------------------------------------------------------------------------------


class RelevanceDisplay:
    """How much worse predictions become when one column is permuted.

    A column that matters cannot be permuted without loss. Of two columns that say the same, each alone can: a small
    loss does not mean that the model ignores a column. The columns are those of the user's table: the indicators of a
    category are permuted together. Length-scales do not tell as much about models with networks or neighbours.

    Parameters
    ----------
    names : list of str
        Of the columns, d of them.
    rmse_increase, nlpd_increase : ndarray, (d, r)
        Error with the column permuted minus error without, in each of r permutations. NLPD is minus the mean log
        density of the observations.
    rmse, nlpd : float
        Without a permutation.
    n_rows : int

    Attributes
    ----------
    order : ndarray of int, (d,)
        Columns by the mean increase of the NLPD, the largest first.
    ax_, figure_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SSGPRegressor
    >>> from prismgp.plots import RelevanceDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (400, 3))
    >>> y = np.sin(X[:, 2]) + 0.1 * rng.standard_normal(400)
    >>> model = SSGPRegressor(16, random_state=0).fit(X[:300], y[:300])
    >>> display = RelevanceDisplay.from_estimator(model, X[300:], y[300:], plot=False)
    >>> display.names[display.order[0]]
    'column 2'
    """

    def __init__(
        self, names: list[str], rmse_increase: Array, nlpd_increase: Array, *, rmse: float, nlpd: float, n_rows: int
    ) -> None:
        self.names, self.rmse_increase, self.nlpd_increase = names, rmse_increase, nlpd_increase
        self.rmse, self.nlpd, self.n_rows = rmse, nlpd, n_rows

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        n_repeats: int = 3,
        max_rows: int = 2_000,
        output: int | None = None,
        random_state: int = 0,
        measure: str = "nlpd",
        ax: Any = None,
        plot: bool = True,
    ) -> Self:
        """Permute every column of rows that the fit has not seen, and draw what that costs.

        Parameters
        ----------
        estimator : fitted regressor of this library
        X : array-like or frame, (n, d)
        y : array-like, (n,) or (n, q)
        n_repeats : int, default 3
            Permutations of each column.
        max_rows : int, default 2000
            Of more rows, a random choice is used.
        output : int, optional
            Which column of y; None: all together.
        random_state : int, default 0
        measure : {"nlpd", "rmse"}, default "nlpd"
            What to draw; both are computed.
        ax : matplotlib axes, optional
        plot : bool, default True
            False: numbers only.

        Returns
        -------
        RelevanceDisplay
        """
        check_number("RelevanceDisplay", "n_repeats", n_repeats, low=1, integer=True)
        check_number("RelevanceDisplay", "max_rows", max_rows, low=2, integer=True)
        table, target, rng = InputTable(estimator, X), np.asarray(y), np.random.default_rng(random_state)
        if len(table) < 2 or len(target) != len(table):
            raise DataError(f"{len(table)} rows of X and {len(target)} of y; at least two of each, as many, are needed")
        rows = sample_rows(len(table), max_rows, rng)
        chosen = target[rows]
        if output is not None:
            check_output("from_estimator", output, target.size // len(target))

        def errors(inputs: Any) -> Array:
            density = float(np.mean(estimator.log_density(inputs, chosen, output=output)))
            pair = (each.reshape(len(rows), -1) for each in (chosen, estimator.predict(inputs)))
            observed, mean = pair if output is None else (each[:, output] for each in pair)
            return np.array([rmse(observed, mean), -density])

        base = errors(table.take(rows))
        increase = np.empty((2, len(table.names), n_repeats))
        for column in range(len(table.names)):
            for repeat in range(n_repeats):
                increase[:, column, repeat] = errors(table.replace(rows, column, rng.permutation(rows))) - base
        found = cls(table.names, *increase, rmse=float(base[0]), nlpd=float(base[1]), n_rows=len(rows))
        return found.plot(ax=ax, measure=measure) if plot else found

    @property
    def order(self) -> AnyArray:
        return np.argsort(-self.nlpd_increase.mean(axis=1), kind="stable")

    def plot(self, ax: Any = None, *, measure: str = "nlpd", max_bars: int = _MOST_BARS, **style: Any) -> Self:
        """Draw a bar for each column, the largest first; ``style`` goes to ``ax.barh``.

        Parameters
        ----------
        ax : matplotlib axes, optional
        measure : {"nlpd", "rmse"}, default "nlpd"
        max_bars : int, default 20
            Further columns are left out.

        Returns
        -------
        RelevanceDisplay
            Itself.
        """
        check_choice("RelevanceDisplay", "measure", measure, tuple(_MEASURES))
        increase = self.nlpd_increase if measure == "nlpd" else self.rmse_increase
        mean = increase.mean(axis=1)
        order = np.argsort(-mean, kind="stable")[:max_bars]
        axes = get_axes(ax, (6.4, 1.0 + 0.32 * len(order)))
        bars = {"color": OURS, "height": 0.62, **style}
        # Ends of all permutations, not a standard error: there are few.
        spread = np.abs(np.stack([increase.min(axis=1), increase.max(axis=1)])[:, order] - mean[order])
        axes.barh(np.arange(len(order)), mean[order], xerr=spread, ecolor=INK, error_kw={"linewidth": 1.0}, **bars)
        axes.set_yticks(np.arange(len(order)), [label(self.names[k]) for k in order])
        axes.invert_yaxis()
        axes.axvline(0.0, color=FAINT, linewidth=0.8)
        axes.set_xlabel(_MEASURES[measure])
        finish(axes, "x")
        self.ax_, self.figure_ = axes, axes.figure
        return self


# -- partial dependence ----------------------------------------------------------------------------


class Dependence(NamedTuple):
    """The average prediction as a function of one column."""

    name: str
    values: AnyArray  # (g,), numbers, dates or texts
    mean: Array  # (g,)
    std: Array  # (g,), of the posterior of the average
    ordered: bool  # whether the values are a scale, or categories, the most frequent first


class PartialDependenceDisplay:
    """The average prediction as a function of one column at a time, with bands of the posterior.

    Some rows are predicted with the cells of one column replaced by one value after the other, all other columns as
    they are. The band is about that average of the underlying function: it shows what the model does not know about
    the curve, by functions that are drawn from the posterior, and contains no noise.

    Parameters
    ----------
    curves : list of Dependence
        One for each column.
    coverage : float, default 0.95
        Of the bands.
    target : str, default "prediction"
        Name of the vertical axis.

    Attributes
    ----------
    axes_ : ndarray of axes
    figure_
        After `plot`.
    """

    def __init__(self, curves: list[Dependence], *, coverage: float = 0.95, target: str = "prediction") -> None:
        self.curves, self.target = curves, target
        self._margin = normal_quantile(central_levels(coverage)[1])
        self.coverage = coverage

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,  # noqa: ARG003 -- all displays have it
        *,
        features: Any = None,
        grid_size: int = 20,
        max_rows: int = 50,
        n_draws: int = 64,
        coverage: float = 0.95,
        output: int = 0,
        random_state: int = 0,
        target: str = "prediction",
        ax: Any = None,
        plot: bool = True,
    ) -> Self:
        """Vary columns of the rows X, and draw the average predictions.

        Parameters
        ----------
        estimator : fitted regressor of this library
        X : array-like or frame, (n, d)
        y : ignored
            All displays take it.
        features : sequence of str or int, or one of them, optional
            Columns by name or position; None: all, up to twelve.
        grid_size : int, default 20
            Values of a column, at most; of categories, the most frequent.
        max_rows : int, default 50
            Rows over which is averaged, a random choice of X.
        n_draws : int, default 64
            Functions drawn from the posterior.
        coverage : float, default 0.95
            Of the bands.
        output : int, default 0
            Which output, if the model has several.
        random_state : int, default 0
        target : str, default "prediction"
            Name of the vertical axis.
        ax : axes, or as many as columns, optional
            None: a new figure.
        plot : bool, default True
            False: numbers only.

        Returns
        -------
        PartialDependenceDisplay
        """
        for name, value, low in (("grid_size", grid_size, 2), ("max_rows", max_rows, 1), ("n_draws", n_draws, 2)):
            check_number("PartialDependenceDisplay", name, value, low=low, integer=True)
        table = InputTable(estimator, X)
        asked = [features] if isinstance(features, str | int | np.integer) else features
        if asked is None and len(table.names) > _MOST_PANELS:
            raise DataError(f"there are {len(table.names)} columns; name up to {_MOST_PANELS} of them with features=")
        columns = range(len(table.names)) if asked is None else [table.index(each) for each in asked]
        rows = sample_rows(len(table), max_rows, np.random.default_rng(random_state))
        curves = []
        for column in columns:
            grid, scale = _choose_values(table, column, grid_size)
            # Every chosen row with every value, value by value.
            inputs = table.replace(np.tile(rows, len(grid)), column, np.repeat(grid, len(rows)))
            draws = np.asarray(estimator.sample_y(inputs, n_samples=n_draws, random_state=random_state))
            mean = np.asarray(estimator.predict(inputs), dtype=np.float64).reshape(len(inputs), -1)
            check_output("from_estimator", output, mean.shape[1])
            draws = draws.reshape(len(grid), len(rows), -1, n_draws)[:, :, output]
            average = mean[:, output].reshape(len(grid), len(rows)).mean(axis=1)
            values = table.cells(column).iloc[grid].to_numpy() if scale is None else scale[grid]
            spread = draws.mean(axis=1).std(axis=1, ddof=1)
            curves.append(Dependence(table.names[column], values, average, spread, scale is not None))
        display = cls(curves, coverage=coverage, target=target)
        return display.plot(ax=ax) if plot else display

    def plot(self, ax: Any = None) -> Self:
        """Draw one panel for each column.

        Parameters
        ----------
        ax : axes, or as many as columns, optional

        Returns
        -------
        PartialDependenceDisplay
            Itself.
        """
        panels = _panels(len(self.curves)) if ax is None else np.ravel(np.asarray(ax, dtype=object))
        if len(panels) != len(self.curves):
            raise DataError(f"ax has {len(panels)} axes for {len(self.curves)} columns")
        ends = [(curve.mean - self._margin * curve.std, curve.mean + self._margin * curve.std) for curve in self.curves]
        # One scale for all: the columns can be compared.
        low, high = (float(each) for each in (min(e[0].min() for e in ends), max(e[1].max() for e in ends)))
        room = 0.05 * (high - low) or 1.0
        for axes, curve, (lower, upper) in zip(panels, self.curves, ends, strict=True):
            if curve.ordered:
                axes.fill_between(curve.values, lower, upper, color=OURS, alpha=0.22, linewidth=0)
                axes.plot(curve.values, curve.mean, color=OURS, linewidth=1.8)
            else:
                place = np.arange(len(curve.values))
                bars = {"fmt": "o", "color": OURS, "markersize": 5, "capsize": 3, "linewidth": 1.4}
                axes.errorbar(place, curve.mean, yerr=upper - curve.mean, **bars)
                axes.set_xticks(place, [label(each, 14) for each in curve.values], rotation=30, ha="right")
                axes.set_xlim(-0.6, len(place) - 0.4)
            axes.set(xlabel=label(curve.name, 28), ylim=(low - room, high + room))
            finish(axes, "y")
        panels[0].set_ylabel(label(self.target))
        self.axes_, self.figure_ = panels, panels[0].figure
        return self


def _panels(count: int) -> AnyArray:
    """Axes of a new figure, up to three in a row."""
    require_matplotlib()
    from matplotlib import pyplot as plt  # the report extra

    wide = min(count, 3)
    high = -(-count // wide)
    _, axes = plt.subplots(high, wide, figsize=(3.4 * wide + 0.6, 2.8 * high), layout="constrained", squeeze=False)
    panels = np.ravel(axes)
    for unused in panels[count:]:
        unused.set_visible(False)
    return panels[:count]


def _choose_values(table: InputTable, column: int, size: int) -> tuple[AnyArray, AnyArray | None]:
    """Rows whose cells are the values to try, and the column's scale, if it has one."""
    cells = table.cells(column)
    known = np.flatnonzero(cells.notna().to_numpy())
    if not len(known):
        raise DataError(f"column {table.names[column]!r} has no values")
    scale = table.scale(column)
    if scale is None:
        codes, _ = pd.factorize(cells.iloc[known], sort=False)
        _, first, count = np.unique(codes, return_index=True, return_counts=True)
        return known[first[np.argsort(-count, kind="stable")[:size]]], None
    ranked = known[np.argsort(scale[known], kind="stable")]
    values, first = np.unique(scale[ranked], return_index=True)
    if len(values) > size:
        # Between the 2% and the 98% quantile, evenly in the values: a curve needs points where it goes.
        low, high = (scale[ranked[round(share * (len(ranked) - 1))]] for share in (0.02, 0.98))
        steps = low + np.linspace(0.0, 1.0, size) * (high - low)
        first = first[np.unique(np.searchsorted(values, steps).clip(max=len(values) - 1))]
    return ranked[first], scale

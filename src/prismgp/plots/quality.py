"""How good the predictions of a fitted model are, and how its training went, as numbers and as drawings."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from scipy.stats import binom

from prismgp._types import Array
from prismgp._validate import check_levels, check_number, check_output
from prismgp.exceptions import DataError
from prismgp.plots.style import EXACT, FAINT, INK, OURS, finish, get_axes, label

_LEVELS: tuple[float, ...] = (*(round(0.05 * k, 2) for k in range(1, 20)), 0.99)
_BAND = 0.95  # of the counts that a calibrated model would have
_RASTER_FROM = 2_000  # points; as vectors, more of them would make a file of megabytes


class CalibrationDisplay:
    """Coverage of central prediction intervals against what they promise.

    The intervals are those of the model's own predictive distribution, ``predict_quantiles``, also if the model has
    been conformalized. Below the diagonal they are too narrow, above it too wide.

    Parameters
    ----------
    levels : ndarray, (k,)
        What the intervals promise.
    coverage : ndarray, (k,)
        Share of the observations inside; several outputs, if none is chosen, count as several observations.
    n_observations : int
    name : str, optional
        In the legend.

    Attributes
    ----------
    lower, upper : ndarray, (k,)
        Between these the share is, level by level, with probability 95% where the model is calibrated and the rows
        are independent.
    error : float
        Mean absolute difference of ``coverage`` and ``levels``.
    ax_, figure_, line_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SSGPRegressor
    >>> from prismgp.plots import CalibrationDisplay
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (400, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(400)
    >>> model = SSGPRegressor(16, random_state=0).fit(X[:200], y[:200])
    >>> display = CalibrationDisplay.from_estimator(model, X[200:], y[200:], levels=[0.5, 0.95], plot=False)
    >>> bool(np.all(np.abs(display.coverage - display.levels) < 0.1))
    True
    """

    def __init__(self, levels: Array, coverage: Array, n_observations: int, *, name: str | None = None) -> None:
        self.levels, self.coverage, self.n_observations, self.name = levels, coverage, n_observations, name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        levels: Any = _LEVELS,
        output: int | None = None,
        name: str | None = None,
        ax: Any = None,
        plot: bool = True,
    ) -> Self:
        """Measure the coverage on rows that the fit has not seen, and draw it.

        Parameters
        ----------
        estimator : fitted regressor of this library
        X : array-like or frame, (n, d)
        y : array-like, (n,) or (n, q)
        levels : sequence of float, default 0.05, 0.1, ... 0.95, 0.99
        output : int, optional
            Which column of y; None: all.
        name : str, optional
            In the legend; None: the class of the estimator.
        ax : matplotlib axes, optional
            None: those of a new figure.
        plot : bool, default True
            False: numbers only; matplotlib is not needed.

        Returns
        -------
        CalibrationDisplay
        """
        asked = np.asarray(check_levels(levels), dtype=np.float64)
        target = _to_columns(y)
        # One pass over the rows for all levels.
        ends = np.concatenate([0.5 - asked / 2, 0.5 + asked / 2])
        found = np.asarray(estimator.predict_quantiles(X, ends), dtype=np.float64).reshape(*target.shape, len(ends))
        if output is not None:
            check_output("from_estimator", output, target.shape[1])
            target, found = target[:, [output]], found[:, [output]]
        lower, upper = np.split(found, 2, axis=2)
        covered = ((lower <= target[:, :, None]) & (target[:, :, None] <= upper)).mean(axis=(0, 1))
        display = cls(asked, covered, target.size, name=name or type(estimator).__name__)
        return display.plot(ax=ax) if plot else display

    @property
    def lower(self) -> Array:
        return np.asarray(binom.ppf((1 - _BAND) / 2, self.n_observations, self.levels)) / self.n_observations

    @property
    def upper(self) -> Array:
        return np.asarray(binom.ppf((1 + _BAND) / 2, self.n_observations, self.levels)) / self.n_observations

    @property
    def error(self) -> float:
        return float(np.mean(np.abs(self.coverage - self.levels)))

    def plot(self, ax: Any = None, **style: Any) -> Self:
        """Draw the curve; ``style`` goes to ``ax.plot``.

        Returns
        -------
        CalibrationDisplay
            Itself.
        """
        axes = get_axes(ax, (4.8, 4.6))
        place = np.concatenate([[0.0], self.levels, [1.0]])
        order = np.argsort(place, kind="stable")

        def whole(values: Array) -> Array:
            return np.concatenate([[0.0], values, [1.0]])[order]

        band = {"color": FAINT, "alpha": 0.25, "linewidth": 0, "label": "by chance, 95%"}
        axes.fill_between(place[order], whole(self.lower), whole(self.upper), **band)
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0)
        style = {"color": OURS, "linewidth": 1.8, "marker": "o", "markersize": 3.5, **style}
        (self.line_,) = axes.plot(self.levels, self.coverage, label=label(self.name or "model"), **style)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="promised coverage", ylabel="observed coverage")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%")
        axes.set_aspect("equal")
        finish(axes, "both")
        axes.legend(loc="upper left")
        if not axes.texts:  # several curves share the axes
            axes.text(0.97, 0.04, "below: intervals too narrow", ha="right", fontsize="small", color=INK)
        self.ax_, self.figure_ = axes, axes.figure
        return self


class ResidualsDisplay:
    """Residuals against the predicted standard deviation.

    Where the model knows when it errs, residuals spread in proportion to ``std``, and their root mean square in each
    group of rows is near the mean ``std`` of the group.

    Parameters
    ----------
    std : ndarray, (n,)
        Predicted for an observation.
    residuals : ndarray, (n,)
        Observed minus predicted.
    n_groups : int, default 10
        Of rows of similar ``std``, at most; each has at least ten rows where there are ten.

    Attributes
    ----------
    group_std, group_rmse : ndarray, (g,)
        Root mean square of ``std`` and of the residuals in each group, in order of ``std``.
    ax_, figure_
        After `plot`.
    """

    def __init__(self, std: Array, residuals: Array, *, n_groups: int = 10) -> None:
        check_number("ResidualsDisplay", "n_groups", n_groups, low=1, integer=True)
        self.std, self.residuals = std, residuals
        groups = np.array_split(np.argsort(std, kind="stable"), max(1, min(n_groups, len(std) // 10)))
        self.group_std, self.group_rmse = (
            np.array([float(np.sqrt(np.mean(np.square(values[rows])))) for rows in groups])
            for values in (std, residuals)
        )

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, output: int = 0, n_groups: int = 10, ax: Any = None, plot: bool = True
    ) -> Self:
        """Predict rows that the fit has not seen, and draw the residuals.

        Parameters
        ----------
        estimator : fitted regressor of this library
        X : array-like or frame, (n, d)
        y : array-like, (n,) or (n, q)
        output : int, default 0
            Which column of y.
        n_groups : int, default 10
        ax : matplotlib axes, optional
        plot : bool, default True
            False: numbers only.

        Returns
        -------
        ResidualsDisplay
        """
        target = _to_columns(y)
        mean, std = (_to_columns(each) for each in estimator.predict(X, return_std=True))
        check_output("from_estimator", output, target.shape[1])
        display = cls(std[:, output], target[:, output] - mean[:, output], n_groups=n_groups)
        return display.plot(ax=ax) if plot else display

    def plot(self, ax: Any = None, **style: Any) -> Self:
        """Draw the residuals; ``style`` goes to ``ax.scatter``.

        Returns
        -------
        ResidualsDisplay
            Itself.
        """
        axes = get_axes(ax)
        # A few rows far outside the others would press these into a corner.
        right = min(float(self.std.max()), 1.5 * float(np.quantile(self.std, 0.99))) * 1.03
        left = max(0.0, float(self.std.min()) - 0.05 * right)
        edge = np.array([left, right])
        axes.fill_between(edge, -1.96 * edge, 1.96 * edge, color=OURS, alpha=0.1, linewidth=0, label="±1.96 std")
        many = {"rasterized": True} if len(self.std) > _RASTER_FROM else {}
        dots = {"color": OURS, "s": 6.0, "alpha": 0.35, "linewidth": 0, **many, **style}
        axes.scatter(self.std, self.residuals, **dots)
        axes.plot(edge, edge, color=FAINT, linewidth=1.0)
        marks = {"color": EXACT, "marker": "o", "markersize": 4.5, "linewidth": 1.2}
        axes.plot(self.group_std, self.group_rmse, label="RMS residual of groups", **marks)
        axes.axhline(0.0, color=FAINT, linewidth=0.8)
        most = max(float(np.quantile(np.abs(self.residuals), 0.999)), 2.2 * right)
        axes.set(xlim=(left, right), ylim=(-1.05 * most, 1.05 * most))
        axes.set(xlabel="predicted std", ylabel="observed minus predicted")
        finish(axes, "y")
        axes.legend(loc="upper left")
        self.ax_, self.figure_ = axes, axes.figure
        return self


class Curve(NamedTuple):
    """One line of a `HistoryDisplay`."""

    name: str
    x: Array
    y: Array


class HistoryDisplay:
    """The course of the training.

    For models with networks, the NLPD of the rows that they hold out, one line for each member (for the paper's
    recipe, the objective). For the others, the best log evidence so far, per row, one line for each number of rows on
    which it was evaluated.

    Parameters
    ----------
    curves : list of Curve
        Each with its name and its points.
    x_name, y_name : str
        What the axes show.

    Attributes
    ----------
    ax_, figure_
        After `plot`.
    """

    def __init__(self, curves: list[Curve], x_name: str, y_name: str) -> None:
        self.curves, self.x_name, self.y_name = curves, x_name, y_name

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any = None, y: Any = None, *, ax: Any = None, plot: bool = True) -> Self:  # noqa: ARG003 -- all displays have them
        """Read ``history_`` of a fitted estimator, and draw it.

        Parameters
        ----------
        estimator : fitted estimator of this library
        X, y : ignored
            All displays take them.
        ax : matplotlib axes, optional
        plot : bool, default True
            False: numbers only.

        Returns
        -------
        HistoryDisplay
        """
        history = getattr(estimator, "history_", None) or {}
        if history.get("validation_nlpd"):
            member, step, nlpd = (_numbers(history, name) for name in ("member", "step", "validation_nlpd"))
            curves = [
                Curve(f"member {number:.0f}", step[member == number], nlpd[member == number])
                for number in np.unique(member)
            ]
            display = cls(curves, "training step", "NLPD of held-out rows")
        elif history.get("held_out_objective"):
            curve = Curve("objective", _numbers(history, "step"), _numbers(history, "held_out_objective"))
            display = cls([curve], "training step", "objective of held-out rows")
        elif history.get("log_evidence"):
            display = cls(_evidence_curves(history), "evaluation", "best log evidence per row")
        else:
            raise DataError(f"{type(estimator).__name__} has no history of its training; fit it with optimize=True")
        return display.plot(ax=ax) if plot else display

    def plot(self, ax: Any = None, **style: Any) -> Self:
        """Draw the curves; ``style`` goes to ``ax.plot``.

        Returns
        -------
        HistoryDisplay
            Itself.
        """
        axes = get_axes(ax)
        for k, curve in enumerate(self.curves):
            shade = {"color": OURS, "alpha": 1.0 - 0.7 * k / max(len(self.curves), 2), "linewidth": 1.6, **style}
            axes.plot(curve.x, curve.y, label=label(curve.name), **shade)
        # The first steps are often far off, and would flatten all that follows.
        later = np.concatenate([curve.y[len(curve.y) // 10 :] for curve in self.curves])
        low, high = float(later.min()), float(later.max())
        room = 0.08 * (high - low) or 1.0
        axes.set(xlabel=self.x_name, ylabel=self.y_name, ylim=(low - room, high + room))
        finish(axes, "y")
        if len(self.curves) > 1:
            axes.legend()
        self.ax_, self.figure_ = axes, axes.figure
        return self


def _evidence_curves(history: dict[str, list[Any]]) -> list[Curve]:
    """The running maximum wherever the number of rows stays the same: line searches also visit bad points."""
    rows, evidence = _numbers(history, "rows"), _numbers(history, "log_evidence")
    starts = np.flatnonzero(np.diff(rows, prepend=np.nan) != 0)
    return [
        Curve(
            f"{int(rows[part[0]]):,} rows",
            (part + 1).astype(np.float64),
            np.fmax.accumulate(evidence[part] / rows[part]),
        )
        for part in np.split(np.arange(len(rows)), starts[1:])
    ]


def _numbers(history: dict[str, list[Any]], name: str) -> Array:
    return np.asarray(history[name], dtype=np.float64)


def _to_columns(values: Any) -> Array:
    """Targets or predictions as (n, q)."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        raise DataError("there are no rows to show")
    return array.reshape(len(array), -1)

"""A certificate as a drawing: the model's band, and where the exact GP's must be.

The exact GP's mean is in ``[lower, upper]`` at every test point, and the ends of its 95% band are
in ``mean -+ 1.96 std`` for the least and the largest mean and std that are possible.
"""

from __future__ import annotations

from os import PathLike
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from prismgp._system import atomic_path
from prismgp._types import Array
from prismgp.certificates import Certificate
from prismgp.exceptions import DataError
from prismgp.plots.style import EXACT, FAINT, INK, OURS, drawing_style, figure_format

_LEVEL = 0.95
_SHOWN = 150  # test points in the panel of bands; more would only overlap
_LEAST = 1e-6  # of the noise: differences below are drawn here, as the axis is logarithmic


class _Bands(NamedTuple):
    """One output at the test points.

    ``ours``, (3, m): the model's mean and the ends of its band; ``low`` and ``high``: the ranges of the exact GP's.
    ``least`` and ``most``, (m,): difference of the means, in units of the noise.
    """

    ours: Array
    low: Array
    high: Array
    least: Array
    most: Array

    def at(self, order: Any) -> _Bands:
        return _Bands(*(each[..., order] for each in self))

    def subtract(self, shift: Array) -> _Bands:
        return _Bands(self.ours - shift, self.low - shift, self.high - shift, self.least, self.most)


def draw_certificate(
    certificate: Certificate,
    path: str | PathLike[str],
    *,
    x: Array | None = None,
    x_name: str = "input",
    training: tuple[Array, Array] | None = None,
    targets: list[str] | None = None,
) -> None:
    """Draw the model's predictions and the certified ranges of the exact GP's; needs the ``report`` extra.

    Parameters
    ----------
    certificate : Certificate
        With test points.
    path : path
        Ends in .png, .svg or .pdf; appears whole or not at all.
    x : ndarray, (m,), optional
        The input of the test points, where there is but one: the figure is then a curve. None: the points are
        sorted by the predicted mean.
    x_name : str
    training : pair of ndarrays, optional
        Inputs and targets of the training rows, drawn as dots where there is a curve.
    targets : list of str, optional
        Names of the outputs, each of which gets panels of its own.
    """
    kind = figure_format(path)
    outputs = [] if not certificate.holds else _outputs(certificate)
    from matplotlib.figure import Figure  # the report extra

    with drawing_style():
        if not outputs:
            figure = _draw_reason(certificate)
        else:
            figure = Figure(figsize=(11.0, 4.8 * len(outputs)), layout="constrained")
            names = list(targets or []) + [f"output {k}" for k in range(len(targets or []), len(outputs))]
            parts: Any = figure.subfigures(len(outputs), 1, squeeze=False)
            for k, (part, bands, name) in enumerate(zip(parts[:, 0], outputs, names, strict=True)):
                if x is None:
                    _sorted_panels(part, bands, name)
                else:
                    dots = None if training is None else (training[0], np.reshape(training[1], (len(training[0]), -1)))
                    own = None if dots is None else (dots[0], dots[1][:, k])
                    _curve_panels(part, bands, np.asarray(x, dtype=float), x_name, name, own)
        # Without a date, the same certificate is the same file.
        metadata = {"png": None, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=150, metadata=metadata)


def _outputs(certificate: Certificate) -> list[_Bands]:
    mean, std, noise = certificate.mean, certificate.std, certificate.noise_variance
    if mean is None or std is None or noise is None:
        raise DataError("the certificate has no test points to draw")
    z = float(ndtri(0.5 + _LEVEL / 2))

    def columns(values: Any) -> Array:
        array = np.asarray(values, dtype=float)
        return array.reshape(len(array), -1)

    low, high, ours = (columns(each) for each in (mean.lower, mean.upper, mean.ours))
    least, most, own = (z * columns(each) for each in (std.lower, std.upper, std.ours))
    unit = np.sqrt(columns(noise))
    return [
        _Bands(
            np.stack([ours, ours - own, ours + own])[..., k],
            np.stack([low, low - most, low + least])[..., k],
            np.stack([high, high - least, high + most])[..., k],
            (columns(mean.difference_at_least) / unit)[:, k],
            (columns(mean.difference) / unit)[:, k],
        )
        for k in range(ours.shape[1])
    ]


# -- panels --------------------------------------------------------------------------------------


def _sorted_panels(part: Any, bands: _Bands, name: str) -> None:
    """Several inputs: points by predicted mean, and all differences by size."""
    left, right = part.subplots(1, 2, width_ratios=(1.9, 1.0))
    m = bands.ours.shape[1]
    order = np.argsort(bands.ours[0], kind="stable")
    if m > _SHOWN:
        order = order[np.linspace(0, len(order) - 1, _SHOWN).round().astype(int)]
    chosen = bands.at(order)
    means, chosen, place = chosen.ours[0], chosen.subtract(chosen.ours[0]), np.arange(len(order), dtype=float)
    _own_band(left, place, chosen)
    for index, (low, high) in enumerate(zip(chosen.low, chosen.high, strict=True)):
        label = ("exact GP, certified: mean", "exact GP, certified: ends of 95%", None)[index]
        size, alpha, mark = (16.0, 1.0, "o") if index == 0 else (14.0, 0.7, "_")
        left.vlines(place, low, high, color=EXACT, linewidth=1.6, alpha=alpha, zorder=4)
        # A range of no visible height is still a mark.
        dots = {"marker": mark, "s": size, "color": EXACT, "alpha": alpha, "linewidth": 1.4 if index else 0.0}
        left.scatter(place, 0.5 * (low + high), **dots, label=label, zorder=4)
    _limits(left, chosen)
    left.set_xlim(-1.0, len(order))
    ticks = np.unique(np.linspace(0, len(order) - 1, 7).round().astype(int))
    left.set_xticks(ticks, [f"{means[tick]:.3g}" for tick in ticks])
    shown = f"; {len(order):,} of {m:,} test points" if len(order) < m else ""
    left.set_xlabel(f"our predicted mean, sorted{shown}")
    left.set_ylabel(f"{name}, less our predicted mean")
    left.set_title("Our prediction, and where the exact GP's must be")
    left.grid(axis="y")
    part.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=4)

    ranks = np.argsort(bands.most, kind="stable")
    share = 100.0 * np.arange(1, len(ranks) + 1) / len(ranks)
    least, most = (np.maximum(each[ranks], _LEAST) for each in (bands.least, bands.most))
    if len(ranks) == 1:
        share, least, most = np.array([0.0, 100.0]), np.repeat(least, 2), np.repeat(most, 2)
    _difference(right, share, least, most)
    right.set_xlim(0.0, 100.0)
    right.set_xlabel("test points, % (sorted)")
    right.set_title("Difference of the means")
    right.legend(loc="lower right")


def _curve_panels(
    part: Any, bands: _Bands, x: Array, x_name: str, name: str, training: tuple[Array, Array] | None
) -> None:
    """One input: curves along it."""
    top, bottom = part.subplots(2, 1, sharex=True, height_ratios=(2.6, 1.0))
    order = np.argsort(x, kind="stable")
    x, bands = x[order], bands.at(order)
    if training is not None:
        top.plot(*training, ".", color=FAINT, markersize=3.5, alpha=0.8, label="training rows")
    _own_band(top, x, bands)
    for index, (low, high) in enumerate(zip(bands.low, bands.high, strict=True)):
        label = ("exact GP, certified: mean", "exact GP, certified: ends of 95%", None)[index]
        solid = index == 0
        style = {"color": EXACT, "linewidth": 1.5 if solid else 1.0, "linestyle": "-" if solid else (0, (4, 2))}
        top.fill_between(x, low, high, color=EXACT, alpha=0.25 if solid else 0.12, linewidth=0, zorder=0.5)
        top.plot(x, low, **style, label=label)
        top.plot(x, high, **style)
    _limits(top, bands)
    top.set_ylabel(name)
    top.set_title("Our prediction, and where the exact GP's must be")
    top.grid(axis="y")
    part.legend(*top.get_legend_handles_labels(), loc="outside lower left", ncols=5)
    _difference(bottom, x, np.maximum(bands.least, _LEAST), np.maximum(bands.most, _LEAST))
    bottom.set_xlim(float(x.min()), float(x.max()) if x.max() > x.min() else float(x.min()) + 1.0)
    bottom.set_xlabel(x_name)
    bottom.set_title("Difference of the means")
    bottom.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, borderaxespad=0.1)


def _own_band(axes: Any, place: Array, bands: _Bands) -> None:
    mean, lower, upper = bands.ours
    axes.fill_between(place, lower, upper, color=OURS, alpha=0.18, linewidth=0, label="ours: 95% of observations")
    axes.plot(place, mean, color=OURS, linewidth=2.2, label="ours: mean", zorder=3)


def _difference(axes: Any, place: Array, least: Array, most: Array) -> None:
    """At least and at most, as shares of the noise."""
    known = np.isfinite(most)
    axes.set_yscale("log")
    axes.fill_between(place[known], least[known], most[known], color=EXACT, alpha=0.3, linewidth=0)
    axes.plot(place[known], most[known], color=EXACT, linewidth=1.8, label="at most")
    axes.plot(place[known], least[known], color=EXACT, linewidth=1.0, linestyle=(0, (3, 2)), label="at least")
    axes.axhline(1.0, color=FAINT, linewidth=1.0, linestyle=":")
    top = float(most[known].max()) if known.any() else 1.0
    inside = least[known][least[known] > _LEAST]
    bottom = min(float(np.quantile(inside, 0.02)) if len(inside) else top / 100.0, top / 10.0)
    axes.set_ylim(max(bottom / 1.5, _LEAST), max(1.6, 1.6 * top))
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.set_ylabel("of the noise std")
    axes.grid(axis="y")


def _limits(axes: Any, bands: _Bands) -> None:
    """Room for both bands; one that is out of all proportion is cut off."""
    low, high = bands.ours.min(), bands.ours.max()
    room = 0.6 * (high - low)
    ends = np.concatenate([np.ravel(bands.low), np.ravel(bands.high)])
    ends = ends[np.isfinite(ends)]
    if len(ends):
        low, high = min(low, max(ends.min(), low - room)), max(high, min(ends.max(), high + room))
    axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))


def _draw_reason(certificate: Certificate) -> Any:
    """Draw the reason why there is nothing else to draw."""

    from matplotlib.figure import Figure  # the report extra

    figure = Figure(figsize=(8.0, 2.4))
    text = f"The certificate does not hold\n\n{fill(certificate.reason, 90)}"
    figure.text(0.5, 0.5, text, ha="center", va="center", color=INK, fontsize=10)
    return figure

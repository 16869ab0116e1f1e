"""How figures look, and what is safe to write on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from prismgp.exceptions import DataError

FIGURE_FORMATS = (".png", ".svg", ".pdf")
INK, FAINT, EDGE, GRID = "#333333", "#9a9a9a", "#888888", "#e4e4e4"
OURS, EXACT = "#2f6db5", "#d9691e"  # roles, not models: ours may be any model

_LONGEST_LABEL = 40  # characters

# White paper under everything, so that a drawing is legible on a dark page too.
_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": EDGE,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "font.size": 10,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "prismgp",
    "svg.fonttype": "path",  # readers need no fonts
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """Apply the settings under which every figure is drawn and saved; undone afterwards."""
    require_matplotlib()
    from matplotlib import rc_context  # the report extra

    with rc_context(_STYLE):  # type: ignore[arg-type,unused-ignore]
        yield


def require_matplotlib() -> None:
    """Raise an error that says how to install matplotlib where it is missing."""
    if find_spec("matplotlib") is None:
        raise DataError('figures need matplotlib, which is not installed: pip install "prismgp[report]"')


def figure_format(path: str | PathLike[str]) -> str:
    """Return the format of a figure by its path; raise an error if it cannot be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FIGURE_FORMATS:
        raise DataError(f"{path}: unsupported figure type; use one of {', '.join(FIGURE_FORMATS)}")
    require_matplotlib()
    return suffix[1:]


def get_axes(ax: Any, size: tuple[float, float] = (6.4, 4.2)) -> Any:
    """The axes that were given, or those of a new figure of pyplot."""
    if ax is not None:
        return ax
    require_matplotlib()
    from matplotlib import pyplot as plt  # the report extra

    return plt.subplots(figsize=size, layout="constrained")[1]


def finish(axes: Any, grid: str) -> None:
    """Draw a faint grid behind everything, and format large numbers; ``grid`` is "x", "y" or "both"."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter  # the report extra

    axes.set_axisbelow(True)
    axes.grid(True, axis=grid, color=GRID, linewidth=0.6)
    for axis in (axes.xaxis, axes.yaxis):
        if type(axis.get_major_formatter()) is ScalarFormatter and max(map(abs, axis.get_view_interval())) >= 1e4:
            axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}")
            axis.set_major_locator(MaxNLocator(5))  # long labels need room


def label(text: object, longest: int = _LONGEST_LABEL) -> str:
    """Make a label of text of the user's data: one line, not too long, and no dollar sign begins a formula."""
    line = "".join(each if each.isprintable() else "?" for each in " ".join(str(text).split()))
    line = line if len(line) <= longest else f"{line[: longest - 1]}…"
    return line.replace("$", r"\$") or "?"

"""What the tables and figures of several benchmarks share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _runs import MODELS, Run

from prismgp.plots import MODEL_STYLES

STYLES = MODEL_STYLES  # the same colours as in reports


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def table(header: list[str], rows: Iterable[Iterable[str]]) -> list[str]:
    return [row(*header), row(*("---" for _ in header)), *(row(*cells) for cells in rows), ""]


def missing_list(plan: Iterable[Run], done: Iterable[Run], failed: dict[Run, str]) -> list[str]:
    """Every planned run without scores, the splits of one fit together."""
    groups: dict[tuple[str, str, int | None, str], list[int]] = {}
    for run in sorted(set(plan) - set(done), key=lambda run: (run.dataset, run.model, run.p or 0, run.split)):
        reason = f"failed, {failed[run]}" if run in failed else "not run"
        groups.setdefault((run.dataset, run.model, run.p, reason), []).append(run.split)
    lines = []
    for (dataset, model, p, reason), splits in groups.items():
        which = f"split{'s' if len(splits) > 1 else ''} {', '.join(map(str, splits))}"
        lines.append(f"- {dataset}, {MODELS[model]}{f', p = {p}' if p else ''}, {which}: {reason}")
    return [*(lines or ["None: every planned run is there."]), ""]


def origin(done: Iterable[dict[str, Any]]) -> list[str]:
    """What the runs were made with: each combination, and how many runs it made."""
    counts: dict[str, int] = {}
    for result in done:
        machine = result["machine"]
        where = f"{machine['gpu']}" if result["device"] == "cuda" else f"{machine['processor']} CPU"
        text = (
            f"prismgp {result['prismgp']}, commit {result['commit'] or 'not recorded'}, "
            f"source {result.get('source', 'not recorded')}, "
            f"torch {result['versions']['torch']}, {where}, {machine['threads']} threads, "
            f"{result['jobs']} at a time"
        )
        counts[text] = counts.get(text, 0) + 1
    return [*(f"- {text}: {count} runs" for text, count in sorted(counts.items())), ""]


def closing(
    plan: Iterable[Run], done: Iterable[Run], failed: dict[Run, str], *, made: Iterable[dict[str, Any]]
) -> list[str]:
    """The end of every page: what is missing, and what the runs were made with."""
    return ["## Missing runs", "", *missing_list(plan, done, failed), "## Made with", "", *origin(made)]


def plotting() -> Any | None:
    """``matplotlib.pyplot``, or None where it is not installed: the tables need none."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("matplotlib is not installed (pip install 'prismgp[report]'): the figure is not drawn")
        return None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.facecolor": "white",  # also on a dark page
            "svg.hashsalt": "prismgp",  # the same results give the same file
        }
    )
    return plt


def save(plt: Any, figure: Any, stem: Path) -> list[Path]:
    """As PNG and as SVG."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    figure.savefig(paths[0], dpi=160)
    figure.savefig(paths[1], metadata={"Date": None})
    plt.close(figure)
    return paths

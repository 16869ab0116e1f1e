"""The comparison as Markdown: a table per data set, and where other libraries win."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from experiments.comparison.agreement import disagreements
from experiments.comparison.entries import DEFAULT, LABELS
from experiments.comparison.main_table import main_table
from experiments.comparison.plan import AGREEMENT
from experiments.comparison.standings import METRICS, Row, collect, summarise, where_others_win
from experiments.results import Study

__all__ = [
    "COLUMNS",
    "QUICK",
    "best_of",
    "cells",
    "losses",
    "markdown",
    "progress",
    "rank",
    "skipped_lines",
]

QUICK = "A quick run: few rows and few steps, a test of the code. It compares nothing."

_NAMED = 5  # better entries that are named; of others the number is given

# Header, text of a row, and what must be least (None: nothing to compete for).
COLUMNS: tuple[tuple[str, Callable[[Row], str], Callable[[Row], float] | None], ...] = (
    ("RMSE", lambda row: f"{row.values['rmse']:.3f}", lambda row: round(row.loss("rmse"), 3)),
    ("NLPD", lambda row: f"{row.values['nlpd']:.3f}", lambda row: round(row.loss("nlpd"), 3)),
    (
        "NLPD, shape",
        lambda row: f"{row.values['nlpd_shaped']:.3f}" if "nlpd_shaped" in row.values else "",
        lambda row: round(row.loss("nlpd_shaped"), 3),
    ),
    ("MAE", lambda row: f"{row.values['mae']:.3f}", lambda row: round(row.loss("mae"), 3)),
    ("95% coverage", lambda row: f"{100 * row.values['coverage']:.1f}%", lambda row: round(row.loss("coverage"), 3)),
    ("fit, s", lambda row: _seconds(row.values["fit_seconds"]), lambda row: row.values["fit_seconds"]),
    ("predict, ms per 1,000", lambda row: _milliseconds(row), lambda row: row.values["predict_seconds_per_1000"]),
    ("fit memory, MiB", lambda row: f"{row.values['fit_peak_bytes'] / 2**20:,.0f}", None),
    ("rows used", lambda row: f"{row.values['rows_used']:,.0f}", None),
)


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _milliseconds(row: Row) -> str:
    return f"{1e3 * row.values['predict_seconds_per_1000']:,.1f}"


def rank(rows: list[Row]) -> list[Row]:
    """Sort by NLPD, those that lack splits at the end."""
    return sorted(rows, key=lambda row: (not row.complete, row.values["nlpd"]))


def best_of(rows: list[Row]) -> frozenset[tuple[int, int]]:
    """Row and column of every best value; rows that lack splits do not compete."""
    best = set()
    for column, (_, _, least) in enumerate(COLUMNS, start=1):
        values = {} if least is None else {k: least(row) for k, row in enumerate(rows) if row.complete}
        values = {k: value for k, value in values.items() if value < math.inf}
        if len(values) > 1:
            best |= {(k, column) for k, value in values.items() if value == min(values.values())}
    return frozenset(best)


def cells(row: Row, every: int) -> list[str]:
    """A row as text; ``every`` is the number of splits of the data set."""
    note = "" if row.complete else f" ({len(row.splits)} of {every} splits)"
    return [row.label + note, *(text(row) for _, text, _ in COLUMNS)]


def losses(rows: Mapping[str, list[Row]]) -> list[list[str]]:
    """Data set, metric, our value, and the entries that are better with theirs, the best first."""
    return [
        [
            dataset,
            METRICS[metric],
            _value(default, metric),
            "; ".join(f"{row.label} {_value(row, metric)}" for row in better[:_NAMED])
            + (f"; and {len(better) - _NAMED} more" if len(better) > _NAMED else ""),
        ]
        for dataset, metric, default, better in where_others_win(rows)
    ]


def _value(row: Row, metric: str) -> str:
    value = row.values[metric]
    return f"{100 * value:.1f}%" if metric == "coverage" else f"{value:.3f}"


def progress(study: Study) -> str:
    """How much of the plan is done."""
    planned = study.about["planned"]
    done = sum(study.get(key) is not None for key in planned)
    return f"{done} of {len(planned)} planned jobs are done."


def skipped_lines(study: Study) -> list[tuple[str, str]]:
    """What was left out and why, entries with the same reason together; not what was measured after all."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for key, each in study.about["skipped"].items():
        if study.get(key) is not None:
            continue
        where = by_reason.setdefault((LABELS[each["entry"]], each["skipped"]), [])
        if each["dataset"] not in where:
            where.append(each["dataset"])
    return [(label, f"{why} ({', '.join(where)})") for (label, why), where in by_reason.items()]


def markdown(study: Study) -> str:
    """The whole comparison."""
    results = study.records
    rows, lost = collect(results)
    summary = summarise(rows)
    quick = study.about["options"]["quick"]
    parts = ["# PrismGP and other libraries", *([f"**{QUICK}**"] if quick else []), progress(study)]
    parts.append(
        "Scores of held-out rows, in units of the training target's standard deviation, means over splits; sorted by "
        "NLPD (mean negative log density of the Gaussian with the predicted mean and standard deviation). In the "
        "column *NLPD, shape* a shape of the noise that was learned from held-out residuals takes the place of the "
        "Gaussian: for PrismGP the model's own, for all others one that is learned from other test rows. The best "
        f"value of a column is bold; our default, {LABELS[DEFAULT]}, is marked with an arrow. Fit memory is the peak "
        "above what the process held before the fit."
    )
    parts += [f"**{line}**" for line in disagreements(results.get(AGREEMENT, {}))]
    if not quick:
        parts += ["## Main table", *main_table(results)]
    parts.append("## Every data set")
    for dataset, each in rows.items():
        parts.append(f"### {dataset}")
        every = max(len(row.splits) for row in each)
        first = each[0].values
        parts.append(f"{first['rows']:,.0f} training rows, {first['test_rows']:,.0f} test rows, splits: {every}.")
        table = rank(each)
        best = best_of(table)
        lines = ["| | " + " | ".join(header for header, _, _ in COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
        for k, row in enumerate(table):
            texts = cells(row, every)
            texts = [f"**{text}**" if (k, column) in best else text for column, text in enumerate(texts)]
            lines.append(f"| {'→ ' if row.name == DEFAULT else ''}{' | '.join(texts)} |")
        parts.append("\n".join(lines))
        parts += [_standing(metric, summary[dataset][metric]) for metric in ("rmse", "nlpd")]
        if dataset in lost:
            parts.append("\n".join(f"- {name}: {what}" for name, what in lost[dataset].items()))
    parts.append("## Where others win")
    found = losses(rows)
    if found:
        lines = [f"| data set | metric | {LABELS[DEFAULT]} | better |", "|---|---|---:|---|"]
        parts.append("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in found)]))
    else:
        parts.append(
            f"No entry of another library is better than {LABELS[DEFAULT]} in any metric of any data set here."
        )
    for dataset, missing in lost.items():
        if dataset not in rows:
            parts += [f"### {dataset}", "\n".join(f"- {name}: {what}" for name, what in missing.items())]
    if skipped := skipped_lines(study):
        parts += ["## Left out", "\n".join(f"- {label}: {why}" for label, why in skipped)]
    return "\n\n".join(parts) + "\n"


def _standing(metric: str, found: dict[str, Any]) -> str:
    names = ", ".join(LABELS[name] for name in found["front"])
    text = f"{METRICS[metric]} against fit time: on the front are {names}."
    if found["default_on_front"] is False:
        text += (
            f" {LABELS[DEFAULT]} is dominated by {', '.join(LABELS[name] for name in found['default_dominated_by'])}."
        )
    return text

"""The comparison as a page."""

from __future__ import annotations

from typing import Any

from experiments.comparison.agreement import disagreements
from experiments.comparison.entries import DEFAULT, ENTRIES, LABELS
from experiments.comparison.figures import calibration_figure, describe_figure, pareto_figure
from experiments.comparison.plan import AGREEMENT
from experiments.comparison.standings import Row, beaten_by, collect, summarise
from experiments.comparison.tables import COLUMNS, QUICK, best_of, cells, losses, progress, rank, skipped_lines
from experiments.page import Figure, Highlight, Notice, Page, Section, Table, to_svg
from experiments.results import Record, Study

__all__ = ["page"]


def page(study: Study) -> Page:
    """The page of a comparison, from what is finished of it."""
    results = study.records
    rows, lost = collect(results)
    summary = summarise(rows)
    fits = [result for key, result in results.items() if key != AGREEMENT and "failed" not in result]
    sections = [
        agreement_section(results.get(AGREEMENT)),
        *(_dataset(name, each, lost.get(name, {})) for name, each in rows.items()),
    ]
    sections.append(_losses(rows))
    if missing := {name: lost[name] for name in lost if name not in rows}:
        facts = [(f"{name}: {label}", what) for name, each in missing.items() for label, what in each.items()]
        sections.append(Section("Data sets without results", facts=facts))
    if skipped := skipped_lines(study):
        sections.append(Section("Left out", facts=skipped))
    sections.append(_settings(fits))
    left = [key for key in study.about["planned"] if key not in results]
    notice = Notice(QUICK, "bad", "Not a comparison") if study.about["options"]["quick"] else None
    if notice is None and left:
        notice = Notice(f"{progress(study)} The same command continues.", "note", "Not finished")
    return Page(
        title="PrismGP and other libraries",
        summary=(
            "Every entry got the same rows, the same split, the same units and the same number of threads, in a "
            "process of its own; those marked GPU used one. Scores are those of held-out rows, in units of the "
            "training target's standard deviation, means over splits.\n\n"
            f"{progress(study)} Our default is {LABELS[DEFAULT]}, with nothing tuned per data set."
        ),
        sections=sections,
        made_by=_made_by(study, fits),
        highlights=_highlights(summary),
        notice=notice,
    )


def _highlights(summary: dict[str, Any]) -> list[Highlight]:
    tiles = []
    for metric, title in (("rmse", "RMSE"), ("nlpd", "NLPD")):
        known = [each[metric] for each in summary.values() if each[metric]["default_on_front"] is not None]
        if known:
            on_front = sum(each["default_on_front"] for each in known)
            best = sum(each["best"] == DEFAULT for each in known)
            tiles.append(
                Highlight(
                    f"{on_front} of {len(known)}",
                    f"data sets with our default on the front of {title} and fit time",
                    "nothing else is both faster and better",
                )
            )
            tiles.append(Highlight(f"{best} of {len(known)}", f"data sets where our default has the least {title}"))
    return tiles


def agreement_section(found: dict[str, Any] | None) -> Section:
    title = "Do the libraries agree where they must?"
    if found is None:
        return Section(title, notice=Notice("The check has not run.", "note"))
    text = (
        "At the same parameters the exact GP is one function. Largest differences from a plain float64 computation, "
        f"in units of the target's standard deviation; {found.get('tolerance', 0):.0e} is allowed."
    )
    tables = []
    if "exact" in found:
        rows = [
            [
                name,
                each["version"] or "",
                *(f"{each[what]:.1e}" for what in ("log_evidence_per_row", "mean", "std")),
                "yes" if each["agrees"] else "NO",
            ]
            for name, each in found["exact"].items()
        ]
        header = ["", "version", "log evidence per row", "mean", "std", "agrees"]
        tables.append(Table("Exact GPs at fixed parameters", header, rows))
        rows = [
            [f"{name}: {row['size']:,}", f"{row['mean']:.1e}", f"{row['std']:.1e}"]
            for name, each in found["limits"].items()
            for row in each["sizes"]
        ]
        note = "The variance of Nystroem features lacks what the features cannot express, with all points too."
        tables.append(Table("Approximations that grow", ["", "mean", "std"], rows, note=note))
    wrong = disagreements(found)
    notice = Notice(" ".join(f"{line}." for line in wrong), "bad", "Disagreement") if wrong else None
    return Section(title, text, tables, notice=notice, facts=list(found.get("skipped", {}).items()))


def _dataset(name: str, rows: list[Row], lost: dict[str, str]) -> Section:
    table_rows, every = rank(rows), max(len(row.splits) for row in rows)
    default = next((row for row in rows if row.name == DEFAULT and row.complete), None)
    winners = {row.name for metric in ("rmse", "nlpd") for row in beaten_by(rows, metric)}
    first = rows[0].values
    table = Table(
        f"{name}, sorted by NLPD",
        ["", *(header for header, _, _ in COLUMNS)],
        [cells(row, every) for row in table_rows],
        note="" if default is None else f"Our default: {default.label}.",
        best=best_of(table_rows),
        lost=frozenset(k for k, row in enumerate(table_rows) if row.name in winners),
        lost_label="better than our default in RMSE or NLPD",
    )
    figures = [
        Figure(
            to_svg(pareto_figure(name, rows)),
            "Error against the seconds of the fit; the dashed line is the front.",
            describe_figure(name, rows),
        )
    ]
    if default is not None:
        alt = f"{name}: observed against expected coverage of central intervals."
        caption = "Calibration of our default and of the other libraries' densest entries."
        figures.append(Figure(to_svg(calibration_figure(name, rows)), caption, alt, wide=False))
    text = f"{first['rows']:,.0f} training rows, {first['test_rows']:,.0f} test rows, splits: {every}."
    return Section(name, text, [table], figures, facts=list(lost.items()))


def _losses(rows: dict[str, list[Row]]) -> Section:
    found = losses(rows)
    text = f"Every data set and metric in which an entry of another library is better than {LABELS[DEFAULT]}."
    if not found:
        return Section("Where others win", f"{text} Here there is none.")
    table = Table("Better than our default", ["data set", "metric", "ours", "better"], found)
    return Section("Where others win", text, [table])


def _settings(fits: list[dict[str, Any]]) -> Section:
    facts = []
    for name, entry in ENTRIES.items():
        mine = [result for result in fits if result["entry"] == name]
        if mine:
            given = ", ".join(f"{key} = {value}" for key, value in mine[0]["settings"].items()) or "defaults"
            facts.append((entry.label, f"{entry.library.name} ({entry.library.licence}), {entry.fit}: {given}"))
    return Section("Settings", "What each entry was given; everything else is the library's default.", facts=facts)


def _made_by(study: Study, fits: list[Record]) -> dict[str, str]:
    made = {"command": study.about["command"], "started": study.about["started"]}
    made |= {name: str(value) for name, value in study.about["options"].items()}
    made["jobs at a time"] = ", ".join(sorted({str(fit["jobs"]) for fit in fits if "jobs" in fit})) or "not recorded"
    versions = {f"{fit['library']} {fit['library_version']}" for fit in fits if fit["library_version"]}
    machines = {f"{fit['machine']['processor']}, {fit['machine']['cores']} cores" for fit in fits}
    sources = {f"{fit['prismgp']} ({fit['commit'] or fit['source']})" for fit in fits}
    for name, found in (("libraries", versions), ("machine", machines), ("prismgp", sources)):
        if found:
            made[name] = "; ".join(sorted(found))
    return made

"""Carries out a plan in a folder, and writes what people look at."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from experiments.lab._folder import RunFolder, write_json
from experiments.lab._jobs import Job, Limits, carry_out
from experiments.lab.reproduce._data import check_available
from experiments.lab.reproduce._page import claims_text, page, run_drawings
from experiments.lab.reproduce._plan import Plan, run_title
from experiments.lab.reproduce._summary import HEADER, claims, groups, markdown, published_rows, table_rows
from experiments.report import render
from prismgp._files import atomic_path
from prismgp.plots import to_svg

__all__ = ["carry_out_plan", "write_outputs"]

_PREPARE = "experiments.lab.reproduce._data:prepare"


def carry_out_plan(
    plan: Plan,
    folder: str | PathLike[str],
    limits: Limits | None = None,
    *,
    command: str = "prismgp reproduce",
    show: bool = True,
) -> tuple[RunFolder, list[Job]]:
    """Do what is not done yet of a plan.

    Parameters
    ----------
    plan : Plan
    folder : path
        Of the run, begun or continued.
    limits : Limits
    command : str
        For the record.
    show : bool
        Progress on stderr.

    Returns
    -------
    RunFolder
    list of Job
        That have no result.
    """
    check_available(plan.about.gas, plan.simulated)
    run = RunFolder.open(folder, kind="reproduce", name=plan.experiment, command=command, options=plan.options)
    rows = (run.folder / "data").resolve() if plan.about.streamed else None
    jobs = plan.jobs(None if rows is None else str(rows))
    planned = list(dict.fromkeys([*run.about.get("planned", []), *(job.key for job in jobs)]))
    write_json(run.folder / "run.json", {**run.about, "wishes": plan.wishes, "planned": planned})
    run = RunFolder.read(folder)
    if rows is not None:
        order = {"kind": "data", **plan.options, "runs": plan.runs, "data": str(rows)}
        key = f"data-{plan.runs}" if plan.runs > 1 else "data"
        unprepared = carry_out(run.results, [Job(key, _PREPARE, order)], limits, show=show)
        if unprepared:
            return run, [*unprepared, *jobs]
    return run, carry_out(run.results, jobs, limits, describe=_described, show=show)


def _described(result: dict[str, Any]) -> str:
    if result.get("kind") == "fit":
        return f"RMSE {result['rmse']:.4f}, NLPD {result['nlpd']:.4f}, fit {result['fit_seconds']:.1f} s"
    return f"done, {result['job_seconds']:.1f} s"


def write_outputs(run: RunFolder) -> list[Path]:
    """``results.json``, ``table.md``, every figure as SVG and PNG, ``report.html``; from what is finished."""
    results = run.results.all()
    found = groups(results)
    short = [{name: value for name, value in each.items() if name != "curve"} for each in _fits(results)]
    verdicts = claims(found)
    write_json(
        run.folder / "results.json",
        {"run": run.about, "fits": short, "claims": [vars(each) for each in verdicts]},
    )
    parts = [f"# {run_title(run.about)}\n", markdown(HEADER, table_rows(found))]
    beside = published_rows(found, run.about)
    if beside:
        parts.append(markdown(["Model", "RMSE here", "published"], beside))
    if verdicts:
        parts.append("## The paper's claims\n\n" + claims_text(verdicts))
    _write(run.folder / "table.md", "\n".join(parts))
    paths = [run.folder / "results.json", run.folder / "table.md"]
    for drawing in run_drawings(run):
        figure = drawing.make()
        svg, png = (run.folder / f"{drawing.name}.{suffix}" for suffix in ("svg", "png"))
        _write(svg, to_svg(figure))
        with atomic_path(png) as temporary:
            figure.savefig(temporary, format="png", dpi=110)
        paths += [svg, png]
    render(page(run.folder), run.folder / "report.html")
    return [*paths, run.folder / "report.html"]


def _fits(results: dict[str, dict[str, Any]]) -> Sequence[dict[str, Any]]:
    return [result for result in results.values() if result.get("kind") == "fit"]


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")

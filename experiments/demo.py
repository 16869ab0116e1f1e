"""The demo: the full GP, the SSGP and the revised SSGP side by side on two data sets or three; ``make demo``.

It is a study like others, but always measured anew.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

from experiments.internals import AnyArray, held_out, search_folders
from experiments.jobs import Job, Limits, carry_out
from experiments.machine import usable_cores
from experiments.page import (
    MODEL_STYLES,
    PALETTE,
    Figure,
    Page,
    Section,
    Table,
    best_cells,
    certificate_section,
    draw_calibration,
    draw_svg,
    drawing,
    drawing_style,
    render,
    save_png,
)
from experiments.plan import Plan
from experiments.results import Record, Study
from experiments.scores import LEVELS, score
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.datasets import load_abalone, make_gas_sensor
from prismgp.exceptions import DataError

__all__ = ["add_options", "has_abalone", "make_plan", "page", "run", "text_table"]

DATA = {"diabetes": "diabetes", "gas": "gas array (simulated)", "abalone": "abalone (sample)"}
_NAMES = {"exact": "full GP", "ssgp": "SSGP", "prism1": "PrismGP, one model"}
_COLOURS = {"diabetes": PALETTE["vermillion"], "gas": PALETTE["blue"], "abalone": PALETTE["green"]}
_HEADER = ["Data", "Model", "p", "Rows", "RMSE", "NLPD", "95% intervals cover", "Fit, s"]
_SHARE = 0.2  # of the rows, held out
_ABALONE_ROWS = 2_000  # of 4,177: the full GP is to learn its parameters within seconds
_CERTIFIED = 64  # frequencies


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder (default: demo)")


def run(args: argparse.Namespace) -> int:
    """Fit everything, write ``report.html`` and ``overview.png`` into the folder, and print the table."""
    study = begin(args.out, args.command, make_plan())
    write_outputs(study)
    print(text_table(study.records))
    print(f"\nReport: {args.out / 'report.html'}   picture: {args.out / 'overview.png'}")
    return 0


def make_plan(frequencies: Sequence[int] = (16, 32, 64), gas_rows: int = 2_500, steps: int | None = None) -> Plan:
    """Everything the demo fits.

    Parameters
    ----------
    frequencies : sequence of int
    gas_rows : int
        Of the simulated array, before the split.
    steps : int or None
        Limit of the steps of networks; None: that of the estimator.
    """
    names = [name for name in DATA if name != "abalone" or has_abalone()]
    options = {"data": names, "frequencies": list(frequencies), "gas_rows": gas_rows, "steps": steps}
    # The longest first, so that no core waits for it at the end.
    jobs = [
        Job(f"{model}-{name}", f"{__name__}:fits", {"data": name, "model": model, "options": options})
        for model in ("exact", "prism1", "ssgp")
        for name in reversed(names)
    ]
    jobs += [Job(kind, f"{__name__}:{kind}", {"options": options}) for kind in ("certificate", "picture")]
    return Plan("demo", jobs, options)


def begin(folder: Path, command: str, plan: Plan, *, show: bool = True) -> Study:
    """Carry out the plan; an older demo in the folder is replaced, a folder with other files is refused."""
    own = {"demo.jsonl", "overview.png", "report.html"}
    if folder.exists() and (other := {path.name for path in folder.iterdir()} - own):
        raise DataError(f"{folder}: holds other files ({', '.join(sorted(other)[:3])}); choose another folder")
    for name in own:
        (folder / name).unlink(missing_ok=True)
    study = Study(folder, plan.study)
    keys = [job.key for job in plan.jobs]
    study.begin(kind="demo", options=plan.options, command=command, planned=keys, skipped={})
    unfinished = carry_out(study, plan.jobs, Limits(at_a_time=usable_cores(), threads=1), show=show)
    if unfinished:
        failed = (study.get(unfinished[0].key) or {}).get("failed", "")
        raise DataError(f"{unfinished[0].key} has no result: {failed}")
    return study


def write_outputs(study: Study) -> None:
    """The page and the picture."""
    save_png(draw_overview(study.records), study.folder / "overview.png")
    render(page(study), study.folder / "report.html")


def has_abalone() -> bool:
    """Whether the file is there already; a demo does not wait for a network."""
    return any((folder / "abalone" / "abalone.data").is_file() for folder in search_folders())


# -- jobs ------------------------------------------------------------------------------------------


def _load(name: str, options: Mapping[str, Any]) -> tuple[AnyArray, AnyArray, AnyArray, AnyArray]:
    """Training and test rows."""
    if name == "abalone":
        data = load_abalone(0, test_fraction=_SHARE)
        few = np.random.default_rng([0, 7]).permutation(len(data.y))[:_ABALONE_ROWS]
        x, y, test = data.X.to_numpy()[few], data.y.to_numpy()[few], data.test[few]
    elif name == "gas":
        data = make_gas_sensor(int(options["gas_rows"]))
        x, y, test = data.X.to_numpy(), data.y.to_numpy(), data.test
    else:
        x, y = load_diabetes(return_X_y=True)
        test = held_out(len(y), 0.25, 0)
    return x[~test], y[~test], x[test], y[test]


def fits(order: dict[str, Any]) -> dict[str, Any]:
    """One kind of model on one data set, at every number of frequencies."""
    x, y, x_test, y_test = _load(order["data"], order["options"])
    scale = float(np.std(np.asarray(y, dtype=np.float64)))
    found = []
    frequencies: list[Any] = [None] if order["model"] == "exact" else order["options"]["frequencies"]
    for p in frequencies:
        model: Any = ExactGPRegressor(random_state=0) if p is None else SSGPRegressor(p, random_state=0)
        if order["model"] == "prism1":
            model = PrismGPRegressor(p, n_members=1, max_steps=order["options"]["steps"], random_state=0)
        began = time.perf_counter()
        model.fit(x, y)
        seconds = time.perf_counter() - began
        mean, std = model.predict(x_test, return_std=True)
        found.append({"p": p, "fit_seconds": seconds, **score(y_test, mean, std, scale)})
    return {"kind": "fits", "rows": len(y), "test_rows": len(y_test), "fits": found}


def certificate(order: dict[str, Any]) -> dict[str, Any]:
    """How far an SSGP is from the exact GP, on the simulated array."""
    x, y, x_test, _ = _load("gas", order["options"])
    model = SSGPRegressor(_CERTIFIED, random_state=0).fit(x, y)
    return {"kind": "certificate", "p": _CERTIFIED, "certificate": model.certify(x, y, x_test).to_dict()}


def picture(_: dict[str, Any]) -> dict[str, Any]:
    """One input, data with a gap: mean and band of the full GP and of an SSGP."""
    rng = np.random.default_rng(3)
    x = np.sort(np.concatenate([rng.uniform(-5, -0.5, 60), rng.uniform(1.8, 5, 50)]))
    y = np.sin(1.5 * x) + 0.3 * x + 0.2 * rng.standard_normal(len(x))
    grid = np.linspace(-6, 6, 400)
    curves = {}
    for name, model in (("exact", ExactGPRegressor()), ("ssgp", SSGPRegressor(32, random_state=0))):
        mean, std = model.fit(x[:, None], y).predict(grid[:, None], return_std=True)
        curves[name] = {"mean": np.round(mean, 5).tolist(), "std": np.round(std, 5).tolist()}
    return {"kind": "picture", "p": 32, "x": x.tolist(), "y": y.tolist(), "grid": grid.tolist(), "curves": curves}


# -- table, figures and page -----------------------------------------------------------------------


def text_table(results: Mapping[str, Record]) -> str:
    """The comparison for a terminal."""
    content = comparison_table(results)
    lines: Sequence[Sequence[str]] = [content.header, *content.rows]
    widths = [max(len(row[k]) for row in lines) for k in range(len(content.header))]
    left = {0, 1}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in lines
    )


def _fits(results: Mapping[str, Record]) -> list[Record]:
    """Every fit, in the order of the table."""
    found = []
    for data in DATA:
        for model in _NAMES:
            result = results.get(f"{model}-{data}")
            if result is not None and "failed" not in result:
                found += [{"data": data, "model": model, "rows": result["rows"], **fit} for fit in result["fits"]]
    return found


def comparison_table(results: Mapping[str, Record]) -> Table:
    """The comparison."""
    fits = _fits(results)
    rows = [
        [
            DATA[fit["data"]],
            _NAMES[fit["model"]],
            "" if fit["p"] is None else str(fit["p"]),
            f"{fit['rows']:,}",
            f"{fit['rmse']:.3f}",
            f"{fit['nlpd']:.3f}",
            f"{100 * fit['coverage']:.1f}%",
            f"{fit['fit_seconds']:.1f}",
        ]
        for fit in fits
    ]
    kinds = [fit["data"] for fit in fits]
    best = best_cells({k: [float(row[k]) for row in rows] for k in (4, 5)}, kinds)
    note = "Held-out rows; in units of the training target's standard deviation. Fits by one thread each."
    return Table("Accuracy, calibration and time", _HEADER, rows, note=note, best=best, groups=kinds)


def page(study: Study) -> Page:
    """The page of a demo."""
    results = study.records
    some = next(result for result in results.values() if "machine" in result)
    figures = [
        Figure(
            draw_svg(lambda axes: _draw_picture(axes, results["picture"])),
            "A sparse spectrum GP with 32 frequencies (red, band) and the full GP (black, dashed) on data with a "
            "gap. Both are less sure where there is no data; the sparse one less so, as few frequencies leave fewer "
            "functions to choose from.",
            "Two similar curves through noisy points. In the gap the full GP's band is the wider one.",
        ),
        Figure(
            draw_svg(lambda axes: _draw_error(axes, results)),
            "Test error relative to the full GP, against the number of spectral frequencies.",
            "RMSE ratio of the sparse spectrum GP and of PrismGP at p = 16, 32 and 64, for every data set.",
        ),
        Figure(
            draw_svg(lambda axes: _draw_calibration(axes, results), size=(7.5, 5.0)),
            "Share of held-out values inside central intervals, against what the intervals claim.",
            "Calibration curves beside the diagonal.",
        ),
    ]
    sections = [Section("Pictures", figures=figures)]
    if "certificate" in results:
        found = results["certificate"]
        heading = f"Certificate: SSGP, p = {found['p']}, gas array (simulated)"
        sections.append(certificate_section(found["certificate"], title=heading))
    machine = some["machine"]
    return Page(
        title="PrismGP demo",
        summary="The full GP, the sparse spectrum GP (SSGP) and the revised one (PrismGP, a single model, not the "
        "default ensemble of four) with 16, 32 and 64 spectral frequencies, on real data (diabetes, which scikit-learn "
        "carries, and a sample of Abalone where its file is available) and on a simulated gas sensor array.",
        tables=[comparison_table(results)],
        sections=sections,
        made_by={
            "command": study.about["command"],
            "started": study.about["started"],
            "prismgp": f"{some['prismgp']}, source {some['source']}",
            "machine": f"{machine['processor']}, {machine['cores']} cores",
            "versions": ", ".join(f"{name} {version}" for name, version in some["versions"].items()),
            "seeds": "0 for splits and models, 3 for the picture with one input",
            "time of all jobs": f"{sum(result.get('job_seconds', 0.0) for result in results.values()):.0f} s",
        },
    )


def draw_overview(results: Mapping[str, Record]) -> Any:
    """The three figures side by side; a matplotlib figure."""
    with drawing_style():
        figure = drawing(13, 4.4)
        axes = figure.subplots(1, 3, width_ratios=(1.5, 1.15, 1))
        _draw_picture(axes[0], results["picture"])
        _draw_error(axes[1], results)
        _draw_calibration(axes[2], results)
        return figure


def _draw_picture(axes: Any, found: Mapping[str, Any]) -> None:
    """Data with a gap, mean, and 95% band."""
    grid = np.array(found["grid"])
    axes.plot(found["x"], found["y"], ".", color="#888888", markersize=4, label="data")
    for model, label in (("exact", "full GP"), ("ssgp", f"SSGP, p = {found['p']}")):
        mean, std = (np.array(found["curves"][model][name]) for name in ("mean", "std"))
        colour = MODEL_STYLES[model]["color"]
        axes.plot(grid, mean, color=colour, linewidth=1.4, label=label)
        if model == "exact":
            for sign in (-1, 1):
                axes.plot(grid, mean + sign * 1.96 * std, color=colour, linewidth=0.8, linestyle="--")
        else:
            axes.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, color=colour, alpha=0.2, linewidth=0)
    axes.set(title="Mean and 95% interval of a new observation", xlabel="x", ylabel="y", ylim=(-4.5, 4.5))
    axes.legend(loc="upper left")


def _draw_error(axes: Any, results: Mapping[str, Record]) -> None:
    """RMSE over that of the full GP, against the number of frequencies."""
    fits = _fits(results)
    exact = {fit["data"]: fit["rmse"] for fit in fits if fit["model"] == "exact"}
    frequencies = sorted({fit["p"] for fit in fits if fit["p"] is not None})
    # Rings, so that both can be seen where they coincide.
    styles: dict[str, dict[str, Any]] = {
        "SSGP": {"linestyle": "--", "marker": "s", "markersize": 4},
        "PrismGP": {"linestyle": "-", "marker": "o", "markersize": 9, "fillstyle": "none"},
    }
    for data in exact:
        for model, style in zip(("ssgp", "prism1"), styles.values(), strict=True):
            mine = [fit for fit in fits if (fit["data"], fit["model"]) == (data, model)]
            ratios = [fit["rmse"] / exact[data] for fit in mine]
            axes.plot([fit["p"] for fit in mine], ratios, color=_COLOURS[data], **style)
    axes.axhline(1.0, color=MODEL_STYLES["exact"]["color"], linewidth=1)
    # A key to colours and one to shapes, below: the lines may be anywhere.
    for name, style in styles.items():
        axes.plot([], [], color="#555555", label=name, **style)
    axes.plot([], [], color=MODEL_STYLES["exact"]["color"], linewidth=1, label="full GP")
    for data in exact:
        axes.plot([], [], color=_COLOURS[data], linewidth=4, label=DATA[data])
    axes.set_xscale("log", base=2)
    axes.set_xticks(frequencies, [str(p) for p in frequencies])
    axes.set(title="Error against spectral frequencies", xlabel="frequencies p", ylabel="RMSE / RMSE of the full GP")
    axes.grid(axis="y")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, columnspacing=1.2)


def _draw_calibration(axes: Any, results: Mapping[str, Record]) -> None:
    """Of the largest models, on the simulated array."""
    fits = [fit for fit in _fits(results) if fit["data"] == "gas"]
    curves, styles = {}, {}
    for model, name in _NAMES.items():
        mine = [fit for fit in fits if fit["model"] == model]
        if mine:
            fit = max(mine, key=lambda each: each["p"] or 0)
            label = name if fit["p"] is None else f"{name.split(',')[0]}, p = {fit['p']}"
            curves[label], styles[label] = fit["calibration"], MODEL_STYLES[model]
    draw_calibration(axes, LEVELS, curves, title="Calibration, gas array (simulated)", styles=styles)

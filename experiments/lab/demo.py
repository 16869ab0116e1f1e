"""The demo: the full GP, the SSGP and the revised SSGP side by side on two data sets or three; ``make demo``.

It is a run like others, of kind "demo", but always made anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from experiments.lab._demo_page import DATA, draw_overview, page, table
from experiments.lab._folder import RunFolder
from experiments.lab._jobs import Job, Limits, carry_out
from experiments.lab._provenance import usable_cores
from experiments.lab._scores import scores
from experiments.report import render
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp._files import atomic_path
from prismgp._types import AnyArray
from prismgp.datasets import load_abalone, make_gas_sensor
from prismgp.datasets.cache import search_folders
from prismgp.datasets.dataset import held_out
from prismgp.exceptions import DataError
from prismgp.plots import drawing_style

__all__ = ["page", "run", "text_table"]

_SHARE = 0.2  # of the rows, held out
_ABALONE_ROWS = 2_000  # of 4,177: the full GP is to learn its parameters within seconds
_CERTIFIED = 64  # frequencies


def run(
    folder: str | PathLike[str],
    *,
    frequencies: Sequence[int] = (16, 32, 64),
    gas_rows: int = 2_500,
    steps: int | None = None,
    command: str = "make demo",
    show: bool = True,
) -> RunFolder:
    """Fit everything, and write ``report.html`` and ``overview.png``.

    Parameters
    ----------
    folder : path
        An older demo in it is replaced.
    frequencies : sequence of int
    gas_rows : int
        Of the simulated array, before the split.
    steps : int or None
        Limit of the steps of networks; None: that of the estimator.
    command : str
        For the record.
    show : bool
        Progress on stderr.
    """
    path = Path(folder)
    _clear(path)
    names = [name for name in DATA if name != "abalone" or abalone_at_hand()]
    options = {"data": names, "frequencies": list(frequencies), "gas_rows": gas_rows, "steps": steps}
    done = RunFolder.open(path, kind="demo", name="demo", command=command, options=options)
    # The longest first, so that no core waits for it at the end.
    jobs = [
        Job(f"{model}-{name}", f"{__name__}:fits", {"data": name, "model": model, "options": options})
        for model in ("exact", "prism1", "ssgp")
        for name in reversed(names)
    ]
    jobs += [Job(kind, f"{__name__}:{kind}", {"options": options}) for kind in ("certificate", "picture")]
    unfinished = carry_out(done.results, jobs, Limits(at_a_time=usable_cores(), threads=1), show=show)
    if unfinished:
        failed = (done.results.get(unfinished[0].key) or {}).get("failed", "")
        raise DataError(f"{unfinished[0].key} has no result: {failed}")
    overview = draw_overview(done.results.all())
    with drawing_style(), atomic_path(path / "overview.png") as temporary:
        overview.savefig(temporary, format="png", dpi=110)
    render(page(path), path / "report.html")
    return done


def _clear(folder: Path) -> None:
    """Remove an older demo; anything else in the folder is left for :meth:`RunFolder.open` to refuse."""
    if not (folder / "run.json").exists():
        return
    found = RunFolder.read(folder)
    if found.about["kind"] != "demo":
        raise DataError(f"{folder}: holds a run of another kind ({found.about['kind']}); choose another folder")
    for path in [*(folder / "results").glob("*.json"), folder / "report.html", folder / "overview.png"]:
        path.unlink(missing_ok=True)
    (folder / "run.json").unlink()
    if (folder / "results").is_dir() and not any((folder / "results").iterdir()):
        (folder / "results").rmdir()


def abalone_at_hand() -> bool:
    """Whether the file is there already; a demo does not wait for a network."""
    return any((folder / "abalone" / "abalone.data").is_file() for folder in search_folders())


def text_table(results: Mapping[str, dict[str, Any]]) -> str:
    """The comparison for a terminal."""
    content = table(results)
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


# -- jobs ----------------------------------------------------------------------------------------


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
        from sklearn.datasets import load_diabetes

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
        found.append({"p": p, "fit_seconds": seconds, **scores(y_test, mean, std, scale)})
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

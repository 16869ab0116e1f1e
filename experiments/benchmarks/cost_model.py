"""A cost model of a PrismGP fit on a cluster: its constants from measured runs, and what it says of a billion rows.

A pass over n rows in k shards with W workers of one core each takes ``o + c n / s(W) + m t`` seconds: c for a row of
that pass, m for each of its t tasks, which one scheduler hands out, o whatever the rows are, and s(W) = W. On the
machine that measures, s(W) is limited by its cores: s(1) = 1, and one constant for all W above.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from experiments.page import markdown_table
from experiments.results import Record

__all__ = ["Model", "describe_model", "tables"]

_WIDTH, _GATED = 2 * 32 + 2, 2 * 32 * 8 + 2  # columns of the statistics of the SSGP and of a network with eight gates
# Multiplications and additions for a row: features, products of all pairs of them, gradients, variances.
_OPERATIONS = {
    "moments": 6 * 51,
    "evaluate": 3 * (2 * 50 * 32) + _WIDTH**2 + 4 * 32 * _WIDTH,
    "sample": 0,
    "add_statistics": 2 * 24_000 + 2 * 58 * 32 + _GATED**2,
    "survey": 2 * 24_000 + 2 * 58 * 32 + 2 * _GATED**2,
}
# Passes: how many a phase is, whether results are merged, and what it is called.
PASSES = {
    "moments": (1, False, "read, check, moments"),
    "evaluate": (2, True, "one evaluation of the SSGP's evidence"),
    "sample": (1, False, "sample of some rows"),
    "add_statistics": (1, True, "posterior of a network"),
    "survey": (1, True, "predictions of the mixture"),
}
TINY_SHARDS = 200  # of the measurement
QUERIES = {"search_few": 256, "search_many": 2_048}
FAN_IN = 8

# What is assumed of a fit to a billion rows.
ROWS, INPUTS, SHARD_ROWS = 10**9, 50, 1_048_576
SELECTIONS = 5  # passes that pick rows: two small samples, subsamples of the SSGP, rows of networks and of neighbours
STEPS, BATCH, TRAINING_ROWS = 3_000, 4_096, 524_288
FREQUENCIES, MAIN_ROWS = 32, 65_536  # of the SSGP, and of its largest subsample
LOCAL_ROWS, KEPT_SHARD_ROWS = 4_000_000, 65_536
SEARCHES, SEARCHED = 20, 2 * (1_024 + 8 * 2_560 + 10_000)  # of two views: at the start, eight times, at the end
WORKERS = (10, 100, 1_000)
CORE_PRICE = 0.048  # dollars an hour: half of an m6i.large of Amazon EC2, two virtual cores and 8 GiB
NETWORK = 125e6  # bytes a second into the driver: one gigabit
STORAGE = 100e6  # bytes a second that each worker reads from files


def count_tasks(shards: int, *, merged: bool) -> int:
    """Tasks of a pass: one for the work, one for each shard, and a tree of merges."""
    total, level = 1 + shards, shards
    while merged and level > 1:
        level = math.ceil(level / FAN_IN)
        total += level
    return total


@dataclass(frozen=True)
class Model:
    """The constants."""

    task: float  # m, seconds
    cores: float  # s(W) for W above one, on the machine that measured
    fixed: dict[str, float]  # o of every pass, seconds
    row: dict[str, float]  # c of every pass, seconds
    search_row: float  # seconds for a row of a search, which places it
    pair: float  # seconds for a query and a row of a search
    byte: float  # seconds for a byte that the driver collects
    step: float  # seconds of a step with batches from the workers

    @classmethod
    def fit(cls, runs: Sequence[Record]) -> Model:
        """Constants by least squares, none negative.

        The first run has one worker, the next more and as many rows, and the last one worker and fewer rows.
        """
        task = statistics.median(run["seconds"]["count_tasks"] / count_tasks(TINY_SHARDS, merged=False) for run in runs)
        spent = {name: [_work_seconds(run, name, task) for run in runs] for name in (*PASSES, *QUERIES)}
        alone, *several = [sum(each) for each in zip(*spent.values(), strict=True)][:-1]
        cores = alone / statistics.mean(several)
        rows = [run["rows"] / (1.0 if run["workers"] == 1 else cores) for run in runs]
        fixed, row = {}, {}
        for name in PASSES:
            fixed[name], row[name] = _solve([[1.0, n] for n in rows], spent[name])
        searched = [[n, n * count] for count in QUERIES.values() for n in rows]
        search_row, pair = _solve(searched, [seconds for name in QUERIES for seconds in spent[name]])
        byte = statistics.median(run["seconds"]["collect"] / run["collected_bytes"] for run in runs)
        step = statistics.median(run["seconds"]["step"] for run in runs)
        return cls(task, cores, fixed, row, search_row, pair, byte, step)

    def predict(self, run: Record) -> dict[str, float]:
        """Seconds of the phases of a run on the machine that measured."""
        n = run["rows"] / (1.0 if run["workers"] == 1 else self.cores)
        found = {name: self.fixed[name] + self.row[name] * n for name in PASSES}
        found |= {name: (self.search_row + self.pair * count) * n for name, count in QUERIES.items()}
        found = {name: seconds + self.task * _phase_tasks(run, name) for name, seconds in found.items()}
        return found | {"collect": self.byte * run["collected_bytes"], "step": self.step}


def _solve(matrix: list[list[float]], times: list[float]) -> tuple[float, float]:
    """Two constants that are not negative, by least squares of relative errors."""
    weight = 1.0 / np.maximum(times, 1e-3)
    first, second = nnls(np.array(matrix) * weight[:, None], np.array(times) * weight)[0]
    return float(first), float(second)


def _phase_tasks(run: Record, name: str) -> int:
    passes, merged, _ = PASSES.get(name, (1, True, ""))
    return passes * count_tasks(run["shards"], merged=merged)


def _work_seconds(run: Record, name: str, task: float) -> float:
    """Without the tasks."""
    return float(run["seconds"][name]) - task * _phase_tasks(run, name)


# -- a billion rows ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """A phase of a fit to a billion rows."""

    name: str
    core_seconds: float = 0.0  # that are divided among the workers
    serial_seconds: float = 0.0  # that are not: scheduler, steps of the driver
    read_bytes: float = 0.0  # from files, by all workers
    driver_bytes: float = 0.0  # into the driver
    hidden: bool = False  # whether these come while the driver computes
    operations: float = 0.0  # of floating-point numbers

    def seconds(self, workers: int) -> float:
        """With so many workers."""
        alone, arriving = self.serial_seconds, self.driver_bytes / NETWORK
        serial = max(alone, arriving) if self.hidden else alone + arriving
        return (self.core_seconds + self.read_bytes / STORAGE) / workers + serial


def list_phases(model: Model, result: Record) -> tuple[list[Phase], list[Phase]]:
    """Of a fit with all defaults, and of the prediction of all rows."""
    shards, run = math.ceil(ROWS / SHARD_ROWS), result["check"]
    evaluations, file_row = run["evaluations"], 4 * (INPUTS + 1)
    kept_row = run["collected_bytes"] / run["rows"]

    def make(what: str, name: str, count: int, driver_bytes: float) -> Phase:
        passes, merged, _ = PASSES[name]
        tasks = count * passes * count_tasks(shards, merged=merged)
        read = float(count * passes * ROWS * file_row)
        times = model.row[name] * ROWS, _OPERATIONS[name] * float(ROWS)
        core, operations = (count * each for each in times)
        return Phase(what, core, model.task * tasks, read, driver_bytes, operations=operations)

    evaluated = evaluations * 8 * (_WIDTH**2 + INPUTS * FREQUENCIES)
    each_pair = 2.0 * run["coordinates"]
    searches = SEARCHES * count_tasks(math.ceil(LOCAL_ROWS / KEPT_SHARD_ROWS), merged=True)
    fit = [
        make("read, check, moments", "moments", 1, 2 * shards * 8 * 6 * INPUTS),
        make(f"SSGP: {evaluations} evaluations on all rows", "evaluate", evaluations, evaluated),
        make(f"{SELECTIONS} samples of rows", "sample", SELECTIONS, MAIN_ROWS * 2 * file_row),
        Phase(
            f"networks: {STEPS:,} steps",
            serial_seconds=STEPS * model.step,
            driver_bytes=STEPS * BATCH * file_row,
            hidden=True,
            operations=3.0 * STEPS * BATCH * _OPERATIONS["add_statistics"],  # forwards, and backwards twice that
        ),
        make("posterior of the network", "add_statistics", 1, 8 * _GATED**2),
        Phase(
            f"neighbours: {LOCAL_ROWS:,} rows, {SEARCHED:,} queries",
            (model.row["survey"] + SEARCHES * model.search_row + model.pair * SEARCHED) * LOCAL_ROWS,
            model.task * searches,
            driver_bytes=LOCAL_ROWS * kept_row + SEARCHED * 32 * 16,
            operations=LOCAL_ROWS * (_OPERATIONS["survey"] + SEARCHED * each_pair),
        ),
    ]
    pairs = float(ROWS * LOCAL_ROWS)
    near = Phase(f"more, for neighbours among {LOCAL_ROWS:,} rows", model.pair * pairs, operations=pairs * each_pair)
    return fit, [make('predict all rows, local="never"', "survey", 1, 16.0 * ROWS), near]


# -- tables --------------------------------------------------------------------------------------------


def tables(result: Record) -> str:
    """Constants, the check and a billion rows, in Markdown."""
    model = Model.fit(result["runs"])
    parts = {
        "Measured": _runs_table(result, model),
        "Predicted": _check_table(result),
        "A billion rows": _rows_table(result, model),
    }
    return "# Costs on a cluster\n\n" + "\n".join(f"## {title}\n\n{text}\n" for title, text in parts.items())


def _runs_table(result: Record, model: Model) -> str:
    runs = result["runs"]
    same, few = runs[0]["rows"], runs[-1]
    names = {name: words for name, (_, _, words) in PASSES.items()}
    rows = [
        [words, *(f"{run['seconds'][name]:.2f}" for run in runs), f"{1e6 * model.row[name]:.2f} µs for a row"]
        for name, words in names.items()
    ]

    def more(words: str, name: str, constant: str, digits: int = 2) -> list[str]:
        return [words, *(f"{run['seconds'][name]:.{digits}f}" for run in runs), constant]

    rows += [
        more("search of 256 rows", "search_few", f"{1e6 * model.search_row:.2f} µs for a row, beside"),
        more("search of 2,048 rows", "search_many", f"{1e9 * model.pair:.2f} ns for a query and a row"),
        more("collect what was predicted", "collect", f"{1e-6 / model.byte:,.0f} MB in a second"),
        more("a step, batches from workers", "step", f"{1e3 * model.step:.0f} ms", digits=3),
        more("a step, rows in memory", "step_in_memory", "", digits=3),
        more(f"{TINY_SHARDS} empty tasks", "count_tasks", f"{1e3 * model.task:.2f} ms for a task"),
    ]
    peak = max(run["worker_peak_bytes"] for run in runs)
    columns = [*(f"W = {run['workers']}" for run in runs[:-1]), f"W = {few['workers']}, {few['rows']:,} rows"]
    header = [f"seconds, {same:,} rows in {runs[0]['shards']} shards", *columns, "constant"]
    return (
        f"{markdown_table(header, rows)}\n\nSeveral workers together are {model.cores:.2f} times as fast as one. "
        f"A worker takes {peak / 1e6:,.0f} MB at most. The network has {runs[0]['parameters']:,} parameters."
    )


def check(result: Record) -> list[tuple[str, float, float]]:
    """Phases of the run that was not used to fit the model: predicted and measured seconds, and the sum of all."""
    run = result["check"]
    predicted = Model.fit(result["runs"]).predict(run)
    found = [(name, value, float(run["seconds"][name])) for name, value in predicted.items()]
    return [*found, ("all", sum(each[1] for each in found), sum(each[2] for each in found))]


def _check_table(result: Record) -> str:
    run = result["check"]
    words = {name: text for name, (_, _, text) in PASSES.items()}
    words |= {name: f"search of {count:,} rows" for name, count in QUERIES.items()}
    words |= {"collect": "collect what was predicted", "step": "a step", "all": "**all**"}
    rows = [
        [words[name], f"{predicted:.2f}", f"{measured:.2f}", f"{100 * (predicted / measured - 1):+.0f}%"]
        for name, predicted, measured in check(result)
    ]
    header = [
        f"{run['rows']:,} rows, {run['shards']} shards, W = {run['workers']}",
        "predicted, s",
        "measured, s",
        "error",
    ]
    return markdown_table(header, rows)


def _rows_table(result: Record, model: Model) -> str:
    fit, prediction = list_phases(model, result)

    def line(phase: Phase) -> list[str]:
        sizes = _size(phase.read_bytes), _size(phase.driver_bytes), _size(phase.operations, "")
        return [phase.name, *sizes, *(_duration(phase.seconds(w)) for w in WORKERS)]

    whole = [sum(phase.seconds(w) for phase in fit) for w in WORKERS]
    read, arrived, done = (
        sum(getattr(phase, name) for phase in fit) for name in ("read_bytes", "driver_bytes", "operations")
    )
    prices = [f"{w * seconds / 3600 * CORE_PRICE:,.2f} $" for w, seconds in zip(WORKERS, whole, strict=True)]
    rows = [
        *map(line, fit),
        [
            "**the fit**",
            _size(read),
            _size(arrived),
            _size(done, ""),
            *(f"**{_duration(seconds)}**" for seconds in whole),
        ],
        ["**its price**", "", "", "", *prices],
        *map(line, prediction),
    ]
    header = ["phase", "read from files", "to the driver", "operations", *(f"W = {w:,}" for w in WORKERS)]
    return markdown_table(header, rows)


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 2 else f"{seconds:.1f} s"


def _size(count: float, unit: str = "B") -> str:
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {prefix}{unit}"
    return "" if count == 0 else f"{count:.0f} {unit}"


def describe_model(result: Record) -> str:
    """A few words about a result."""
    _, predicted, measured = check(result)[-1]
    return f"the check takes {measured:.1f} s, predicted {predicted:.1f} s, {100 * (predicted / measured - 1):+.0f}%"

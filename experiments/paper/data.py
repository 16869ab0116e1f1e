"""The rows of a run, split eight to two: at random, anew for each run, or by position, as the authors split.

By position ("blocks") the last fifth of the rows is held out, in the order of the files: for the gas array the last
days, so that a test row has no neighbour a third of a second away among the training rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from experiments.internals import (
    CAMPAIGN_SECONDS,
    GAS_INPUTS,
    GAS_TARGET,
    AnyArray,
    held_out,
    read_gas_sensor,
    simulate,
)
from experiments.machine import atomic_path
from experiments.simulated import write_gas_sensor
from prismgp.data import from_parquet
from prismgp.datasets import gas_sensor_files, load_abalone, load_gas_sensor, make_gas_sensor
from prismgp.exceptions import DataError

__all__ = ["RunData", "check_available", "load", "prepare"]

_SHARE = 0.2  # of the rows, held out
_PARTS = 10  # files of simulated rows, of which every run holds out two
_GROUP_ROWS = 65_536


@dataclass(frozen=True)
class RunData:
    """Training and test rows of one run.

    Attributes
    ----------
    fit : tuple
        Arguments of ``fit``: arrays, or a source that reads files.
    x_test : ndarray or DataFrame, (m, d)
        With names where the training rows have them.
    y_test : ndarray, (m,)
    scale : float
        Standard deviation of the training target.
    rows : int
    """

    fit: tuple[Any, ...]
    x_test: Any
    y_test: AnyArray
    scale: float
    rows: int


def check_available(gas: bool, simulated: bool) -> None:
    """Raise an error with the remedy where the data are not available, before any work is done."""
    if simulated:
        return
    try:
        gas_sensor_files() if gas else load_abalone()
    except DataError as error:
        remedy = "; or give --simulated for a simulation of the array, labelled as such everywhere" if gas else ""
        raise DataError(f"{error}{remedy}") from error


def load(order: dict[str, Any]) -> RunData:
    """Load the rows that a job's order names."""
    run = int(order["run"])
    if order["data"] is not None:
        return _streamed(Path(order["data"]) / f"run-{run}")
    blocks, rows = order.get("split") == "blocks", order["rows"]
    if order["experiment"] == "abalone":
        data = load_abalone(run, test_fraction=_SHARE)
        test = data.test
        inputs = _code_sex(data.X) if order.get("sex") == "code" else data.X
        x, y = inputs.to_numpy(), data.y.to_numpy()
    elif order["simulated"] and blocks:
        rng = np.random.default_rng([0, 5])
        table = simulate(0, np.sort(rng.uniform(0, CAMPAIGN_SECONDS, rows)), rng)
        x, y = table[:, 1:], table[:, 0]
    else:
        # One sample, and splits of it.
        data = (make_gas_sensor if order["simulated"] else load_gas_sensor)(rows, random_state=0)
        x, y = data.X.to_numpy(), data.y.to_numpy()
        test = held_out(len(data.y), _SHARE, [run, 82])
    if blocks:
        test = np.arange(len(y)) >= len(y) - int(len(y) * _SHARE)
    if order["experiment"] == "abalone" and rows is not None:
        chosen = np.random.default_rng([run, 7]).permutation(len(y))[:rows]  # not the stream of the split
        x, y, test = x[chosen], y[chosen], test[chosen]
    x_train, y_train = x[~test], y[~test]
    return RunData((x_train, y_train), x[test], y[test], _spread(y_train), len(y_train))


def _code_sex(inputs: pd.DataFrame) -> pd.DataFrame:
    """The indicators of sex as one number, as the authors code it: male 1, female 2, infant 3."""
    coded = inputs["Sex=M"] + 2.0 * inputs["Sex=F"] + 3.0 * inputs["Sex=I"]
    return pd.concat([coded.rename("Sex"), inputs.drop(columns=["Sex=M", "Sex=F", "Sex=I"])], axis=1)


def _spread(y: AnyArray) -> float:
    return float(np.std(y.astype(np.float64)))


# -- rows in files ---------------------------------------------------------------------------------


def prepare(order: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of every run into Parquet files under ``data``, training and test apart; a job."""
    folder, blocks = Path(order["data"]), order.get("split") == "blocks"
    if order["simulated"]:
        whole = folder / "all"
        files = sorted(whole.glob("*.parquet"))
        if len(files) < _PARTS:
            for file in files:
                file.unlink()
            when = "time" if blocks else "random"
            files = write_gas_sensor(whole, order["rows"], 0, n_files=_PARTS, order=when)
        for run in range(order["runs"]):
            first = _PARTS - 2 if blocks else (2 * run) % _PARTS
            for number, file in enumerate(files):
                part = "test" if first <= number < first + 2 else "train"
                _link(file, folder / f"run-{run}" / part / file.name)
    else:
        for run in range(order["runs"]):
            _convert(folder / f"run-{run}", order["rows"], run, blocks=blocks)
    files_there = {file.stat().st_ino: file.stat().st_size for file in folder.rglob("*.parquet")}
    return {"bytes": sum(files_there.values())}


def _link(file: Path, target: Path) -> None:
    """Put the same file at another place, without a copy where the system can."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(file, target)
    except OSError:
        target.write_bytes(file.read_bytes())


def _convert(folder: Path, rows: int | None, run: int, *, blocks: bool) -> None:
    """Convert the measured files, at most so many rows, a fifth of them apart; memory is that of one piece.

    The fifth is random, or with ``blocks`` the last one.
    """
    rng = np.random.default_rng([run, 82])
    total = sum(len(piece) for path in gas_sensor_files() for piece in read_gas_sensor(path)) if blocks else 0
    total = total if rows is None else min(total, rows)
    first_test = total - int(total * _SHARE)
    schema = pa.schema([(name, pa.float32()) for name in (GAS_TARGET, *GAS_INPUTS)])
    seen = 0
    for path in gas_sensor_files():
        target = {part: folder / part / f"{path.stem}.parquet" for part in ("train", "test")}
        for file in target.values():
            file.parent.mkdir(parents=True, exist_ok=True)
        with (
            atomic_path(target["train"]) as train,
            atomic_path(target["test"]) as test,
            pq.ParquetWriter(train, schema) as kept,
            pq.ParquetWriter(test, schema) as apart,
        ):
            for rows_read in read_gas_sensor(path):
                piece = rows_read if rows is None else rows_read[: max(rows - seen, 0)]
                position = seen + np.arange(len(piece))
                seen += len(piece)
                out = position >= first_test if blocks else rng.random(len(piece)) < _SHARE
                for writer, part in ((kept, piece[~out]), (apart, piece[out])):
                    writer.write_table(pa.table([pa.array(column) for column in part.T], schema=schema))


def _streamed(folder: Path) -> RunData:
    test = np.concatenate(list(_pieces(folder / "test")))
    n, total, square = 0, 0.0, 0.0
    for piece in _pieces(folder / "train", [GAS_TARGET]):
        y = piece[:, 0].astype(np.float64)
        n, total, square = n + len(y), total + float(y.sum()), square + float(np.square(y).sum())
    scale = float(np.sqrt(square / n - (total / n) ** 2))
    source = from_parquet(folder / "train", target=GAS_TARGET, columns=list(GAS_INPUTS))
    inputs = pd.DataFrame(test[:, 1:], columns=list(GAS_INPUTS), copy=False)
    return RunData((source,), inputs, test[:, 0], scale, n)


def _pieces(folder: Path, names: list[str] | None = None) -> Iterator[AnyArray]:
    for path in sorted(folder.glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(_GROUP_ROWS, columns=names or [GAS_TARGET, *GAS_INPUTS]):
            yield np.column_stack([column.to_numpy() for column in batch.columns])

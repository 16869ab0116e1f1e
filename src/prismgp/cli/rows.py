"""Rows of a table for a fitted model, in memory; for commands that need all of them at once."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from prismgp._types import Array
from prismgp.data import ArraySource, TableEncoder, TableFiles, TableReader, quote_names, warn_unseen
from prismgp.data.reader import NoiseColumns
from prismgp.estimators import GPRegressor
from prismgp.exceptions import DataError

_ROWS = 16_384  # of a file at a time


@dataclass(frozen=True)
class TableRows:
    """Rows of a table as they are read for the model."""

    x: Array  # (n, c), as they are read
    target: Array | None  # (n,) or (n, q)
    noise: Array  # (n, e), weights and known noise variances, if the options name their columns
    numbers: npt.NDArray[np.int64]  # (n,), row numbers in their file; the first is 1
    encoder: TableEncoder  # of the table; that of the model, if the model has one
    is_table: bool  # whether the model has one
    is_named: bool  # whether the model's inputs have names
    target_names: list[str]

    def select(self, index: Any) -> TableRows:
        target = None if self.target is None else self.target[index]
        return replace(self, x=self.x[index], target=target, noise=self.noise[index], numbers=self.numbers[index])

    @property
    def inputs(self) -> Any:
        """For the model: a source, with the targets, a frame or an array."""
        if self.is_table:
            y = np.empty((len(self.x), 0)) if self.target is None else self.target.reshape(len(self.x), -1)
            source = ArraySource(self.x, y).with_noise(self.noise if self.noise.shape[1] else None)
            source.encoder, source.feature_names = self.encoder, self.encoder.input_names
            source.single = self.target is None or self.target.ndim == 1
            return source
        return pd.DataFrame(self.x, columns=self.encoder.input_names, copy=False) if self.is_named else self.x

    @property
    def of_fit(self) -> dict[str, Any]:
        """Arguments for a certificate, if these are the rows of the fit: X, y, weights and known variances."""
        if self.is_table:
            return {"X": self.inputs, "y": None}
        weights = dict(zip(("sample_weight", "noise_variance"), self.noise.T, strict=False))
        return {"X": self.inputs, "y": self.target, **weights}


def read_table_rows(
    args: argparse.Namespace,
    model: GPRegressor,
    files: TableFiles,
    targets: list[str],
    *,
    with_target: bool = True,
    with_noise: bool = True,
) -> TableRows:
    """Read all rows of a table: inputs and targets of a model, and the columns of noise that the options name."""
    fitted = model.model_
    noise = NoiseColumns(args.weight_column, args.noise_column) if with_target and with_noise else NoiseColumns()
    absent = [name for name in noise.names if name not in files.names]
    if absent:
        raise DataError(
            f"{files.path}: there is no column {quote_names(absent)} (there are {quote_names(files.names)})"
        )
    noise.check(targets)
    encoder = fitted.encoder
    missing = args.missing or model.missing
    silent = fitted.standardiser.constant_inputs
    if with_target and missing == "drop":  # the fit left rows out for any missing cell
        there = set(files.names) - {*targets, *noise.names}
        if encoder is not None:
            encoder = replace(encoder, ignored=encoder.ignored - there)
        named = fitted.feature_names
        silent = silent & np.isin(named, list(there), invert=True) if named else np.zeros_like(silent)
    reader = TableReader.for_model(
        files,
        encoder,
        fitted.feature_names or fitted.n_inputs,
        targets if with_target else [],
        silent=silent,
        ignore=targets,
        missing=missing,
        noise=noise,
    )
    parts = [(block.x, block.y, block.first_row + block.positions + 1) for block in reader.blocks(_ROWS)]
    if not sum(len(numbers) for _, _, numbers in parts):
        raise reader.no_rows_error()
    ignored = frozenset() if fitted.encoder is None else fitted.encoder.ignored
    warn_unseen({name: count for name, count in reader.unseen.items() if name not in ignored})
    x, y, numbers = (np.concatenate(each) for each in zip(*parts, strict=True))
    q = len(reader.targets)
    target = (y[:, 0] if fitted.target_ndim == 1 and q == 1 else y[:, :q]) if with_target else None
    is_table, is_named = fitted.encoder is not None, bool(fitted.feature_names)
    return TableRows(x, target, y[:, q:], numbers, reader.encoder, is_table, is_named, reader.targets)

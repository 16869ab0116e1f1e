"""``prismgp predict``: a table in, the same table with predictions out, in constant memory."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from prismgp._system import atomic_path
from prismgp._types import Array
from prismgp.cli import _common as common
from prismgp.cli._common import Parser, Scores, Subparsers, complain, printable, say
from prismgp.data._columns import CATEGORY, as_floats, from_floats, is_numeric, is_text, looks_numeric, to_numbers
from prismgp.data._folder import TableFiles
from prismgp.data._table import Encoded, missing_error, unseen_message
from prismgp.data._tabular import TableWriter, file_format, open_writer
from prismgp.exceptions import DataError
from prismgp.model.prediction import Predictor, load_predictor

__all__ = ["add_parser", "run"]

_STATISTICS = ("mean", "std", "lower", "upper")
# Rows at a time. A multiple of the estimators' own chunks, so that results are those of one call of
# predict to the last bit; fewer for very wide tables.
_ROWS = 2_048
_CELLS = 2**22


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "predict",
        help="predict the rows of a table",
        description="Predict the rows of a table. The output has the rows and columns of DATA, in their order, and "
        "four more columns: mean, std, lower and upper, the last two being the ends of the prediction interval. "
        "Where DATA has a column of that name already, ours has an underscore appended: mean_ (or mean__, ...). "
        "Memory does not grow with the number of rows, and OUT appears only when all of them are done.",
        epilog="From CSV to Parquet, columns the model does not use are kept as text. Where DATA has the column the "
        "model learned to predict, the summary says how well it does.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    parser.add_argument("data", metavar="DATA", help=".csv, .tsv (either also .gz) or .parquet, or a folder of these")
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the same formats; - for CSV on standard output"
    )
    parser.add_argument(
        "--level", type=common.fraction, default=0.95, help="probability of the interval (default: %(default)s)"
    )
    parser.add_argument(
        "--no-noise",
        action="store_true",
        help="std and interval of the underlying function instead of a new observation",
    )
    parser.add_argument(
        "--drop-missing", action="store_true", help="leave the prediction of rows with missing inputs empty"
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), help="default: that of the fit")
    common.add_delimiter(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict batch by batch, report."""
    to_stdout = args.output == "-"
    if to_stdout and args.json:
        raise DataError("--json and -o - both want standard output; write the predictions to a file")
    kind = ".csv" if to_stdout else file_format(args.output)
    file = common.open_table(args)
    if not to_stdout:
        common.writable(args.output, inputs=[args.model, *(str(each.path) for each in file.files)])
        _check_apart(args.output, args.data)
    model = load_predictor(args.model, device=args.device)
    prediction = _Prediction(args, model, file, typed=kind in (".parquet", ".pq"))
    began = time.perf_counter()
    delimiter = args.delimiter if kind.startswith(".csv") else None
    with _destination(args.output) as place, open_writer(place, kind, prediction.schema, delimiter=delimiter) as writer:
        prediction.run(writer, progress=common.show_progress(args))
    summary = prediction.summary() | {"seconds": time.perf_counter() - began}
    for name, count in summary["unseen_categories"].items():
        complain(f"warning: {unseen_message(name, count)}")
    if args.json:
        common.print_json(summary)
    elif not args.quiet:
        _print(summary, error=to_stdout)
    return 0


def _check_apart(output: str, data: str) -> None:
    """A table in the folder that is read would be read with it the next time."""
    folder = Path(data)
    if folder.is_dir() and Path(output).resolve().is_relative_to(folder.resolve()):
        raise DataError(f"{output}: is in the folder that is read and would become a part of it; write elsewhere")


@contextmanager
def _destination(output: str) -> Iterator[Path | IO[bytes]]:
    """Where to write: a temporary file that takes its place, or goes to stdout, only when all is done."""
    if output != "-":
        with atomic_path(output) as path:
            yield path
        return
    with tempfile.TemporaryFile() as spool:
        yield spool
        spool.seek(0)
        sys.stdout.flush()
        shutil.copyfileobj(spool, sys.stdout.buffer)
        sys.stdout.buffer.flush()


class _Prediction:
    """One pass over a table.

    Parameters
    ----------
    args : Namespace
    model : Predictor
    file : TableFiles
    typed : bool
        The output has types: cells of a text file that the model uses are converted.
    """

    def __init__(self, args: argparse.Namespace, model: Predictor, file: TableFiles, *, typed: bool) -> None:
        self.args = args
        self.model = model
        self.file = file
        about = model.common
        self.encoder = common.encoder_of(about.encoder, about.feature_names or about.inputs, file.path, file.names)
        self.typed = typed and file.is_text
        self.target = self.encoder.target if self.encoder.target in file.names else None
        self.columns = _free_names(file.names, None if about.target_ndim == 1 else about.outputs)
        self.schema = self._schema()
        self.scores = Scores(args.level)
        self.rows = self.incomplete = 0
        self.missing: Counter[str] = Counter()
        self.unseen: Counter[str] = Counter()

    def _schema(self) -> pa.Schema:
        schema = self.file.schema
        if self.typed:
            numeric = {column.name for column in self.encoder.columns if column.kind != CATEGORY} | {self.target}
            schema = pa.schema([(name, pa.float64() if name in numeric else pa.string()) for name in schema.names])
        for name in self.columns:
            schema = schema.append(pa.field(name, pa.float64()))
        return schema

    def run(self, writer: TableWriter, *, progress: bool) -> None:
        """Predict and write all rows; missing inputs that are not allowed raise at the end, fully counted."""
        width = max(len(self.schema), len(self.encoder.feature_names))
        rows = max(256, min(_ROWS, _CELLS // width))
        with tqdm(total=self.file.n_rows, unit="rows", unit_scale=True, disable=not progress) as bar:
            for table in self.file.batches(rows):
                self._batch(table, writer)
                bar.update(table.num_rows)
        if not self.rows:
            raise DataError(f"{self.args.data}: there are no rows below the header")
        if self.missing and not self.args.drop_missing:
            raise missing_error(dict(self.missing))

    def _batch(self, table: pa.Table, writer: TableWriter) -> None:
        cells = self.file.cells(table, self.encoder.input_names)
        encoded = self.encoder.examine(cells, first_row=self.rows)
        self.missing.update(encoded.missing)
        self.unseen.update(encoded.unseen)
        if self.missing and not self.args.drop_missing:
            self.rows += table.num_rows
            return  # nothing will be written; go on counting
        columns = self._predict(encoded)
        if self.target is not None:
            self._compare(table, columns)
        if self.typed:
            table = self._with_types(table, cells)
        for name, values in zip(self.columns, columns, strict=True):
            table = table.append_column(pa.field(name, pa.float64()), from_floats(values))
        writer.write(table.cast(self.schema) if self.typed else table)
        self.rows += table.num_rows

    def _predict(self, encoded: Encoded) -> list[Array]:
        """One array for each output column, (n,); NaN in rows with a missing input."""
        complete = encoded.complete
        self.incomplete += int((~complete).sum())
        result = np.full((len(_STATISTICS), len(complete), len(self.columns) // len(_STATISTICS)), np.nan)
        if complete.any():
            values = encoded.values if complete.all() else encoded.values[complete]
            mean, std = self.model.predict(values, include_noise=not self.args.no_noise)
            margin = common.half_width(self.args.level) * std
            result[:, complete] = np.stack([mean, std, mean - margin, mean + margin])
        return [result[index, :, output] for output in range(result.shape[2]) for index in range(len(_STATISTICS))]

    def _compare(self, table: pa.Table, columns: list[Array]) -> None:
        assert self.target is not None
        truth = _numbers_or_nan(self.file.cells(table, [self.target]).column(0))
        self.scores.add(truth, columns[0], columns[1])

    def _with_types(self, table: pa.Table, cells: pa.Table) -> pa.Table:
        """Text cells as the model understood them."""
        if self.target is not None:
            cells = cells.append_column(self.target, self.file.cells(table, [self.target]).column(0))
        for field in self.schema:
            if field.name not in cells.schema.names:
                continue
            column = cells[field.name]
            if pa.types.is_floating(field.type):
                boolean = any(each.name == field.name and each.kind == "boolean" for each in self.encoder.columns)
                numbers = to_numbers(field.name, column, boolean=boolean, first_row=self.rows)
                column = from_floats(numbers)
            table = table.set_column(table.schema.get_field_index(field.name), field.name, column)
        return table

    def summary(self) -> dict[str, Any]:
        """What was done."""
        args = self.args
        return {
            "model": args.model,
            "data": args.data,
            "output": args.output,
            "columns": self.columns,
            "rows": self.rows,
            "rows_not_predicted": self.incomplete,
            "missing": dict(self.missing),
            "unseen_categories": dict(self.unseen),
            "level": args.level,
            "include_noise": not args.no_noise,
            "target": self.target,
            "scores": None if self.target is None else self.scores.to_dict(density=not args.no_noise),
        }


def _free_names(taken: list[str], outputs: int | None) -> list[str]:
    """Names for our columns: underscores are appended until a name is free."""
    suffixes = [""] if outputs is None else [f"_{index}" for index in range(outputs)]
    names: list[str] = []
    for name in (f"{statistic}{suffix}" for suffix in suffixes for statistic in _STATISTICS):
        while name in taken or name in names:
            name += "_"
        names.append(name)
    return names


def _numbers_or_nan(column: Any) -> Array:
    """A target column for comparison; whatever is no number does not take part."""
    if is_text(column.type):
        text = pc.utf8_trim_whitespace(column)
        column = pc.if_else(looks_numeric(text), text, pa.scalar(None, text.type))
        column = column.cast(pa.float64())
    if not (is_numeric(column.type) or pa.types.is_boolean(column.type)):
        return np.full(len(column), np.nan)
    return as_floats(column)


def _print(summary: dict[str, Any], *, error: bool) -> None:
    say(
        f"Predicted {summary['rows'] - summary['rows_not_predicted']:,} rows in {summary['seconds']:.1f} s", error=error
    )
    say(error=error)
    what = "a new observation" if summary["include_noise"] else "the underlying function"
    rows = [
        ("Added columns", f"{', '.join(summary['columns'])}"),
        ("Interval", f"{100 * summary['level']:g}% for {what}"),
    ]
    if summary["rows_not_predicted"]:
        cells = ", ".join(f"{printable(name)} {count:,}" for name, count in summary["missing"].items())
        rows.append(("Left empty", f"{summary['rows_not_predicted']:,} rows with missing inputs ({cells})"))
    scores = summary["scores"]
    if scores and scores["rows"]:
        text = f"RMSE {scores['rmse']:.4g}"
        if "coverage" in scores:
            text += f", NLPD {scores['nlpd']:.4g}, intervals cover {scores['coverage']:.1%}"
        rows.append((f"Against {printable(summary['target'])}", f"{text} ({scores['rows']:,} rows)"))
    common.print_rows(rows, error=error)
    if summary["output"] != "-":
        say(error=error)
        say(f"Wrote {summary['output']}", error=error)

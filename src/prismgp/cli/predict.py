"""``prismgp predict``: a table in, the same table with predictions out, in constant memory."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from prismgp._system import format_amount, format_count
from prismgp._types import Array
from prismgp.cli import Parser, Subparsers, common, format_name, json_text, print_rows, say, show_progress
from prismgp.data import RowBlock, TableReader
from prismgp.data.cells import from_floats, to_numbers, to_numbers_or_nan
from prismgp.data.dask import map_file_parts
from prismgp.data.encoder import warn_unseen
from prismgp.data.encodings import BOOLEAN
from prismgp.data.tables import PARQUET_SUFFIXES, file_format
from prismgp.data.text import TextWriter
from prismgp.exceptions import DataError
from prismgp.metrics import Scores
from prismgp.model import FittedModel, load_model

_STATISTICS = ("mean", "std", "lower", "upper")
# Rows at a time. A multiple of the estimators' own chunks, so that results equal those of one call of
# predict to the last bit; fewer for very wide tables.
_ROWS = 2_048
_CELLS = 2**22


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "predict",
        help=summary,
        description="Predict the rows of a table. The output has the rows and columns of DATA, in their order, and "
        "four more columns: mean, std, lower and upper, the last two being the ends of the prediction interval. "
        "They are quantiles of the model's predictive distribution, which may be skewed or have heavy tails, and not "
        "mean -+ 1.96 std. If the model was fitted with --conformal, they are conformal: a new observation is between "
        "them with the probability of --level at least. "
        "A model of several targets adds mean_A, std_A, ... for each target A. "
        "If DATA has a column of that name already, an underscore is appended: mean_ (or mean__, ...). "
        "Memory does not grow with the number of rows, and OUT appears only when all of them are done.",
        epilog="From CSV to Parquet, columns the model does not use are kept as text. If DATA has the target of the "
        "model, the summary reports the accuracy.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    common.add_data(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the same formats; - for CSV on standard output"
    )
    parser.add_argument(
        "--level",
        type=common.fraction,
        default=0.95,
        help="probability of the central interval of the predictive distribution (default: %(default)s)",
    )
    parser.add_argument(
        "--no-noise",
        action="store_true",
        help="std and interval of the underlying function instead of a new observation",
    )
    common.add_missing(
        parser,
        default="impute",
        meaning="what to do with rows that have missing inputs. impute: predict them, mostly with wider intervals; "
        "drop: leave their predictions empty; error: end with an error (default: %(default)s)",
    )
    common.add_escape_formulas(parser)
    common.add_device(parser)
    common.add_scheduler(parser)
    common.add_format_options(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict batch by batch, report."""
    to_stdout = args.output == "-"
    if to_stdout and args.json:
        raise DataError("--json and -o - both use standard output; write the predictions to a file")
    kind = ".csv" if to_stdout else file_format(args.output)
    files = common.open_path(args, args.data)
    if not to_stdout:
        common.check_output_path(args, files)
    model = load_model(args.model, device=args.device)
    if model.conformal is not None and not args.no_noise:
        model.conformal.check(args.level)
    reader = common.open_reader(args, model, files)
    prediction = _Prediction(
        model, reader, level=args.level, include_noise=not args.no_noise, typed=kind in PARQUET_SUFFIXES
    )
    began = time.perf_counter()
    with common.open_output(args, files, kind, prediction.schema) as writer:
        prediction.run(writer, scheduler=args.scheduler, progress=show_progress(args))
    if not to_stdout:
        common.ignore_interrupts()
    about = {"model": args.model, "data": args.data, "output": args.output}
    summary = about | prediction.summary() | {"seconds": time.perf_counter() - began}
    warn_unseen(summary["unseen_categories"])
    common.report_formulas(args, writer.formulas)
    if args.json:
        say(json_text(summary))
    elif not args.quiet:
        _print(summary, error=to_stdout)
    return 0


class _Prediction:
    """One pass over a table, or over a part of it on a worker.

    ``typed``: the output has types, so cells of text that the model uses are converted.
    """

    def __init__(
        self, model: FittedModel, reader: TableReader, *, level: float, include_noise: bool, typed: bool
    ) -> None:
        self.model, self.level, self.include_noise = model, level, include_noise
        self.reader, self.files, self.encoder = reader, reader.files, reader.encoder
        self.typed = typed and self.files.is_text
        wanted = [f"{each}{suffix}" for suffix in common.output_suffixes(model) for each in _STATISTICS]
        self.columns = common.free_names(self.files.names, wanted)
        # Scores of the targets that the table has, by their number.
        known = enumerate(self.encoder.targets)
        self.scores = {output: Scores(level) for output, name in known if name in self.files.names}
        self.schema = self._schema()
        self.incomplete = 0

    @property
    def targets(self) -> list[str]:
        """Targets of the model that the table has."""
        return [self.encoder.targets[output] for output in self.scores]

    def _schema(self) -> pa.Schema:
        schema = self.files.schema
        if self.typed:
            numeric = self.encoder.spelled_numbers.union(self.targets)
            schema = pa.schema([(name, pa.float64() if name in numeric else pa.string()) for name in schema.names])
        for name in self.columns:
            schema = schema.append(pa.field(name, pa.float64()))
        return schema

    def run(self, writer: common.ParquetWriter | TextWriter, *, scheduler: str | None, progress: bool) -> None:
        """Predict and write all rows; those of a cluster come as tables of the parts of the files."""
        tables = self._tables() if scheduler is None else self._tables_of_parts(scheduler)
        with tqdm(total=self.files.n_rows, unit="rows", unit_scale=True, disable=not progress) as bar:
            for table in tables:
                writer.write(table)
                bar.update(table.num_rows)
        if not self.reader.rows_read:
            raise self.reader.no_rows_error()

    def _tables(self) -> Iterator[pa.Table]:
        width = max(len(self.schema), len(self.encoder.feature_names))
        rows = max(256, min(_ROWS, _CELLS // width))
        return map(self._add_predictions, self.reader.blocks(rows, all_columns=True))

    def _tables_of_parts(self, scheduler: str) -> Iterator[pa.Table]:
        settings: dict[str, Any] = {"level": self.level, "include_noise": self.include_noise, "typed": self.typed}
        work = partial(_predict_part, self.model, **settings)
        for tables, part in map_file_parts(self.reader, work, scheduler):
            self._absorb(part)
            yield from tables

    def _absorb(self, part: _Prediction) -> None:
        """Add the counts and scores of a part of the table."""
        own, other = self.reader, part.reader
        own.rows_read += other.rows_read
        own.missing_cells.update(other.missing_cells)
        own.unseen.update(other.unseen)
        self.incomplete += part.incomplete
        self.scores = {output: scores.merge(part.scores[output]) for output, scores in self.scores.items()}

    def _add_predictions(self, block: RowBlock) -> pa.Table:
        table, inputs = block.table, self.encoder.encode(block.x)
        columns = self._predict(block, inputs)
        if self.scores:
            self._score(block, inputs, columns)
        if self.typed:
            table = self._convert(block)
        for name, values in zip(self.columns, columns, strict=True):
            table = table.append_column(pa.field(name, pa.float64()), from_floats(values))
        return table.cast(self.schema) if self.typed else table

    def _predict(self, block: RowBlock, inputs: Array) -> list[Array]:
        """One array for each output column, (n,); NaN in rows with a missing input."""
        rows = block.table.num_rows
        self.incomplete += rows - len(block.positions)
        result = np.full((len(_STATISTICS), rows, len(self.columns) // len(_STATISTICS)), np.nan)
        if len(block.positions):
            mean, std, ends = self.model.predict_interval(inputs, self.level, include_noise=self.include_noise)
            result[:, block.positions] = np.stack([mean, std, ends[:, :, 0], ends[:, :, 1]])
        return [result[index, :, output] for output in range(result.shape[2]) for index in range(len(_STATISTICS))]

    def _score(self, block: RowBlock, inputs: Array, columns: list[Array]) -> None:
        """Compare the predictions with the targets that are known; others, and rows without prediction, are NaN."""
        cells = self.files.cells(block.table, self.targets, numbers=self.targets, first_row=block.first_row)
        truth = np.full((block.table.num_rows, self.model.n_outputs), np.nan)
        for output, column in zip(self.scores, cells.columns, strict=True):
            truth[:, output] = to_numbers_or_nan(column)
        density = None
        if self.include_noise:
            density = np.full(truth.shape, np.nan)
            if len(block.positions):
                density[block.positions] = self.model.marginal_log_density(inputs, truth[block.positions])
        for output, scores in self.scores.items():
            start = output * len(_STATISTICS)
            mean, std, lower, upper = columns[start : start + len(_STATISTICS)]
            of_output = None if density is None else density[:, output]
            scores.add(truth[:, output], mean, std, of_output, (lower, upper))

    def _convert(self, block: RowBlock) -> pa.Table:
        """The table with the columns that the model uses as numbers, or null where they are missing."""
        table = block.table
        names = [*self.encoder.present_columns(self.files.names), *self.targets]
        booleans = {column.name for column in self.encoder.columns if column.kind == BOOLEAN}
        cells = self.files.cells(
            table,
            names,
            numbers=self.encoder.spelled_numbers.union(self.targets),  # those with cells of another kind stay text
            levels=self.encoder.spelled_missing,
            first_row=block.first_row,
        )
        for name in names:
            column, index = cells[name], table.schema.get_field_index(name)
            if pa.types.is_floating(self.schema.field(name).type):
                boolean = name in booleans
                column = from_floats(to_numbers(name, column, boolean=boolean, first_row=block.first_row))
            table = table.set_column(index, name, column)
        return table

    def summary(self) -> dict[str, Any]:
        """Summarise what was done."""
        conformal = self.model.conformal if self.include_noise else None
        return {
            "columns": self.columns,
            "rows": self.reader.rows_read,
            "rows_not_predicted": self.incomplete,
            "missing": dict(self.reader.missing_cells),
            "unseen_categories": dict(self.reader.unseen),
            "level": self.level,
            "include_noise": self.include_noise,
            "conformal_rows": None if conformal is None else conformal.rows,
            "target": self._unwrap_single(self.targets),
            "scores": self._unwrap_single(
                [scores.to_dict(density=self.include_noise) for scores in self.scores.values()]
            ),
        }

    def _unwrap_single(self, values: list[Any]) -> Any:
        """One value for a model of one target, None if the table does not have it; else a list."""
        return values if self.model.target_ndim > 1 else values[0] if values else None


def _predict_part(model: FittedModel, reader: TableReader, **settings: Any) -> tuple[list[pa.Table], _Prediction]:
    """The tables of a part of the files, and what was counted; done by a worker."""
    part = _Prediction(model, reader, **settings)
    tables = list(part._tables())
    del part.model  # it need not come back
    return tables, part


def _print(summary: dict[str, Any], *, error: bool) -> None:
    predicted = format_count(summary["rows"] - summary["rows_not_predicted"], "row")
    say(f"Predicted {predicted} in {summary['seconds']:.1f} s", error=error)
    say(error=error)
    what = "a new observation" if summary["include_noise"] else "the underlying function"
    conformal = summary["conformal_rows"]
    kind = f"conformal, by {conformal:,} held-out rows" if conformal else "of the model's predictive distribution"
    rows = [
        ("Added columns", ", ".join(map(format_name, summary["columns"]))),
        ("Interval", f"{100 * summary['level']:g}% for {what}, {kind}"),
    ]
    cells = ", ".join(f"{format_name(name)} {count:,}" for name, count in summary["missing"].items())
    if cells and not summary["rows_not_predicted"]:
        rows.append(("Missing inputs", f"{cells}: imputed; intervals are wider where the fit had few such rows"))
    if summary["rows_not_predicted"]:
        rows.append(
            ("Left empty", f"{format_count(summary['rows_not_predicted'], 'row')} with missing inputs ({cells})")
        )
    several = isinstance(summary["target"], list)
    scored = (
        zip(summary["target"], summary["scores"], strict=True) if several else [(summary["target"], summary["scores"])]
    )
    for target, scores in scored:
        if not scores or not scores["rows"]:
            continue
        text = f"RMSE {format_amount(scores['rmse'])}"
        if "coverage" in scores:
            text += f", NLPD {scores['nlpd']:.4g}, intervals cover {scores['coverage']:.1%}"
        rows.append((f"Against {format_name(target)}", f"{text} ({format_count(scores['rows'], 'row')})"))
    print_rows(rows, error=error)
    if summary["output"] != "-":
        say(error=error)
        say(f"Wrote {summary['output']}", error=error)

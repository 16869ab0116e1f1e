"""``prismgp predict``: a table in, the same table with predictions out, in constant memory."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from prismgp._types import Array
from prismgp._validate import central_levels
from prismgp.cli import common
from prismgp.cli.common import Parser, Scores, Subparsers, printable, say
from prismgp.data import RowBlock, TableFiles, TableReader
from prismgp.data.encoder import BOOLEAN, from_floats, to_numbers, to_numbers_or_nan, warn_unseen
from prismgp.data.tables import PARQUET_SUFFIXES, ParquetWriter, TextWriter, file_format, open_writer
from prismgp.exceptions import DataError
from prismgp.model import FittedModel, load_model

_STATISTICS = ("mean", "std", "lower", "upper")
# Rows at a time. A multiple of the estimators' own chunks, so that results equal those of one call of
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
        "They are quantiles of the model's predictive distribution, which may be skewed or have heavy tails, and not "
        "mean -+ 1.96 std. "
        "If DATA has a column of that name already, an underscore is appended: mean_ (or mean__, ...). "
        "Memory does not grow with the number of rows, and OUT appears only when all of them are done.",
        epilog="From CSV to Parquet, columns the model does not use are kept as text. If DATA has the target of the "
        "model, the summary reports the accuracy.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    parser.add_argument("data", metavar="DATA", help=".csv, .tsv (either also .gz) or .parquet, or a folder of these")
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
        raise DataError("--json and -o - both use standard output; write the predictions to a file")
    kind = ".csv" if to_stdout else file_format(args.output)
    files = common.open_data(args)
    if not to_stdout:
        common.check_output(args, files)
    model = load_model(args.model, device=args.device)
    prediction = _Prediction(args, model, files, typed=kind in PARQUET_SUFFIXES)
    began = time.perf_counter()
    delimiter = args.delimiter if kind.startswith(".csv") else None
    with (
        common.destination(args.output) as place,
        open_writer(place, kind, prediction.schema, delimiter=delimiter) as writer,
    ):
        prediction.run(writer, progress=common.show_progress(args))
    summary = prediction.summary() | {"seconds": time.perf_counter() - began}
    warn_unseen(summary["unseen_categories"])
    if args.json:
        say(common.json_text(summary))
    elif not args.quiet:
        _print(summary, error=to_stdout)
    return 0


class _Prediction:
    """One pass over a table; ``typed``: the output has types, so cells of text that the model uses are converted."""

    def __init__(self, args: argparse.Namespace, model: FittedModel, files: TableFiles, *, typed: bool) -> None:
        self.args, self.model, self.files = args, model, files
        self.reader = TableReader.for_model(
            files,
            model.encoder,
            model.feature_names or model.n_inputs,
            missing="drop" if args.drop_missing else "error",
        )
        self.encoder = self.reader.encoder
        self.typed = typed and files.is_text
        self.target = self.encoder.target if self.encoder.target in files.names else None
        suffixes = common.output_suffixes(model)
        self.columns = common.free_names(
            files.names, [f"{statistic}{suffix}" for suffix in suffixes for statistic in _STATISTICS]
        )
        self.schema = self._schema()
        self.scores = Scores(args.level)
        self.incomplete = 0

    def _schema(self) -> pa.Schema:
        schema = self.files.schema
        if self.typed:
            numeric = {column.name for column in self.encoder.columns if not column.categories} | {self.target}
            schema = pa.schema([(name, pa.float64() if name in numeric else pa.string()) for name in schema.names])
        for name in self.columns:
            schema = schema.append(pa.field(name, pa.float64()))
        return schema

    def run(self, writer: ParquetWriter | TextWriter, *, progress: bool) -> None:
        """Predict and write all rows."""
        width = max(len(self.schema), len(self.encoder.feature_names))
        rows = max(256, min(_ROWS, _CELLS // width))
        with tqdm(total=self.files.n_rows, unit="rows", unit_scale=True, disable=not progress) as bar:
            for block in self.reader.blocks(rows, all_columns=True):
                writer.write(self._add_predictions(block))
                bar.update(block.table.num_rows)
        if not self.reader.rows_read:
            raise self.reader.no_rows_error()

    def _add_predictions(self, block: RowBlock) -> pa.Table:
        table, columns = block.table, self._predict(block)
        if self.target is not None:
            truth = to_numbers_or_nan(self.files.cells(table, [self.target]).column(0))
            mean, std, lower, upper = columns[: len(_STATISTICS)]
            self.scores.add(truth, mean, std, self._log_density(block, truth), (lower, upper))
        if self.typed:
            table = self._convert(block)
        for name, values in zip(self.columns, columns, strict=True):
            table = table.append_column(pa.field(name, pa.float64()), from_floats(values))
        return table.cast(self.schema) if self.typed else table

    def _predict(self, block: RowBlock) -> list[Array]:
        """One array for each output column, (n,); NaN in rows with a missing input."""
        rows = block.table.num_rows
        self.incomplete += rows - len(block.positions)
        result = np.full((len(_STATISTICS), rows, len(self.columns) // len(_STATISTICS)), np.nan)
        if len(block.positions):
            mean, std, ends = self.model.predict_quantiles(
                block.x, central_levels(self.args.level), include_noise=not self.args.no_noise
            )
            result[:, block.positions] = np.stack([mean, std, ends[:, :, 0], ends[:, :, 1]])
        return [result[index, :, output] for output in range(result.shape[2]) for index in range(len(_STATISTICS))]

    def _log_density(self, block: RowBlock, truth: Array) -> Array | None:
        """Of the target under the model, (n,); NaN in rows without a prediction or a target."""
        if self.args.no_noise or self.model.n_outputs > 1:
            return None
        found = np.full(len(truth), np.nan)
        known = np.isfinite(truth[block.positions])
        if known.any():
            positions = block.positions[known]
            found[positions] = self.model.log_density([(block.x[known], truth[positions, None])])
        return found

    def _convert(self, block: RowBlock) -> pa.Table:
        """The table with the columns that the model uses as numbers, or null where they are missing."""
        table = block.table
        names = [*self.encoder.input_names, *([] if self.target is None else [self.target])]
        booleans = {column.name for column in self.encoder.columns if column.kind == BOOLEAN}
        cells = self.files.cells(table, names)
        for name in names:
            column, index = cells[name], table.schema.get_field_index(name)
            if pa.types.is_floating(self.schema.field(name).type):
                boolean = name in booleans
                column = from_floats(to_numbers(name, column, boolean=boolean, first_row=block.first_row))
            table = table.set_column(index, name, column)
        return table

    def summary(self) -> dict[str, Any]:
        """What was done."""
        args = self.args
        return {
            "model": args.model,
            "data": args.data,
            "output": args.output,
            "columns": self.columns,
            "rows": self.reader.rows_read,
            "rows_not_predicted": self.incomplete,
            "missing": dict(self.reader.missing_cells),
            "unseen_categories": dict(self.reader.unseen),
            "level": args.level,
            "include_noise": not args.no_noise,
            "target": self.target,
            "scores": None if self.target is None else self.scores.to_dict(density=not args.no_noise),
        }


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

"""``prismgp report``: one page about a model on the rows of a table."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from prismgp._types import AnyArray, Array
from prismgp.cli import common
from prismgp.cli.common import Parser, Subparsers, say
from prismgp.data import TableFiles, TableReader
from prismgp.data.cells import from_floats, to_numbers
from prismgp.data.encoder import warn_unseen
from prismgp.data.encodings import NUMBER
from prismgp.estimators import ExactGPRegressor, GPRegressor, load
from prismgp.exceptions import DataError
from prismgp.plots.style import require_matplotlib
from prismgp.report import examine, model_page, render

_ROWS = 16_384  # of a file at a time
_REPORTED, _CERTIFIED = 20_000, 100_000


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "report",
        help="write a page about a model on the rows of a table",
        description="Write one self-contained HTML page about a model on the rows of a table: accuracy with and "
        "without error bars, calibration, where the model is worst, the inputs that matter with their partial "
        "dependence, the most uncertain rows, and how far the model is from the exact GP. DATA has the target; give "
        "rows that were not in the fit, or the table of the fit with the --holdout and --seed of the fit. "
        'Needs pip install "prismgp[report]".',
        epilog="The distance from the exact GP needs the rows of the fit: --holdout, --train, or DATA itself, and up "
        f"to {_CERTIFIED:,} of them; prismgp certify has no such limit.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    common.add_data(parser)
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="page to write, e.g. report.html")
    parser.add_argument(
        "-t",
        "--target",
        type=common.columns,
        metavar="COLUMN",
        help="the target of the model (default: known, unless the model was saved from Python)",
    )
    parser.add_argument(
        "--holdout", type=common.fraction, metavar="FRACTION", help="that of the fit: report on the rows it kept out"
    )
    parser.add_argument("--conformal", type=common.fraction, metavar="FRACTION", help="that of the fit")
    parser.add_argument(
        "--seed", type=common.seed, default=0, help="that of the fit; only for --holdout and --conformal (default: 0)"
    )
    parser.add_argument("--train", metavar="FILE", help="the table of the fit, for the distance from the exact GP")
    common.add_missing(parser, default="impute", meaning="rows with missing inputs, as for fit (default: %(default)s)")
    parser.add_argument(
        "--rows",
        type=common.positive,
        default=_REPORTED,
        metavar="N",
        help="report on so many rows, a random choice, if there are more (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=common.not_negative,
        default=20.0,
        metavar="S",
        help="for the distance from the exact GP, beyond its first step (default: %(default)g)",
    )
    parser.add_argument("--no-certificate", action="store_true", help="leave the distance from the exact GP out")
    common.add_device(parser)
    common.add_format_options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, examine, write the page."""
    if not args.output.lower().endswith((".html", ".htm")):
        raise DataError(f"{args.output}: a report is an HTML page; end its name in .html")
    if args.train is not None and args.holdout is not None:
        raise DataError("--train and --holdout both tell which rows were in the fit; give one of them")
    require_matplotlib()
    files = common.open_data(args)
    train_files = None if args.train is None else common.open_second(args, args.train)
    read = [*files.files, *(train_files.files if train_files is not None else [])]
    output = common.writable(args.output, inputs=[args.model, *(str(each.path) for each in read)])
    model: GPRegressor = load(args.model, device=args.device)
    began = time.perf_counter()
    target = common.target_columns(args, model.model_, files)
    table = _Table(model, files, target, missing=args.missing)
    chosen, out, _ = common.split_rows(args, table.count)
    held_out = None if args.holdout is None else _mark(out, table.count)
    is_fit = held_out is None and table.is_fit_of(model)
    wanted = np.ones(table.count, dtype=bool) if held_out is None else held_out
    rows = table.collect(_sample(wanted, args.rows))
    if args.train is not None:
        fitted: _Table | None = _Table(model, train_files or files, target, missing=args.missing)
    else:
        fitted = table if held_out is not None or is_fit else None
    in_fit = (
        None if fitted is None else np.ones(fitted.count, bool) if fitted is not table else _mark(chosen, table.count)
    )
    training, note = _training_rows(args, model, fitted, in_fit)
    try:
        found = examine(
            model,
            rows.inputs,
            rows.target,
            target=target[0],
            numbers=rows.numbers,
            training=training,
            seconds=args.seconds,
            progress=(lambda _: None) if args.quiet else lambda step: say(f"  {step}", error=True),
        )
    except DataError as error:
        hint = "; if the fit had --holdout, --conformal or --seed, repeat them here" if training else ""
        raise DataError(f"{args.data}: {error}{hint}") from error
    page = model_page(
        found,
        model_name=Path(args.model).name,
        data_name=Path(args.data).name,
        rows_note=_describe_rows(args, table, rows, held_out),
        seen_in_fit=is_fit,
        certificate_note=note,
        made_by={"command": _command(args), "time": f"{time.perf_counter() - began:.0f} s"},
    )
    render(page, output)
    if not args.quiet:
        say(f"Wrote {args.output}: {page.title} ({len(rows.target):,} rows)")
    return 0


class _Rows(NamedTuple):
    """Rows of a table, for the model."""

    inputs: Any  # an Arrow table with the raw columns, or numbers: a frame or an array
    target: Array  # (n,)
    numbers: AnyArray  # (n,), row numbers in their file; the first is 1


class _Table:
    """A table of which rows are counted, then read as they are needed."""

    def __init__(self, model: GPRegressor, files: TableFiles, target: list[str], *, missing: str) -> None:
        self.model, self.files = model.model_, files
        if self.model.n_outputs != 1 or len(target) != 1:
            raise DataError(f"a report is about one target; the model has {self.model.n_outputs}")
        self.reader = TableReader.for_model(
            files,
            self.model.encoder,
            self.model.feature_names or self.model.n_inputs,
            target,
            ignore=target,
            missing=missing,
        )
        sizes = [(len(block.y), float(block.y.sum())) for block in self.reader.blocks(_ROWS)]
        self.count = sum(size for size, _ in sizes)
        if not self.count:
            raise self.reader.no_rows_error()
        self.mean = sum(total for _, total in sizes) / self.count
        warn_unseen(self.reader.unseen)

    def is_fit_of(self, model: GPRegressor) -> bool:
        """Whether these seem to be the rows of the fit: as many, with the same mean of the target."""
        units = self.model.standardiser
        same = abs(self.mean - units.y_shift[0]) <= 1e-9 * (abs(self.mean) + units.y_scale[0])
        return bool(self.count == self.model.n_rows and (same or not model.normalize))

    def collect(self, wanted: AnyArray) -> _Rows:
        """The rows that are wanted, of those that can be used, as an estimator takes them."""
        encoded = self.model.encoder is None
        inputs: list[Any] = []
        targets, numbers, at = [], [], 0
        for block in self.reader.blocks(_ROWS):
            use = np.flatnonzero(wanted[at : at + len(block.y)])
            at += len(block.y)
            inputs.append(block.x[use] if encoded else self._cells(block.table, block.positions[use], block.first_row))
            targets.append(block.y[use, 0])
            numbers.append(block.first_row + block.positions[use] + 1)
        if not encoded:
            whole: Any = pa.concat_tables(inputs)
        elif self.model.feature_names:
            whole = pd.DataFrame(np.concatenate(inputs), columns=self.model.feature_names, copy=False)
        else:
            whole = np.concatenate(inputs)
        return _Rows(whole, np.concatenate(targets), np.concatenate(numbers))

    def _cells(self, table: pa.Table, rows: AnyArray, first_row: int) -> pa.Table:
        """Raw inputs; numbers that a text file spells are numbers."""
        encoder = self.reader.encoder
        numbers = [column.name for column in encoder.columns if column.kind == NUMBER]
        cells = self.files.cells(table, encoder.input_names, numbers=numbers, first_row=first_row)
        for index, column in enumerate(encoder.columns):
            if column.kind == NUMBER:
                values = to_numbers(column.name, cells.column(index), first_row=first_row)
                cells = cells.set_column(index, column.name, from_floats(values))
        return cells.take(rows)


def _mark(rows: AnyArray, count: int) -> AnyArray:
    """Which of so many rows these are, (n,)."""
    marked = np.zeros(count, dtype=bool)
    marked[rows] = True
    return marked


def _sample(wanted: AnyArray, most: int) -> AnyArray:
    """As many of the wanted rows at most, a random choice."""
    places = np.flatnonzero(wanted)
    if len(places) <= most:
        return wanted
    chosen = np.zeros(len(wanted), dtype=bool)
    chosen[np.random.default_rng(0).permutation(places)[:most]] = True
    return chosen


def _training_rows(
    args: argparse.Namespace, model: GPRegressor, table: _Table | None, in_fit: AnyArray | None
) -> tuple[tuple[Any, Array] | None, str]:
    """The rows of the fit, for a certificate, or why there is none."""
    if args.no_certificate:
        return None, "It was not asked for."
    if isinstance(model, ExactGPRegressor):
        return None, "This model is the exact GP itself."
    if table is None or in_fit is None:
        return None, "It needs the rows of the fit: give them with --train, or report with the --holdout of the fit."
    if in_fit.sum() > _CERTIFIED:
        return None, f"The fit had more than {_CERTIFIED:,} rows; prismgp certify has no such limit."
    rows = table.collect(in_fit)
    return (rows.inputs, rows.target if table.model.target_ndim == 1 else rows.target[:, None]), ""


def _describe_rows(args: argparse.Namespace, table: _Table, rows: _Rows, held_out: AnyArray | None) -> str:
    count = table.count if held_out is None else int(held_out.sum())
    chosen = "" if len(rows.target) == count else f"A random choice of {count:,}. "
    if held_out is not None:
        return f"{chosen}They were kept out of the fit (--holdout {args.holdout:g})."
    return chosen.strip()


def _command(args: argparse.Namespace) -> str:
    words = ["prismgp", "report", Path(args.model).name, Path(args.data).name, "-o", Path(args.output).name]
    words += ["--holdout", f"{args.holdout:g}", "--seed", str(args.seed)] if args.holdout is not None else []
    words += ["--train", Path(args.train).name] if args.train is not None else []
    words += ["--missing", args.missing] if args.missing != "impute" else []
    return shlex.join(words)

"""``prismgp suggest``: which rows of a table to measure next."""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np
import pyarrow as pa

from prismgp._types import AnyArray
from prismgp.active import CRITERIA, Selected, select_rows
from prismgp.cli import (
    Parser,
    Subparsers,
    common,
    format_name,
    json_text,
    say,
    show_progress,
    show_seconds,
    terminal_width,
)
from prismgp.data import FileSource, MappedSource, Source, TableReader
from prismgp.data.tables import file_format
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.model import FittedModel, load_model

_CELLS = 2**22  # of a block of the table
_CELL_WIDTH = 16  # of a column that is printed


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Declare the command."""
    # Commands are declared in the same shape, as argparse asks for it; no words are shared.
    parser: Parser = subparsers.add_parser(
        "suggest",
        help=summary,
        description="Suggest the rows of a table whose measurement would tell the model the most. They are chosen one "
        "by one, each given those before it. The output has these rows, best first, with all columns of DATA, and "
        "before them: row, the number of the row in DATA, counting from 0; score, what it is worth by the criterion; "
        "and std, the standard deviation that the model predicts for an observation. If DATA has a column of that name "
        "already, an underscore is appended. The target is not needed. Tables may be larger than memory.",
        epilog="Of a model with neighbours, its mixture of sparse spectrum GPs chooses, without them. From CSV to "
        "Parquet, columns of DATA are kept as text.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    common.add_data(parser, "rows to choose from: ")
    parser.add_argument(
        "-k", "--rows", type=common.positive, default=10, metavar="K", help="how many rows (default: %(default)s)"
    )
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the same formats; - for CSV on standard output (default: print a list)"
    )
    parser.add_argument(
        "--criterion",
        choices=CRITERIA,
        default=CRITERIA[0],
        help="entropy: the most uncertain rows, given the others (default); mutual_information: those that tell most "
        "about the rest of DATA; alc: those that lower the mean variance at the reference most",
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        help="where predictions are to be good, for mutual_information and alc (default: rows of DATA)",
    )
    common.add_missing(
        parser,
        default="impute",
        meaning="what to do with rows that have missing inputs. impute: give them typical values; drop: ignore the "
        "rows; error: end with an error (default: %(default)s)",
    )
    common.add_escape_formulas(parser)
    common.add_device(parser)
    parser.add_argument(
        "--seed", type=common.seed, default=0, help="of the rows of DATA that are the reference of alc (default: 0)"
    )
    common.add_format_options(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Select, gather the rows, write or print them."""
    to_stdout = args.output == "-"
    if to_stdout and args.json:
        raise DataError("--json and -o - both use standard output; write the rows to a file")
    if args.data == args.reference == "-":
        raise DataError("DATA and --reference cannot both be standard input")
    kind = ".csv" if args.output in (None, "-") else file_format(args.output)
    files = common.open_path(args, args.data)
    if args.output is not None and not to_stdout:
        common.check_output_path(args, files)
    model = load_model(args.model, device=args.device)
    began = time.perf_counter()
    reader = common.open_reader(args, model, files)
    with warnings.catch_warnings(), show_seconds("selecting", shown=show_progress(args)):
        warnings.simplefilter("once", PrismGPWarning)  # every pass over the table would repeat them
        reference = None
        if args.reference is not None:
            reference = _encode(model, common.open_reader(args, model, common.open_second(args, args.reference)))
        pool = _encode(model, reader)
        if args.rows > pool.n_rows:
            raise DataError(f"{args.data}: -k {args.rows:,} asks for more rows than the {pool.n_rows:,} there are")
        found = select_rows(
            model,
            pool,
            args.rows,
            args.criterion,
            reference=reference,
            random_state=args.seed,
        )
    table = _gather(model, reader, found)
    if args.output is not None:
        with common.open_output(args, files, kind, table.schema) as writer:
            writer.write(table)
        common.report_formulas(args, writer.formulas)
    summary = {
        "model": args.model,
        "data": args.data,
        "output": args.output,
        "criterion": args.criterion,
        "reference": args.reference,
        "rows_in_pool": reader.rows_read,
        "rows": table.column(0).to_pylist(),
        "scores": table.column(1).to_pylist(),
        "seconds": time.perf_counter() - began,
    }
    if args.json:
        say(json_text(summary))
    elif not args.quiet or args.output is None:
        _print(summary, table, error=to_stdout)
    return 0


def _encode(model: FittedModel, reader: TableReader) -> Source:
    """The rows of a table as inputs of the model."""
    encoder = reader.encoder
    return MappedSource(FileSource(reader), lambda x: model.complete(encoder.encode(x)), model.n_inputs)


def _gather(model: FittedModel, reader: TableReader, found: Selected) -> pa.Table:
    """The chosen rows, best first, in a pass over the table; ``found.rows`` count its complete rows."""
    order = np.argsort(found.rows)
    wanted = found.rows[order]
    begin, tables = 0, []
    numbers: list[AnyArray] = []
    inputs: list[AnyArray] = []
    for block in reader.blocks(max(256, _CELLS // len(reader.files.names)), all_columns=True):
        first, last = np.searchsorted(wanted, [begin, begin + len(block.positions)])
        own = wanted[first:last] - begin
        begin += len(block.positions)
        if len(own):
            tables.append(block.table.take(pa.array(block.positions[own])))
            numbers.append(block.first_row + block.positions[own])
            inputs.append(block.x[own])
    back = np.argsort(order)
    cells = np.concatenate(inputs)
    _, std = model.predict(reader.encoder.encode(cells))
    assert std is not None
    table = pa.concat_tables(tables).take(pa.array(back))
    suffixes = common.output_suffixes(model)
    names = common.free_names(table.column_names, ["row", "score", *(f"std{suffix}" for suffix in suffixes)])
    columns = [np.concatenate(numbers)[back], found.scores, *std[back].T]
    for index, (name, values) in enumerate(zip(names, columns, strict=True)):
        table = table.add_column(index, name, pa.array(values))
    return table


def _print(summary: dict[str, Any], table: pa.Table, *, error: bool) -> None:
    count = f"{len(summary['rows']):,} of {summary['rows_in_pool']:,} rows"
    say(f"Selected {count} by {summary['criterion']} in {summary['seconds']:.1f} s", error=error)
    say(error=error)
    if summary["output"] is None:
        _print_table(table)
    elif summary["output"] != "-":
        say(f"Wrote {summary['output']}")


def _print_table(table: pa.Table) -> None:
    """The leading columns, as many as fit a terminal."""
    shown = terminal_width() // (_CELL_WIDTH + 2)
    names = table.column_names[:shown]
    rows = [names, *zip(*(table[name].to_pylist() for name in names), strict=True)]
    for row in rows:
        say("  ".join(f"{_cell(value):>{_CELL_WIDTH}}" for value in row))
    if len(names) < table.num_columns:
        say(f"... and {table.num_columns - len(names):,} more columns (all with -o)")


def _cell(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else "" if value is None else format_name(str(value))
    return text if len(text) <= _CELL_WIDTH else f"{text[: _CELL_WIDTH - 3]}..."

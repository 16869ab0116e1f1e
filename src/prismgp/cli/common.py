"""Parts shared by the subcommands: arguments, tables to read, checks of paths, rows of a fit, output."""

from __future__ import annotations

import argparse
import csv
import math
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from prismgp._system import atomic_path, is_device, name_errors, unknown_device
from prismgp.cli import STDOUT, Parser, complain, format_name
from prismgp.data import MISSING, TableFiles, TableReader, open_tables
from prismgp.data.cells import quote_names
from prismgp.data.numerals import DECIMALS
from prismgp.data.tables import FORMATS, PARQUET_SUFFIXES, TEXT_SUFFIXES
from prismgp.data.text import TextWriter, check_encoding, open_writer
from prismgp.exceptions import DataError

if TYPE_CHECKING:
    from prismgp._types import Indices
    from prismgp.model import FittedModel


N = TypeVar("N", int, float)

GROUP_BYTES = 2**21  # size in memory at which rows become a row group of a Parquet file


# -- arguments -----------------------------------------------------------------------------------


def columns(text: str) -> list[str]:
    """Parse ``a,b,c``; a name with a comma is in double quotes."""
    return next(csv.reader([text]), [""])


def _number(kind: type[N], accepts: Callable[[N], bool], what: str) -> Callable[[str], N]:
    """Make a parser of numbers whose error says what is accepted."""

    def parse(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return parse


positive = _number(int, lambda value: value >= 1, "a whole number of at least 1")
whole = _number(int, lambda value: value >= 0, "a whole number of at least 0")
seed = _number(int, lambda value: 0 <= value < 2**32, "a whole number between 0 and 2^32 - 1")
fraction = _number(float, lambda value: 0 < value < 1, "a number between 0 and 1")
probability = _number(float, lambda value: 0 <= value < 1, "a number of at least 0 and below 1")
seconds = _number(float, lambda value: 0 < value < math.inf, "a number above 0")
not_negative = _number(float, lambda value: 0 <= value < math.inf, "a number of at least 0")


def _delimiter(text: str) -> str:
    text = "\t" if text == "\\t" else text
    if len(text) != 1 or not text.isascii() or text in '"\r\n':
        raise argparse.ArgumentTypeError(f"{text!r} is not one character")
    return text


def _device(text: str) -> str:
    if not is_device(text):
        raise argparse.ArgumentTypeError(str(unknown_device(text)))
    return text


def add_device(parser: Parser, default: str | None = None) -> None:
    """Add the option of commands that compute; without a default, it is the device of the fit."""
    what = f"cpu, cuda, a numbered GPU such as cuda:1, or auto (default: {default or 'that of the fit'})"
    parser.add_argument("--device", type=_device, metavar="DEVICE", default=default, help=what)


def add_data(parser: Parser, what: str = "") -> None:
    """Add the argument DATA of commands that read tables."""
    parser.add_argument(
        "data",
        metavar="DATA",
        help=f"{what}.csv, .tsv (either also .gz) or .parquet, or a folder of these; - for standard input",
    )


def add_format_options(parser: Parser) -> None:
    """Add the options of commands that read tables; they are about the files, and no model remembers them."""
    group = parser.add_argument_group("format of DATA")
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="format of files with other names than the usual ones (default: by the name; csv for standard input)",
    )
    group.add_argument(
        "--delimiter",
        type=_delimiter,
        metavar="CHAR",
        help=r"separator of a text file (default: comma, semicolon, tab or |, as the header shows; \t means tab)",
    )
    group.add_argument(
        "--decimal",
        choices=DECIMALS,
        help="decimal mark of a text file (default: point). The other mark, blanks and apostrophes may separate "
        "thousands, and 12.5%% means 0.125",
    )
    group.add_argument(
        "--encoding",
        type=_encoding,
        metavar="NAME",
        help="encoding of a text file, e.g. latin-1 (default: UTF-8, or what the byte order mark says)",
    )


def _encoding(text: str) -> str:
    try:
        return check_encoding(text)
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


REPEAT_OPTIONS = "if the fit had --holdout, --conformal, --seed or columns of weights or noise, repeat them here"


def add_split_of_fit(parser: Parser, purpose: str = "") -> None:
    """Add the options by which a command finds the rows of a fit in its table; ``purpose``: of the held-out rows."""
    parser.add_argument("--holdout", type=fraction, metavar="FRACTION", help=f"as in the fit{purpose}")
    parser.add_argument("--conformal", type=fraction, metavar="FRACTION", help="as in the fit")
    parser.add_argument(
        "--seed", type=seed, default=0, help="as in the fit; only for --holdout and --conformal (default: 0)"
    )
    parser.add_argument("--weight-column", metavar="COLUMN", help="as in the fit")
    parser.add_argument("--noise-column", metavar="COLUMN", help="as in the fit")


def add_missing(parser: Parser, *, default: str | None, meaning: str) -> None:
    """Add the options of commands that may meet missing values."""
    parser.add_argument("--missing", choices=MISSING, default=default, help=meaning)
    parser.add_argument(
        "--drop-missing", dest="missing", action="store_const", const="drop", help="the same as --missing drop"
    )


def add_scheduler(parser: Parser) -> None:
    """Add the option of commands whose work a cluster can do."""
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="let the workers of a Dask cluster read and compute, e.g. tcp://host:8786; they must reach DATA by the "
        "same path",
    )


def add_escape_formulas(parser: Parser) -> None:
    """Add the option of commands that write text tables."""
    parser.add_argument(
        "--escape-formulas",
        action="store_true",
        help="put an apostrophe before text that a spreadsheet would run as a formula, such as =1+1, in names and "
        "cells of CSV and TSV (default: a warning, and every cell as it is in DATA)",
    )


def add_output_options(parser: Parser) -> None:
    """Add the options of commands that print a summary."""
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress bar and no summary")


def open_second(args: argparse.Namespace, path: str) -> TableFiles:
    """Open another table; the options are about DATA, which may be text while this one is Parquet."""
    return open_tables(path) if path.lower().endswith(PARQUET_SUFFIXES) else open_path(args, path)


def open_path(args: argparse.Namespace, path: str) -> TableFiles:
    """Open a file, a folder or a stream with the options of the command.

    Standard input, and what is no regular file, can be read only once: it is copied to a temporary file, which is
    removed when the command ends.
    """
    options: dict[str, Any] = {name: getattr(args, name) for name in ("delimiter", "decimal", "encoding")}
    options["kind"] = args.format
    is_stream = path == "-" or (os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path))
    if not is_stream:
        tables, model = (*TEXT_SUFFIXES, *PARQUET_SUFFIXES), str(getattr(args, "model", ""))
        known = path.lower().endswith(tables) or os.path.isdir(path) or options["kind"] is not None
        if path == args.data and not known and model.lower().endswith(tables):
            raise DataError(f"{path}: unsupported file type, and {model} looks like a table: MODEL comes before DATA")
        return open_tables(path, **options)
    if getattr(args, "scheduler", None) is not None:
        raise DataError(f"{path}: the workers of a cluster cannot read it; use a file that they can reach")
    name = "standard input" if path == "-" else path
    if path == "-" or not path.lower().endswith((*TEXT_SUFFIXES, *PARQUET_SUFFIXES)):
        options["kind"] = args.format or "csv"
    handle, spool = tempfile.mkstemp(prefix="prismgp-", suffix=Path(path).suffix)
    args.at_exit.callback(os.unlink, spool)
    with (
        name_errors(f"{spool}, a copy of {name}", Path(spool)),
        open(handle, "wb") as copy,
        sys.stdin.buffer if path == "-" else open(path, "rb") as stream,
    ):
        shutil.copyfileobj(stream, copy)
    return open_tables(spool, **options, name=name)


def open_reader(args: argparse.Namespace, model: FittedModel, files: TableFiles) -> TableReader:
    """Return a reader of a table whose rows a model is to predict."""
    return TableReader.for_model(
        files,
        model.encoder,
        model.feature_names or model.n_inputs,
        silent=model.standardiser.constant_inputs,
        missing=args.missing,
    )


def target_columns(args: argparse.Namespace, model: FittedModel, files: TableFiles) -> list[str]:
    """Return the target columns of a model, as the option --target or the model names them."""
    known = [] if model.encoder is None else list(model.encoder.targets)
    if args.target is None and not known:
        raise DataError(f"{args.model} was saved from Python without the name of its target; give it with --target")
    return require_targets(files, args.target or known)


def require_targets(files: TableFiles, names: list[str]) -> list[str]:
    """Return the names of target columns, after checking that the table has all of them."""
    absent, there = quote_names(name for name in names if name not in files.names), quote_names(files.names)
    if absent:
        raise DataError(f"{files.path}: target column {absent} missing; the file has {there}")
    return names


def check_writable(path: str, *, inputs: Iterable[str]) -> Path:
    """Check that a path can be written, before any work that would be lost."""
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise DataError(f"{path}: the folder {str(folder)!r} does not exist; create it first")
    if target.is_dir():
        raise DataError(f"{path}: is a folder; name a file to write")
    with suppress(FileNotFoundError):  # a new file, or a link to one
        if not stat.S_ISREG(target.stat().st_mode):  # Python's own error for a loop of links is clear
            raise DataError(f"{path}: is not a regular file; write to another file")
    if not os.access(folder, os.W_OK):
        raise DataError(f"{path}: the folder {str(folder)!r} cannot be written to; choose another one")
    for name in inputs:
        if target.exists() and Path(name).exists() and target.samefile(name):
            raise DataError(f"{path}: the output would replace an input; write to another file")
    return target


def split_rows(args: argparse.Namespace, n: int) -> tuple[Indices, Indices, Indices]:
    """Split rows into those of the fit and those that ``--holdout`` and ``--conformal`` keep out; each in order."""
    shares = {name: getattr(args, name) for name in ("holdout", "conformal")}
    counts = [0 if share is None else max(1, round(share * n)) for share in shares.values()]
    left = n - sum(counts)
    if left < 2 and any(counts):
        asked = " and ".join(f"--{name} {share:g}" for name, share in shares.items() if share is not None)
        verb = "leaves" if counts.count(0) else "leave"
        raise DataError(
            f"{asked} {verb} {max(left, 0)} of {n} rows for the fit; at least 2 are needed: hold out a smaller part"
        )
    order = np.random.default_rng(args.seed).permutation(n)
    held_out, conformal, train = np.split(order, np.cumsum(counts))
    return np.sort(train), np.sort(held_out), np.sort(conformal)


def ignore_interrupts() -> None:
    """Ignore signals once the output is in place: the rest takes little time, and must not look like a failure."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def check_output_path(args: argparse.Namespace, files: TableFiles) -> None:
    """Check that the output can be written, and is not part of the input."""
    check_writable(args.output, inputs=[args.model, *(str(each.path) for each in files.files)])
    if Path(args.data).is_dir() and Path(args.output).resolve().is_relative_to(Path(args.data).resolve()):
        raise DataError(f"{args.output}: is in the folder that is read and would become a part of it; write elsewhere")


@contextmanager
def destination(output: str) -> Iterator[Path | IO[bytes]]:
    """Open a temporary file, which replaces the output or is copied to stdout only when all rows are done."""
    if output != "-":
        with atomic_path(output) as path:
            yield path
        return
    with name_errors(f"a temporary file in {tempfile.gettempdir()}"), tempfile.TemporaryFile() as spool:
        yield spool
        spool.seek(0)
        sys.stdout.flush()
        with name_errors(STDOUT):
            shutil.copyfileobj(spool, sys.stdout.buffer)
            sys.stdout.buffer.flush()


class ParquetWriter:
    """Parquet with row groups of some megabytes; its cells have types, so that none is a formula."""

    formulas: Mapping[str, int] = MappingProxyType({})

    def __init__(self, path: Any, schema: pa.Schema) -> None:
        # Floats seldom repeat: a dictionary of them costs memory and time, and is given up in the end.
        repeating = [field.name for field in schema if not pa.types.is_floating(field.type)]
        self._writer = pa.parquet.ParquetWriter(path, schema, use_dictionary=repeating)
        self._waiting: list[pa.Table] = []
        self._bytes = 0

    def write(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self._bytes += table.nbytes
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting, self._bytes = [], 0
        pa.default_memory_pool().release_unused()  # Arrow would keep it

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._writer.close()


@contextmanager
def open_output(
    args: argparse.Namespace, files: TableFiles, kind: str, schema: pa.Schema
) -> Iterator[ParquetWriter | TextWriter]:
    """Open a writer of rows, which replaces the output only when all are written; CSV is delimited as DATA is."""
    delimiter = files.csv_delimiter if kind.startswith(".csv") else None
    options: dict[str, Any] = {"decimal": args.decimal, "escape_formulas": args.escape_formulas}
    with destination(args.output) as place:
        if kind in PARQUET_SUFFIXES:
            output: AbstractContextManager[ParquetWriter | TextWriter] = closing(ParquetWriter(place, schema))
        else:
            output = open_writer(place, kind, schema, delimiter=delimiter, **options)
        with output as writer:
            yield writer


def report_formulas(args: argparse.Namespace, formulas: Mapping[str, int]) -> None:
    """Warn of what a spreadsheet would run when it opens the output."""
    if formulas and not args.escape_formulas:
        where = ", ".join(f"{format_name(name):.60} ({count:,})" for name, count in list(formulas.items())[:3])
        more = f" and {len(formulas) - 3:,} more columns" if len(formulas) > 3 else ""
        complain(
            f"warning: the output holds text that spreadsheets take for formulas, in {where}{more}; do not open it "
            "in one if you do not trust it, or give --escape-formulas"
        )


def output_suffixes(model: FittedModel) -> list[str]:
    """Return suffixes for the columns of several outputs: names of the targets, or numbers if they have no names."""
    if model.target_ndim == 1:
        return [""]
    names = () if model.encoder is None else model.encoder.targets
    return [f"_{name}" for name in names or range(model.n_outputs)]


def free_names(taken: Sequence[str], wanted: Iterable[str]) -> list[str]:
    """Choose names for added columns: underscores are appended until a name is free."""
    names: list[str] = []
    for name in wanted:
        while name in taken or name in names:
            name += "_"
        names.append(name)
    return names

"""``prismgp report``: one page about a model on the rows of a table."""

from __future__ import annotations

import argparse
import csv
import io
import shlex
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from prismgp._system import format_count
from prismgp._types import AnyArray
from prismgp.cli import Parser, Subparsers, common, say
from prismgp.cli.rows import TableRows, read_table_rows
from prismgp.core.numerics import Hashes, hash_rows
from prismgp.data import TableFiles, quote_names
from prismgp.data.encodings import LEVELS
from prismgp.estimators import ExactGPRegressor, GPRegressor, load
from prismgp.exceptions import DataError
from prismgp.plots import sample_rows
from prismgp.plots.style import require_matplotlib
from prismgp.report import examine, model_page, render

_REPORTED, _CERTIFIED = 20_000, 100_000
_ROWS = 16_384  # read from a file, or encoded, at a time
_MANY = 0.5  # share of the rows of a report that were in the fit, from which on the page warns of that
_LEAST_MATCHES = 10  # stored rows that a table of the fit is expected to have, at least, for the estimate
_DISTINCT = 0.5  # share of rows with unique inputs, from which on rows are recognised by their inputs


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Declare the command."""
    # Commands are declared in the same shape, as argparse asks for it; no words are shared.
    parser: Parser = subparsers.add_parser(
        "report",
        help=summary,
        description="Write one self-contained HTML page about a model on the rows of a table: accuracy with and "
        "without error bars, calibration, where the model is worst, the inputs that matter with their partial "
        "dependence, the most uncertain rows, and how far the model is from the exact GP. DATA has the target; give "
        "rows that were not in the fit, or the table of the fit with the --holdout, --conformal and --seed of the fit. "
        'Needs pip install "prismgp[report]".',
        epilog="The distance from the exact GP needs the rows of the fit: --holdout, --train, or DATA itself, and up "
        f"to {_CERTIFIED:,} of them; prismgp certify has no such limit.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    common.add_data(parser, "rows with the target: ")
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="page to write, e.g. report.html")
    parser.add_argument(
        "-t",
        "--target",
        type=common.columns,
        metavar="COLUMN",
        help="the target to report on, of a model that has several (default: that of the model, which knows its name "
        "unless it was saved from Python)",
    )
    common.add_split_of_fit(parser, ": report on the rows it kept out")
    parser.add_argument("--train", metavar="FILE", help="the table of the fit, for the distance from the exact GP")
    common.add_missing(parser, default=None, meaning="rows with missing inputs, as for fit (default: that of the fit)")
    parser.add_argument(
        "--rows",
        type=common.positive,
        default=_REPORTED,
        metavar="N",
        help="report on at most this many rows, chosen at random (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=common.not_negative,
        default=20.0,
        metavar="S",
        help="time for the distance from the exact GP, beyond its first step (default: %(default)g)",
    )
    parser.add_argument("--no-certificate", action="store_true", help="leave the distance from the exact GP out")
    common.add_device(parser)
    common.add_format_options(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read, examine, write the page."""
    files, train_files = _open(args)
    model: GPRegressor = load(args.model, device=args.device)
    began = time.perf_counter()
    targets, output = _choose_target(args, model, files)
    table = read_table_rows(args, model, files, targets, with_noise=train_files is None)
    fitted, held_out = _split(args, table)
    _check_split(args, model, fitted)
    is_fit = args.holdout is None and train_files is None and _is_fit(model, fitted)
    others = None if held_out is fitted else fitted
    is_part = not is_fit and _share_in_fit(model, held_out, others) >= _MANY
    if is_part and args.holdout is not None:
        raise DataError(
            f"{args.data}: many of the rows to report on were in the fit, so that this split is not that of the fit; "
            f"{common.REPEAT_OPTIONS}"
        )
    if train_files is not None:
        fitted = read_table_rows(args, model, train_files, targets)
    chosen = held_out.select(sample_rows(len(held_out.numbers), args.rows, np.random.default_rng(0)))
    training, note = _training(args, model, fitted if is_fit or args.holdout is not None or args.train else None)
    try:
        found = examine(
            model,
            _raw_inputs(files, chosen),
            chosen.target,
            target=targets[output],
            output=output,
            numbers=chosen.numbers,
            training=training,
            seconds=args.seconds,
            progress=(lambda _: None) if args.quiet else lambda step: say(f"  {step}", error=True),
        )
    except DataError as error:
        hint = f"; {common.REPEAT_OPTIONS}" if training else ""
        raise DataError(f"{args.data}: {error}{hint}") from error
    page = model_page(
        found,
        model_name=Path(args.model).name,
        data_name=Path(args.data).name,
        rows_note=_describe_rows(args, held_out, chosen),
        seen_in_fit=is_fit or is_part,
        partly_seen=is_part,
        certificate_note=note,
        made_by={"command": _command(args), "time": f"{time.perf_counter() - began:.0f} s"},
    )
    render(page, args.output)
    if not args.quiet:
        say(f"Wrote {args.output}: {page.title} ({format_count(len(chosen.numbers), 'row')})")
    return 0


def _open(args: argparse.Namespace) -> tuple[TableFiles, TableFiles | None]:
    """Check the options, and open the tables."""
    if not args.output.lower().endswith((".html", ".htm")):
        raise DataError(f"{args.output}: a report is an HTML page; end its name in .html")
    if args.train is not None and (args.holdout is not None or args.conformal is not None):
        raise DataError("--train and --holdout both tell which rows were in the fit; give one of them")
    require_matplotlib()
    files = common.open_path(args, args.data)
    train = None if args.train is None else common.open_second(args, args.train)
    common.check_output_path(args, files)
    if train is not None:
        common.check_writable(args.output, inputs=[str(each.path) for each in train.files])
    return files, train


def _choose_target(args: argparse.Namespace, model: GPRegressor, files: TableFiles) -> tuple[list[str], int]:
    """All targets of the model, and the number of the one to report on."""
    fitted, asked = model.model_, args.target
    known = [] if fitted.encoder is None else list(fitted.encoder.targets)
    if fitted.n_outputs == 1:
        if asked is not None and len(asked) != 1:
            raise DataError(f"--target names {len(asked)} columns, but {args.model} has one target; name that one")
        return common.target_columns(args, fitted, files), 0
    if len(known) != fitted.n_outputs:
        raise DataError(
            f"{args.model} has {fitted.n_outputs} targets, and was saved from Python without their names: make the "
            "page in Python, by prismgp.report.examine with output=..."
        )
    if asked is None or len(asked) != 1 or asked[0] not in known:
        names = quote_names(known)
        raise DataError(f"a report is about one target; choose one of {names} with --target, as in -t {known[0]}")
    # Rows are those of the fit only if they are read with all its targets.
    return common.require_targets(files, known), known.index(asked[0])


# -- rows ----------------------------------------------------------------------------------------


def _split(args: argparse.Namespace, table: TableRows) -> tuple[TableRows, TableRows]:
    """Rows of the fit and rows to report on, which are the same unless some were held out."""
    if args.holdout is None and args.conformal is None:
        return table, table
    train, held_out, _ = common.split_rows(args, len(table.numbers))
    return table.select(train), table.select(held_out if len(held_out) else train)


def _is_fit(model: GPRegressor, rows: TableRows) -> bool:
    """Whether these seem to be the rows of the fit: as many, with the same mean of the target."""
    fitted, target = model.model_, rows.target
    assert target is not None
    weight = rows.noise[:, 0] if rows.noise.shape[1] else None
    first = target.reshape(len(target), -1)[:, 0]
    units, mean = fitted.standardiser, float(np.average(first, weights=weight))
    same = abs(mean - units.y_shift[0]) <= 1e-9 * (abs(mean) + units.y_scale[0])
    return bool(len(target) == fitted.n_rows and (same or not model.normalize))


def _share_in_fit(model: GPRegressor, rows: TableRows, others: TableRows | None) -> float:
    """The share of rows that were in the fit, estimated from the training rows that the model has kept.

    Rows are recognised by their inputs; the share is zero if these are not unique enough. Rows that occur twice, among
    the kept rows or among ``rows`` and ``others`` of the same table, do not count. Kept rows have no unknown cells, so
    rows with such cells are never recognised; they are assumed to be as frequent in both. Effects of many levels are
    left out, because in the fit they were out of fold.
    """
    background = model.model_.background
    if background is None:
        return 0.0
    told = np.ones(background.shape[1], dtype=bool)
    if rows.is_table:
        own = rows.encoder.features_of_columns
        levels = {name for each in rows.encoder.columns if each.kind == LEVELS for name in own[each.name]}
        told = np.array([name not in levels for name in rows.encoder.feature_names])
    known, found = hash_rows(background[:, told]), _hash_rows(rows, told)
    known_once, found_once = _select_unique(known), _select_unique(found)
    if others is not None:
        found_once = np.setdiff1d(found_once, _hash_rows(others, told))
    expected = len(known_once) * len(found_once) / model.model_.n_rows  # to be found, if all rows were in the fit
    apart = min(len(once) / max(len(each), 1) for once, each in ((known_once, known), (found_once, found)))
    if not told.any() or expected < _LEAST_MATCHES or apart < _DISTINCT:
        return 0.0
    return float(np.isin(known_once, found_once).sum() / expected)


def _hash_rows(rows: TableRows, told: AnyArray) -> Hashes:
    """Hashes of the rows without unknown cells, by their inputs where ``told``."""
    encode = rows.encoder.encode if rows.is_table else np.asarray
    parts = []
    for start in range(0, len(rows.x), _ROWS):
        inputs = encode(rows.x[start : start + _ROWS])
        parts.append(hash_rows(inputs[np.isfinite(inputs).all(axis=1)][:, told]))
    return np.concatenate(parts)


def _select_unique(hashes: Hashes) -> Hashes:
    values, counts = np.unique(hashes, return_counts=True)
    return np.asarray(values[counts == 1])


def _check_split(args: argparse.Namespace, model: GPRegressor, fitted: TableRows) -> None:
    """Refuse, before any work, a split that leaves too few rows for the fit and so for its certificate."""
    n, seen = len(fitted.numbers), model.model_.n_rows  # more rows may be copies of each other, which count once
    if args.holdout is not None and n < seen and not args.no_certificate:
        raise DataError(
            f"{args.data}: --holdout {args.holdout:g} is not that of the fit: {n:,} rows are left for the fit, but the "
            f"model has seen {seen:,}; {common.REPEAT_OPTIONS}"
        )


def _raw_inputs(files: TableFiles, rows: TableRows) -> Any:
    """The inputs as the user's table has them, for a model that encodes them; else the numbers as they are."""
    encoder = rows.encoder
    if not rows.is_table or encoder.positional:
        return rows.x if rows.is_table else rows.inputs
    names = encoder.present_columns(files.names)
    numbers, levels = encoder.spelled_numbers, encoder.spelled_missing
    wanted: AnyArray = rows.numbers - 1
    parts, begin = [], 0
    for batch in files.raw_batches(_ROWS, columns=names):
        cells = pa.Table.from_batches([batch])
        table = files.cells(cells, names, numbers=numbers, levels=levels, first_row=begin)
        own = wanted[(wanted >= begin) & (wanted < begin + table.num_rows)] - begin
        begin += table.num_rows
        if len(own):
            parts.append(table.take(own))
    return pa.concat_tables(parts, promote_options="permissive")


def _training(
    args: argparse.Namespace, model: GPRegressor, rows: TableRows | None
) -> tuple[tuple[Any, ...] | None, str]:
    """Return the rows of the fit, for a certificate, or the reason why there is no certificate."""
    if args.no_certificate:
        return None, "It was not asked for."
    if isinstance(model, ExactGPRegressor):
        return None, "This model is the exact GP itself."
    if rows is None:
        return None, "It needs the rows of the fit: give them with --train, or report with the --holdout of the fit."
    if len(rows.numbers) > _CERTIFIED:
        return None, f"The fit had more than {_CERTIFIED:,} rows; prismgp certify has no such limit."
    return tuple(rows.of_fit.values()), ""


# -- words ---------------------------------------------------------------------------------------


def _describe_rows(args: argparse.Namespace, rows: TableRows, chosen: TableRows) -> str:
    few = "" if len(chosen.numbers) == len(rows.numbers) else f"A random choice of {len(rows.numbers):,}. "
    return f"{few}They were kept out of the fit (--holdout {args.holdout:g})." if args.holdout else few.strip()


def _command(args: argparse.Namespace) -> str:
    words = ["prismgp", "report", Path(args.model).name, Path(args.data).name, "-o", Path(args.output).name]
    if args.target is not None:
        target = io.StringIO()
        csv.writer(target, lineterminator="").writerow(args.target)  # as common.columns reads it
        words += ["--target", target.getvalue()]
    for name in ("holdout", "conformal"):
        share = getattr(args, name)
        words += [] if share is None else [f"--{name}", f"{share:g}"]
    words += ["--seed", str(args.seed)] if args.seed else []
    for name in ("weight_column", "noise_column"):
        column = getattr(args, name)
        words += [] if column is None else [f"--{name.replace('_', '-')}", column]
    words += ["--train", Path(args.train).name] if args.train is not None else []
    return shlex.join(words)

"""``prismgp certify``: how far a model is from the exact GP, at most."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from prismgp._system import atomic_path
from prismgp._types import Array
from prismgp.certificates import Certificate, certify
from prismgp.certificates._certificate_text import MEMBER_HEADER, certificate_lines, member_rows
from prismgp.certificates._effort import PARTS
from prismgp.cli import _common as common
from prismgp.cli._common import Parser, Subparsers, complain, printable, say
from prismgp.data._columns import listed, to_numbers
from prismgp.data._folder import TableFiles, open_tables
from prismgp.data._table import TableEncoder, missing_error, unseen_message
from prismgp.estimators import ExactGPRegressor
from prismgp.estimators._base import GPRegressor
from prismgp.exceptions import DataError
from prismgp.model.io import load
from prismgp.plots import FIGURE_FORMATS, draw_certificate, figure_format

__all__ = ["add_parser", "run"]

_DOES_NOT_HOLD = 1
_DEFAULTS = {
    name: each.default for name, each in signature(certify).parameters.items() if each.kind is each.KEYWORD_ONLY
}
_POINTS = 1_000  # training rows at which predictions are certified when no others are given
_ROWS = 16_384  # of a file at a time


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "certify",
        help="bound how far a model is from the exact GP",
        description="Bound how far a model is from the exact Gaussian process that it approximates, one with the same "
        "kernel, parameters and noise: its predicted means and standard deviations, its evidence, its kernel matrix. "
        "DATA is the table the model was fitted on. Predictions are certified at the rows of --test; without it, at "
        f"the rows that --holdout kept out of the fit, or else at {_POINTS:,} training rows drawn at random (all, if "
        "there are fewer), and new rows can then be further off.",
        epilog="Exit code: 0 when the certificate holds, 1 when an assumption fails so that nothing is certified, 2 on "
        "bad usage or bad input. For a model fitted with --holdout, --seed or --drop-missing, repeat these options.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    parser.add_argument("data", metavar="DATA", help="the training table, as for fit")
    parser.add_argument("--test", metavar="FILE", help="table whose rows to certify predictions at; needs no target")
    parser.add_argument(
        "-t",
        "--target",
        type=common.columns,
        metavar="COLUMN",
        help="the column the model learned (default: it knows, unless it was saved from Python); A,B,... for several",
    )
    parser.add_argument("--drop-missing", action="store_true", help="leave out rows with missing or infinite values")
    parser.add_argument("--holdout", type=common.fraction, metavar="FRACTION", help="that of the fit")
    parser.add_argument("--seed", type=int, default=0, help="that of the fit; only for --holdout (default: 0)")
    parser.add_argument(
        "--rank",
        type=common.positive,
        metavar="N",
        help="columns of the pivoted Cholesky (default: by the rows)",
    )
    parser.add_argument(
        "--products",
        type=common.whole,
        metavar="N",
        help="products with the exact kernel matrix, at most (default: by the rows; none beyond some 400,000)",
    )
    parser.add_argument(
        "--seconds", type=common.not_negative, metavar="S", help="begin no further product after this time"
    )
    parser.add_argument(
        "--delta",
        type=common.not_negative,
        default=_DEFAULTS["delta"],
        metavar="D",
        help="probability with which a random bound may fail; 0: no randomness (default: %(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=common.not_negative,
        default=_DEFAULTS["tolerance"],
        metavar="T",
        help="stop when the mean is known to this share of the noise (default: %(default)s)",
    )
    parser.add_argument(
        "--reference",
        choices=("auto", "full", "gated"),
        default=_DEFAULTS["reference"],
        help="for gated kernels, whether the exact GP has the gates (default: gated for prism models, else full)",
    )
    parser.add_argument(
        "--only",
        dest="parts",
        choices=PARTS,
        help="certify this alone, in less time (default: everything)",
    )
    parser.add_argument("--random-state", type=int, default=0, metavar="N", help="of all that is random (default: 0)")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), help="default: that of the fit")
    parser.add_argument(
        "--figure", metavar="FILE", help=f"draw the certified ranges; {', '.join(FIGURE_FORMATS)} (needs matplotlib)"
    )
    common.add_delimiter(parser)
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="the certificate as one JSON object, to FILE, or instead of the summary to standard output",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no clock and no summary for people")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read both tables, certify, report."""
    _check_options(args)
    file = common.open_table(args)
    test_file = None if args.test is None else open_tables(args.test, delimiter=_delimiter(args))
    _check_outputs(args, [str(each.path) for files in (file, test_file) if files is not None for each in files.files])
    model: GPRegressor = load(args.model, device=args.device)
    if isinstance(model, ExactGPRegressor):
        raise DataError(f"{args.model}: an ExactGPRegressor is the exact GP: there is nothing to certify")
    train, test, where = _tables(args, model, file, test_file)
    for name, count in {**train.unseen, **test.unseen}.items():
        complain(f"warning: {unseen_message(name, count)}")
    options = {name: getattr(args, name) for name in _DEFAULTS}
    began = time.perf_counter()
    with common.ticking("certifying", shown=common.show_progress(args)):
        try:
            points = test.inputs if _predictions(args) else None
            certificate = certify(model, train.inputs, train.target, points, **options)
        except DataError as error:
            hint = "if the fit had --holdout, --seed or --drop-missing, repeat them here"
            raise DataError(f"{args.data}: {error}; {hint}") from error
    seconds = time.perf_counter() - began
    if args.figure is not None:
        draw_certificate(certificate, args.figure, **_figure_data(train, test))
    _report(args, model, certificate, test, where, seconds)
    return 0 if certificate.holds else _DOES_NOT_HOLD


def _check_options(args: argparse.Namespace) -> None:
    """All that can be wrong before any work."""
    if args.delta >= 1.0:
        raise DataError(f"--delta {args.delta:g} is not below 1")
    for name, value in (("--seed", args.seed), ("--random-state", args.random_state)):
        if not 0 <= value < 2**32:
            raise DataError(f"{name} {value} is not between 0 and 2^32 - 1")
    _check_outputs(args, [args.model])
    if args.figure is not None:
        figure_format(args.figure)
    for name, value in (("--figure", args.figure), ("--test", args.test)):
        if value is not None and not _predictions(args):
            raise DataError(f"{name} is about predictions, which --only {args.parts} leaves out")


def _predictions(args: argparse.Namespace) -> bool:
    """Whether predictions are certified."""
    return args.parts in (None, "predictions")


def _check_outputs(args: argparse.Namespace, inputs: list[str]) -> None:
    for path in (args.json if args.json != "-" else None, args.figure):
        if path is not None:
            common.writable(path, inputs=inputs)


def _delimiter(args: argparse.Namespace) -> str | None:
    """Of the test table; one of another format has its own."""
    return args.delimiter if not str(args.test).lower().endswith((".parquet", ".pq")) else None


# -- tables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Rows of a table as the model takes them.

    Attributes
    ----------
    inputs : DataFrame or ndarray, (n, d)
    target : ndarray, (n,) or (n, q), or None
    numbers : ndarray, (n,)
        Where they stand in their file; the first is 1.
    unseen : dict
        Cells with a category that training did not have, by column.
    names : list of str
        The encoded inputs.
    target_names : list of str
    """

    inputs: Any
    target: Array | None
    numbers: npt.NDArray[np.int64]
    unseen: dict[str, int]
    names: list[str]
    target_names: list[str]

    def some(self, index: Any) -> _Rows:
        inputs = self.inputs.iloc[index] if isinstance(self.inputs, pd.DataFrame) else self.inputs[index]
        target = None if self.target is None else self.target[index]
        return _Rows(inputs, target, self.numbers[index], {}, self.names, self.target_names)


def _tables(
    args: argparse.Namespace, model: GPRegressor, file: TableFiles, test_file: TableFiles | None
) -> tuple[_Rows, _Rows, str]:
    """Training rows, the rows to certify at, and what these are."""
    targets = _targets(args, model, file)
    train = _read(args, model, file, targets)
    kept = None
    if args.holdout is not None:
        out = common.held_out_rows(len(train.numbers), args.holdout, args.seed)
        kept, train = train.some(out), train.some(~out)
    if test_file is not None:
        test = _read(args, model, test_file, targets, learned=False)
        return train, test, f"{len(test.numbers):,} rows of {args.test}"
    if kept is not None:
        return train, kept, f"the {len(kept.numbers):,} rows held out of the fit"
    n = len(train.numbers)
    note = "new rows can be further off (--test)"
    if n <= _POINTS:
        return train, train.some(slice(None)), f"all {n:,} training rows; {note}"
    chosen = np.sort(np.random.default_rng(args.random_state).permutation(n)[:_POINTS])
    return train, train.some(chosen), f"{_POINTS:,} of the {n:,} training rows, at random; {note}"


def _targets(args: argparse.Namespace, model: GPRegressor, file: TableFiles) -> list[str]:
    """The columns the model learned."""
    encoder: TableEncoder | None = getattr(model, "table_encoder_", None)
    known = encoder.target if encoder is not None else None
    if args.target is None and known is None:
        raise DataError(f"{args.model} was saved from Python and does not know its target; name it with --target")
    names: list[str] = args.target or [known]
    absent = [name for name in names if name not in file.names]
    if absent:
        raise DataError(f"{file.path}: target column {listed(absent)} missing; the file has {listed(file.names)}")
    return names


def _read(
    args: argparse.Namespace, model: GPRegressor, file: TableFiles, targets: list[str], *, learned: bool = True
) -> _Rows:
    """All rows of a file, encoded; without the incomplete ones where that is allowed. ``learned``: targets too."""
    known = [str(name) for name in getattr(model, "feature_names_in_", ())] or model.n_features_in_
    others = [name for name in file.names if name not in targets]
    encoder = common.encoder_of(getattr(model, "table_encoder_", None), known, file.path, others)
    targets = targets if learned else []
    values: list[Array] = []
    truth: list[Array] = []
    missing: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    first = 0
    for table in file.batches(_ROWS):
        encoded = encoder.examine(file.cells(table, encoder.input_names), first_row=first)
        cells = file.cells(table, targets)
        columns = [to_numbers(name, cells[name], boolean=True, first_row=first) for name in targets]
        missing.update(encoded.missing)
        missing.update({name: int((~np.isfinite(each)).sum()) for name, each in zip(targets, columns, strict=True)})
        unseen.update(encoded.unseen)
        values.append(encoded.values)
        truth.append(np.stack(columns, axis=1) if columns else np.empty((table.num_rows, 0)))
        first += table.num_rows
    if not first:
        raise DataError(f"{file.path}: there are no rows below the header")
    x, y = np.concatenate(values), np.concatenate(truth)
    complete = np.isfinite(x).all(axis=1) & np.isfinite(y).all(axis=1)
    if not complete.all() and not args.drop_missing:
        raise DataError(f"{file.path}: {missing_error(dict(missing))}")
    if not complete.any():
        raise DataError(f"{file.path}: every one of the {first:,} rows has a missing value")
    inputs: Any = x[complete]
    if hasattr(model, "feature_names_in_"):
        inputs = pd.DataFrame(inputs, columns=encoder.feature_names, copy=False)
    target = None
    if targets:
        target = y[complete, 0] if model._target_ndim == 1 and len(targets) == 1 else y[complete]
    return _Rows(inputs, target, np.flatnonzero(complete) + 1, dict(unseen), encoder.feature_names, targets)


# -- output --------------------------------------------------------------------------------------


def _figure_data(train: _Rows, test: _Rows) -> dict[str, Any]:
    """With one input, predictions are drawn along it."""
    data: dict[str, Any] = {"targets": train.target_names}
    if len(train.names) == 1:
        data |= {"x": np.ravel(test.inputs), "x_name": train.names[0]}
        data |= {"training": (np.ravel(train.inputs), train.target)}
    return data


def _report(
    args: argparse.Namespace, model: GPRegressor, certificate: Certificate, test: _Rows, where: str, seconds: float
) -> None:
    if not certificate.holds:
        complain(f"the certificate does not hold: {certificate.reason}")
    if args.json is not None:
        rows = test.numbers.tolist() if _predictions(args) else []
        found = {"model": args.model, "data": args.data, "test": args.test, "test_rows": rows}
        found |= certificate.to_dict()
        if args.json == "-":
            common.print_json(found)
            return
        with atomic_path(args.json) as path:
            path.write_text(common.json_text(found, indent=None) + "\n", encoding="utf-8")
    if not args.quiet:
        _print(args, model, certificate, where, seconds)


def _print(args: argparse.Namespace, model: GPRegressor, certificate: Certificate, where: str, seconds: float) -> None:
    verdict = "Certified" if certificate.holds else "NOT CERTIFIED:"
    say(f"{verdict} {args.model} ({certificate.name}, {certificate.rows:,} training rows) in {seconds:.1f} s")
    say()
    rows = [(subject, common.one_line(text)) for subject, text in certificate_lines(certificate)]
    if _predictions(args):
        rows.insert(1, ("Test points", where))
    common.print_rows(rows, wrapped=True)
    if certificate.members:
        say()
        _print_members(model, certificate)
    written = [path for path in (args.json, args.figure) if path is not None]
    if written:
        say()
        say(f"Wrote {' and '.join(written)}")


def _print_members(model: GPRegressor, certificate: Certificate) -> None:
    """One line each."""
    say("  Members, each against its own exact GP; mean and std in the target's units")
    table = [["", "weight", *MEMBER_HEADER]]
    weights = [float(weight) for weight in model._mixture.weights]
    for weight, (name, cells) in zip(weights, member_rows(certificate), strict=True):
        table.append([printable(name), f"{weight:.0%}", *cells])
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for row in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        say(f"    {row[0]:<{widths[0]}}  {'  '.join(cells)}")

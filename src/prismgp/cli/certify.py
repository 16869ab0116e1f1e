"""``prismgp certify``: bound how far a model is from the exact GP."""

from __future__ import annotations

import argparse
import time
from inspect import signature
from typing import Any

import numpy as np

from prismgp._system import atomic_path, format_count
from prismgp.certificates import (
    MEMBER_HEADER,
    PARTS,
    Certificate,
    certificate_lines,
    certify,
    member_rows,
    spectral_part,
)
from prismgp.cli import (
    Parser,
    Subparsers,
    common,
    complain,
    format_name,
    json_text,
    one_line,
    print_rows,
    say,
    show_progress,
    show_seconds,
)
from prismgp.cli.rows import TableRows, read_table_rows
from prismgp.data import TableFiles
from prismgp.estimators import ExactGPRegressor, GPRegressor, load
from prismgp.exceptions import DataError
from prismgp.plots import FIGURE_FORMATS, draw_certificate, figure_format
from prismgp.prism import Mixture

_DOES_NOT_HOLD = 1
_DEFAULTS = {
    name: each.default for name, each in signature(certify).parameters.items() if each.kind is each.KEYWORD_ONLY
}
TEST_POINTS = 1_000  # training rows at which predictions are certified if no test rows are given


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "certify",
        help=summary,
        description="Bound how far a model is from the exact Gaussian process that it approximates, one with the same "
        "kernel, parameters and noise: its predicted means and standard deviations, its evidence, its kernel matrix. "
        "DATA is the table the model was fitted on. Predictions are certified at the rows of --test; without it, at "
        f"the rows that --holdout kept out of the fit, or else at {TEST_POINTS:,} training rows drawn at random (all "
        "if there are fewer), and new rows can then be further off.",
        epilog="Exit code: 0 when the certificate holds, 1 when an assumption fails so that nothing is certified, 2 on "
        "bad usage or bad input. If the fit had --holdout, --conformal, --seed, --weight-column or --noise-column, "
        "repeat them.",
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    common.add_data(parser, "the training table, as for fit: ")
    parser.add_argument("--test", metavar="FILE", help="table whose rows to certify predictions at; needs no target")
    parser.add_argument(
        "-t",
        "--target",
        type=common.columns,
        metavar="COLUMN",
        help="the target of the model (default: known, unless the model was saved from Python); A,B,... for several",
    )
    common.add_missing(parser, default=None, meaning="rows with missing inputs, as for fit (default: that of the fit)")
    common.add_split_of_fit(parser)
    parser.add_argument(
        "--rank", type=common.positive, metavar="N", help="columns of the pivoted Cholesky (default: by the rows)"
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
        type=common.probability,
        metavar="D",
        help="probability with which a random bound may fail; 0: no randomness (default: %(default)s)",
    )
    parser.add_argument(
        "--tolerance",
        type=common.not_negative,
        metavar="T",
        help="stop when the mean is known to this share of the noise (default: %(default)s)",
    )
    parser.add_argument(
        "--reference",
        choices=("auto", "full", "gated"),
        help="for gated kernels, whether the exact GP has the gates (default: gated for prism models, else full)",
    )
    parser.add_argument(
        "--only", dest="parts", choices=PARTS, help="certify this alone, in less time (default: everything)"
    )
    parser.add_argument("--random-state", type=common.seed, metavar="N", help="seed of all random numbers (default: 0)")
    common.add_device(parser)
    parser.add_argument(
        "--figure", metavar="FILE", help=f"draw the certified ranges; {', '.join(FIGURE_FORMATS)} (needs matplotlib)"
    )
    common.add_format_options(parser)
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="the certificate as one JSON object, to FILE, or instead of the summary to standard output",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print no clock and no summary")
    parser.set_defaults(run=run, **_DEFAULTS | {"random_state": 0})


def run(args: argparse.Namespace) -> int:
    """Read both tables, certify, report."""
    _check_options(args)
    files = common.open_path(args, args.data)
    test_files = None if args.test is None else common.open_second(args, args.test)
    read = [*files.files, *(test_files.files if test_files is not None else [])]
    _check_outputs(args, [str(each.path) for each in read])
    model: GPRegressor = load(args.model, device=args.device)
    if isinstance(model, ExactGPRegressor):
        raise DataError(f"{args.model}: an ExactGPRegressor is the exact GP: there is nothing to certify")
    train, test, where = _read_tables(args, model, files, test_files)
    options = {name: getattr(args, name) for name in _DEFAULTS}
    began = time.perf_counter()
    with show_seconds("certifying", shown=show_progress(args)):
        try:
            points = test.inputs if _predictions(args) else None
            certificate = certify(model, X_test=points, **{**options, **train.of_fit})
        except DataError as error:
            whole = args.holdout is None and args.conformal is None and len(train.numbers) > model.model_.n_rows
            hint = "did you forget --holdout? " if whole else ""
            raise DataError(f"{args.data}: {hint}{error}; {common.REPEAT_OPTIONS}") from error
    seconds = time.perf_counter() - began
    if args.figure is not None:
        draw_certificate(certificate, args.figure, **_figure_data(train, test))
    _report(args, model, certificate, test, where, seconds)
    return 0 if certificate.holds else _DOES_NOT_HOLD


def _check_options(args: argparse.Namespace) -> None:
    """Check all options before any work."""
    _check_outputs(args, [args.model])
    if args.data == args.test == "-":
        raise DataError("DATA and --test cannot both be standard input")
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
            common.check_writable(path, inputs=inputs)


# -- tables --------------------------------------------------------------------------------------


def _read_tables(
    args: argparse.Namespace, model: GPRegressor, files: TableFiles, test_files: TableFiles | None
) -> tuple[TableRows, TableRows, str]:
    """Training rows, the rows to certify at, and a description of these."""
    targets = common.target_columns(args, model.model_, files)
    train = read_table_rows(args, model, files, targets)
    kept = None
    if args.holdout is not None or args.conformal is not None:
        chosen, out, _ = common.split_rows(args, len(train.numbers))
        kept, train = train.select(out) if len(out) else None, train.select(chosen)
    if test_files is not None:
        test = read_table_rows(args, model, test_files, targets, with_target=False)
        return train, test, f"{format_count(len(test.numbers), 'row')} of {args.test}"
    if kept is not None:
        return train, kept, f"the {format_count(len(kept.numbers), 'row')} held out of the fit"
    n = len(train.numbers)
    note = "new rows can be further off (--test)"
    if n <= TEST_POINTS:
        return train, train.select(slice(None)), f"all {n:,} training rows; {note}"
    chosen = np.sort(np.random.default_rng(args.random_state).permutation(n)[:TEST_POINTS])
    return train, train.select(chosen), f"{TEST_POINTS:,} of the {n:,} training rows, at random; {note}"


# -- output --------------------------------------------------------------------------------------


def _figure_data(train: TableRows, test: TableRows) -> dict[str, Any]:
    """Arguments of the figure; with one input, predictions are drawn along it."""
    data: dict[str, Any] = {"targets": train.target_names}
    if len(train.encoder.columns) == 1 and train.encoder.is_numeric:
        data |= {"x": test.x[:, 0], "x_name": train.encoder.input_names[0]}
        data |= {"training": (train.x[:, 0], train.target)}
    return data


def _report(
    args: argparse.Namespace, model: GPRegressor, certificate: Certificate, test: TableRows, where: str, seconds: float
) -> None:
    if not certificate.holds:
        complain(f"the certificate does not hold: {certificate.reason}")
    if args.json is not None:
        rows = test.numbers.tolist() if _predictions(args) else []
        found = {"model": args.model, "data": args.data, "test": args.test, "test_rows": rows}
        found |= certificate.to_dict()
        if args.json == "-":
            say(json_text(found))
            return
        text = (json_text(found, indent=None) + "\n").encode()
        with atomic_path(args.json, len(text)) as path:
            path.write_bytes(text)
    if not args.quiet:
        _print(args, model, certificate, where, seconds)


def _print(args: argparse.Namespace, model: GPRegressor, certificate: Certificate, where: str, seconds: float) -> None:
    verdict = "Certified" if certificate.holds else "NOT CERTIFIED:"
    say(f"{verdict} {args.model} ({certificate.name}, {certificate.rows:,} training rows) in {seconds:.1f} s")
    say()
    rows = [(subject, one_line(text)) for subject, text in certificate_lines(certificate)]
    if _predictions(args):
        rows.insert(1, ("Test points", where))
    print_rows(rows, wrapped=True)
    if certificate.members:
        say()
        _print_members(model, certificate)
    written = [path for path in (args.json, args.figure) if path is not None]
    if written:
        say()
        say(f"Wrote {' and '.join(written)}")


def _print_members(model: GPRegressor, certificate: Certificate) -> None:
    """Print one line for each member."""
    predictor = model.model_.predictor
    mixture = spectral_part(predictor)
    assert isinstance(mixture, Mixture)
    of = "" if mixture is predictor else "; weights as without the neighbours"
    say(f"  Members, each against its own exact GP; mean and std in the target's units{of}")
    table = [["", "weight", *MEMBER_HEADER]]
    for weight, (name, cells) in zip(mixture.weights, member_rows(certificate), strict=True):
        table.append([format_name(name), f"{weight:.0%}", *cells])
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    for row in table:
        cells = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        say(f"    {row[0]:<{widths[0]}}  {'  '.join(cells)}")

"""``prismgp fit``: learn a model from a table."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from prismgp._system import format_bytes
from prismgp.cli import _common as common
from prismgp.cli._common import Parser, Scores, Subparsers, printable, say
from prismgp.core.kernels import KERNELS
from prismgp.data import ArraySource, Source
from prismgp.data._columns import CATEGORY
from prismgp.data._files import file_source
from prismgp.data._schema import is_saved_index
from prismgp.data._table import TableEncoder
from prismgp.estimators import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.estimators._base import GPRegressor
from prismgp.exceptions import DataError

__all__ = ["add_parser", "run"]

_DEFAULT_FREQUENCIES = {"prism": 32, "ssgp": 64}
_LEVEL = 0.95
_SHOWN_INPUTS = 5
_SCORE_ROWS = 65_536


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "fit",
        help="learn a model from a table",
        description="Learn a model from a table and write it to a file. Text columns are encoded by the model, "
        "one indicator column per category, and remembered with it. In CSV files an empty cell, NA, N/A, NaN "
        "or null is a missing value.",
    )
    parser.add_argument("data", metavar="DATA", help=".csv, .tsv (either also .gz) or .parquet, or a folder of these")
    parser.add_argument("-t", "--target", required=True, metavar="COLUMN", help="the column to predict")
    parser.add_argument("-o", "--output", required=True, metavar="MODEL", help="model file to write, e.g. model.prism")
    parser.add_argument(
        "--model",
        choices=("prism", "ssgp", "exact"),
        default="ssgp",
        help="prism: re-configured inputs, the most accurate, minutes; ssgp: seconds; exact: up to some ten thousand "
        "rows (default: %(default)s)",
    )
    parser.add_argument(
        "-p",
        "--frequencies",
        type=common.positive,
        metavar="N",
        help="spectral frequencies of the prism and ssgp models "
        f"(default: {_DEFAULT_FREQUENCIES['prism']} and {_DEFAULT_FREQUENCIES['ssgp']})",
    )
    parser.add_argument("--kernel", choices=tuple(KERNELS), default="rbf", help="default: %(default)s")
    names: dict[str, Any] = {"type": common.columns, "metavar": "A,B,..."}
    parser.add_argument("--inputs", **names, help="input columns, in order (default: all but the target)")
    parser.add_argument("--exclude", **names, default=[], help="columns that are no inputs")
    parser.add_argument(
        "--categorical", **names, default=[], help="columns to take as categories even if they look like numbers"
    )
    parser.add_argument(
        "--max-categories",
        type=common.positive,
        default=100,
        metavar="N",
        help="refuse text columns with more distinct values (default: %(default)s)",
    )
    parser.add_argument("--drop-missing", action="store_true", help="leave out rows with missing or infinite values")
    parser.add_argument(
        "--holdout",
        type=common.fraction,
        metavar="FRACTION",
        help="keep a random part of the rows out of the fit and report the accuracy on it",
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: %(default)s)")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64", help="default: %(default)s")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="cpu", help="default: %(default)s")
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="remember here how far the fit has come: the same command, given again after it was killed, goes on from "
        "there; removed when the model is saved",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="have the workers of a Dask cluster read and compute, e.g. tcp://host:8786; they must reach DATA by the "
        "same path",
    )
    common.add_delimiter(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, save, report."""
    if args.model == "exact" and args.checkpoint is not None:
        raise DataError("--checkpoint is for --model prism and ssgp; the exact model is fitted in one go")
    if args.model == "exact" and args.frequencies is not None:
        raise DataError("-p/--frequencies is for --model prism and ssgp; the exact model has no frequencies")
    if not 0 <= args.seed < 2**32:
        raise DataError(f"--seed {args.seed} is not between 0 and 2^32 - 1")
    files = common.open_table(args)
    output = common.writable(args.output, inputs=[str(file.path) for file in files.files])
    if args.checkpoint is not None:
        common.writable(args.checkpoint, inputs=[*(str(file.path) for file in files.files), args.output])
    source = file_source(
        files,
        args.target,
        columns=args.inputs,
        exclude=args.exclude,
        categorical=args.categorical,
        missing="drop" if args.drop_missing else "error",
        max_categories=args.max_categories,
        client=args.scheduler,
    )
    summary: dict[str, Any] = {"data": args.data, "target": args.target, "left_out": _left_out(args, files.names)}
    train, held_out = _split(args, source)
    model = _new_model(args)
    began = time.perf_counter()
    model.set_params(verbose=int(common.show_progress(args)))
    model.fit(train)
    model.set_params(verbose=0)  # the next user of the model file did not ask for a bar
    summary["seconds"] = time.perf_counter() - began
    summary |= {"rows_read": source.rows_read, "rows_dropped": source.rows_read - source.n_rows}
    encoder = model.table_encoder_ = source.encoder
    if held_out is not None:
        summary["holdout"] = _score(model, held_out, train)
    model.save(output)
    if args.checkpoint is not None:
        Path(args.checkpoint).unlink(missing_ok=True)
    summary |= _description(model, encoder, train)
    summary |= {"output": args.output, "output_bytes": output.stat().st_size}
    if args.json:
        common.print_json(summary)
    elif not args.quiet:
        _print(summary)
    return 0


def _left_out(args: argparse.Namespace, names: list[str]) -> list[str]:
    """Columns left out without having been asked for."""
    if args.inputs is not None:
        return []
    return [name for name in names if is_saved_index(name) and name != args.target and name not in args.exclude]


def _split(args: argparse.Namespace, source: Source) -> tuple[Source, Source | None]:
    """Training rows and, when asked for, held-out rows; both in the order of the file."""
    if args.holdout is None:
        return source, None
    chosen = common.held_out_rows(source.n_rows, args.holdout, args.seed)
    return source.select(np.flatnonzero(~chosen)), source.select(np.flatnonzero(chosen))


def _new_model(args: argparse.Namespace) -> GPRegressor:
    options = {"kernel": args.kernel, "dtype": args.dtype, "device": args.device, "random_state": args.seed}
    if args.model == "exact":
        return ExactGPRegressor(**options)
    cls = PrismGPRegressor if args.model == "prism" else SSGPRegressor
    frequencies = args.frequencies or _DEFAULT_FREQUENCIES[args.model]
    return cls(n_frequencies=frequencies, checkpoint=args.checkpoint, **options)


def _score(model: GPRegressor, held_out: Source, train: Source) -> dict[str, Any]:
    """Accuracy on held-out rows, beside that of always predicting the training mean."""
    part = _Scored(model, float(train.moments[1].mean[0]))
    scores, squares = held_out.reduce(part, _Scored.merge)
    return {**scores.to_dict(), "rmse_of_mean": math.sqrt(squares / held_out.n_rows), "unseen_categories": {}}


class _Scored:
    """Scores of rows, and squared distances from an average, as a function of a source; it can be pickled."""

    def __init__(self, model: GPRegressor, average: float) -> None:
        self._model, self._average = model, average

    def __call__(self, source: Source) -> tuple[Scores, float]:
        scores, squares = Scores(_LEVEL), 0.0
        for x, y in source.blocks(_SCORE_ROWS):
            mean, std = self._model.predict(ArraySource(x, y), return_std=True)
            scores.add(y[:, 0], mean, std)
            squares += float(np.square(y - self._average).sum())
        return scores, squares

    @staticmethod
    def merge(first: tuple[Scores, float], second: tuple[Scores, float]) -> tuple[Scores, float]:
        return first[0].merge(second[0]), first[1] + second[1]


def _description(model: GPRegressor, encoder: TableEncoder, train: Source) -> dict[str, Any]:
    status = model.fit_status_
    return {
        "estimator": type(model).__name__,
        "kernel": model.kernel,
        "frequencies": getattr(model, "n_frequencies", None),
        "rows": train.n_rows,
        "inputs": encoder.input_names,
        "features": encoder.feature_names,
        "one_hot": {column.name: len(column.categories) for column in encoder.columns if column.kind == CATEGORY},
        "log_evidence": model.log_evidence_,
        "log_evidence_per_row": model.log_evidence_ / train.n_rows,
        "noise_std": float(np.sqrt(model.noise_variance_)),
        "signal_std": float(np.sqrt(model.signal_variance_)),
        "target_std": float(train.moments[1].std[0]),
        "relative_lengthscales": dict(common.most_relevant(model, encoder.feature_names)),
        "weights": status.get("weights"),
        "jitter": status["jitter"],
        "converged": status["stages"][-1].get("converged") if status["stages"] else None,
    }


def _print(summary: dict[str, Any]) -> None:
    frequencies = f", {summary['frequencies']} frequencies" if summary["frequencies"] else ""
    say(f"Fitted {summary['estimator']} ({summary['kernel']}{frequencies}) in {summary['seconds']:.1f} s")
    say()
    common.print_rows(_facts(summary))
    if summary["relative_lengthscales"]:
        say()
        say("  Most relevant inputs: shortest length-scales, in standard deviations of the column")
        shown = list(summary["relative_lengthscales"].items())[:_SHOWN_INPUTS]
        common.print_rows([(printable(name), f"{value:.3g}") for name, value in shown if np.isfinite(value)], indent=4)
    if "holdout" in summary:
        say()
        _print_holdout(summary["holdout"])
    say()
    without = ", fitted without the held-out rows" if "holdout" in summary else ""
    say(f"Saved {summary['output']} ({format_bytes(summary['output_bytes'])}){without}")


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    notes = [f"of {summary['rows_read']:,} in {summary['data']}"]
    if summary["rows_dropped"]:
        notes.append(f"{summary['rows_dropped']:,} dropped for missing values")
    if "holdout" in summary:
        notes.append(f"{summary['holdout']['rows']:,} held out")
    inputs = f"{len(summary['inputs'])}"
    if summary["one_hot"]:
        parts = [f"{printable(name)} as {count} indicators" for name, count in summary["one_hot"].items()]
        inputs += f" columns, encoded as {len(summary['features'])}: {', '.join(parts)}"
    rows = [("Rows", f"{summary['rows']:,} ({'; '.join(notes)})"), ("Inputs", inputs)]
    if summary["left_out"]:
        rows.append(("Left out", f"{', '.join(map(repr, summary['left_out']))} (a saved row index)"))
    share = f" ({summary['noise_std'] / summary['target_std']:.0%} of its spread)" if summary["target_std"] else ""
    rows += [
        ("Target", f"{printable(summary['target'])}, standard deviation {summary['target_std']:.4g}"),
        ("Noise", f"standard deviation {summary['noise_std']:.4g} in the target's units{share}"),
        ("Log evidence", f"{summary['log_evidence_per_row']:.4f} per row"),
    ]
    if summary["weights"]:
        parts = [f"{name} {weight:.0%}" for name, weight in summary["weights"].items() if weight]
        rows.append(("Mixture", ", ".join(parts)))
    if summary["converged"] is False:
        rows.append(("Optimiser", "stopped at its iteration limit; the fit may still improve"))
    return rows


def _print_holdout(scores: dict[str, Any]) -> None:
    say(f"  Accuracy on the {scores['rows']:,} held-out rows")
    rows = [
        ("RMSE", f"{scores['rmse']:.4g} (predicting the mean: {scores['rmse_of_mean']:.4g})"),
        ("NLPD", f"{scores['nlpd']:.4g}"),
        (f"{scores['level']:.0%} intervals", f"cover {scores['coverage']:.1%}"),
    ]
    if scores["unseen_categories"]:
        unseen = ", ".join(f"{printable(name)} {count:,}" for name, count in scores["unseen_categories"].items())
        rows.append(("Unseen values", unseen))
    common.print_rows(rows, indent=4)

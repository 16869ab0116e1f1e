"""``prismgp fit``: learn a model from a table."""

from __future__ import annotations

import argparse
import time
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from prismgp._system import format_amount, format_bytes, format_count
from prismgp._types import Array
from prismgp.cli import Parser, Subparsers, common, format_name, json_text, print_rows, say, show_progress
from prismgp.cli.info import why_ignored
from prismgp.core.kernels import KERNELS
from prismgp.data import Source, file_source, plural
from prismgp.data.scan import MAX_CATEGORIES, is_saved_index
from prismgp.estimators import ExactGPRegressor, GPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.exceptions import DataError
from prismgp.metrics import Scores
from prismgp.model import file_bytes, rows_needed

_DEFAULT_FREQUENCIES = {"prism": 32, "ssgp": 64}
_KERNEL, _NEIGHBOR_KERNEL = "rbf", "matern32"
_LEVEL = 0.95
_SHOWN_INPUTS = 5
_ENDS = {"interrupt": "an interrupt", "time limit": "the time limit"}
LARGE_FILE = 100 * 10**6  # bytes


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "fit",
        help=summary,
        description="Learn a model from a table and write it to a file. Text, dates, times and missing values are "
        "encoded by the model, and the encoding is saved with it. In CSV files an empty cell, NA, N/A, NaN or null is "
        "a missing value. Rows without a target are left out.",
    )
    common.add_data(parser)
    parser.add_argument(
        "-t",
        "--target",
        required=True,
        type=common.columns,
        metavar="COLUMN",
        help="the column to predict; A,B,... for several (a name with a comma in double quotes, as in '\"a, b\"')",
    )
    parser.add_argument("-o", "--output", required=True, metavar="MODEL", help="model file to write, e.g. model.prism")
    parser.add_argument(
        "--model",
        choices=("prism", "ssgp", "neighbors", "exact"),
        default="prism",
        help="prism: networks and neighbours, minutes, the most accurate; ssgp: seconds; neighbors: by the nearest "
        "rows, which the model file holds; exact: up to about 10,000 rows (default: %(default)s)",
    )
    parser.add_argument(
        "-p",
        "--frequencies",
        type=common.positive,
        metavar="N",
        help="spectral frequencies of the prism and ssgp models "
        f"(default: {_DEFAULT_FREQUENCIES['prism']} and {_DEFAULT_FREQUENCIES['ssgp']})",
    )
    parser.add_argument(
        "--kernel",
        choices=tuple(KERNELS),
        help="rbf: for very smooth functions; matern52, matern32, matern12: for rougher and rougher ones (default: "
        f"{_NEIGHBOR_KERNEL} for neighbors, else {_KERNEL})",
    )
    names: dict[str, Any] = {"type": common.columns, "metavar": "A,B,..."}
    parser.add_argument("--inputs", **names, help="input columns, in order (default: all but the target)")
    parser.add_argument("--exclude", **names, default=[], help="columns to ignore")
    parser.add_argument(
        "--categorical", **names, default=[], help="columns to take as categories even if they look like numbers"
    )
    parser.add_argument(
        "--max-categories",
        type=common.positive,
        default=MAX_CATEGORIES,
        metavar="N",
        help="columns with more categories are encoded by the effect of each on the target, instead of by an "
        "indicator for each (default: %(default)s)",
    )
    common.add_missing(
        parser,
        default="impute",
        meaning="what to do with rows that have missing inputs. impute: fill them in (numbers by the median, with an "
        "indicator; a missing category is a category of its own); drop: leave the rows out; error: end with an error "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--weight-column",
        metavar="COLUMN",
        help="weights of the rows, not an input: the noise variance of a row is divided by its weight; rows of weight "
        "zero are left out",
    )
    parser.add_argument(
        "--noise-column",
        metavar="COLUMN",
        help="known variances (not standard deviations) of the errors of the target, in its units squared, in addition "
        "to the noise that is learned; not an input",
    )
    parser.add_argument(
        "--holdout",
        type=common.fraction,
        metavar="FRACTION",
        help="keep a random part of the rows out of the fit and report the accuracy on it, with the density and the "
        "intervals of the model's own predictive distribution",
    )
    parser.add_argument(
        "--conformal",
        type=common.fraction,
        metavar="FRACTION",
        help="keep a random part of the rows out of the fit to make the intervals of predict conformal: on average "
        "over rows like these, they contain the observed value at least as often as --level of predict says",
    )
    parser.add_argument("--seed", type=common.seed, default=0, help="seed of all random numbers (default: %(default)s)")
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32"),
        default="float64",
        help="precision of the computation (default: %(default)s)",
    )
    common.add_device(parser, default="cpu")
    parser.add_argument(
        "--checkpoint",
        metavar="FILE",
        help="save the progress of the fit here: after an interruption, the same command continues from there; "
        "removed when the model is saved",
    )
    parser.add_argument(
        "--max-seconds",
        type=common.seconds,
        metavar="S",
        help="end the fit after about this many seconds, with the best model so far; not reproducible",
    )
    parser.add_argument(
        "--keep-interrupted",
        action="store_true",
        help="Ctrl-C and SIGTERM end the fit, and the best model so far is saved (default: exit code 130, and MODEL is "
        "left as it was)",
    )
    common.add_scheduler(parser)
    common.add_format_options(parser)
    common.add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, save, report."""
    began = time.perf_counter()
    if args.model not in _DEFAULT_FREQUENCIES and args.frequencies is not None:
        raise DataError(f"-p/--frequencies is for --model prism and ssgp; the {args.model} model has no frequencies")
    if not args.target:
        raise DataError("-t/--target names no column")
    files = common.open_path(args, args.data)
    output = common.check_writable(args.output, inputs=[str(file.path) for file in files.files])
    if args.checkpoint is not None:
        common.check_writable(args.checkpoint, inputs=[*(str(file.path) for file in files.files), args.output])
    source = file_source(
        files,
        args.target[0] if len(args.target) == 1 else args.target,
        columns=args.inputs,
        exclude=args.exclude,
        categorical=args.categorical,
        missing=args.missing,
        max_categories=args.max_categories,
        weight=args.weight_column,
        noise=args.noise_column,
        client=args.scheduler,
    )
    train: Source = source
    held_out: Source | None = None
    calibration: Source | None = None
    chosen, out, kept = common.split_rows(args, source.n_rows)
    if len(chosen) < source.n_rows:
        train = source.select(chosen)
        held_out, calibration = (source.select(rows) if len(rows) else None for rows in (out, kept))
    if calibration is not None and len(kept) < rows_needed(_LEVEL):
        raise DataError(
            f"--conformal {args.conformal:g} keeps {len(kept):,} of {source.n_rows:,} rows; conformal intervals of "
            f"{_LEVEL:.0%} need at least {rows_needed(_LEVEL)}: keep a larger part"
        )
    model = _new_model(args)
    model.set_params(verbose=int(show_progress(args)))
    if args.max_seconds is not None:  # reading counts too
        model.set_params(max_seconds=max(args.max_seconds - (time.perf_counter() - began), 1e-3))
    began = time.perf_counter()
    model.fit(train)
    model.set_params(verbose=0, max_seconds=args.max_seconds)  # progress is not to be saved with the model
    if calibration is not None:
        model.conformalize(calibration, coverage=_LEVEL)
    summary: dict[str, Any] = {
        "data": args.data,
        "target": args.target[0] if len(args.target) == 1 else args.target,
        "checkpoint": args.checkpoint,
        "weight_column": args.weight_column,
        "noise_column": args.noise_column,
        "left_out": _list_left_out(args, files.names),
        "seconds": time.perf_counter() - began,
        "rows_read": source.rows_read,
        "rows_dropped": source.rows_read - source.n_rows,
        "rows_without_target": source.rows_without_target,
    }
    if held_out is not None:
        summary["holdout"] = _score(model, held_out, train, args.target)
    size = file_bytes(model.model_)
    if size > LARGE_FILE and not args.quiet:  # before it fills the disk
        say(f"Writing {args.output}, about {format_bytes(size)}", error=True)
    model.save(output)
    common.ignore_interrupts()
    summary["ended_early"] = _why_early(model)
    if args.checkpoint is not None and summary["ended_early"] is None:  # else it continues the fit
        Path(args.checkpoint).unlink(missing_ok=True)
    summary |= _description(model, train)
    summary |= {"output": args.output, "output_bytes": output.stat().st_size}
    if args.json:
        say(json_text(summary))
    elif not args.quiet:
        print_summary(summary)
    return 0


def _list_left_out(args: argparse.Namespace, names: list[str]) -> list[str]:
    """Columns left out without a request."""
    if args.inputs is not None:
        return []
    return [name for name in names if is_saved_index(name) and name not in (*args.target, *args.exclude)]


def _new_model(args: argparse.Namespace) -> GPRegressor:
    kernel = args.kernel or (_NEIGHBOR_KERNEL if args.model == "neighbors" else _KERNEL)
    options = {"kernel": kernel, "dtype": args.dtype, "device": args.device, "random_state": args.seed}
    options |= {"missing": args.missing, "checkpoint": args.checkpoint}
    options |= {"max_seconds": args.max_seconds, "on_interrupt": "keep" if args.keep_interrupted else "raise"}
    if args.model == "exact":
        return ExactGPRegressor(**options)
    if args.model == "neighbors":
        return NeighborGPRegressor(**options)
    cls = PrismGPRegressor if args.model == "prism" else SSGPRegressor
    frequencies = args.frequencies or _DEFAULT_FREQUENCIES[args.model]
    return cls(n_frequencies=frequencies, **options)


def _why_early(model: GPRegressor) -> str | None:
    """Return what ended the fit early, if anything did."""
    status = model.fit_status_
    return "interrupt" if status["interrupted"] else "time limit" if status["timed_out"] else None


def _score(model: GPRegressor, held_out: Source, train: Source, targets: list[str]) -> dict[str, Any]:
    """Accuracy on held-out rows, and that of always predicting the training mean; by target if there are several."""
    score = partial(_score_rows, model=model, averages=train.moments[1].mean)
    scored = held_out.reduce(score, _merge_scores)
    found = [{**of_model.to_dict(), "rmse_of_mean": of_mean.to_dict()["rmse"]} for of_model, of_mean in scored]
    return found[0] if len(targets) == 1 else dict(zip(targets, found, strict=True))


def _score_rows(source: Source, *, model: GPRegressor, averages: Array) -> list[tuple[Scores, Scores]]:
    """For each target the scores of the model, and those of predicting the average; rows count by their weights."""
    scored = [(Scores(_LEVEL), Scores(_LEVEL)) for _ in averages]
    fitted, q = model.current_model(), len(averages)
    for x, y in model.read_rows(source, None).blocks(fitted.prediction_rows):
        mean, std, ends = fitted.predict_interval(x, _LEVEL)
        density = fitted.marginal_log_density(x, y[:, :q])
        weight = y[:, q] if source.n_noise else None
        for k, (of_model, of_mean) in enumerate(scored):
            interval = ends[:, k, 0], ends[:, k, 1]
            of_model.add(y[:, k], mean[:, k], std[:, k], density[:, k], interval, weight)
            of_mean.add(y[:, k], np.full(len(y), averages[k]), std[:, k], weight=weight)
    return scored


def _merge_scores(
    first: list[tuple[Scores, Scores]], second: list[tuple[Scores, Scores]]
) -> list[tuple[Scores, Scores]]:
    return [(a.merge(b), c.merge(d)) for (a, c), (b, d) in zip(first, second, strict=True)]


def _description(model: GPRegressor, train: Source) -> dict[str, Any]:
    status, encoder = model.fit_status_, model.table_encoder_
    names = encoder.feature_names
    ignored = [column for column in encoder.to_dict()["columns"] if column["name"] in encoder.ignored]
    relative = model.model_.relative_lengthscale
    # The shortest first: the function varies most along these.
    ranked = [] if relative is None else sorted(zip(names, relative.tolist(), strict=True), key=itemgetter(1))

    def per_target(values: Array) -> Any:
        return float(values[0]) if len(encoder.targets) == 1 else dict(zip(encoder.targets, values, strict=True))

    return {
        "estimator": type(model).__name__,
        "kernel": model.kernel,
        "frequencies": getattr(model, "n_frequencies", None),
        "rows": train.n_rows,
        "inputs": encoder.input_names,
        "features": names,
        "encoded": {name: len(own) for name, own in encoder.features_of_columns.items() if own != [name]},
        "constant": [column["name"] for column in ignored],
        "ignored": {column["name"]: why_ignored(column) for column in ignored},
        "log_evidence": model.log_evidence_,
        "log_evidence_per_row": model.log_evidence_ / train.n_rows,
        "conformal_rows": None if model.model_.conformal is None else model.model_.conformal.rows,
        "noise_std": per_target(np.sqrt(model.model_.noise_variance)),
        "signal_std": per_target(np.sqrt(model.model_.signal_variance)),
        "target_std": per_target(train.moments[1].std),
        "relative_lengthscales": dict(ranked),
        "weights": status.get("weights"),
        "neighbors": _neighbor_weights(status),
        "jitter": status["jitter"],
        "converged": status["stages"][-1].get("converged") if status["stages"] else None,
    }


def _neighbor_weights(status: dict[str, Any]) -> dict[str, float] | None:
    """Weights of the neighbours that join the mixture, and last that of the mixture itself; None if there are none."""
    weights: dict[str, float] = (status.get("local") or {}).get("weights", {})
    joined = {name: weight for name, weight in weights.items() if weight and name != "mixture"}
    return {**joined, "mixture": weights["mixture"]} if joined else None


def print_summary(summary: dict[str, Any]) -> None:
    frequencies = f", {summary['frequencies']} frequencies" if summary["frequencies"] else ""
    say(f"Fitted {summary['estimator']} ({summary['kernel']}{frequencies}) in {summary['seconds']:.1f} s")
    say()
    print_rows(_facts(summary))
    if summary["relative_lengthscales"]:
        say()
        say("  Most relevant inputs: shortest length-scales, in standard deviations of the column")
        shown = list(summary["relative_lengthscales"].items())[:_SHOWN_INPUTS]
        print_rows([(format_name(name), f"{value:.3g}") for name, value in shown if np.isfinite(value)], indent=4)
    conformal = "conformal, " if summary["conformal_rows"] else ""
    for target, scores in _by_target(summary, "holdout").items():
        say()
        of = f" of {format_name(target)}" if isinstance(summary["target"], list) else ""
        say(f"  Accuracy{of} on the {format_count(scores['rows'], 'held-out row')}")
        rows = [
            ("RMSE", f"{format_amount(scores['rmse'])} (predicting the mean: {format_amount(scores['rmse_of_mean'])})"),
            ("NLPD", f"{scores['nlpd']:.4g}"),
            (f"{scores['level']:.0%} intervals", f"{conformal}cover {scores['coverage']:.1%}"),
        ]
        print_rows(rows, indent=4)
    say()
    without = ", fitted without the held-out rows" if "holdout" in summary or summary["conformal_rows"] else ""
    say(f"Saved {summary['output']} ({format_bytes(summary['output_bytes'])}){without}")


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    notes = [f"of {summary['rows_read']:,} in {summary['data']}"]
    without = summary["rows_without_target"]
    if without:
        notes.append(f"{without:,} left out, without a target")
    if summary["rows_dropped"] > without:
        why = "missing values" if summary["weight_column"] is None else "missing values or weight zero"
        notes.append(f"{summary['rows_dropped'] - without:,} dropped for {why}")
    if "holdout" in summary:
        scores = next(iter(_by_target(summary, "holdout").values()))
        notes.append(f"{scores['rows']:,} held out")
    if summary["conformal_rows"]:
        notes.append(f"{summary['conformal_rows']:,} for conformal intervals")
    inputs = f"{len(summary['inputs'])}"
    if summary["encoded"]:
        parts = [f"{format_name(name)} as {count}" for name, count in summary["encoded"].items()]
        inputs += f" {plural(summary['inputs'], 'column')}, encoded as {len(summary['features'])}: {', '.join(parts)}"
    rows = [("Rows", f"{summary['rows']:,} ({'; '.join(notes)})"), ("Inputs", inputs)]
    if summary["left_out"]:
        rows.append(("Left out", f"{', '.join(map(repr, summary['left_out']))} (a saved row index)"))
    for reason in dict.fromkeys(summary["ignored"].values()):
        own = ", ".join(format_name(name) for name, why in summary["ignored"].items() if why == reason)
        rows.append(("Ignored", f"{own} ({reason})"))
    spreads = _by_target(summary, "target_std")
    for target, noise in _by_target(summary, "noise_std").items():
        share = f" ({noise / spreads[target]:.0%} of its spread)" if spreads[target] else ""
        rows.append(("Target", f"{format_name(target)}, standard deviation {format_amount(spreads[target])}"))
        if _noise_is_level(summary):
            rows.append(("Noise", f"standard deviation {format_amount(noise)} in the target's units{share}"))
        else:
            rows.append(("Noise", "differs between rows; predict shows it as part of std"))
    rows.append(("Log evidence", f"{summary['log_evidence_per_row']:.4f} per row"))
    if summary["weights"]:
        near = summary["neighbors"] or {"mixture": 1.0}
        shares = {name: near["mixture"] * weight for name, weight in summary["weights"].items()}
        parts = [f"{name} {share:.0%}" for name, share in shares.items() if share]
        rows += [("Mixture", ", ".join(parts))] if parts else []
        parts = [f"{name.removeprefix('neighbours ')} {share:.0%}" for name, share in near.items() if name != "mixture"]
        rows += [("Neighbours", ", ".join(parts))] if parts else []
    if summary["ended_early"]:
        kept = f"; the same command continues from {summary['checkpoint']}" if summary["checkpoint"] else ""
        rows.append(("Ended early", f"by {_ENDS[summary['ended_early']]}, with the best model so far{kept}"))
    elif summary["converged"] is False:
        rows.append(("Optimiser", "stopped at its iteration limit; the fit may still improve"))
    return rows


def _noise_is_level(summary: dict[str, Any]) -> bool:
    """Whether all rows have the same noise: experts with networks, and neighbours, have one for each row."""
    members = {name for name, weight in (summary["weights"] or {}).items() if weight}
    return not summary["neighbors"] and members <= {"ssgp"}


def _by_target(summary: dict[str, Any], key: str) -> dict[str, Any]:
    """An entry of the summary for each target; one target has it without a name."""
    if key not in summary:
        return {}
    several = isinstance(summary["target"], list)
    return dict(summary[key]) if several else {summary["target"]: summary[key]}

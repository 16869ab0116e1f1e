"""``prismgp info``: show the contents of a model file."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from prismgp._system import format_amount, format_bytes
from prismgp.cli import Parser, Subparsers, format_name, format_rows, json_text, one_line, say, show_controls
from prismgp.exceptions import ModelFileError
from prismgp.model.container import FORMAT_VERSION, check_count, parse_text, read_text, translate_errors

_SHOWN_INPUTS = 20
_AT_LIMIT = "ITERATIONS REACHED LIMIT"  # how SciPy says it
_NEARLY_CONSTANT = "constant, or next to it"
_SHORT = ("race", "exact GP start")
_ESTIMATORS = {
    "exact": "ExactGPRegressor",
    "neighbors": "NeighborGPRegressor",
    "ssgp": "SSGPRegressor",
    "prism": "PrismGPRegressor",
}


def add_parser(subparsers: Subparsers, summary: str) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser("info", help=summary, description="Show the contents of a model file.")
    parser.add_argument("model", metavar="MODEL", help="model file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Read and describe."""
    with translate_errors(args.model) as file:
        config = parse_text(read_text(file))
    summary = config["summary"] if "summary" in config else _summarise(args.model)
    with translate_errors(args.model):
        description = _describe(config, summary, args.model)
        lines = [json_text(description)] if args.json else [show_controls(line) for line in _lines(description)]
    for line in lines:
        say(line)
    return 0


def _summarise(path: str) -> dict[str, Any]:
    """The summary of a model whose file has none, because it was written by an earlier version."""
    from prismgp.model.load import load_model  # loads torch
    from prismgp.model.save import summarise

    return summarise(load_model(path, device="cpu"))


def _describe(config: dict[str, Any], summary: dict[str, Any], path: str) -> dict[str, Any]:
    rows, d, q, ndim = (check_count(config, name) for name in ("rows", "inputs", "outputs", "target_ndim"))
    table, arguments, log_evidence = config["table"], config["arguments"], float(config["log_evidence"])
    if 8 * d > Path(path).stat().st_size:  # every input has numbers in the file
        raise ModelFileError(f"{d:,} inputs do not fit into the file")
    names = [str(name) for name in config["feature_names"] or [f"column {index}" for index in range(d)]]
    known = summary["relative_lengthscale"] is not None
    scales = [_floats(summary[name], d) if known else [None] * d for name in ("lengthscale", "relative_lengthscale")]
    inputs = [
        {"name": name, "lengthscale": lengthscale, "relative_lengthscale": relative}
        for name, lengthscale, relative in zip(names, *scales, strict=True)
    ]
    used = {each["name"] for each in inputs if each["relative_lengthscale"] != math.inf}
    reasons = {} if table is None else _reasons(table["columns"], used)
    for each in inputs:
        if each["relative_lengthscale"] == math.inf:
            each["ignored"] = reasons.get(each["name"], _NEARLY_CONSTANT)
    if known:
        inputs.sort(key=itemgetter("relative_lengthscale"))

    def per_output(name: str) -> Any:
        values = _floats(summary[name], q)
        return values[0] if ndim == 1 else values

    return {
        "file": path,
        "bytes": Path(path).stat().st_size,
        "format_version": FORMAT_VERSION,
        "estimator": _ESTIMATORS[config["estimator"]],
        "kernel": arguments["kernel"],
        "frequencies": arguments.get("n_frequencies"),
        "gating": _gating(summary["gating"]),
        "neighbors": None if summary["neighbors"] is None else [_neighbor(each) for each in summary["neighbors"]],
        "rows": rows,
        "target": None if table is None else _target([str(name) for name in table["targets"]]),
        "columns": None if table is None else table["columns"],
        "inputs": inputs,
        "signal_std": per_output("signal_std"),
        "noise_std": per_output("noise_std"),
        "mean": per_output("mean"),
        "conformal_rows": None if config.get("conformal_rows") is None else check_count(config, "conformal_rows"),
        "log_evidence": log_evidence,
        "log_evidence_per_row": log_evidence / rows,
        "fit_status": dict(config["fit_status"]),
    }


def _reasons(columns: list[dict[str, Any]], used: set[Any]) -> dict[str, str]:
    """Why inputs are ignored, for those that are all there is of their column, or are of text with many levels."""
    found: dict[str, str] = {}
    for column in columns:
        name, encoding = str(column["name"]), column["encoding"]
        inputs = [f"{name}={level}" for level in column["categories"]] + [f"{name} is missing"]
        if "counts" in encoding:
            q = len(encoding["effects"][0])
            inputs = [f"{name} effect", *(f"{name} effect {k}" for k in range(q)), f"{name} log frequency"]
        elif len(encoding.get("seen", ())) != 1:
            continue
        if used.isdisjoint(inputs):
            found |= dict.fromkeys(inputs, why_ignored(column))
    return found


def why_ignored(column: Mapping[str, Any]) -> str:
    """The reason, for a column of which all inputs are ignored, as ``TableEncoder.to_dict`` describes it."""
    encoding, levels = column["encoding"], len(column["categories"])
    if "seen" in encoding:  # an indicator for each level; missing cells are the one after the last
        only = encoding["seen"] if len(encoding["seen"]) == 1 else None
        return _NEARLY_CONSTANT if only is None else "all missing" if only == [levels] else "constant"
    if "counts" in encoding:  # rows of each level, and of missing cells
        counts = {count for count in encoding["counts"] if count}
        if counts == {1.0} and not encoding["counts"][-1]:
            return "every value occurs once"
        return "its values tell nothing about the target"
    return _NEARLY_CONSTANT


def _gating(gate: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if gate is None else {"kind": str(gate["kind"]), "clusters": check_count(gate, "clusters")}


def _neighbor(gp: dict[str, Any]) -> dict[str, Any]:
    """What a neighbour GP sees, its weight, and its rows, which are part of the file."""
    return {
        "name": str(gp["name"]),
        "weight": _number(gp["weight"]),
        "rows": check_count(gp, "rows"),
        "neighbors": check_count(gp, "neighbors"),
        "degrees": None if gp["degrees"] is None else _number(gp["degrees"]),
    }


def _floats(values: list[float | None], count: int) -> list[float]:
    """So many numbers of a summary, in which null is infinity."""
    found = [math.inf if value is None else _number(value) for value in values]
    if len(found) != count:
        raise ModelFileError(f"the summary has {len(found)} numbers for {count} columns")
    return found


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ModelFileError(f"{value!r:.100} is not a number")
    return float(value)


def _target(names: list[str]) -> str | list[str] | None:
    """The name of the target, a list of several, or None if it is not known."""
    return names if len(names) > 1 else names[0] if names else None


def _lines(info: dict[str, Any]) -> Iterator[str]:
    frequencies = f", {info['frequencies']} frequencies" if info["frequencies"] else ""
    yield f"{info['estimator']} ({info['kernel']}{frequencies})"
    yield ""
    rows = [
        ("File", f"{info['file']}, {format_bytes(info['bytes'])}, format version {info['format_version']}"),
        ("Rows", f"{info['rows']:,}"),
    ]
    if info["gating"] is not None:
        rows.append(("Gating", f"{info['gating']['kind']}, {info['gating']['clusters']:,} clusters"))
    for each in info["neighbors"] or []:
        seen = each["name"].removeprefix("neighbours ")
        process = "" if each["degrees"] is None else f", {each['degrees']:g} degrees of freedom"
        about = f"{each['neighbors']:,} of {each['rows']:,} rows, {seen}{process}, weight {each['weight']:.0%}"
        rows.append(("Neighbours", about))
    if info["target"] is not None:
        several = isinstance(info["target"], list)
        rows.append(("Target", ", ".join(map(format_name, info["target"] if several else [info["target"]]))))
    weights = {name: weight for name, weight in (info["fit_status"].get("weights") or {}).items() if weight}
    of_rows = ""
    if len(weights) > 1 or (weights and info["neighbors"]):
        # Without the neighbours; what they leave is shared.
        share = 1.0 - sum(each["weight"] for each in info["neighbors"] or [])
        parts = (f"{format_name(name)} {share * weight:.0%}" for name, weight in weights.items())
        rows.append(("Mixture", ", ".join(parts)))
    if len(weights) > 1:
        rows.append(("Parameters", f"those of {format_name(max(weights, key=lambda name: weights[name]))}:"))
        of_rows = ", times a factor for each row"  # which the networks learn
    per_row = f" ({info['log_evidence_per_row']:.4f} per row)"
    rows += [
        ("Mean", _numbers(info["mean"])),
        ("Signal std", _numbers(info["signal_std"])),
        ("Noise std", f"{_numbers(info['noise_std'])}{of_rows}"),
        ("Log evidence", f"{info['log_evidence']:.6g}{per_row}"),
    ]
    if info["conformal_rows"]:
        rows.append(("Intervals", f"conformal, by {info['conformal_rows']:,} held-out rows"))
    status = info["fit_status"]
    if status.get("interrupted"):
        rows.append(("Fit", "interrupted: the best state until then"))
    elif status.get("timed_out"):
        rows.append(("Fit", f"ended by its time limit, after {status.get('seconds', math.nan):.1f} s"))
    yield from format_rows(rows)
    yield ""
    yield from _input_lines(info["inputs"])
    stages = _stages(info["fit_status"])
    if stages:
        yield from ("", "  Fit stages", *(f"    {stage}" for stage in stages))


def _input_lines(inputs: list[dict[str, Any]]) -> Iterator[str]:
    shown = inputs[:_SHOWN_INPUTS]
    width = max(12, *(len(format_name(each["name"])) for each in shown))
    known = shown[0]["relative_lengthscale"] is not None
    yield f"  {'Inputs':<{width}}  {'length-scale':>14}  {'/ column std':>12}" if known else "  Inputs"
    for each in shown:
        name = format_name(each["name"])
        if each["relative_lengthscale"] is None:
            yield f"  {name}"
        elif np.isfinite(each["relative_lengthscale"]):
            length, relative = format_amount(each["lengthscale"]), each["relative_lengthscale"]
            share = f"{relative:,.0f}" if relative >= 100 else f"{relative:.3g}"
            yield f"  {name:<{width}}  {length:>14}  {share:>12}"
        else:
            yield f"  {name:<{width}}  {'-':>14}  ignored: {each['ignored']}"
    if len(inputs) > len(shown):
        yield f"  ... and {len(inputs) - len(shown):,} more (all with --json)"


def _numbers(value: Any) -> str:
    return "; ".join(format_amount(number) for number in np.atleast_1d(value))


def _stages(status: dict[str, Any]) -> list[str]:
    """One line per stage; the file may lack the keys that this version writes."""
    lines = []
    for stage in status["stages"]:
        parts = [f"{stage[key]} {key}" for key in ("rows", "evaluations") if key in stage]
        seconds = stage.get("seconds")
        if isinstance(seconds, float):
            parts.append(f"{seconds:.1f} s")
        message = str(stage.get("message", ""))
        if _AT_LIMIT in message.upper():  # the early stages are meant to end there
            message = "stopped at its iteration limit" if stage.get("method") not in _SHORT else ""
        if message:
            parts.append(message)
        lines.append(one_line(f"{stage.get('method', 'stage')}: {', '.join(parts)}"))
    return lines

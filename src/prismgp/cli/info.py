"""``prismgp info``: show the contents of a model file."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from prismgp._system import format_amount, format_bytes
from prismgp.cli import Parser, Subparsers, common, json_text, one_line, print_rows, printable, say
from prismgp.core.models import SpectralModel
from prismgp.model import FORMAT_VERSION, FittedModel, load_model
from prismgp.neighbors.model import NeighborModel
from prismgp.prism.local import LocalMixture

_SHOWN_INPUTS = 20
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
    """Load and describe."""
    description = _describe(load_model(args.model, device="cpu"), args.model)
    if args.json:
        say(json_text(description))
    else:
        _print(description)
    return 0


def _describe(model: FittedModel, path: str) -> dict[str, Any]:
    encoder, rows = model.encoder, model.n_rows
    names = model.feature_names or [f"column {index}" for index in range(model.n_inputs)]
    relative = common.relative_lengthscale(model)
    order = range(len(names)) if relative is None else np.argsort(relative, kind="stable")
    scale = model.standardiser.x_scale

    def per_output(value: Any) -> Any:
        return float(value[0]) if model.target_ndim == 1 else value

    return {
        "file": path,
        "bytes": Path(path).stat().st_size,
        "format_version": FORMAT_VERSION,
        "estimator": _ESTIMATORS[model.kind],
        "kernel": model.kernel,
        "frequencies": model.arguments.get("n_frequencies"),
        "gating": _gating(model),
        "neighbors": _neighbors(model),
        "rows": rows,
        "target": _target(model),
        "columns": None if encoder is None else encoder.to_dict()["columns"],
        "inputs": [
            {
                "name": names[index],
                "lengthscale": None if relative is None else float(relative[index] * scale[index]),
                "relative_lengthscale": None if relative is None else float(relative[index]),
            }
            for index in order
        ],
        "signal_std": per_output(np.sqrt(model.signal_variance)),
        "noise_std": per_output(np.sqrt(model.noise_variance)),
        "mean": per_output(model.mean),
        "conformal_rows": None if model.conformal is None else model.conformal.rows,
        "log_evidence": model.log_evidence,
        "log_evidence_per_row": model.log_evidence / rows,
        "fit_status": model.status,
    }


def _target(model: FittedModel) -> str | list[str] | None:
    """The name of the target, a list of several, or None if it is not known."""
    names = [] if model.encoder is None else list(model.encoder.targets)
    return names if len(names) > 1 else names[0] if names else None


def _gating(model: FittedModel) -> dict[str, Any] | None:
    """The gates of a sparse spectrum GP, if any."""
    gate = model.predictor.gating.gate if isinstance(model.predictor, SpectralModel) else None
    return None if gate is None else {"kind": gate.kind, "clusters": gate.n_clusters}


def _neighbors(model: FittedModel) -> list[dict[str, Any]] | None:
    """The neighbour GPs of a model, if any: what each sees, its weight, and its rows, which are part of the file."""
    predictor = model.predictor
    if isinstance(predictor, NeighborModel):
        found = [("neighbours in inputs alone", 1.0, predictor.gp)]
    elif isinstance(predictor, LocalMixture):
        pairs = zip(predictor.near, predictor.weights[1:], strict=True)
        found = [(near.view.name, float(weight), near.gp) for near, weight in pairs]
    else:
        return None
    return [
        {
            "name": name,
            "weight": weight,
            "rows": gp.n_rows,
            "neighbors": gp.k,
            "degrees": gp.degrees if math.isfinite(gp.degrees) else None,
        }
        for name, weight, gp in found
    ]


def _print(info: dict[str, Any]) -> None:
    frequencies = f", {info['frequencies']} frequencies" if info["frequencies"] else ""
    say(f"{info['estimator']} ({info['kernel']}{frequencies})")
    say()
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
        rows.append(("Target", ", ".join(map(printable, info["target"] if several else [info["target"]]))))
    weights = {name: weight for name, weight in (info["fit_status"].get("weights") or {}).items() if weight}
    of_rows = ""
    if len(weights) > 1:
        rows.append(("Mixture", ", ".join(f"{printable(name)} {weight:.0%}" for name, weight in weights.items())))
        rows.append(("Parameters", f"those of {printable(max(weights, key=lambda name: weights[name]))}:"))
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
    print_rows(rows)
    say()
    _print_inputs(info["inputs"])
    stages = _stages(info["fit_status"])
    if stages:
        say()
        say("  Fit stages")
        for stage in stages:
            say(f"    {stage}")


def _print_inputs(inputs: list[dict[str, Any]]) -> None:
    shown = inputs[:_SHOWN_INPUTS]
    width = max(12, *(len(printable(each["name"])) for each in shown))
    known = shown[0]["relative_lengthscale"] is not None
    say(f"  {'Inputs':<{width}}  {'length-scale':>14}  {'/ column std':>12}" if known else "  Inputs")
    for each in shown:
        name = printable(each["name"])
        if each["relative_lengthscale"] is None:
            say(f"  {name}")
        elif np.isfinite(each["relative_lengthscale"]):
            length, relative = format_amount(each["lengthscale"]), each["relative_lengthscale"]
            share = f"{relative:,.0f}" if relative >= 100 else f"{relative:.3g}"
            say(f"  {name:<{width}}  {length:>14}  {share:>12}")
        else:
            say(f"  {name:<{width}}  {'-':>14}  never varied in training, or in very few rows")
    if len(inputs) > len(shown):
        say(f"  ... and {len(inputs) - len(shown):,} more (all with --json)")


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
        if "message" in stage:
            parts.append(str(stage["message"]))
        lines.append(one_line(f"{stage.get('method', 'stage')}: {', '.join(parts)}"))
    return lines

"""``prismgp info``: what a model file holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from prismgp._system import format_bytes
from prismgp.cli import _common as common
from prismgp.cli._common import Parser, Subparsers, printable, say
from prismgp.data._table import TableEncoder
from prismgp.estimators import SSGPRegressor
from prismgp.estimators._base import GPRegressor
from prismgp.model.file import format_version
from prismgp.model.io import load

__all__ = ["add_parser", "run"]

_SHOWN_INPUTS = 20


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser: Parser = subparsers.add_parser(
        "info", help="show what a model file holds", description="Show what a model file holds."
    )
    parser.add_argument("model", metavar="MODEL", help="model file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Load and describe."""
    model: GPRegressor = load(args.model, device="cpu")
    description = _describe(model, args.model)
    if args.json:
        common.print_json(description)
    else:
        _print(description)
    return 0


def _describe(model: GPRegressor, path: str) -> dict[str, Any]:
    encoder: TableEncoder | None = getattr(model, "table_encoder_", None)
    names = [str(name) for name in getattr(model, "feature_names_in_", ())]
    names = names or [f"column {index}" for index in range(model.n_features_in_)]
    relative = common.relative_lengthscale(model)
    order = range(len(names)) if relative is None else np.argsort(relative, kind="stable")
    scale = model._standardiser.x_scale
    rows = model.fit_status_.get("rows")
    rows = rows if isinstance(rows, int) and rows > 0 else None  # the file is not trusted to have it
    return {
        "file": path,
        "bytes": Path(path).stat().st_size,
        "format_version": format_version(path),
        "estimator": type(model).__name__,
        "kernel": model.kernel,
        "frequencies": getattr(model, "n_frequencies", None),
        "gating": _gating(model),
        "rows": rows,
        "target": None if encoder is None else encoder.target,
        "columns": None if encoder is None else encoder.to_dict()["columns"],
        "inputs": [
            {
                "name": names[index],
                "lengthscale": None if relative is None else float(relative[index] * scale[index]),
                "relative_lengthscale": None if relative is None else float(relative[index]),
            }
            for index in order
        ],
        "signal_std": np.sqrt(model.signal_variance_),
        "noise_std": np.sqrt(model.noise_variance_),
        "mean": model.mean_,
        "log_evidence": model.log_evidence_,
        "log_evidence_per_row": model.log_evidence_ / rows if rows else None,
        "fit_status": model.fit_status_,
    }


def _gating(model: GPRegressor) -> dict[str, Any] | None:
    """Of an SSGPRegressor with gates."""
    gate = model._gating.gate if isinstance(model, SSGPRegressor) else None
    return None if gate is None else {"kind": gate.kind, "clusters": gate.n_clusters}


def _print(info: dict[str, Any]) -> None:
    frequencies = f", {info['frequencies']} frequencies" if info["frequencies"] else ""
    say(f"{info['estimator']} ({info['kernel']}{frequencies})")
    say()
    rows = [
        ("File", f"{info['file']}, {format_bytes(info['bytes'])}, format version {info['format_version']}"),
        ("Rows", f"{info['rows']:,}" if info["rows"] else "unknown"),
    ]
    if info["gating"] is not None:
        rows.append(("Gating", f"{info['gating']['kind']}, {info['gating']['clusters']:,} clusters"))
    if info["target"] is not None:
        rows.append(("Target", printable(info["target"])))
    per_row = f" ({info['log_evidence_per_row']:.4f} per row)" if info["rows"] else ""
    rows += [
        ("Mean", _numbers(info["mean"])),
        ("Signal std", _numbers(info["signal_std"])),
        ("Noise std", _numbers(info["noise_std"])),
        ("Log evidence", f"{info['log_evidence']:.6g}{per_row}"),
    ]
    common.print_rows(rows)
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
    say(f"  {'Inputs':<{width}}  {'length-scale':>12}  {'/ column std':>12}" if known else "  Inputs")
    for each in shown:
        name = printable(each["name"])
        if each["relative_lengthscale"] is None:
            say(f"  {name}")
        elif np.isfinite(each["relative_lengthscale"]):
            say(f"  {name:<{width}}  {each['lengthscale']:>12.4g}  {each['relative_lengthscale']:>12.3g}")
        else:
            say(f"  {name:<{width}}  {'-':>12}  never varied in training, or in very few rows")
    if len(inputs) > len(shown):
        say(f"  ... and {len(inputs) - len(shown):,} more (all with --json)")


def _numbers(value: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in np.atleast_1d(value))


def _stages(status: dict[str, Any]) -> list[str]:
    """A line per stage. The file is not trusted to have the keys this version writes."""
    lines = []
    stages = status.get("stages")
    for stage in stages if isinstance(stages, list) else []:
        if not isinstance(stage, dict):
            continue
        parts = [f"{stage[key]} {key}" for key in ("rows", "evaluations") if key in stage]
        seconds = stage.get("seconds")
        if isinstance(seconds, float):
            parts.append(f"{seconds:.1f} s")
        if "message" in stage:
            parts.append(str(stage["message"]))
        lines.append(common.one_line(f"{stage.get('method', 'stage')}: {', '.join(parts)}"))
    return lines

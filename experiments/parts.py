"""Which parts of the source a result depends on, and whether they have changed since it was made.

Every result carries the digest of its parts: the code that fits the model and the code that measures it, without
comments and docstrings, and the default settings. A result is stale where that digest is another one today, or where it
is from before digests were stored. ``tools/check_results.py`` compares stale results with those that are acknowledged
in ``experiments/stale.toml``.
"""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from experiments.machine import ROOT
from experiments.page import markdown_table
from experiments.results import Record, Study
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor

__all__ = [
    "Acknowledged",
    "Group",
    "Part",
    "collect_stale",
    "complaints",
    "digest_of",
    "is_stale",
    "part_of",
    "read_acknowledged",
    "stale_table",
]

# The shape of the noise is learned by the joint recipe alone.
_CORE = [path for path in sorted((ROOT / "src/prismgp/core").glob("*.py")) if not path.stem.startswith("shape")]
_LINEAR = tuple(path.relative_to(ROOT).as_posix() for path in _CORE)
_STAGES = (*_LINEAR, "src/prismgp/vae", *(f"src/prismgp/prism/{name}.py" for name in ("maps", "experts", "fit")))
_PRISM = tuple(f"src/prismgp/{name}" for name in ("core", "prism", "vae", "neighbors", "model/row_shapes.py"))
# The regressors of PrismGP: where their mathematics is, and what their defaults are.
_MODELS: dict[str, tuple[tuple[str, ...], type]] = {
    "exact": (_LINEAR, ExactGPRegressor),
    "ssgp": (_LINEAR, SSGPRegressor),
    "paper": (_STAGES, PrismGPRegressor),
    "released": ((*_STAGES, "src/prismgp/prism/released.py", "experiments/paper/released.py"), PrismGPRegressor),
    "prism": (_PRISM, PrismGPRegressor),
}
# What a kind of study uses beside the model: the code that measures, and further parts of the library.
_STUDIES: dict[str, tuple[str, ...]] = {
    "reproduce": ("experiments/paper/fits.py", "experiments/paper/data.py"),
    "spaces": ("experiments/paper/spaces.py", "experiments/paper/data.py", "src/prismgp/complexity"),
    "accuracy": ("experiments/benchmarks/suite.py",),
    "efficiency": ("experiments/benchmarks/suite.py",),
    "frequencies": ("experiments/benchmarks/suite.py",),
    "variants": ("experiments/benchmarks/suite.py",),
    "tightness": ("experiments/benchmarks/tightness.py", "src/prismgp/certificates"),
    "certify-large": ("experiments/benchmarks/large_certificates.py", "src/prismgp/certificates"),
    "speed": ("experiments/benchmarks/speed.py", "src/prismgp/data"),
    "prediction": ("experiments/benchmarks/prediction.py", "src/prismgp/model/fitted.py"),
    "scale": ("experiments/benchmarks/scale.py", "src/prismgp/data"),
    "flights": ("experiments/benchmarks/flights.py", "src/prismgp/data"),
    "dask": ("experiments/benchmarks/dask_scaling.py", "src/prismgp/data"),
    "cluster-costs": ("experiments/benchmarks/cluster_costs.py", "src/prismgp/data"),
    "active": ("experiments/benchmarks/active.py", "src/prismgp/active"),
    "bayes-opt": ("experiments/benchmarks/bayes_opt.py", "src/prismgp/botorch.py"),
    "trees": ("experiments/benchmarks/trees.py", "src/prismgp/data"),
    "unseen": ("experiments/benchmarks/unseen.py", "src/prismgp/data"),
}
_OTHERS = ("src/prismgp/data",)
# Measurements of these studies that are no fits: the model they need most of, and what else they use.
_EXTRAS = "experiments/paper/extras.py"
_MEASUREMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "embedding": ("prism", (_EXTRAS, "src/prismgp/complexity")),
    "certificate": ("ssgp", (_EXTRAS, "src/prismgp/certificates")),
    "space": ("paper", ()),
    "output": ("paper", ()),
    "trade": ("ssgp", ()),
}
_COMPARISON = "experiments/comparison"
_BENCH = tuple(f"{_COMPARISON}/{name}.py" for name in ("measure", "data", "peers/library"))


@dataclass(frozen=True)
class Part:
    """What a result depends on.

    Attributes
    ----------
    name : str
        The model or the library.
    paths : tuple of str
        Modules and folders of them, from the root of the checkout.
    settings : str
        Defaults and settings that are not in these files.
    """

    name: str
    paths: tuple[str, ...]
    settings: str = ""

    @property
    def digest(self) -> str:
        """Of code and settings."""
        return _digest(self)


def part_of(kind: str, record: Record) -> Part | None:
    """The part that a result of a study of this kind depends on; None for an entry that is no longer compared."""
    if kind == "bench":
        return _comparison_part(record)
    model = record.get("model")
    if model == "released_ssgp":  # which uses nothing of the library
        own = ("experiments/paper/released.py", *_STUDIES[kind], "experiments/scores.py")
        return Part("released_ssgp", own)
    name = model if model in _MODELS else "prism"
    name, further = _MEASUREMENTS.get(record.get("kind", ""), (name, ()))
    return _model_part(name, (*_STUDIES.get(kind, _OTHERS), *further, "experiments/scores.py"))


def _comparison_part(record: Record) -> Part | None:
    from experiments.comparison.entries import ENTRIES  # which imports the planner, and that this module

    if "entry" not in record:
        return _model_part("exact", (f"{_COMPARISON}/agreement.py",))
    entry = ENTRIES.get(record["entry"])
    if entry is None:  # an entry of the past
        return None
    module, _, function = entry.fit.partition(":")
    paths = (*_BENCH, f"{_COMPARISON}/peers/{module}.py", "experiments/scores.py")
    settings = json.dumps(entry.settings)
    if module == "ours":
        return _model_part(function.removeprefix("fit_"), paths, settings)
    return Part(entry.library.distribution, paths, settings)


def _model_part(name: str, paths: tuple[str, ...], settings: str = "") -> Part:
    own, regressor = _MODELS[name]
    defaults = json.dumps(regressor().get_params(), default=str, sort_keys=True)
    return Part(name, (*own, *paths), settings + defaults)


@cache
def _digest(part: Part) -> str:
    digest = hashlib.sha256(part.settings.encode())
    for place in part.paths:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(ROOT).as_posix()}\n{_code_of(file)}\n".encode())
    return digest.hexdigest()[:12]


@cache
def _code_of(path: Path) -> str:
    """The lines of a module without docstrings, comments that have a line of their own, and empty lines."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                lines[first.lineno - 1 : first.end_lineno] = [""] * (int(first.end_lineno or 0) - first.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip() and not line.lstrip().startswith("#"))


def digest_of(kind: str, record: Record) -> str | None:
    """The digest, today, of what a result of a study of this kind depends on."""
    part = part_of(kind, record)
    return None if part is None else part.digest


def is_stale(kind: str, record: Record) -> bool:
    """Whether what the result depends on has changed since it was made, or the result does not say."""
    return record.get("parts") is None or record["parts"] != digest_of(kind, record)


# -- stored results ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Results of a study that depend on the same part of the source, ``study/part``, and how many of them are stale."""

    name: str
    stale: int
    results: int
    commits: tuple[str, ...]


@dataclass(frozen=True)
class Acknowledged:
    """Groups, as a pattern of their names, that are known to be stale, and why they stand."""

    groups: str
    reason: str


def collect_stale(folder: Path) -> list[Group]:
    """The groups that have stale results."""
    found: list[Group] = []
    for path in sorted(folder.glob("*.jsonl")):
        study = Study(folder, path.stem)
        kind = str(study.about.get("kind"))
        groups: dict[str, list[Record]] = {}
        for record in study.records.values():
            part = part_of(kind, record)
            groups.setdefault(f"{study.name}/{part.name if part else 'unknown'}", []).append(record)
        for name, records in sorted(groups.items()):
            stale = [record for record in records if is_stale(kind, record)]
            commits = sorted({str(record.get("commit") or "not recorded") for record in stale})
            if stale:
                found.append(Group(name, len(stale), len(records), tuple(commits)))
    return found


def read_acknowledged(path: Path = ROOT / "experiments" / "stale.toml") -> list[Acknowledged]:
    """The entries of ``stale.toml``."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("stale", [])
    return [Acknowledged(**entry) for entry in entries]


def reason_of(group: Group, acknowledged: Iterable[Acknowledged]) -> str | None:
    """Why the group stands although it is stale; None where nobody said so."""
    return next((each.reason for each in acknowledged if fnmatchcase(group.name, each.groups)), None)


def complaints(groups: list[Group], acknowledged: list[Acknowledged]) -> Iterator[str]:
    """A line for each stale group that is not acknowledged, and for each acknowledgement that is not needed."""
    for group in groups:
        if reason_of(group, acknowledged) is None:
            yield (
                f"{group.name}: {group.stale} of {group.results} results were made by code that has changed since "
                f"(commits {', '.join(group.commits)})"
            )
    for each in acknowledged:
        if not any(fnmatchcase(group.name, each.groups) for group in groups):
            yield f"{each.groups}: acknowledged as stale, but no result of it is; remove the entry"


def stale_table(groups: list[Group], acknowledged: list[Acknowledged]) -> str:
    """What the documentation says of stale results, Markdown."""
    if not groups:
        return "All results were made by the present code.\n"
    rows = [
        [group.name, f"{group.stale} of {group.results}", reason_of(group, acknowledged) or "**not acknowledged**"]
        for group in groups
    ]
    return markdown_table(["study / what it depends on", "results", "why they stand"], rows) + "\n"

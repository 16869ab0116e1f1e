"""The paper's experiments: which there are, and the jobs each of them consists of."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.internals import required_bytes
from experiments.jobs import Job
from experiments.paper.data import check_available
from experiments.plan import Plan, add_run_options, parse_names, parse_numbers, positive
from prismgp.exceptions import DataError

__all__ = ["EXPERIMENTS", "EXTRAS", "MODELS", "PaperExperiment", "add_options", "make_plan", "plan_jobs", "title_of"]

# The order is that of tables and legends.
MODELS = {
    "exact": "full GP",
    "ssgp": "SSGP",
    "released_ssgp": "SSGP, as released",
    "paper": "revised, the two stages as printed",
    "released": "revised, as released",
    "prism1": "revised, ours, one model",
    "prism": "revised, ours, ensemble",
}
EXTRAS = ("embedding", "certificate")
SPLITS, SEXES = ("random", "blocks"), ("one-hot", "code")  # defaults first
ENSEMBLE_FREQUENCIES = 32
_RUNS = 5
_QUICK_FREQUENCIES, _QUICK_STEPS = (16, 32), 300
_BASE_BYTES = 2**30
_CERTIFY_MOST = 20_000  # rows; a certificate of more takes minutes and says nothing new


@dataclass(frozen=True)
class PaperExperiment:
    """One of the paper's experiments.

    Attributes
    ----------
    name, title : str
    rows : int or None
        Size of the sample; None: all there are.
    quick_rows : int or None
        That of a quick run.
    frequencies : tuple of int
    models : tuple of str
    gas : bool
        Whether the data are those of the gas sensor array, which can be simulated.
    streamed : bool
        Whether the training rows are read from files, pass by pass.
    published : tuple
        Model, p where it has one, and the final standardised RMSE read off the authors' plots.
    """

    name: str
    title: str
    rows: int | None
    quick_rows: int | None
    frequencies: tuple[int, ...]
    models: tuple[str, ...]
    gas: bool = True
    streamed: bool = False
    published: tuple[tuple[str, int | None, float], ...] = ()

    @property
    def possible(self) -> tuple[str, ...]:
        """The models and extras it has."""
        small = self.rows is None or self.rows <= _CERTIFY_MOST
        return (*self.models, *(() if self.streamed else EXTRAS if small else EXTRAS[:1]))


# The paper plots p = 16, 32 and 64; the values at 128 are from plots in the authors' repository. What they plot was
# computed by their released code, so it stands beside that as well as beside what the paper says.
_REVISED, _PLAIN = ("paper", "released"), ("ssgp", "released_ssgp")
_PUBLISHED_10K = (
    ("exact", None, 0.555),
    *((name, p, rmse) for name in _REVISED for p, rmse in ((16, 0.585), (32, 0.62), (64, 0.59), (128, 0.605))),
    *((name, p, rmse) for name in _PLAIN for p, rmse in ((16, 0.915), (32, 0.74), (64, 0.67), (128, 0.70))),
)
_PUBLISHED_500K = (
    *((name, p, rmse) for name in _REVISED for p, rmse in ((16, 0.568), (32, 0.566), (64, 0.560), (128, 0.567))),
    *((name, p, rmse) for name in _PLAIN for p, rmse in ((16, 0.65), (32, 0.635), (64, 0.625), (128, 0.607))),
)
_STREAMED = ("ssgp", "paper", "prism1")  # with more than 100,000 rows, one model is the default
_SPARSE = ("ssgp", "released_ssgp", "paper", "released", "prism1")
_GAS = "Gas sensor array"

EXPERIMENTS = {
    each.name: each
    for each in (
        PaperExperiment("abalone", "Abalone", None, None, (16, 32, 64), tuple(MODELS), gas=False),
        PaperExperiment("gas10k", _GAS, 10_000, 2_500, (16, 32, 64, 128), tuple(MODELS), published=_PUBLISHED_10K),
        PaperExperiment("gas500k", _GAS, 500_000, 20_000, (16, 32, 64, 128), _SPARSE, published=_PUBLISHED_500K),
        PaperExperiment("gas4m", _GAS, 4_000_000, 100_000, (16, 32, 64), _STREAMED, streamed=True),
    )
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what a plan depends on; jobs are small, so two at a time with one thread each are faster than one."""
    parser.add_argument("name", metavar="NAME", choices=EXPERIMENTS, help=", ".join(EXPERIMENTS))
    parser.add_argument("--quick", action="store_true", help="one run, p = 16 and 32, fewer steps and rows: minutes")
    parser.add_argument(
        "--simulated", action="store_true", help="simulate the gas sensor array; everything is labelled so"
    )
    parser.add_argument(
        "--split",
        choices=SPLITS,
        default=SPLITS[0],
        help="random: anew for each run; blocks: the last fifth by position is held out, as the authors split",
    )
    parser.add_argument(
        "--sex",
        choices=SEXES,
        default=SEXES[0],
        help="of abalone: three indicators, or male 1, female 2, infant 3 as the authors code it",
    )
    parser.add_argument("--runs", type=positive, metavar="N", help=f"default: {_RUNS}")
    parser.add_argument(
        "--frequencies",
        type=parse_numbers,
        metavar="P,P,...",
        help="default: 16,32,64, as in the paper; gas10k and gas500k also 128, of plots in the authors' repository",
    )
    parser.add_argument(
        "--models",
        type=parse_names,
        metavar="A,B,...",
        help=f"of {', '.join((*MODELS, *EXTRAS))} (default: all the experiment has)",
    )
    parser.add_argument("--rows", type=positive, metavar="N", help="a sample of so many rows, before the split")
    add_run_options(parser)
    parser.set_defaults(jobs=min(2, os.cpu_count() or 1))


def make_plan(args: argparse.Namespace) -> Plan:
    """The plan that the options ask for."""
    about = EXPERIMENTS[args.name]
    if args.simulated and not about.gas:
        raise DataError(f"--simulated is for the gas sensor array; {args.name} has real data only")
    models = tuple(args.models) if args.models is not None else about.possible
    if unknown := [each for each in models if each not in about.possible]:
        raise DataError(f"--models {','.join(unknown)}: {args.name} has {', '.join(about.possible)}")
    if not args.list:
        check_available(about.gas, args.simulated)
    if args.sex != SEXES[0] and about.gas:
        raise DataError(f"--sex is for abalone; {args.name} has no such column")
    # The entire data set: all rows there are. The simulation has the published number.
    all_rows = None if about.streamed and not args.simulated else about.rows
    kind = f"{'-simulated' * args.simulated}{'-blocks' * (args.split == 'blocks')}{'-coded' * (args.sex == 'code')}"
    study = f"{args.name}{kind}{'-quick' * args.quick}"
    options = {
        "experiment": args.name,
        "simulated": args.simulated,
        "quick": args.quick,
        "rows": args.rows or (about.quick_rows if args.quick else all_rows),
        "device": args.device,
        "steps": _QUICK_STEPS if args.quick else None,
    }
    # Only where they differ from the default, so that studies from before there were these options can be continued.
    options |= {"split": args.split} if args.split != SPLITS[0] else {}
    options |= {"sex": args.sex} if args.sex != SEXES[0] else {}
    frequencies = sorted(set(args.frequencies or (_QUICK_FREQUENCIES if args.quick else about.frequencies)))
    runs = args.runs or (1 if args.quick else _RUNS)
    data = str(args.results / f"{study}-data") if about.streamed else None
    first = []
    if data is not None:
        order = {"kind": "data", **options, "runs": runs, "data": data}
        first = [Job(f"data-{runs}", "experiments.paper.data:prepare", order)]
    return Plan(study, plan_jobs(options, frequencies, models, runs, data), options, first=first)


def plan_jobs(
    options: Mapping[str, Any], frequencies: Sequence[int], models: Sequence[str], runs: int, data: str | None = None
) -> list[Job]:
    """All jobs, those of the first run first; ``data`` is the folder of streamed rows."""
    common = {**options, "data": data}
    jobs = []
    for run in range(runs):
        for model in MODELS:
            if model in models:
                jobs += [_fit(common, model, p, run) for p in _frequencies_of(model, frequencies)]
        if run == 0:
            jobs += [_extra(common, extra, frequencies) for extra in EXTRAS if extra in models]
    return jobs


def _frequencies_of(model: str, frequencies: Sequence[int]) -> Sequence[int | None]:
    if model == "exact":
        return [None]
    return [ENSEMBLE_FREQUENCIES] if model == "prism" else frequencies


def _fit(common: dict[str, Any], model: str, p: int | None, run: int) -> Job:
    memory = _BASE_BYTES + (required_bytes(common["rows"] or 5_000) if model == "exact" else 0)
    key = f"{model}-run{run}" if p is None else f"{model}-p{p}-run{run}"
    return Job(key, "experiments.paper.fits:fit", {**common, "kind": "fit", "model": model, "p": p, "run": run}, memory)


def _extra(common: dict[str, Any], kind: str, frequencies: Sequence[int]) -> Job:
    p = min(frequencies, key=lambda each: abs(each - 32)) if kind == "embedding" else min(max(frequencies), 64)
    order = {**common, "kind": kind, "p": p, "run": 0}
    return Job(kind, f"experiments.paper.extras:{kind}", order, 2 * _BASE_BYTES)


def title_of(options: Mapping[str, Any]) -> str:
    """What the results were measured on."""
    about = EXPERIMENTS[options["experiment"]]
    rows = f", {options['rows']:,} rows" if options["rows"] is not None else ""
    split = ", split by position" if options.get("split") == "blocks" else ""
    sex = ", sex as one number" if options.get("sex") == "code" else ""
    return f"{about.title}{rows}{split}{sex}{' (simulated data)' if options['simulated'] else ''}"

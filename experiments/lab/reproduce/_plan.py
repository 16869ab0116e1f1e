"""The paper's experiments: which there are, and the jobs each of them is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from experiments.lab._jobs import Job
from prismgp.core.exact import required_bytes
from prismgp.exceptions import DataError

__all__ = ["EXPERIMENTS", "EXTRAS", "MODELS", "Experiment", "Plan", "fit_key", "make_plan", "run_title"]

# The order is that of tables and legends.
MODELS = {
    "exact": "full GP",
    "ssgp": "SSGP",
    "paper": "revised, the paper's recipe",
    "prism1": "revised, ours, one model",
    "prism": "revised, ours, ensemble",
}
EXTRAS = ("embedding", "certificate")
ENSEMBLE_FREQUENCIES = 32
_RUNS = 5
_WITHOUT_FREQUENCIES = "exact"
_PACKAGE = "experiments.lab.reproduce"
_BASE_BYTES = 2**30
_CERTIFY_MOST = 20_000  # rows; a certificate of more takes minutes and says nothing new


@dataclass(frozen=True)
class Experiment:
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
    published : dict
        Model, and p where it has one, to the final standardised RMSE read off the authors' plots.
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


_PUBLISHED_10K = (
    ("exact", None, 0.555),
    *(("paper", p, rmse) for p, rmse in ((16, 0.585), (32, 0.62), (64, 0.59), (128, 0.605))),
    *(("ssgp", p, rmse) for p, rmse in ((16, 0.915), (32, 0.74), (64, 0.67), (128, 0.70))),
)
_PUBLISHED_500K = (
    *(("paper", p, rmse) for p, rmse in ((16, 0.568), (32, 0.566), (64, 0.560), (128, 0.567))),
    *(("ssgp", p, rmse) for p, rmse in ((16, 0.65), (32, 0.635), (64, 0.625), (128, 0.607))),
)
_SPARSE = ("ssgp", "paper", "prism1")  # with more than 100,000 rows, one model is the default

EXPERIMENTS = {
    each.name: each
    for each in (
        Experiment("abalone", "Abalone", None, None, (16, 32, 64), tuple(MODELS), gas=False),
        Experiment(
            "gas10k",
            "Gas sensor array",
            10_000,
            2_500,
            (16, 32, 64, 128),
            tuple(MODELS),
            published=_PUBLISHED_10K,
        ),
        Experiment(
            "gas500k",
            "Gas sensor array",
            500_000,
            20_000,
            (16, 32, 64, 128),
            _SPARSE,
            published=_PUBLISHED_500K,
        ),
        Experiment(
            "gas4m",
            "Gas sensor array",
            4_000_000,
            100_000,
            (16, 32, 64),
            _SPARSE,
            streamed=True,
        ),
    )
}


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes
    ----------
    experiment : str
    simulated, quick : bool
    rows : int or None
        Of the sample, before the split; None: all there are.
    frequencies : tuple of int
    models : tuple of str
        Of ``MODELS`` and ``EXTRAS``.
    runs : int
    device : str
    steps : int or None
        Limit of the steps of networks; None: that of the estimator.
    """

    experiment: str
    simulated: bool
    quick: bool
    rows: int | None
    frequencies: tuple[int, ...]
    models: tuple[str, ...]
    runs: int
    device: str = "cpu"
    steps: int | None = None

    @property
    def about(self) -> Experiment:
        """The experiment."""
        return EXPERIMENTS[self.experiment]

    @property
    def options(self) -> dict[str, Any]:
        """What every result depends on; runs with other options do not mix."""
        names = ("simulated", "quick", "rows", "device", "steps")
        return {name: value for name, value in asdict(self).items() if name in names}

    @property
    def wishes(self) -> dict[str, Any]:
        """What only says how many results there will be; a run may be continued with more."""
        return {"frequencies": list(self.frequencies), "models": list(self.models), "runs": self.runs}

    def jobs(self, data: str | None = None) -> list[Job]:
        """All jobs, those of the first run first; ``data`` is the folder of streamed rows."""
        common = {"experiment": self.experiment, **self.options, "data": data}
        found = []
        for run in range(self.runs):
            for model in MODELS:
                if model in self.models:
                    found += [self._fit(common, model, p, run) for p in self._frequencies(model)]
            if run == 0:
                found += [self._extra(common, extra) for extra in EXTRAS if extra in self.models]
        return found

    def _frequencies(self, model: str) -> Sequence[int | None]:
        if model == _WITHOUT_FREQUENCIES:
            return [None]
        return [ENSEMBLE_FREQUENCIES] if model == "prism" else self.frequencies

    def _fit(self, common: dict[str, Any], model: str, p: int | None, run: int) -> Job:
        memory = _BASE_BYTES + (required_bytes(self.rows or 5_000) if model == "exact" else 0)
        order = {**common, "kind": "fit", "model": model, "p": p, "run": run}
        return Job(fit_key(model, p, run), f"{_PACKAGE}._work:fit", order, memory)

    def _extra(self, common: dict[str, Any], kind: str) -> Job:
        largest = max(p for p in self.frequencies)
        p = min(self.frequencies, key=lambda each: abs(each - 32)) if kind == "embedding" else min(largest, 64)
        return Job(kind, f"{_PACKAGE}._extras:{kind}", {**common, "kind": kind, "p": p, "run": 0}, 2 * _BASE_BYTES)


def run_title(about: Mapping[str, Any]) -> str:
    """What a run was made on, from its ``run.json``."""
    experiment, options = EXPERIMENTS[about["name"]], about["options"]
    rows = f", {options['rows']:,} rows" if options["rows"] is not None else ""
    return f"{experiment.title}{rows}{' (simulated data)' if options['simulated'] else ''}"


def fit_key(model: str, p: int | None, run: int) -> str:
    """The name of a result."""
    return f"{model}-run{run}" if p is None else f"{model}-p{p}-run{run}"


def make_plan(
    name: str,
    *,
    simulated: bool = False,
    quick: bool = False,
    rows: int | None = None,
    frequencies: Sequence[int] | None = None,
    models: Sequence[str] | None = None,
    runs: int | None = None,
    device: str = "cpu",
) -> Plan:
    """The plan of an experiment; what is None is as the experiment has it."""
    about = EXPERIMENTS[name]
    if simulated and not about.gas:
        raise DataError(f"--simulated is for the gas sensor array; {name} has real data only")
    small = about.rows is None or about.rows <= _CERTIFY_MOST
    extras: tuple[str, ...] = () if about.streamed else EXTRAS if small else EXTRAS[:1]
    wanted = tuple(models) if models is not None else (*about.models, *extras)
    possible = (*about.models, *extras)
    unknown = [each for each in wanted if each not in possible]
    if unknown:
        raise DataError(f"--models {','.join(unknown)}: {name} has {', '.join(possible)}")
    found = Plan(
        experiment=name,
        simulated=simulated,
        quick=False,
        rows=rows or about.rows,
        frequencies=tuple(sorted(set(frequencies or about.frequencies))),
        models=wanted,
        runs=runs or _RUNS,
        device=device,
    )
    if not quick:
        return found
    return replace(
        found,
        quick=True,
        rows=rows or about.quick_rows,
        frequencies=tuple(sorted(set(frequencies or (16, 32)))),
        runs=runs or 1,
        steps=300,
    )

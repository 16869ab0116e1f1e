"""What is compared: every entry with its library, its settings and its limits. The whole plan is this file.

An entry sees at most ``max_rows`` rows, and no more than fit into the memory of a job; where there are more, it gets
a random subsample, or is left out where that is no honest use of it. How many rows an entry had stands beside its
results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from experiments.comparison.peers import Library, explain_absence
from experiments.internals import MANY_ROWS, required_bytes

__all__ = ["DEFAULT", "ENTRIES", "LABELS", "LIBRARIES", "MAIN", "OURS", "Entry", "select", "selectable_names"]

LIBRARIES = {
    library.distribution: library
    for library in (
        Library("PrismGP", "prismgp", "prismgp", None, "MIT"),
        Library("scikit-learn", "scikit-learn", "sklearn", None, "BSD-3-Clause"),
        Library("GPyTorch", "gpytorch", "gpytorch", "compare", "MIT"),
        Library("GPBoost", "gpboost", "gpboost", "compare", "Apache-2.0"),
        Library("xGPR", "xgpr", "xGPR", "xgpr", "academic, non-commercial"),
        Library("CatBoost", "catboost", "catboost", "compare", "Apache-2.0"),
        Library("LightGBM", "lightgbm", "lightgbm", "compare", "MIT"),
        Library("NGBoost", "ngboost", "ngboost", "ngboost", "Apache-2.0"),
    )
}
_VALIDATED = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)  # length-scales over the median distance that validation chooses from


def _nothing(n: int, d: int) -> float:
    del n, d
    return 0.0


def _ridge(components: int) -> Callable[[int, int], float]:
    # The features, a centred copy, the copy the decomposition works on, and its left vectors.
    return lambda n, d: 8.0 * n * (5 * components + 2 * d)


@dataclass(frozen=True)
class Entry:
    """One way to fit a data set.

    Attributes
    ----------
    name : str
        For the command line and the names of results.
    label : str
        For people.
    library : Library
    fit : str
        ``module:function`` of `experiments.comparison.peers`.
    settings, quick : dict
        Keyword arguments of the function; ``quick`` replaces some of them for a run that only tries the machinery.
    max_rows : int or None
    min_rows : int
        With fewer rows the entry would repeat another one.
    repeats_beyond : int or None
        With more rows than these the entry would repeat our default.
    subsample : bool
        Whether it gets a random subsample where there are more rows than it can take; otherwise it is left out.
    memory : callable
        Bytes it needs for n rows and d inputs, beyond the data.
    timed : bool
        Whether the function takes ``seconds`` and ends in time by itself.
    gpu : bool
        Whether the function takes a ``device``.
    shaped : bool
        Whether its own distribution has a learned shape.
    also : dict
        Further results of the same fit: what the peer calls them, and the label.
    """

    name: str
    label: str
    library: Library
    fit: str
    settings: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    max_rows: int | None = None
    min_rows: int = 0
    repeats_beyond: int | None = None
    subsample: bool = True
    memory: Callable[[int, int], float] = _nothing
    timed: bool = False
    gpu: bool = False
    shaped: bool = False
    also: dict[str, str] = field(default_factory=dict)

    def rows(self, n: int, d: int, memory: float) -> int:
        """How many of n rows it gets when it may use so many bytes."""
        most = n if self.max_rows is None else min(n, self.max_rows)
        if self.memory(most, d) <= memory:
            return most
        low, high = 0, most  # the need grows with the rows: halve
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.memory(middle, d) <= memory else (low, middle)
        return low

    def refusal(self, n: int, d: int, memory: float) -> str | None:
        """Why it is left out at n rows; None where it is not."""
        if n < self.min_rows:
            return f"the same as without a limit for fewer than {self.min_rows:,} rows"
        if self.repeats_beyond is not None and n > self.repeats_beyond:
            return f"the same as the default for more than {self.repeats_beyond:,} rows"
        rows = self.rows(n, d, memory)
        if rows < min(n, 100) or (rows < n and not self.subsample):
            return f"takes at most {rows:,} rows"
        return None


def _features(kind: str, title: str, components: int, *, validated: bool) -> Entry:
    how, factors = ("validated", _VALIDATED) if validated else ("median", (1.0,))
    return Entry(
        f"{kind}-{components}-{how}",
        f"{title} {components:,} + BayesianRidge, {how}",
        LIBRARIES["scikit-learn"],
        "scikit_learn:fit_features",
        {"kind": kind, "components": components, "factors": factors},
        {"components": 64},
        memory=_ridge(components),
    )


def _entries() -> tuple[Entry, ...]:
    ours, sklearn = LIBRARIES["prismgp"], LIBRARIES["scikit-learn"]
    gpytorch, gpboost, xgpr = LIBRARIES["gpytorch"], LIBRARIES["gpboost"], LIBRARIES["xgpr"]
    few_steps = {"max_steps": 25, "n_members": 1, "max_iter": 20}

    # -- ours: defaults, nothing set but the sizes that the names say --
    entries = [
        Entry(
            "prism-32",
            "PrismGP, p = 32",
            ours,
            "ours:fit_prism",
            {"n_frequencies": 32},
            few_steps,
            gpu=True,
            shaped=True,
        ),
        Entry(
            "prism-32-one",
            "PrismGP, p = 32, one member",
            ours,
            "ours:fit_prism",
            {"n_frequencies": 32, "n_members": 1},
            few_steps,
            repeats_beyond=MANY_ROWS,
            gpu=True,
            shaped=True,
        ),
        *(
            Entry(
                f"ssgp-{p}",
                f"SSGP, p = {p:,}",
                ours,
                "ours:fit_ssgp",
                {"n_frequencies": p},
                {"n_frequencies": 16, "max_iter": 20},
                gpu=True,
            )
            for p in (64, 256, 1024)
        ),
        Entry(
            "exact",
            "Exact GP (ours)",
            ours,
            "ours:fit_exact",
            quick={"max_iter": 10},
            max_rows=8_000,
            memory=lambda n, d: required_bytes(n) + 0 * d,
            timed=True,
            gpu=True,
        ),
    ]

    # -- scikit-learn: an exact GP whose gradient holds n x n x d numbers, so larger sets must be subsampled --
    gradient: Callable[[int, int], float] = lambda n, d: 8.0 * n * n * (3 * d + 6)  # noqa: E731  beside its use
    entries += [
        Entry(
            "sklearn-gpr",
            "scikit-learn GPR",
            sklearn,
            "scikit_learn:fit_gpr",
            {"restarts": 2},
            {"restarts": 0, "max_iter": 5},
            max_rows=5_000,
            memory=gradient,
        ),
        Entry(
            "sklearn-gpr-2000",
            "scikit-learn GPR, 2,000 rows",
            sklearn,
            "scikit_learn:fit_gpr",
            {"restarts": 2},
            {"restarts": 0, "max_iter": 5},
            max_rows=2_000,
            min_rows=2_001,
            memory=gradient,
        ),
        *(
            _features(kind, title, components, validated=validated)
            for kind, title in (("nystroem", "Nystroem"), ("rff", "RBFSampler"))
            for components in (512, 2048)
            for validated in (False, True)
        ),
        Entry("trees", "HistGradientBoosting", sklearn, "scikit_learn:fit_trees", {}, {"rounds": 50}),
        Entry("forest", "Random forest", sklearn, "scikit_learn:fit_forest", {}, {"trees": 10}),
        Entry("linear", "Bayesian linear regression", sklearn, "scikit_learn:fit_linear"),
    ]

    # -- GPyTorch --
    entries += [
        Entry(
            "gpytorch-exact",
            "GPyTorch exact GP",
            gpytorch,
            "gpytorch_exact:fit_exact",
            quick={"max_iter": 5},
            max_rows=10_000,
            subsample=False,
            memory=lambda n, d: 8.0 * n * n * (8 + 0 * d),
            timed=True,
        ),
        *(
            Entry(
                f"gpytorch-svgp-{m}",
                f"GPyTorch SVGP, m = {m:,}",
                gpytorch,
                "gpytorch_svgp:fit_svgp",
                {"inducing": m},
                {"inducing": 32, "ways": (("adam", 0.03),), "epochs": 1, "steps": 20},
                timed=True,
                gpu=True,
            )
            for m in (512, 1024)
        ),
    ]

    # -- GPBoost --
    entries += [
        Entry(
            f"gpboost-{name}",
            f"GPBoost Vecchia, {title}",
            gpboost,
            "gpboost_vecchia:fit_vecchia",
            {"kernel": f"{kernel}_ard", "neighbours": neighbours},
            {"neighbours": 5, "max_iter": 5, "learn_rows": 500},
            max_rows=500_000,
        )
        for name, kernel, title, neighbours in (
            ("matern", "matern", "Matern 3/2", 20),
            ("gaussian", "gaussian", "Gaussian", 30),
        )
    ]

    # -- boosted trees --
    entries += [
        Entry(
            library.distribution,
            f"{library.name}, {how}",
            library,
            f"{library.distribution}_trees:fit_{library.distribution}",
            quick={"rounds": 50},
            timed=True,
        )
        for library, how in (
            (LIBRARIES["catboost"], "RMSEWithUncertainty"),
            (LIBRARIES["lightgbm"], "one std"),
            (LIBRARIES["ngboost"], "normal"),
        )
    ]

    # -- xGPR --
    entries += [
        Entry(
            f"xgpr-{features}",
            f"xGPR {features:,}, std as returned",
            xgpr,
            "xgpr_features:fit_xgpr",
            {"features": features},
            {"features": 256, "tune_features": 128, "tune_rows": 500, "variance_features": 64},
            also={"corrected": f"xGPR {features:,}, std corrected"},
        )
        for features in (2048, 8192)
    ]
    return tuple(entries)


ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _entries()}
OURS = frozenset(name for name, entry in ENTRIES.items() if entry.library.distribution == "prismgp")
DEFAULT = "prism-32"
# The main table, which has no holes: each on every data set, on all of its splits. Of the feature baselines it has the
# one with the most features and a validated length-scale; of xGPR the standard deviations that were meant.
MAIN = (
    DEFAULT,
    "ssgp-256",
    "exact",
    "gpboost-matern",
    "gpytorch-svgp-512",
    "xgpr-2048",
    "nystroem-2048-validated",
    "trees",
    "catboost",
    "lightgbm",
    "ngboost",
    "forest",
)
LABELS: dict[str, str] = {name: entry.label for name, entry in ENTRIES.items()} | {
    f"{name}-{suffix}": label for name, entry in ENTRIES.items() for suffix, label in entry.also.items()
}


def selectable_names() -> dict[str, list[str]]:
    """What ``--peers`` accepts, and the entries that each name stands for: entries, libraries, "ours", "main"."""
    names = {name: [name] for name in ENTRIES}
    names |= {
        library.distribution: [name for name, entry in ENTRIES.items() if entry.library is library]
        for library in LIBRARIES.values()
    }
    return {**names, "ours": sorted(OURS, key=list(ENTRIES).index), "main": list(MAIN)}


def select(names: list[str] | None = None) -> tuple[list[Entry], list[tuple[Entry, str]]]:
    """The chosen entries that can run here, and those that cannot, with the reason.

    Parameters
    ----------
    names : list of str or None
        Of `selectable_names`; None: all entries. Our default is always among them: it is what others are compared with.
    """
    known = selectable_names()
    wanted = set(ENTRIES) if names is None else {entry for name in [*names, DEFAULT] for entry in known[name]}
    chosen = [entry for name, entry in ENTRIES.items() if name in wanted]
    absent = {entry.name: why for entry in chosen if (why := explain_absence(entry.library)) is not None}
    return (
        [entry for entry in chosen if entry.name not in absent],
        [(entry, absent[entry.name]) for entry in chosen if entry.name in absent],
    )

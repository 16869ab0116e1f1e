"""Fewer iterations of what takes most of the time of a fit to few rows; for tests of something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from prismgp.core import fit
from prismgp.estimators import neighbors, transformers
from prismgp.prism import local_fit
from prismgp.prism.fit import DEFAULTS

DEFAULT_PRISM = {"hidden": 8, "n_members": 1, "batch_size": 64, "max_steps": 3}
MOST_STEPS = {"fit_neighbors": 10, "fit_vae": 2}  # of a fit with small defaults
LOCAL = {"steps": 20, "searches": 2, "batch_rows": 128}


def race(patch: pytest.MonkeyPatch) -> None:
    """A short race for a good start."""
    patch.setattr(fit, "START_ITER", 5)
    patch.setattr(fit, "SSGP_STAGES", replace(fit.SSGP_STAGES, race_rounds=(2,)))
    patch.setattr(fit, "EXACT_STAGES", replace(fit.EXACT_STAGES, race_rounds=(5,)))
    patch.setattr(fit, "MOST_DRAWS", 2)


def local(patch: pytest.MonkeyPatch, **changes: int) -> None:
    """A tenth of the steps for PrismGP's neighbours, and a short race for the exact GP beside them."""
    for name in ("FEW", "MANY"):
        patch.setattr(local_fit, name, replace(getattr(local_fit, name), **{**LOCAL, **changes}))
    patch.setattr(local_fit, "EXACT_ROUNDS", (5,))


def defaults(patch: pytest.MonkeyPatch) -> None:
    """Small settings for regressors and transformers that are constructed without arguments.

    PrismGPRegressor takes parameters that are None from a table, which gets small values. NeighborGPRegressor and
    Reconfigurer hand their settings to one function, which is given no more than a few steps.
    """
    race(patch)
    local(patch, steps=4, searches=1)
    for recipe in DEFAULTS.values():
        for name, value in DEFAULT_PRISM.items():
            patch.setitem(recipe, name, value)
    _limit_steps(patch, neighbors, "fit_neighbors", position=2, field="max_iter")
    _limit_steps(patch, transformers, "fit_vae", position=1, field="max_steps")


def _limit_steps(patch: pytest.MonkeyPatch, module: Any, name: str, *, position: int, field: str) -> None:
    """Let a function get settings, the argument at this position, with few steps."""
    original = getattr(module, name)

    def fit_shortly(*args: Any) -> Any:
        settings = args[position]
        few = replace(settings, **{field: min(getattr(settings, field), MOST_STEPS[name])})
        return original(*args[:position], few, *args[position + 1 :])

    patch.setattr(module, name, fit_shortly)

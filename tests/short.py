"""Fewer iterations of what takes most of the time of a fit to few rows; for tests of something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prismgp.core import fit
from prismgp.prism import local_fit

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

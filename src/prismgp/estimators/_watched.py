"""Models as they are in the middle of a fit, for who observes it."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prismgp.core.evidence import BlockEvidence
from prismgp.core.exact import ExactEvidence
from prismgp.core.features import Gating
from prismgp.data import Source

if TYPE_CHECKING:
    from prismgp.estimators._exact import ExactGPRegressor
    from prismgp.estimators._ssgp import SSGPRegressor

__all__ = ["exact_at", "ssgp_at"]


def ssgp_at(model: SSGPRegressor, event: dict[str, Any], source: Source) -> SSGPRegressor:
    """The model on all rows at the parameters an iteration has reached; without gates before there are any."""
    twin, params, tried = copy(model), event["params"], event.get("objective")
    twin._gating = getattr(model, "_gating", Gating())
    if isinstance(tried, BlockEvidence):  # and not a small exact GP
        twin.frequencies_ = tried.frequencies if params.frequencies is None else params.frequencies
    params = replace(params, frequencies=None)
    twin._set_posterior(twin._objective(source).statistics(params), params)
    return twin


def exact_at(model: ExactGPRegressor, event: dict[str, Any], objective: ExactEvidence) -> ExactGPRegressor:
    """The model on all rows, those of the objective, at the parameters an iteration has reached."""
    twin = copy(model)
    twin._params, twin._fitted_kernel = event["params"], model.kernel
    twin._posterior, log_evidence, factors = objective.posterior(twin._params)
    twin._publish(log_evidence, objective.n_rows, factors)
    return twin

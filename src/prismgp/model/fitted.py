"""Models as a fit leaves them, in their own units: what predictions need, and nothing else.

The estimators hold one, and a model file gives one back without them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from prismgp._types import Array, Tensor
from prismgp.core.exact import ExactPosterior
from prismgp.core.features import Gating, projection, spectral_features
from prismgp.core.parameters import Parameters
from prismgp.core.posterior import BlockPosterior

__all__ = ["ExactModel", "FittedModel", "SpectralModel"]

_ROWS = 2_048


class FittedModel(Protocol):
    """What all of them do; the third is :class:`prismgp.prism.Mixture`."""

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Mean, variance of the function and noise variance, all (n, q)."""
        ...

    def covariance(self, x: Tensor) -> Tensor:
        """Of the function, (n, n, q)."""
        ...

    def prediction_rows(self, device: torch.device) -> int:
        """Rows to predict at a time, for memory's sake."""
        ...


@dataclass(frozen=True)
class ExactModel:
    """The full GP."""

    posterior: ExactPosterior

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        posterior = self.posterior.to(x.device)
        mean, spread = posterior.predict(x, variance=variance)
        return mean, spread, posterior.noise.to(mean).expand_as(mean)

    def covariance(self, x: Tensor) -> Tensor:
        return self.posterior.to(x.device).covariance(x)

    def prediction_rows(self, device: torch.device) -> int:  # noqa: ARG002
        return _ROWS


@dataclass(frozen=True)
class SpectralModel:
    """The sparse spectrum GP, with or without gates.

    Attributes
    ----------
    frequencies : ndarray, (p, d)
    params : Parameters
    gating : Gating
    posterior : BlockPosterior
    """

    frequencies: Array
    params: Parameters
    gating: Gating
    posterior: BlockPosterior

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features of rows, and the blocks they belong to under hard gates."""
        w = projection(self.frequencies, self.params.lengthscale, dtype=x.dtype, device=x.device)
        return self.gating.features(spectral_features(x, w), x)

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        mean, spread = self.posterior.to(x.device).predict(*self.features(x), variance=variance)
        return mean, spread, torch.as_tensor(self.params.noise).to(mean).expand_as(mean)

    def covariance(self, x: Tensor) -> Tensor:
        return self.posterior.to(x.device).covariance(*self.features(x))

    def prediction_rows(self, device: torch.device) -> int:  # noqa: ARG002
        return max(1, _ROWS // self.gating.widening)

    def to(self, device: torch.device) -> SpectralModel:
        return replace(self, posterior=self.posterior.to(device))

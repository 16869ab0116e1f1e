"""Feature maps: from standardised rows to features, and the statistics of rows under them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch

from prismgp._types import Array, Tensor
from prismgp.core.features import projection, spectral_features
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import record_gradients
from prismgp.core.statistics import Statistics, accumulate_features
from prismgp.prism.network import RevisedMap
from prismgp.vae import MixtureVAE, ReleasedVAE


class FeatureMap(Protocol):
    """Features of standardised rows, and the logarithms of their relative noise or None.

    For predictions, and for training: the two differ where the posterior does not know of the noise.
    """

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]: ...

    def training_features(self, x: Tensor) -> tuple[Tensor, Tensor | None]: ...

    def to(self, device: torch.device) -> Self: ...

    def to_float64(self) -> Self: ...


@dataclass(frozen=True)
class MapStatistics:
    """A pass: statistics of standardised rows and their targets under a feature map."""

    map: FeatureMap
    noise: float = 1.0  # s2, which known noise variances of rows are relative to

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> Statistics:  # noqa: ARG002
        return accumulate_features(((*self.map.training_features(x), y) for x, y in chunks), q, self.noise)

    def merge(self, first: Statistics, second: Statistics) -> Statistics:
        return first.merge(second)


@dataclass(frozen=True)
class PlainMap:
    """The plain SSGP: trigonometric features of the inputs themselves."""

    w: Tensor

    @classmethod
    def of(cls, frequencies: Array, params: Parameters, *, dtype: torch.dtype) -> PlainMap:
        return cls(projection(frequencies, params.lengthscale, dtype=dtype, device=torch.device("cpu")))

    def features(self, x: Tensor) -> tuple[Tensor, None]:
        return spectral_features(x.to(self.w.dtype), self.w), None

    training_features = features

    def to(self, device: torch.device) -> PlainMap:
        return PlainMap(self.w.to(device))

    def to_float64(self) -> PlainMap:
        return PlainMap(self.w.double())


@dataclass(frozen=True)
class InformedMap:
    """The plain SSGP, and noise that depends on the inputs as a trained network knows it.

    The posterior is the plain one, so that the predicted mean is too; only the noise of predictions differs, from
    row to row, ``level`` being the logarithm of its average.                                             (V6)
    """

    plain: PlainMap
    network: RevisedMap
    level: float

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        log_noise = self.network.relative_noise(x)
        return self.plain.features(x)[0], None if log_noise is None else log_noise - self.level

    def training_features(self, x: Tensor) -> tuple[Tensor, None]:
        return self.plain.features(x)

    def to(self, device: torch.device) -> InformedMap:
        return InformedMap(self.plain.to(device), self.network.to(device), self.level)

    def to_float64(self) -> InformedMap:
        return InformedMap(self.plain.to_float64(), self.network.to_float64(), self.level)


@dataclass(frozen=True)
class ReconfiguredMap:
    """Of the paper's and of the released recipe: trigonometric features of what an auto-encoder makes of the inputs."""

    vae: MixtureVAE | ReleasedVAE
    output: str
    shift: Tensor  # with scale: standardises the output, as the SSGP was fitted on it
    scale: Tensor
    plain: PlainMap

    def reconfigure(self, x: Tensor) -> Tensor:
        """The auto-encoder's output, in its own units, float64."""
        with record_gradients(x):
            z = self.vae.encode(x.double())
            return z if self.output == "latent" else self.vae.reconstruct(z)

    def features(self, x: Tensor) -> tuple[Tensor, None]:
        return self.plain.features((self.reconfigure(x) - self.shift) / self.scale)

    training_features = features

    def to(self, device: torch.device) -> ReconfiguredMap:
        return ReconfiguredMap(
            self.vae.to(device), self.output, self.shift.to(device), self.scale.to(device), self.plain.to(device)
        )

    def to_float64(self) -> ReconfiguredMap:
        return replace(self, vae=copy.deepcopy(self.vae).requires_grad_(False), plain=self.plain.to_float64())

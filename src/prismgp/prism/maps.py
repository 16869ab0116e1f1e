"""The feature maps of the experts: from standardised rows to features, and to the relative noise of the rows.

The map of a network (:class:`RevisedMap`): for a standardised input x, clipped to +-10 standard deviations,

- (V1) ``z = net(x * s)``: the latent input, L columns. The scale s of each input starts from the length-scales
  of a small exact GP, so that inputs which do not matter have small scales at the start;
- (V2) ``u = [z, x]``: the input of the GP. The inputs themselves skip the network, so a network that has
  nothing to add leaves a GP on the inputs;
- (V3) ``r_c(x) = sqrt(p(c | z))``, the prior's responsibilities: gates with ``sum_c r_c^2 = 1``. The features are
  ``r(x) (x) phi(u)``, their kernel is ``sum_c r_c(x) r_c(x') k_p(u, u')``: positive semi-definite, one on the
  diagonal, and the masked kernel of the corrected theorem when every row belongs to one cluster;
- (V4) ``noise variance of row x = s2 exp(h(x))``: h is a head of the network, zero at the start and bounded.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from prismgp._types import Array, Tensor
from prismgp.core.features import gated_features, projection, spectral_features
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import record_gradients
from prismgp.core.statistics import Statistics, accumulate_features
from prismgp.data import StandardisedRows
from prismgp.vae import MixturePrior, MixtureVAE, ReleasedVAE

_LARGEST_INPUT = 10.0  # standard deviations; a network extrapolates wildly beyond what it has seen
_INPUT_SCALES = (0.1, 3.0)  # limits of s at the start: no input is lost for good
_GATE_FLOOR = 1e-6  # keeps gates out of the denormal numbers, which slow products down tenfold
_NOISE_BOUND = 3.0  # of h: the noise of two rows differs by no more than a factor exp(6)
_FEATURE_BYTES = 64 * 2**20  # of the features of one chunk


class FeatureMap(Protocol):
    """Features of standardised rows, and the logarithms of their relative noise or None.

    ``training_features`` are for the posterior, ``features`` for predictions. They differ where predictions
    have noise that the posterior does not have.
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


def chunk_rows(width: int) -> int:
    """Rows whose features fill a fixed amount of memory."""
    return int(np.clip(_FEATURE_BYTES // (8 * width), 256, 1 << 15))


def collect_statistics(rows: StandardisedRows, feature_map: FeatureMap, params: Parameters, width: int) -> Statistics:
    """Statistics of all rows under a map with this number of features."""
    return rows.chunks_of(chunk_rows(width)).reduce(MapStatistics(feature_map, float(params.noise[0])))


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
class NetworkSizes:
    """The sizes of a network: shapes of all tensors, and which parts there are."""

    inputs: int  # d
    outputs: int  # q
    frequencies: int  # p
    latent: int  # L
    hidden: tuple[int, ...]  # neurons of the hidden layers
    components: int  # gates b, or 1 for none
    gating: str  # "soft", "hard" or "none"
    noise: str  # "constant" or "input": whether there is a head h (V4)

    @property
    def width(self) -> int:
        """The number of features."""
        return 2 * self.frequencies * (1 if self.gating == "none" else self.components)


class NetworkOutput(NamedTuple):
    """The output of the network for n rows."""

    latent: Tensor  # (n, L)
    phi: Tensor  # (n, 2p), before gating
    gates: Tensor | None  # (n, b)
    log_noise: Tensor | None  # h(x), (n,)

    def features(self) -> Tensor:
        return self.phi if self.gates is None else gated_features(self.phi, self.gates)


class RevisedMap(torch.nn.Module):
    """Network, prior and kernel parameters of one member.

    ``start`` has the kernel parameters of an exact GP on the inputs, or the user's; ``frequencies`` are (p, L + d).
    """

    frequencies: Tensor

    def __init__(
        self,
        sizes: NetworkSizes,
        start: Parameters,
        frequencies: Array,
        generator: torch.Generator,
        directions: Array | None = None,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        relevance = 1.0 / start.lengthscale
        scales = np.clip(relevance / np.sqrt(np.mean(relevance**2)), *_INPUT_SCALES)
        self.log_input_scale = _parameter(np.log(scales))
        widths = (sizes.inputs, *sizes.hidden)
        self.layers = torch.nn.ModuleList([_linear(fan_in, fan_out, generator) for fan_in, fan_out in pairwise(widths)])
        self.latent_head = _linear(widths[-1], sizes.latent, generator)
        self.noise_head = _linear(widths[-1], 1, None) if sizes.noise == "input" else None
        self.prior = MixturePrior(sizes.components, sizes.latent, radius=1.0, directions=directions)
        latent = np.full(sizes.latent, 0.5 * math.log(sizes.latent))
        self.log_lengthscale = _parameter(np.append(latent, start.log_lengthscale))
        self.log_signal = _parameter(start.log_signal)
        self.log_noise = _parameter(start.log_noise)
        self.mean = _parameter(start.mean)
        self.register_buffer("frequencies", torch.as_tensor(frequencies, dtype=torch.float32))

    def with_frequencies(self, frequencies: Array) -> RevisedMap:
        """A copy of the network with features of these frequencies, (p, L + d)."""
        network = copy.deepcopy(self)
        network.sizes = replace(self.sizes, frequencies=len(frequencies))
        network.frequencies = torch.as_tensor(frequencies).to(self.frequencies)
        return network

    def forward(self, x: Tensor, kept: Sequence[Tensor] = ()) -> NetworkOutput:
        """Encode standardised rows, (n, d); ``kept`` has factors on the values of the hidden layers, in training."""
        x = clip_inputs(x)
        h = self._hidden(x, kept)
        z = self.latent_head(h)
        phase = torch.cat([z, x], 1) @ (self.frequencies / self.log_lengthscale.exp()).T
        phi = torch.cat([phase.cos(), phase.sin()], 1) * len(self.frequencies) ** -0.5
        return NetworkOutput(z, phi, self._gates(z), self._noise(h))

    def latent(self, x: Tensor) -> Tensor:
        """Return the latent inputs z, (n, L), without computing the features."""
        with record_gradients(x):
            latent: Tensor = self.latent_head(self._hidden(clip_inputs(x.to(self.mean.dtype))))
            return latent

    def relative_noise(self, x: Tensor) -> Tensor | None:
        """Return h(x), (n,), without computing the features."""
        with record_gradients(x):
            return self._noise(self._hidden(clip_inputs(x.to(self.mean.dtype))))

    def _hidden(self, x: Tensor, kept: Sequence[Tensor] = ()) -> Tensor:
        h = x * self.log_input_scale.exp()
        for number, layer in enumerate(self.layers):
            h = F.silu(layer(h))
            if kept:
                h = h * kept[number]
        return h

    def _noise(self, h: Tensor) -> Tensor | None:
        """Compute (V4) from the last hidden layer."""
        if self.noise_head is None:
            return None
        return _NOISE_BOUND * torch.tanh(self.noise_head(h)[:, 0] / _NOISE_BOUND)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute features, (n, width), and logarithms of the rows' relative noise, see :class:`FeatureMap`."""
        with record_gradients(x):
            output = self(x.to(self.mean.dtype))
            return output.features(), output.log_noise

    training_features = features

    def to_float64(self) -> RevisedMap:
        """A copy in float64, whose own parameters need no gradients."""
        return copy.deepcopy(self).double().requires_grad_(False)

    def parameters_now(self) -> Parameters:
        """Return the kernel parameters in the form of the core, in the model's units."""
        values = (self.log_lengthscale, self.log_signal, self.log_noise, self.mean)
        return Parameters(*(value.detach().double().cpu().numpy().copy() for value in values))

    def _gates(self, z: Tensor) -> Tensor | None:
        if self.sizes.gating == "none":
            return None
        log_joint = self.prior.log_joint(z)
        if self.sizes.gating == "hard":
            return (log_joint.argmax(1, keepdim=True) == torch.arange(self.sizes.components, device=z.device)).to(z)
        responsibilities = torch.softmax(log_joint, 1)
        # Not as a product with 1 - 1e-6, which ONNX's optimiser takes for a product with one.
        return torch.sqrt(responsibilities + _GATE_FLOOR * (1.0 / self.sizes.components - responsibilities))


def clip_inputs(x: Tensor) -> Tensor:
    """Limit standardised inputs to the range the networks are used on."""
    # A clamp, which ONNX's optimiser spoils where several networks have the same inputs.
    return F.hardtanh(x, -_LARGEST_INPUT, _LARGEST_INPUT)


def _parameter(values: Array) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.as_tensor(np.asarray(values), dtype=torch.float32))


class _Linear(torch.nn.Linear):
    """A linear layer without initial values, which would come from torch's global generator."""

    def reset_parameters(self) -> None:
        pass  # torch's own skip_init imports sympy, which takes 36 MB


def _linear(fan_in: int, fan_out: int, generator: torch.Generator | None) -> torch.nn.Linear:
    """Make a linear layer, uniform within ``1 / sqrt(fan_in)``; without a generator it starts at zero."""
    layer = _Linear(fan_in, fan_out, dtype=torch.float32)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias):
            if generator is None:
                tensor.zero_()
            else:
                tensor.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
    return layer


@dataclass(frozen=True)
class InformedMap:
    """The plain SSGP, with noise that depends on the inputs as a trained network predicts it.

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
    """Trigonometric features of the output of an auto-encoder; for the paper's and the released recipe."""

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

"""The network of the revised SSGP: from inputs to gated trigonometric features and relative noise.

For a standardised input x, limited to +-10 standard deviations,

- (V1) ``z = net(x * s)``: the latent input, L columns. The scale s of each input starts from the length-scales
  of a small exact GP, so that inputs which do not matter start switched down;
- (V2) ``u = [z, x]``: what the GP sees. The inputs themselves skip the network, so a network that has
  nothing to add leaves a GP on the inputs;
- (V3) ``r_c(x) = sqrt(p(c | z))``, the prior's responsibilities: gates with ``sum_c r_c^2 = 1``. The features are
  ``r(x) (x) phi(u)``, their kernel is ``sum_c r_c(x) r_c(x') k_p(u, u')``: positive semi-definite, one on the
  diagonal, and the masked kernel of the corrected theorem when every row belongs to one cluster;
- (V4) ``noise variance of row x = s2 exp(h(x))``: h is a head of the network, zero at the start and bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from prismgp._types import Array, Tensor
from prismgp.core.features import gated_features
from prismgp.core.parameters import Parameters
from prismgp.vae import MixturePrior

__all__ = ["Encoded", "NetworkSizes", "RevisedMap", "limited"]

_FURTHEST = 10.0  # standard deviations; a network extrapolates wildly beyond what it has seen
_INPUT_SCALES = (0.1, 3.0)  # limits of s at the start: no input is lost for good
_GATE_FLOOR = 1e-6  # keeps gates out of the denormal numbers, which slow products down tenfold
_NOISE_BOUND = 3.0  # of h: the noise of two rows differs by no more than a factor exp(6)
_LOG_RANGE = (math.log(1e-6), math.log(300.0))  # of both variances, as in the core


@dataclass(frozen=True)
class NetworkSizes:
    """What fixes the shapes of all tensors, and which parts there are.

    Attributes
    ----------
    inputs, outputs, frequencies, latent : int
        d, q, p and L.
    hidden : tuple of int
        Neurons of the hidden layers.
    components : int
        Gates b, or 1 for none.
    gating : str
        "soft", "hard" or "none".
    noise : str
        "constant" or "input": whether there is a head h (V4).
    """

    inputs: int
    outputs: int
    frequencies: int
    latent: int
    hidden: tuple[int, ...]
    components: int
    gating: str
    noise: str

    @property
    def width(self) -> int:
        """Number of features."""
        return 2 * self.frequencies * (1 if self.gating == "none" else self.components)


class Encoded(NamedTuple):
    """What the network makes of n rows."""

    latent: Tensor  # (n, L)
    phi: Tensor  # (n, 2p), before gating
    gates: Tensor | None  # (n, b)
    log_noise: Tensor | None  # h(x), (n,)

    def features(self) -> Tensor:
        return self.phi if self.gates is None else gated_features(self.phi, self.gates)


class RevisedMap(torch.nn.Module):
    """Network, prior and kernel parameters of one member.

    Parameters
    ----------
    sizes : NetworkSizes
    start : Parameters
        Of an exact GP on the inputs, or the user's.
    frequencies : ndarray, (p, L + d)
    generator : torch.Generator
        Of the initial weights.
    directions : ndarray, (b, L), optional
        Of the prior's centres, where they are known.
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
        self.prior = MixturePrior(sizes.components, sizes.latent, radius=1.0, width=1.0, directions=directions)
        latent = np.full(sizes.latent, 0.5 * math.log(sizes.latent))
        self.log_lengthscale = _parameter(np.append(latent, start.log_lengthscale))
        self.log_signal = _parameter(start.log_signal)
        self.log_noise = _parameter(start.log_noise)
        self.mean = _parameter(start.mean)
        self.register_buffer("frequencies", torch.as_tensor(frequencies, dtype=torch.float32))

    def forward(self, x: Tensor, *, dropout: float = 0.0, generator: torch.Generator | None = None) -> Encoded:
        """Encode standardised rows, (n, d); ``dropout`` is the share of hidden values to drop, in training."""
        x = limited(x)
        h = self._hidden(x, dropout, generator)
        z = self.latent_head(h)
        phase = torch.cat([z, x], 1) @ (self.frequencies / self.log_lengthscale.exp()).T
        phi = torch.cat([phase.cos(), phase.sin()], 1) * len(self.frequencies) ** -0.5
        return Encoded(z, phi, self._gates(z), self._noise(h))

    def relative_noise(self, x: Tensor) -> Tensor | None:
        """h(x), (n,), alone: what :meth:`features` would say of the noise, without the features."""
        with torch.no_grad():
            return self._noise(self._hidden(limited(x.to(self.mean.dtype))))

    def _hidden(self, x: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        h = x * self.log_input_scale.exp()
        for layer in self.layers:
            h = F.silu(layer(h))
            if dropout:
                # Drawn on the CPU, so that a seed means the same on every device.
                kept = torch.rand(h.shape, generator=generator, dtype=torch.float32) >= dropout
                h = h * kept.to(h) / (1.0 - dropout)
        return h

    def _noise(self, h: Tensor) -> Tensor | None:
        """(V4) from the last hidden layer."""
        if self.noise_head is None:
            return None
        return _NOISE_BOUND * torch.tanh(self.noise_head(h)[:, 0] / _NOISE_BOUND)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features, (n, width), and logarithms of the rows' relative noise, as :class:`FeatureMap` wants them."""
        with torch.no_grad():
            encoded = self(x.to(self.mean.dtype))
            return encoded.features(), encoded.log_noise

    training_features = features

    @torch.no_grad()
    def limit(self) -> None:
        """Keep the variances in the range that factorisations resolve."""
        self.log_signal.clamp_(*_LOG_RANGE)
        self.log_noise.clamp_(*_LOG_RANGE)

    def parameters_now(self) -> Parameters:
        """Kernel parameters in the form of the core, in the model's units."""
        values = (self.log_lengthscale, self.log_signal, self.log_noise, self.mean)
        return Parameters(*(value.detach().double().cpu().numpy().copy() for value in values))

    def _gates(self, z: Tensor) -> Tensor | None:
        if self.sizes.gating == "none":
            return None
        log_joint = self.prior.log_joint(z)
        if self.sizes.gating == "hard":
            return F.one_hot(log_joint.argmax(1), self.sizes.components).to(z)
        responsibilities = torch.softmax(log_joint, 1)
        return torch.sqrt(responsibilities * (1.0 - _GATE_FLOOR) + _GATE_FLOOR / self.sizes.components)


def limited(x: Tensor) -> Tensor:
    """Standardised inputs as the networks see them."""
    return x.clamp(-_FURTHEST, _FURTHEST)


def _parameter(values: Array) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.as_tensor(np.asarray(values), dtype=torch.float32))


class _Linear(torch.nn.Linear):
    """Made without values: the usual ones would come from torch's global generator."""

    def reset_parameters(self) -> None:
        pass  # torch's own skip_init would import sympy, 36 MB of it


def _linear(fan_in: int, fan_out: int, generator: torch.Generator | None) -> torch.nn.Linear:
    """A linear layer, uniform within ``1 / sqrt(fan_in)``; without a generator it starts at zero."""
    layer = _Linear(fan_in, fan_out, dtype=torch.float32)
    with torch.no_grad():
        for tensor in (layer.weight, layer.bias):
            if generator is None:
                tensor.zero_()
            else:
                tensor.uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)
    return layer

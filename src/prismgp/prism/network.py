"""The network of the revised SSGP, and the log evidence of a mini-batch under its features.

For a standardised input x, clip_inputs to +-10 standard deviations,

- (V1) ``z = net(x * s)``: the latent input, L columns. The scale s of each input starts from the length-scales
  of a small exact GP, so that inputs which do not matter have small scales at the start;
- (V2) ``u = [z, x]``: the input of the GP. The inputs themselves skip the network, so a network that has
  nothing to add leaves a GP on the inputs;
- (V3) ``r_c(x) = sqrt(p(c | z))``, the prior's responsibilities: gates with ``sum_c r_c^2 = 1``. The features are
  ``r(x) (x) phi(u)``, their kernel is ``sum_c r_c(x) r_c(x') k_p(u, u')``: positive semi-definite, one on the
  diagonal, and the masked kernel of the corrected theorem when every row belongs to one cluster;
- (V4) ``noise variance of row x = s2 exp(h(x))``: h is a head of the network, zero at the start and bounded.

A batch of n rows with features phi, gates r, relative noise variances v and residuals r_k = y_k - m_k:

    log p(Y) = sum over outputs of  -1/2 log |A| - 1/2 rho'A^-1 rho - 1/2 sum log(2 pi s2 v)        (B1)
    A = I + (S / s2) B,   B = V^-1/2 K V^-1/2,   K = (r r') * (phi phi'),   rho = V^-1/2 r_k / s2^(1/2)

the same density as (E1), written with the n x n matrix: where a batch has no more rows than there are gated
features, the cost, O(n^3), does not depend on the number of frequencies. With ``beta = A^-1 rho``
and, summed over outputs, ``D = (S / s2) 1/2 (beta beta' - A^-1)``:

    d/d B = D,   d/d phi = 2 (D * r r') phi,   d/d r = 2 (D * phi phi') r,   d/d rho = -beta         (B2)

A batch of more rows is cheaper by its w gated features F = V^-1/2 (r (x) phi), O(n w^2):

    log |A| = log |M|,   M = I + (S / s2) F'F,   beta = rho - F g,   g = (S / s2) M^-1 F'rho         (B3)
    d/d F = beta g' - (S / s2) F M^-1                                                                (B4)

A, M and their factors are in float64, since they are ill-conditioned where the noise is low. The gradient is formed in
the forward pass and in the network's precision: at this size, touching memory costs as much as arithmetic.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name

from prismgp._types import Array, Tensor
from prismgp.core.features import gated_features
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import Factor, factor, record_gradients
from prismgp.core.row_noise import RowNoise
from prismgp.vae import MixturePrior

_LARGEST_INPUT = 10.0  # standard deviations; a network extrapolates wildly beyond what it has seen
_INPUT_SCALES = (0.1, 3.0)  # limits of s at the start: no input is lost for good
_GATE_FLOOR = 1e-6  # keeps gates out of the denormal numbers, which slow products down tenfold
_NOISE_BOUND = 3.0  # of h: the noise of two rows differs by no more than a factor exp(6)
_LOG_RANGE = (math.log(1e-6), math.log(300.0))  # of both variances, as in the core
_PRECISE = 3e4  # ratio of signal to noise variance above which the gradient, too, is formed in float64


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

    def forward(self, x: Tensor, *, dropout: float = 0.0, generator: torch.Generator | None = None) -> NetworkOutput:
        """Encode standardised rows, (n, d); ``dropout`` is the share of hidden values to drop, in training."""
        x = clip_inputs(x)
        h = self._hidden(x, dropout, generator)
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

    def precise(self) -> RevisedMap:
        """A copy in float64, whose own parameters need no gradients."""
        return copy.deepcopy(self).double().requires_grad_(False)

    @torch.no_grad()
    def limit(self) -> None:
        """Keep the variances in the range that factorisations resolve."""
        self.log_signal.clamp_(*_LOG_RANGE)
        self.log_noise.clamp_(*_LOG_RANGE)

    def parameters_now(self) -> Parameters:
        """Return the kernel parameters in the form of the core, in the model's units."""
        values = (self.log_lengthscale, self.log_signal, self.log_noise, self.mean)
        return Parameters(*(value.detach().double().cpu().numpy().copy() for value in values))

    def _gates(self, z: Tensor) -> Tensor | None:
        if self.sizes.gating == "none":
            return None
        log_joint = self.prior.log_joint(z)
        if self.sizes.gating == "hard":
            return F.one_hot(log_joint.argmax(1), self.sizes.components).to(z)
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


# -- the evidence of a batch -----------------------------------------------------------------------------


class _Density(torch.autograd.Function):
    """A scalar whose gradients are formed in the forward pass and saved there."""

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        (scale,) = outer
        return tuple(None if g is None else scale.to(g.dtype) * g for g in ctx.saved_tensors)


class _WhitenedDensity(_Density):
    """``sum_k -1/2 log |A_k| - 1/2 rho_k'A_k^-1 rho_k`` with the closed-form gradient (B2).

    Arguments: features with rows already divided by the roots of v, (n, 2p), and gates, (n, b), or None, in
    the network's precision; logarithms of S / s2, (q,), and rho, (n, q), in float64.
    """

    @staticmethod
    def forward(ctx: Any, phi: Tensor, gates: Tensor | None, log_ratio: Tensor, rho: Tensor) -> Tensor:
        phi64 = phi.double()
        inner = phi64 @ phi64.T
        outer = None if gates is None else gates.double() @ gates.double().T
        b = inner if outer is None else inner * outer
        value = rho.new_zeros(())
        total: Tensor | None = None
        grad_ratio = torch.zeros_like(log_ratio)
        grad_rho = torch.empty_like(rho)
        for k, ratio in enumerate(log_ratio.exp()):
            solved = _identity_plus(b, ratio)
            beta = solved.solve(rho[:, k : k + 1])
            quadratic = rho[:, k] @ beta[:, 0]
            value = value - 0.5 * (solved.logdet() + quadratic)
            inverse = _inverse(solved, ratio, phi.dtype)
            # <d/dA, A - I> without forming the product.
            grad_ratio[k] = 0.5 * (quadratic - beta.square().sum() - len(b) + inverse.diagonal().sum())
            grad_rho[:, k] = -beta[:, 0]
            half = 0.5 * float(ratio)
            column = beta.to(inverse.dtype)
            part = inverse.addmm_(column, column.T, beta=-half, alpha=half).to(phi.dtype)
            total = part if total is None else total.add_(part)
        assert total is not None
        grad_gates = None
        if gates is not None and outer is not None:
            grad_gates = 2.0 * (inner.to(phi.dtype).mul_(total) @ gates)
            total.mul_(outer.to(phi.dtype))
        ctx.save_for_backward(2.0 * (total @ phi), grad_gates, grad_ratio, grad_rho)
        return value


class _FeatureDensity(_Density):
    """The same value by (B3), with the gradient (B4).

    Arguments: features with rows already divided by the roots of v, (n, w), in the network's precision; logarithms
    of S / s2, (q,), and rho, (n, q), in float64.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, log_ratio: Tensor, rho: Tensor) -> Tensor:
        double = features.double()
        inner, projected = double.T @ double, double.T @ rho
        value = rho.new_zeros(())
        grad_features: Tensor | None = None
        grad_ratio = torch.zeros_like(log_ratio)
        grad_rho = torch.empty_like(rho)
        for k, ratio in enumerate(log_ratio.exp()):
            solved = _identity_plus(inner, ratio)
            weights = ratio * solved.solve(projected[:, k : k + 1])
            beta = rho[:, k : k + 1] - double @ weights
            quadratic = rho[:, k] @ beta[:, 0]
            value = value - 0.5 * (solved.logdet() + quadratic)
            inverse = _inverse(solved, ratio, features.dtype)
            # As above: n less the trace of A's inverse is w less that of M's.
            grad_ratio[k] = 0.5 * (quadratic - beta.square().sum() - len(inner) + inverse.diagonal().sum())
            grad_rho[:, k] = -beta[:, 0]
            outer = (beta @ weights.T).to(inverse.dtype)
            part = outer.addmm_(features.to(inverse.dtype), inverse, alpha=-float(ratio)).to(features.dtype)
            grad_features = part if grad_features is None else grad_features.add_(part)
        ctx.save_for_backward(grad_features, grad_ratio, grad_rho)
        return value


def batch_log_evidence(
    member: RevisedMap, output: NetworkOutput, y: Tensor, row_noise: RowNoise | None = None
) -> Tensor:
    """Compute (B1) from the network's output for rows and their targets, (n, q); a float64 scalar to differentiate.

    Rows may differ in their noise (W1), beside what the network says of it.
    """
    log_signal, log_noise = member.log_signal.double(), member.log_noise.double()
    phi = output.phi
    rho = (y.double() - member.mean.double()) * torch.exp(-0.5 * log_noise)
    constant = -0.5 * len(y) * (math.log(2.0 * math.pi) + log_noise).sum()
    if row_noise is not None:
        log_relative = row_noise.log_relative(log_noise[0].exp(), output.log_noise)
        root = torch.exp(-0.5 * log_relative)[:, None]
        phi, rho = phi * root.to(phi), rho * root
        constant = constant - 0.5 * y.shape[1] * log_relative.sum()
    elif output.log_noise is not None:
        root = torch.exp(-0.5 * output.log_noise)[:, None]
        phi, rho = phi * root, rho * root
        constant = constant - 0.5 * y.shape[1] * output.log_noise.double().sum()
    log_ratio = log_signal - log_noise
    density: Tensor
    if len(y) <= member.sizes.width:
        density = _WhitenedDensity.apply(phi, output.gates, log_ratio, rho)  # type: ignore[no-untyped-call]
    else:
        features = output._replace(phi=phi).features()
        density = _FeatureDensity.apply(features, log_ratio, rho)  # type: ignore[no-untyped-call]
    return density + constant


def _identity_plus(products: Tensor, ratio: float | Tensor) -> Factor:
    """Factorise ``I + ratio products``, float64."""
    matrix = products * ratio
    matrix.diagonal().add_(1.0)
    return factor(matrix)


def _inverse(solved: Factor, ratio: Tensor, dtype: torch.dtype) -> Tensor:
    """Invert the factored matrix, for a gradient.

    The factor has half the digits of the matrix's condition: its inverse may be in the network's precision, unless the
    noise is very low.
    """
    return torch.cholesky_inverse(solved.lower.to(dtype if ratio < _PRECISE else torch.float64))


def batch_predict(
    params: Parameters, context: NetworkOutput, y: Tensor, rows: NetworkOutput, row_noise: RowNoise | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance of the function and noise variance at other rows, given the rows of a batch; all (m, q) float64.

    The same posterior as that of the features' weights. O(n^3), whatever the number of features. ``row_noise`` is that
    of the rows of the batch, where they differ.
    """
    inner, cross = _kernel(context, context), _kernel(rows, context)
    root = None if context.log_noise is None else torch.exp(-0.5 * context.log_noise.double())
    if row_noise is not None:
        root = torch.exp(-0.5 * row_noise.log_relative(float(params.noise[0]), context.log_noise))
    if root is not None:
        inner, cross = inner * (root[:, None] * root), cross * root
    means, variances, noises = [], [], []
    for k in range(y.shape[1]):
        signal, noise, mean = float(params.signal[k]), float(params.noise[k]), float(params.mean[k])
        ratio = signal / noise
        solved = _identity_plus(inner, ratio)
        residual = y[:, k : k + 1].double() - mean
        whitened = residual if root is None else residual * root[:, None]
        means.append(mean + ratio * (cross @ solved.solve(whitened))[:, 0])
        share = 1.0 - ratio * solved.half_solve(cross.T).square().sum(0)
        variances.append(signal * share.clamp_min(0.0))
        level = torch.full_like(means[-1], noise)
        noises.append(level if rows.log_noise is None else level * rows.log_noise.double().exp())
    return torch.stack(means, 1), torch.stack(variances, 1), torch.stack(noises, 1)


def _kernel(rows: NetworkOutput, columns: NetworkOutput) -> Tensor:
    """``(r r') * (phi phi')``, float64."""
    kernel = rows.phi.double() @ columns.phi.double().T
    if rows.gates is None or columns.gates is None:
        return kernel
    return kernel * (rows.gates.double() @ columns.gates.double().T)

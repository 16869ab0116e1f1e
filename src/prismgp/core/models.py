"""Fitted models in their own units, standardised inputs and targets, and what they predict: normal distributions.

Every kind of model is a :class:`Predictor`; the sparse spectrum GP is the one here.

The density, distribution function and quantiles of the normal distribution on tensors are written down here and nowhere
else, and so are those of mixtures of normal distributions. On arrays, :class:`prismgp.core.shape.NormalShape` is one of
the shapes of the noise, and stacking has a form with one logarithm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from statistics import NormalDist
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.evidence import BlockEvidence
from prismgp.core.features import (
    BlockPosterior,
    Gating,
    WeightPosterior,
    limit_inputs,
    projection,
    spectral_features,
)
from prismgp.core.gating import GateLabels
from prismgp.core.kernels import Parameters
from prismgp.core.numerics import Factor
from prismgp.core.process import Functions, Joint, Process
from prismgp.core.rows import Rows
from prismgp.core.statistics import Statistics, solve_outputs
from prismgp.exceptions import DataError

IGNORE = 1e20  # scale of an input that never varied, in units of its magnitude
PREDICTION_ROWS = 2_048
# Most rows of a chunk, and bytes of its features: a processor's cache holds them, and few do not keep a GPU busy.
_CHUNKS = {"cpu": (PREDICTION_ROWS, 2**22), "cuda": (2**15, 2**28)}
_MOST_DEVIATIONS = 1e30  # of a standardised value in float32
_STANDARD = NormalDist()
_ACCURACY = 1e-9  # of the last step of Newton's method, in the smallest standard deviation; its error is far less
_MOST_STEPS = 200
_HALVE_EVERY = 3  # steps; of the others, those of Newton's method that stay in the bracket are taken


# -- units -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standardiser:
    """Column-wise affine maps between the user's units and the model's, ``(value - shift) / scale``.

    In the model's units every column has a spread of one, so starting values and bounds need not depend on the data.
    """

    x_shift: Array  # (d,)
    x_scale: Array  # (d,)
    y_shift: Array  # (q,)
    y_scale: Array  # (q,)
    fixed_mean: Array  # (q,), the constant mean, in the model's units, when it is neither learned nor given

    @property
    def constant_inputs(self) -> npt.NDArray[np.bool_]:
        """Which inputs did not vary in training, except in a few rows at most, (d,)."""
        return self.x_scale >= IGNORE * magnitude(self.x_shift)

    def target_units(self, n_noise: int) -> tuple[Array, Array]:
        """Shift and scale of the targets and of the noise columns behind them; variances have the targets' square."""
        if not n_noise:
            return self.y_shift, self.y_scale
        scale = [self.y_scale, np.ones(1), self.y_scale[: n_noise - 1] ** 2]
        return np.append(self.y_shift, np.zeros(n_noise)), np.concatenate(scale)


def magnitude(mean: Array) -> Array:
    """Absolute values, and one for zero."""
    return np.where(mean != 0, np.abs(mean), 1.0)


def standardise(
    block: AnyArray | Tensor, shift: Array, scale: Array, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """``(block - shift) / scale`` on the device, computed in float64 and rounded once; differentiable for a tensor."""
    if isinstance(block, torch.Tensor):
        tensor = block
    else:
        # A copy only where torch cannot alias the memory: read-only or byte-swapped arrays, negative strides.
        ready = block if _is_torch_ready(block) else block.astype(block.dtype.newbyteorder("="), order="C")
        tensor = torch.from_numpy(ready)
    # Contiguous, so that the result does not depend on the memory order of the user's array.
    tensor = tensor.to(device, non_blocking=True).contiguous()
    moved = (torch.as_tensor(each, dtype=torch.float64, device=device) for each in (shift, scale))
    return standardise_tensor(tensor, *moved, dtype=dtype)


def standardise_tensor(x: Tensor, shift: Tensor, scale: Tensor, *, dtype: torch.dtype) -> Tensor:
    """The same for tensors on one device."""
    shifted = x.double() - shift
    shifted.div_(scale)
    if dtype == torch.float32:
        shifted.clamp_(-_MOST_DEVIATIONS, _MOST_DEVIATIONS)  # beyond, products overflow to infinity and cosines to NaN
    return shifted.to(dtype)


def _is_torch_ready(block: AnyArray) -> bool:
    return (
        block.flags.writeable
        and block.dtype.isnative
        and all(stride >= 0 and stride % block.itemsize == 0 for stride in block.strides)
    )


# -- distributions ---------------------------------------------------------------------------------


def normal_log_density(y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Log density of y under N(mean, variance), entry by entry."""
    return -0.5 * ((y - mean).square() / variance + variance.log() + math.log(2.0 * math.pi))


def normal_cdf(z: Array) -> Array:
    """Distribution function of the standard normal, entry by entry."""
    found: Array = _cdf(torch.from_numpy(np.ascontiguousarray(z))).numpy()
    return found


def _cdf(z: Tensor) -> Tensor:
    # torch.special.ndtr has lost all digits at -9.
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z)


def normal_quantile(level: float) -> float:
    """Quantile of the standard normal."""
    return _STANDARD.inv_cdf(level)


def central_levels(coverage: Any) -> list[float]:
    """Return the probabilities at the ends of a central interval."""
    real = isinstance(coverage, Real) and not isinstance(coverage, bool)
    if not real or not 0.0 < coverage < 1.0:
        raise DataError(f"coverage={coverage!r:.80} must be a number between 0 and 1, such as 0.95")
    half = 0.5 * float(coverage)
    if 0.5 + half >= 1.0:
        raise DataError(f"coverage={coverage!r:.80} is 1 up to rounding: the interval would be infinite")
    return [0.5 - half, 0.5 + half]


@dataclass(frozen=True)
class Marginals:
    """The distribution of every output of every row: a mixture of K normal distributions with common weights (Z1).

    Functions of y work output by output; those of several outputs are not independent if K > 1.
    """

    mean: Tensor  # (n, q)
    variance: Tensor  # (n, q)
    weights: Tensor  # (K,)
    centers: Tensor  # (K, n, q)
    variances: Tensor  # (K, n, q)

    @classmethod
    def normal(cls, mean: Tensor, variance: Tensor) -> Marginals:
        """One normal distribution."""
        return cls(mean, variance, mean.new_ones(1), mean[None], variance[None])

    @property
    def is_normal(self) -> bool:
        return len(self.weights) == 1

    def log_density(self, y: Tensor) -> Tensor:
        """Log density of y, (n, q), entry by entry (Z1)."""
        logs = normal_log_density(y, self.centers, self.variances)
        return torch.logsumexp(logs + self.weights.log()[:, None, None], 0)

    def quantiles(self, levels: Sequence[float]) -> Tensor:
        """Quantiles at levels between 0 and 1, (n, q, len(levels)).

        A quantile of a mixture lies between the smallest and the largest of its parts' quantiles. In there Newton's
        method finds it, with bisection where a step would leave, and every third time. An entry that has converged is
        left alone, so that it does not depend on the rows it is computed with.
        """
        z = torch.tensor([normal_quantile(level) for level in levels], dtype=torch.float64).to(self.mean)
        centers, roots = self.centers[..., None], self.variances.sqrt()[..., None]
        parts = centers + roots * z
        low, high = parts.amin(0), parts.amax(0)
        if self.is_normal:
            return low
        # Of the nearer tail, in which small probabilities keep their digits.
        sign = torch.where(z > 0, -torch.ones_like(z), torch.ones_like(z))
        tail = _cdf(sign * z)
        tolerance = _ACCURACY * roots.amin(0)
        found = 0.5 * (low + high)
        done = high - low <= tolerance
        for step in range(_MOST_STEPS):
            if bool(done.all()):
                break
            away = (found - centers) / roots
            excess = sign * (torch.tensordot(self.weights, _cdf(sign * away), 1) - tail)
            slope = torch.tensordot(self.weights, torch.exp(-0.5 * away.square()) / roots, 1) / math.sqrt(2.0 * math.pi)
            low, high = torch.where(excess > 0, low, found), torch.where(excess > 0, found, high)
            newton = found - excess / slope
            middle = 0.5 * (low + high)
            take = (newton >= low) & (newton <= high)  # false for NaN
            near = take & ((newton - found).abs() <= tolerance)
            if step % _HALVE_EVERY == _HALVE_EVERY - 1:
                take = near
            found = torch.where(done, found, torch.where(take, newton, middle))
            done = done | near | (high - low <= tolerance)
        return found


# -- models ----------------------------------------------------------------------------------------


def rows_to_predict(width: int, device: torch.device) -> int:
    """Rows of this many features for one chunk: a power of two, which divides larger ones that others may use."""
    most_rows, most_bytes = _CHUNKS[device.type]
    most = min(max(most_bytes // (8 * width), 64), most_rows)
    return 1 << (most.bit_length() - 1)


class Predictor(ABC):
    """A fitted model in its own units."""

    params: Parameters
    log_evidence: float
    factors: tuple[Factor, ...]  # how the factorisations went
    limits: Tensor | None = None  # of the inputs, (2, d), see :mod:`prismgp.core.features`

    @property
    @abstractmethod
    def n_rows(self) -> int:
        """Rows behind the posterior."""

    @abstractmethod
    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        """Mean, variance of the function (None unless asked for) and noise variance, all (..., n, q)."""

    @abstractmethod
    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the function, (..., n, n, q)."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the posterior, which take rows, (n, d), and return values, (n, q, count)."""

    def sample(self, chunks: Iterable[Tensor], count: int, rng: np.random.Generator) -> Array:
        """Functions drawn from the posterior at all rows of the chunks, (n, q, count)."""
        functions = self.draw(count, rng)
        return np.concatenate([functions(x).cpu().numpy() for x in chunks])

    def joint(self, x: Tensor) -> Joint:
        """Mean, (..., n, q), covariance of the function, (..., n, n, q), and noise variance, (..., n, q)."""
        mean, _, noise = self.predict(x, variance=False)
        return mean, self.covariance(x), noise

    @abstractmethod
    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> Process:
        """The process given more targets, see :class:`prismgp.core.process.Process`."""

    def to_float64(self) -> Self:
        """The same model with networks in float64, whose weights need no gradients: for derivatives by the inputs."""
        return self

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """The same model on another device."""

    def prediction_rows(self, device: torch.device) -> int:  # noqa: ARG002
        """Rows to predict at a time, to bound the memory."""
        return PREDICTION_ROWS

    def marginals(self, x: Tensor, *, include_noise: bool = True) -> Marginals:
        """The distribution of a new observation, or without noise of the function, output by output."""
        mean, variance, noise = self.predict(x, variance=True)
        assert variance is not None
        return Marginals.normal(mean, variance + noise if include_noise else variance)

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Log density of targets y, (n, q), summed over outputs: (n,)."""
        return self.marginals(x).log_density(y).sum(1)

    def update(self, rows: Rows) -> Self:  # noqa: ARG002
        """The model that knows more rows, at the same parameters."""
        raise TypeError(f"{type(self).__name__} cannot take more rows")

    def status(self) -> dict[str, Any]:
        """What ``fit_status_`` says about the model."""
        return {}

    @property
    def frequencies(self) -> Array | None:
        """Base frequencies, (p, inputs of the kernel), before division by the length-scales."""
        return None

    @property
    def noise_level(self) -> Array:
        """Noise variance, (q,); before factors that depend on the inputs."""
        return self.params.noise

    def kernel_input_scale(self, input_scale: Array) -> Array:
        """Units of the kernel's inputs, given those of the model's inputs, (d,)."""
        return input_scale


def drop_matrices(factors: list[Factor]) -> tuple[Factor, ...]:
    """How the factorisations went; the matrices themselves are in the posterior."""
    return tuple(replace(each, lower=torch.empty(0)) for each in factors)


@dataclass(frozen=True)
class SpectralModel(Predictor):
    """The fitted sparse spectrum GP, with or without gates."""

    base: Array  # frequencies before division by the length-scales, (p, d)
    params: Parameters
    gating: Gating
    blocks: tuple[Statistics, ...]  # of each independent block: of each cluster under hard gates, else of all rows
    posterior: BlockPosterior
    log_evidence: float
    factors: tuple[Factor, ...]
    limits: Tensor | None = None

    @classmethod
    def solve(
        cls,
        base: Array,
        params: Parameters,
        gating: Gating,
        blocks: tuple[Statistics, ...],
        *,
        device: torch.device,
        limits: Tensor | None = None,
    ) -> SpectralModel:
        """The model whose posterior these statistics give, of rows with these limits."""
        solved = [solve_outputs(block, params) for block in blocks]
        posterior = BlockPosterior(tuple(WeightPosterior.from_evidence(each, device=device) for each in solved))
        outputs = [out for block in solved for out in block]
        log_evidence = sum(out.log_evidence for out in outputs)
        factors = drop_matrices([out.factor for out in outputs])
        return cls(base, params, gating, blocks, posterior, log_evidence, factors, limits)

    @property
    def n_rows(self) -> int:
        return sum(block.n for block in self.blocks)

    @property
    def frequencies(self) -> Array:
        return self.base

    def status(self) -> dict[str, Any]:
        if self.gating.gate is None:
            return {}
        rows = {"rows": [block.n for block in self.blocks]} if self.gating.kind == "hard" else {}
        return {"gating": {**self.gating.about, **rows}}

    def projection(self, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """``W``, (d, p)."""
        return projection(self.base, self.params.lengthscale, dtype=dtype, device=device)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Features of rows, (..., n, d), and the blocks they belong to under hard gates."""
        rows = limit_inputs(x.reshape(-1, x.shape[-1]), self.limits)
        phi = spectral_features(rows, self.projection(dtype=x.dtype, device=x.device))
        phi, block = self.gating.features(phi, rows)
        return phi.reshape(*x.shape[:-1], -1), None if block is None else block.reshape(x.shape[:-1])

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        mean, spread = self.posterior.to(x.device).predict(*self.features(x), variance=variance)
        return mean, spread, torch.as_tensor(self.params.noise).to(mean).expand_as(mean)

    def covariance(self, x: Tensor) -> Tensor:
        return self.posterior.to(x.device).covariance(*self.features(x))

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> SpectralModel:
        """The same as :meth:`update`, in batches, except that statistics and evidence stay those of the fit."""
        noise = torch.as_tensor(self.params.noise).to(y) if noise is None else noise
        phi, block = self.features(x)
        return replace(self, posterior=self.posterior.condition(phi, block, y, noise))

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        weights = self.posterior.draw_weights(count, rng)
        return lambda x: self.posterior.functions(*self.features(x), weights)

    def prediction_rows(self, device: torch.device) -> int:
        if device.type == "cuda":
            return rows_to_predict(2 * len(self.base) * self.gating.widening, device)
        return max(1, PREDICTION_ROWS // self.gating.widening)

    def to(self, device: torch.device) -> SpectralModel:
        limits = None if self.limits is None else self.limits.to(device)
        return replace(self, posterior=self.posterior.to(device), limits=limits)

    def update(self, rows: Rows) -> SpectralModel:
        more = spectral_objective(rows.limit(self.limits), self.base, self.gating).statistics(self.params)
        both = tuple(old.merge(new) for old, new in zip(self.blocks, more, strict=True))
        return SpectralModel.solve(self.base, self.params, self.gating, both, device=rows.device, limits=self.limits)


def spectral_objective(
    rows: Rows, base: Array, gating: Gating, kind: type[BlockEvidence] = BlockEvidence
) -> BlockEvidence:
    """The log evidence of all rows as a function of the parameters.

    Hard gates connect only the rows of each cluster, which is given by their labels or else by the rule.
    """
    p = len(base) * gating.widening
    if gating.gate is None or gating.kind == "soft":
        return kind([rows.chunks(p)], base, gating.soft)
    labels = rows.chunks(p).reduce(GateLabels(gating.gate)) if rows.labels is None else rows.labels
    return kind([part.chunks(p) for part in rows.split(labels, gating.gate.n_clusters)], base)

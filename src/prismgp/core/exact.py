"""The full GP: evidence, gradient and prediction by Cholesky, in float64.

Rows that differ in their noise (W1) are divided by the roots of V: then ``A = I + c V^-1/2 R V^-1/2``.

With ``R`` the unit-variance kernel matrix, ``c = S / s2`` and ``A = I + c R``, one output has
``Q = s2 A`` and ``alpha = Q^-1 (y - m)`` (paper, equations 2 and 3). The gradient with respect to
the length-scales uses ``sum_uv B_uv (a_uj - a_vj)^2 = 2 sum_u a_uj^2 (B 1)_u - 2 sum_u a_uj (B a)_uj``
for symmetric B, so no (n, n, d) array exists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from prismgp._system import available_bytes, format_bytes
from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.features import spectral_features
from prismgp.core.kernels import Kernel, Parameters, draw_frequencies, squared_distance
from prismgp.core.models import Predictor, drop_matrices
from prismgp.core.numerics import Factor, factor, raise_diagonal
from prismgp.core.process import ConditionedProcess, Functions
from prismgp.core.rows import RowNoise, Rows
from prismgp.exceptions import TooLargeError

_GROUPED_ROWS = 20  # among fewer, numbers may look like indicators
PRIOR_FREQUENCIES = 1_024  # of functions drawn from the prior
_MATRICES = 8  # n x n float64 matrices alive at the peak of an evaluation, temporaries included
_SMALL_ROWS = 700  # 20 ms of one thread, as of a small evidence of few frequencies
_ROUNDING = 1e-9  # of the squares of a factor's row, generously
_VARIANCE_FLOOR = 1e-12  # share of the prior variance; below it the subtraction has no digits left


def draw_prior(w: Tensor, signal: Tensor, streams: Sequence[np.random.Generator]) -> Functions:
    """Functions of a GP of mean zero by spectral features: rows, (n, d), to values, (n, q, s), one of each stream.

    ``w`` is the projection, (d, p); ``signal`` the variances, (q,).
    """
    normal = np.stack([each.standard_normal((2 * w.shape[1], len(signal))) for each in streams], 2)
    weights = torch.as_tensor(normal).to(w) * signal.sqrt()[:, None]

    def functions(x: Tensor) -> Tensor:
        values: Tensor = torch.tensordot(spectral_features(x, w), weights, 1)
        return values

    return functions


def required_bytes(n: int, q: int = 1) -> int:
    """Peak memory of an exact fit; every further output keeps a factor of its own."""
    return (_MATRICES + q - 1) * n * n * 8


def check_memory(n: int, q: int, device: torch.device) -> None:
    """Refuse before allocating when the kernel matrices would not fit."""
    needed, there = required_bytes(n, q), available_bytes(device)
    if needed > 0.9 * there:
        raise TooLargeError(
            f"an exact GP on {n:,} rows needs about {format_bytes(needed)} ({needed:,} bytes) of memory, "
            f"{format_bytes(there)} are available on {device}; use SSGPRegressor, whose memory does not grow "
            f"with the rows, or fit on at most {int(math.sqrt(0.9 * there / (8 * (_MATRICES + q - 1)))):,} rows"
        )


@dataclass(frozen=True)
class _Solved:
    """One output at given parameters."""

    factor: Factor
    alpha: Tensor
    log_evidence: float
    roots: Tensor | None  # of V, (n,), where rows differ in their noise


class ExactEvidence:
    """The log evidence of the full GP on rows x, (n, d), and targets y, (n, q), both float64."""

    def __init__(self, x: Tensor, y: Tensor, kernel: Kernel, row_noise: RowNoise | None = None) -> None:
        self.x, self.y, self.kernel, self.row_noise = x, y, kernel, row_noise
        self.n_rows = len(x)

    @classmethod
    def of(cls, rows: Rows, kernel: Kernel) -> ExactEvidence:
        """On a small set of rows."""
        return cls(*rows.tensors(), kernel, rows.noise())

    @property
    def work(self) -> float:
        """What an evaluation costs, in arbitrary units."""
        return float(self.n_rows) ** 3

    @property
    def small(self) -> bool:
        """Whether an evaluation is best computed on one thread."""
        return self.n_rows <= _SMALL_ROWS

    def _scale_inputs(self, params: Parameters) -> Tensor:
        return self.x / torch.as_tensor(params.lengthscale).to(self.x)

    def _solve(self, r: Tensor, params: Parameters, k: int) -> _Solved:
        noise = float(params.noise[k])
        a = r * (float(params.signal[k]) / noise)
        const, roots = self.n_rows * math.log(2.0 * math.pi * noise), None
        residual = self.y[:, k : k + 1] - float(params.mean[k])
        if self.row_noise is not None:
            log_relative = self.row_noise.log_relative(noise)
            roots = torch.exp(0.5 * log_relative)
            a.div_(roots[:, None]).div_(roots)
            const += float(log_relative.sum())
        a.diagonal().add_(1.0)
        fac = factor(a)
        if roots is None:
            alpha = fac.solve(residual) / noise
        else:
            alpha = fac.solve(residual / roots[:, None]) / (noise * roots[:, None])
        quad = float((residual * alpha).sum())
        return _Solved(fac, alpha[:, 0], -0.5 * (const + float(fac.logdet()) + quad), roots)

    def value(self, params: Parameters) -> float:
        """Log evidence, summed over the outputs."""
        r = self.kernel.value(squared_distance(self._scale_inputs(params)))
        return sum(self._solve(r, params, k).log_evidence for k in range(self.y.shape[1]))

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        """Log evidence and its gradient; O(n^3) time, O(n^2) memory."""
        a = self._scale_inputs(params)
        a = a - a.mean(0)
        s = squared_distance(a)
        r = self.kernel.value(s)
        slope = self.kernel.slope(s)
        del s
        q = self.y.shape[1]
        value = 0.0
        grads: tuple[Array, Array, Array] = (np.zeros(q), np.zeros(q), np.zeros(q))
        pull = torch.zeros_like(a[0])
        for k in range(q):
            solved = self._solve(r, params, k)
            signal, noise = float(params.signal[k]), float(params.noise[k])
            inverse = solved.factor.inverse()
            trace = float(inverse.diagonal().sum())
            alpha = solved.alpha
            value += solved.log_evidence
            grads[0][k] = 0.5 * (signal * float(alpha @ (r @ alpha)) - self.n_rows + trace)
            grads[1][k] = self._noise_gradient(solved, inverse.diagonal(), noise)
            grads[2][k] = float(alpha.sum())
            if solved.roots is not None:
                inverse.div_(solved.roots[:, None]).div_(solved.roots)
            # B = S (alpha alpha' - Q^-1) * dk/ds; dK/d log lengthscale_j = -2 S dk/ds s_j.
            b = inverse.mul_(-1.0 / noise).addr_(alpha, alpha).mul_(slope).mul_(signal)
            pull -= 2.0 * ((a.square() * b.sum(1)[:, None]).sum(0) - (a * (b @ a)).sum(0))
        return value, Parameters(pull.cpu().numpy(), *grads)

    def _noise_gradient(self, solved: _Solved, inverse: Tensor, noise: float) -> float:
        """(W2), with the diagonal of A's inverse, ``(Q^-1)_ii D_i``."""
        alpha = solved.alpha
        if self.row_noise is None or solved.roots is None:
            return 0.5 * (noise * float(alpha @ alpha) - float(inverse.sum()))
        fits = noise * (alpha * solved.roots).square()
        return 0.5 * float(((fits - inverse) * torch.exp(-self.row_noise.log_level(noise))).sum())

    def posterior(self, params: Parameters) -> tuple[ExactPosterior, float, list[Factor]]:
        """The posterior, the log evidence, and the factors with their jitter."""
        r = self.kernel.value(squared_distance(self._scale_inputs(params)))
        solved = [self._solve(r, params, k) for k in range(self.y.shape[1])]
        # Of V + (S / s2) R, so that rows to predict need not be divided by anything.
        lower = torch.stack(
            [out.factor.lower if out.roots is None else out.roots[:, None] * out.factor.lower for out in solved]
        )
        alpha = torch.stack([out.alpha for out in solved], dim=1)
        posterior = ExactPosterior.at(params, self.x, lower, alpha, self.kernel)
        return posterior, sum(out.log_evidence for out in solved), [out.factor for out in solved]


@dataclass(frozen=True)
class ExactPosterior:
    """What the full GP needs to predict: the inputs, the factors of ``V + (S / s2) R``, and alpha."""

    kernel: Kernel
    x: Tensor  # (n, d)
    lower: Tensor  # (q, n, n)
    alpha: Tensor  # (n, q)
    lengthscale: Tensor  # (d,)
    signal: Tensor  # (q,), and so are the next two
    noise: Tensor
    mean: Tensor

    @classmethod
    def at(cls, params: Parameters, x: Tensor, lower: Tensor, alpha: Tensor, kernel: Kernel) -> ExactPosterior:
        """The posterior at given parameters."""
        vectors = (params.lengthscale, params.signal, params.noise, params.mean)
        return cls(kernel, x, lower, alpha, *(torch.as_tensor(each).to(x) for each in vectors))

    def to(self, device: torch.device) -> ExactPosterior:
        """The same posterior on another device."""
        tensors = (self.x, self.lower, self.alpha, self.lengthscale, self.signal, self.noise, self.mean)
        return ExactPosterior(self.kernel, *(each.to(device) for each in tensors))

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the posterior, which take rows, (m, d), and return values, (m, q, count).

        Pathwise conditioning (Wilson et al. 2020) of functions drawn from the prior by spectral features:
        ``g(x) + k(x, X) Q^-1 (y - g(X) - noise)``, noise drawn once for every row.                              (C5)
        """
        base = draw_frequencies(self.kernel, PRIOR_FREQUENCIES, self.x.shape[1], "iid", rng)
        streams = rng.spawn(count)
        w = torch.as_tensor(base.T.copy()).to(self.x) / self.lengthscale[:, None]
        prior = draw_prior(w, self.signal, streams)
        normal = np.stack([each.standard_normal(tuple(self.alpha.shape)) for each in streams], 2)
        root = (self.noise * self._relative_noise()).sqrt()[:, :, None]
        known = prior(self.x) + root * torch.as_tensor(normal).to(self.x)
        solved = torch.stack([torch.cholesky_solve(known[:, k], lower) for k, lower in enumerate(self.lower)], 1)
        weights = self.signal[:, None] * (self.alpha[:, :, None] - solved / self.noise[:, None])

        def functions(x: Tensor) -> Tensor:
            values: Tensor = torch.tensordot(self._cross(x).T, weights, 1)
            return self.mean[:, None] + prior(x) + values

        return functions

    def _relative_noise(self) -> Tensor:
        """V of the rows, (n, q), from the factors' rows, whose squares add up to ``V + S / s2``."""
        ratio = self.signal / self.noise
        relative = self.lower.square().sum(2).T - ratio
        rounding = _ROUNDING * (1.0 + ratio)  # rows without weights have exactly one
        return torch.where((relative - 1.0).abs() <= rounding, torch.ones_like(relative), relative.clamp_min(0.0))

    def _cross(self, x: Tensor) -> Tensor:
        """Unit-variance kernel between training rows and x, (n, m)."""
        return self.kernel.value(squared_distance(self.x / self.lengthscale, x / self.lengthscale))

    def half_solve(self, k: int, cross: Tensor) -> Tensor:
        """``L^-1 cross`` with the factor of output k."""
        half: Tensor = torch.linalg.solve_triangular(self.lower[k], cross, upper=False)
        return half

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None]:
        """Mean and noise-free variance at x, (..., m, d), both (..., m, q)."""
        cross = self._cross(x.reshape(-1, x.shape[-1]))
        shape = (*x.shape[:-1], len(self.mean))
        mean = cross.T @ (self.alpha * self.signal) + self.mean
        if not variance:
            return mean.reshape(shape), None
        columns = []
        for k in range(self.lower.shape[0]):
            half = self.half_solve(k, cross)
            share = 1.0 - half.square().sum(0) * (self.signal[k] / self.noise[k])
            columns.append(self.signal[k] * share.clamp_min(_VARIANCE_FLOOR))
        return mean.reshape(shape), torch.stack(columns, dim=1).reshape(shape)

    def covariance(self, x: Tensor) -> Tensor:
        """Noise-free joint covariance at x, (..., m, d): (..., m, m, q)."""
        cross = self._cross(x.reshape(-1, x.shape[-1]))
        prior = self.kernel.value(squared_distance(x / self.lengthscale))
        blocks = []
        for k in range(self.lower.shape[0]):
            half = self.half_solve(k, cross).T.reshape(*x.shape[:-1], self.x.shape[0])
            block = prior - half @ half.mT * (self.signal[k] / self.noise[k])
            blocks.append(raise_diagonal(block, _VARIANCE_FLOOR) * self.signal[k])
        return torch.stack(blocks, dim=-1)


@dataclass(frozen=True)
class ExactModel(Predictor):
    """The fitted full GP."""

    params: Parameters
    posterior: ExactPosterior
    log_evidence: float
    factors: tuple[Factor, ...]

    @classmethod
    def solve(cls, objective: ExactEvidence, params: Parameters) -> ExactModel:
        """The model at given parameters, on the rows of the objective."""
        posterior, log_evidence, factors = objective.posterior(params)
        return cls(params, posterior, log_evidence, drop_matrices(factors))

    @property
    def n_rows(self) -> int:
        return len(self.posterior.x)

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        posterior = self.posterior.to(x.device)
        mean, spread = posterior.predict(x, variance=variance)
        return mean, spread, posterior.noise.to(mean).expand_as(mean)

    def covariance(self, x: Tensor) -> Tensor:
        return self.posterior.to(x.device).covariance(x)

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> ConditionedProcess:
        return ConditionedProcess.of(self, x, y, self.posterior.noise.to(y) if noise is None else noise)

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        return self.posterior.draw(count, rng)

    def sample(self, chunks: Iterable[Tensor], count: int, rng: np.random.Generator) -> Array:
        """Draws are exact and joint at all rows, so they depend on which rows are asked for."""
        x = torch.cat(list(chunks))
        mean, _, _ = self.predict(x, variance=False)
        covariance = self.covariance(x)
        sampled = np.empty((*mean.shape, count))
        for k in range(mean.shape[1]):
            # Scaled so that the smallest resolvable eigenvalue is one, as `factor` expects.
            floor = float(self.params.signal[k]) * 1e-10
            root = factor(covariance[:, :, k] / floor + torch.eye(len(x)).to(covariance)).lower * floor**0.5
            normal = torch.as_tensor(rng.standard_normal((len(x), count))).to(root)
            sampled[:, k] = (mean[:, k : k + 1] + root @ normal).cpu().numpy()
        return sampled

    def to(self, device: torch.device) -> ExactModel:
        return replace(self, posterior=self.posterior.to(device))


# -- indicators share a length-scale while a start is looked for ------------------------------------
#
# A category with twenty levels is twenty columns, of which a small subsample shows most levels a few times:
# length-scales of their own cannot be learned there, and take as many rows and steps as twenty numbers would. One for
# all of them can, in the unit of the indicators, between zero and one, so that all levels are equally far apart.


@dataclass(frozen=True)
class Groups:
    """Which inputs share a length-scale, and what it is multiplied by for each."""

    index: AnyArray  # of the group of each input, (d,)
    log_factor: Array  # (d,), zero on average over a group

    @property
    def count(self) -> int:
        return int(self.index[-1]) + 1

    @classmethod
    def find(cls, x: Tensor) -> Groups:
        """Find them in rows, (n, d): neighbouring columns of two values, of which each row has one high at most.

        A column that does not vary among the rows counts as the indicator of a level that is too rare for them.
        """
        if len(x) < _GROUPED_ROWS:
            return cls(np.arange(x.shape[1]), np.zeros(x.shape[1]))
        low, high = x.amin(0), x.amax(0)
        on = (x == high) & (high > low)
        indicator = ((x == low) | (x == high)).all(0).tolist()
        # A level that no row has is as rare as one that a single row would have.
        gap = torch.where(high > low, high - low, len(x) ** 0.5).log().cpu().numpy()
        index = np.zeros(x.shape[1], dtype=np.intp)
        taken = on[:, 0]
        for j in range(1, x.shape[1]):
            together = indicator[j - 1] and indicator[j] and not bool((taken & on[:, j]).any())
            taken = taken | on[:, j] if together else on[:, j]
            index[j] = index[j - 1] + (not together)
        means = np.bincount(index, gap) / np.bincount(index)
        return cls(index, gap - means[index])

    def tie(self, params: Parameters) -> Parameters:
        """Parameters with one length-scale for each group, the mean of those of its inputs."""
        sums = np.bincount(self.index, params.log_lengthscale - self.log_factor)
        return replace(params, log_lengthscale=sums / np.bincount(self.index))

    def untie(self, params: Parameters) -> Parameters:
        """Parameters with a length-scale for each input."""
        return replace(params, log_lengthscale=params.log_lengthscale[self.index] + self.log_factor)


class TiedEvidence:
    """The log evidence of the full GP as a function of tied parameters."""

    def __init__(self, evidence: ExactEvidence, groups: Groups) -> None:
        self.evidence, self.groups = evidence, groups
        self.n_rows, self.work, self.small = evidence.n_rows, evidence.work, evidence.small

    def value(self, params: Parameters) -> float:
        """Log evidence, summed over the outputs."""
        return self.evidence.value(self.groups.untie(params))

    def value_and_gradient(self, params: Parameters) -> tuple[float, Parameters]:
        """Log evidence and its gradient with respect to the tied parameters."""
        value, gradient = self.evidence.value_and_gradient(self.groups.untie(params))
        sums = np.bincount(self.groups.index, gradient.log_lengthscale).astype(np.float64)
        return value, replace(gradient, log_lengthscale=sums)

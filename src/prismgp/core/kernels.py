"""The kernel: its families with their spectral laws, base frequencies, and parameters with their priors.

With ``s = sum_j ((x_j - x'_j) / lengthscale_j)^2`` and ``r = sqrt(s)``:

======== ============================================= ==========================
name     k(s)                                          base frequency
======== ============================================= ==========================
rbf      ``exp(-s / 2)``                               N(0, I)
matern12 ``exp(-r)``                                   t, 1 degree of freedom
matern32 ``(1 + sqrt(3) r) exp(-sqrt(3) r)``           t, 3 degrees of freedom
matern52 ``(1 + sqrt(5) r + 5 s / 3) exp(-sqrt(5) r)`` t, 5 degrees of freedom
======== ============================================= ==========================

The Matern laws are *multivariate* t: one mixing variable per frequency, shared by its d
coordinates. Independent coordinates would give a product kernel when d > 1.

Base frequencies e are drawn once, independent of the parameters: ``k(x, x') = E[cos(e'(x - x') / lengthscale)]`` over
base frequencies e, so the length-scales enter by scaling only, and the evidence is a smooth function of them. Every
kind below has the exact marginal law of the kernel, hence an unbiased kernel estimate; they differ in variance.

Parameters have one form everywhere: logarithms of length-scales and variances, in the model's (standardised) units.
Estimators convert to the user's units at the border.

The evidence of a handful of rows is highest without noise, and for functions that hardly vary or that vary wildly
between the rows. With fewer than ``FEW_ROWS`` rows, what is maximised is therefore the evidence times priors of the
parameters in the model's units, where inputs and targets have a spread of one,

- (F1) ``log lengthscale ~ N(log (0.35 sqrt(d)), 0.7^2)``, ``log S ~ N(0, 1)``, ``log s2 ~ N(log 0.1, 1.5^2)``,

and then all variances are multiplied by

- (F2) ``c = (t / z)^2 (n + 3) / (n - 1)``,

t and z the 97.5% quantiles of Student's t with n - 1 degrees of freedom and of the normal distribution. With
``(n + 1) / (n - 1)`` this is how much wider a 95% interval is where mean and variance of a normal sample are estimated;
the rest is for the length-scales, and was found by simulation. One row counts as two. Both fade: the logarithms of
priors and factor are multiplied by ``1 - n / FEW_ROWS``, and from ``FEW_ROWS`` rows on nothing is changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, get_args

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from prismgp._types import Array, FrequencyKind, Tensor
from prismgp.exceptions import DataError


@dataclass(frozen=True)
class Kernel:
    """A kernel of unit variance."""

    name: str
    degrees: int | None  # of freedom of the spectral t law (twice the Matern smoothness); None: normal

    def value(self, s: Tensor) -> Tensor:
        """k(s), elementwise; differentiable by s."""
        if s.requires_grad:
            differentiable: Tensor = _KernelValue.apply(s, self)  # type: ignore[no-untyped-call]
            return differentiable
        if self.degrees is None:
            return (-0.5 * s).exp()
        r = (self.degrees * s).sqrt()
        if self.degrees == 1:
            return (-r).exp()
        if self.degrees == 3:
            return (1.0 + r) * (-r).exp()
        return (1.0 + r + r * r / 3.0) * (-r).exp()

    def slope(self, s: Tensor) -> Tensor:
        """dk/ds, elementwise.

        For matern12 it is infinite at s = 0; zero is returned there, which is right wherever the
        slope is multiplied by a coordinate difference that vanishes too.
        """
        if self.degrees is None:
            return -0.5 * (-0.5 * s).exp()
        r = (self.degrees * s).sqrt()
        if self.degrees == 1:
            return -0.5 * (-r).exp() / r.clamp_min(torch.finfo(r.dtype).tiny) * (s > 0)
        if self.degrees == 3:
            return -1.5 * (-r).exp()
        return -(5.0 / 6.0) * (1.0 + r) * (-r).exp()

    def value_and_slope(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """Both of the above, with one exponential."""
        if self.degrees != 3:
            return self.value(s), self.slope(s)
        r = (3.0 * s).sqrt_()
        e = (-r).exp_()
        return r.add_(1.0).mul_(e), e.mul_(-1.5)

    def mixing(self, u: Array) -> Array:
        """Scale of a base frequency relative to a normal one, from uniforms u in (0, 1)."""
        if self.degrees is None:
            return np.ones_like(u)
        from scipy import stats  # to draw frequencies; predictions need none

        return np.asarray(np.sqrt(self.degrees / stats.chi2(self.degrees).ppf(u)))

    def radius(self, u: Array, d: int) -> Array:
        """Quantiles of the norm of a base frequency in d dimensions, u in (0, 1)."""
        from scipy import stats  # as above

        if self.degrees is None:
            return np.asarray(stats.chi(d).ppf(u))
        return np.asarray(np.sqrt(d * stats.f(d, self.degrees).ppf(u)))


class _KernelValue(torch.autograd.Function):
    """k(s) with the slope in closed form: that of a root is infinite at zero, where the kernel's is finite."""

    @staticmethod
    def forward(ctx: Any, s: Tensor, kernel: Kernel) -> Tensor:
        ctx.save_for_backward(s)
        ctx.kernel = kernel
        return kernel.value(s.detach())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (s,) = ctx.saved_tensors
        return outer[0] * ctx.kernel.slope(s), None


KERNELS = {
    kernel.name: kernel
    for kernel in (Kernel("rbf", None), Kernel("matern12", 1), Kernel("matern32", 3), Kernel("matern52", 5))
}


def get_kernel(name: str) -> Kernel:
    """Look a kernel up by name."""
    if name not in KERNELS:
        raise DataError(f"kernel={name!r} is unknown; choose one of {', '.join(KERNELS)}")
    return KERNELS[name]


_PAIRS = 2**20  # of near rows, at a time


def squared_distance(a: Tensor, b: Tensor | None = None) -> Tensor:
    """Pairwise squared distances of scaled rows: (n, d) and (m, d) to (n, m); without b, of a with itself.

    By one matrix product, so no (n, m, d) array exists. Rows are centred first, because the
    product form loses digits when the rows are far from the origin. Batches, (..., n, d), give (..., n, m).
    Near rows are subtracted instead, as the product form would leave hardly a digit of their distances.
    """
    centre = a.mean(-2, keepdim=True)
    left = a - centre
    right = left if b is None else b - centre
    size = left.square().sum(-1)[..., :, None]
    s = (left @ right.mT).mul_(-2.0)
    s += size
    s += right.square().sum(-1)[..., None, :]
    near = (s < torch.finfo(s.dtype).eps ** 0.5 * size).nonzero()
    for some in near.split(_PAIRS):
        *first, i, j = some.unbind(1)
        s[(*first, i, j)] = (left[(*first, i)] - right[(*first, j)]).square().sum(-1)
    if b is None:
        s.diagonal(dim1=-2, dim2=-1).zero_()
    return s


FREQUENCY_KINDS = get_args(FrequencyKind)
_SOBOL_UP_TO = 4  # inputs; beyond that orthogonal frequencies have the smaller error at p of 16 to 128
_SOBOL_LIMIT = 21_200


def resolve_kind(kind: str, d: int) -> str:
    """Replace "auto": Sobol for few inputs, orthogonal otherwise."""
    if kind not in FREQUENCY_KINDS:
        raise DataError(f"frequencies={kind!r} is unknown; choose one of {', '.join(FREQUENCY_KINDS)}")
    if kind == "auto":
        return "sobol" if d <= _SOBOL_UP_TO else "orthogonal"
    return kind


def check_frequencies(value: Any, p: int, d: int) -> Array | None:
    """Frequencies that the user brings, (p, d); None when ``value`` names a kind."""
    if isinstance(value, str):
        return None
    try:
        array = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != (p, d) or not np.isfinite(array).all():
        kinds = ", ".join(FREQUENCY_KINDS)
        raise DataError(f"frequencies must be one of {kinds}, or a finite array of shape ({p}, {d}): p rows, d inputs")
    return array


def draw_frequencies(kernel: Kernel, p: int, d: int, kind: str, rng: np.random.Generator) -> Array:
    """Draw p base frequencies for d inputs, (p, d), by a generator that was not used to make the data.

    "orthogonal": directions orthogonal within blocks of d, norms stratified over all p.
    "sobol": scrambled Sobol points through the quantile functions.
    """
    kind = resolve_kind(kind, d)
    if kind == "iid":
        return rng.standard_normal((p, d)) * kernel.mixing(rng.random(p))[:, None]
    if kind == "orthogonal":
        strata = (rng.permutation(p) + rng.random(p)) / p
        # Row by row in memory, as files give them back: in another order, products may round otherwise.
        return np.ascontiguousarray(_orthogonal_directions(p, d, rng)) * kernel.radius(_open(strata), d)[:, None]
    # One more coordinate drives the mixing variable of the Matern laws.
    if d + 1 > _SOBOL_LIMIT:
        raise DataError(f'frequencies="sobol" takes at most {_SOBOL_LIMIT - 1} inputs, got {d}; use "orthogonal"')
    from scipy.stats import norm, qmc  # to draw, not to predict

    points = _open(qmc.Sobol(d + 1, scramble=True, rng=rng).random_base2(max(p - 1, 0).bit_length())[:p])
    return np.asarray(norm.ppf(points[:, :d])) * kernel.mixing(points[:, d])[:, None]


def _orthogonal_directions(p: int, d: int, rng: np.random.Generator) -> Array:
    """Unit rows, uniform on the sphere, orthogonal to each other within blocks of d rows; (p, d)."""
    blocks = []
    for start in range(0, p, d):
        rows = min(d, p - start)
        # Haar measure: QR of a normal matrix with the signs of R's diagonal moved into Q.
        q, r = np.linalg.qr(rng.standard_normal((d, rows)))
        blocks.append((q * np.where(np.diagonal(r) < 0, -1.0, 1.0)).T)
    return np.concatenate(blocks)


def _open(u: Array) -> Array:
    """Keep uniforms away from 0 and 1, where quantile functions are infinite."""
    return np.clip(u, 1e-12, 1.0 - 1e-12)


# Relative to the spread of the data. Noise far below 1e-8 of the variance is beyond what a
# float64 factorisation resolves, and beyond what measured data holds. A prior standard deviation of
# more than 17 times that of the data gains little evidence and makes extrapolation wild.
_LENGTHSCALE_RANGE = (1e-3, 1e4)
_SIGNAL_RANGE = (1e-6, 300.0)
_NOISE_RANGE = {"float64": (1e-8, 1e2), "float32": (1e-6, 1e2)}
_PERTURBATION = 1.5  # half-width, in logarithms, of random restarts
_MEAN_RANGE = 1e3
_FREQUENCY_RANGE = 1e3


@dataclass(frozen=True)
class Parameters:
    """Kernel parameters, or a gradient with respect to them."""

    log_lengthscale: Array  # (d,)
    log_signal: Array  # of the signal variance, (q,)
    log_noise: Array  # of the noise variance, (q,)
    mean: Array  # (q,)
    frequencies: Array | None = None  # (p, d), only when they are learned

    @property
    def lengthscale(self) -> Array:
        return np.exp(self.log_lengthscale)

    @property
    def signal(self) -> Array:
        return np.exp(self.log_signal)

    @property
    def noise(self) -> Array:
        return np.exp(self.log_noise)

    def base(self, frequencies: Array) -> Array:
        """The learned frequencies, or else those given, (p, d)."""
        return frequencies if self.frequencies is None else self.frequencies

    def pack(self) -> Array:
        """All parameters as one vector."""
        parts = [self.log_lengthscale, self.log_signal, self.log_noise, self.mean]
        if self.frequencies is not None:
            parts.append(self.frequencies.ravel())
        return np.concatenate(parts)

    def unpack(self, vector: Array) -> Parameters:
        """A vector of this object's layout, as parameters."""
        d, q = len(self.log_lengthscale), len(self.mean)
        cuts = np.cumsum([d, q, q, q])
        if vector.shape != (cuts[-1] + (0 if self.frequencies is None else self.frequencies.size),):
            raise ValueError(f"a vector of shape {vector.shape} is not one of these parameters")
        ls, signal, noise, mean, rest = np.split(vector, cuts)
        frequencies = None if self.frequencies is None else rest.reshape(self.frequencies.shape)
        return Parameters(ls, signal, noise, mean, frequencies)


def default_start(d: int, q: int) -> Parameters:
    """Length-scales of sqrt(d) standard deviations, and noise of a tenth of the variance."""
    return Parameters(np.full(d, 0.5 * np.log(d)), np.zeros(q), np.full(q, np.log(0.1)), np.zeros(q))


def bounds(layout: Parameters, *, dtype: str) -> list[tuple[float, float]]:
    """Box bounds in the order of :meth:`Parameters.pack`, for data of unit spread."""
    d, q = len(layout.log_lengthscale), len(layout.mean)
    ranges = ((_LENGTHSCALE_RANGE, d), (_SIGNAL_RANGE, q), (_NOISE_RANGE[dtype], q))
    boxes = [(float(np.log(low)), float(np.log(high))) for (low, high), count in ranges for _ in range(count)]
    # A mean that the user starts far away must lie inside.
    boxes += [(min(-_MEAN_RANGE, 2 * m), max(_MEAN_RANGE, 2 * m)) for m in layout.mean.tolist()]
    if layout.frequencies is not None:
        boxes += [(-_FREQUENCY_RANGE, _FREQUENCY_RANGE)] * layout.frequencies.size
    return boxes


def perturb(start: Parameters, rng: np.random.Generator) -> Parameters:
    """A random restart around a starting point; the mean stays."""
    logs = (start.log_lengthscale, start.log_signal, start.log_noise)
    lengthscale, signal, noise = (each + rng.uniform(-_PERTURBATION, _PERTURBATION, each.shape) for each in logs)
    return Parameters(lengthscale, signal, noise, start.mean, start.frequencies)


# -- few rows --------------------------------------------------------------------------------------

FEW_ROWS = 100
_LENGTHSCALE_CENTRE = 0.35  # of its prior, in units of sqrt(d)
_NOISE_CENTRE = 0.1
_NORMAL_95 = NormalDist().inv_cdf(0.975)  # half-width of a central 95% interval, in standard deviations
_LENGTHSCALE_SPREAD, _SIGNAL_SPREAD, _NOISE_SPREAD = 0.7, 1.0, 1.5


@dataclass(frozen=True)
class Prior:
    """Normal priors of the packed parameters; those of the mean and of frequencies are flat."""

    centre: Array
    precision: Array

    @classmethod
    def of(cls, n: int, layout: Parameters) -> Prior | None:
        """The priors for n rows (F1), None from ``FEW_ROWS`` rows on."""
        if n >= FEW_ROWS:
            return None
        d, q = len(layout.log_lengthscale), len(layout.mean)
        centre, precision = np.zeros_like(layout.pack()), np.zeros_like(layout.pack())
        centre[:d] = math.log(_LENGTHSCALE_CENTRE * math.sqrt(d))
        centre[d + q : d + 2 * q] = math.log(_NOISE_CENTRE)
        spreads = (_LENGTHSCALE_SPREAD, d), (_SIGNAL_SPREAD, q), (_NOISE_SPREAD, q)
        precision[: d + 2 * q] = np.concatenate([np.full(count, spread**-2.0) for spread, count in spreads])
        return cls(centre, precision * _fading_weight(n))

    def log_density(self, vector: Array) -> tuple[float, Array]:
        """Log density at packed parameters, up to a constant, and its gradient."""
        away = vector - self.centre
        return -0.5 * float(self.precision @ away**2), -self.precision * away


def widen(params: Parameters, n: int) -> Parameters:
    """Parameters learned from n rows, with wider variances (F2) where these are few."""
    if n >= FEW_ROWS:
        return params
    from scipy.special import stdtrit  # to learn, not to predict

    rows = max(n, 2)
    log_factor = 2.0 * math.log(float(stdtrit(rows - 1, 0.975)) / _NORMAL_95) + math.log((rows + 3) / (rows - 1))
    change = _fading_weight(n) * log_factor
    return replace(params, log_signal=params.log_signal + change, log_noise=params.log_noise + change)


def _fading_weight(n: int) -> float:
    return 1.0 - n / FEW_ROWS

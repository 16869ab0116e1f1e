"""Learning the metric and the variances of a neighbour GP.

The parameters maximise the mean log density of some rows, each given its neighbours among the others (N3). In the
symbols of (N1), with ``b = A^-1 (t_N - m) / nu``, where rows differ in their noise with V as there, ``l`` minus the log
density of one row, ``l_mu`` and ``l_v`` its derivatives by mean and variance:

- (N4) ``d l / d (S r) = l_mu b - 2 l_v w``, ``d l / d (nu A) = l_v w w' - l_mu (w b' + b w') / 2``,
  ``d l / d m = l_mu (1 - 1'w)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.kernels import Kernel, Parameters, Prior
from prismgp.core.models import normal_log_density
from prismgp.core.parallel import Workers
from prismgp.core.rows import Callback, RowNoise
from prismgp.neighbors.conditional import Conditionals, Neighborhoods, scaled_distances, solve_output
from prismgp.neighbors.local import LocalGP

_FACTORS = tuple(4.0**power for power in (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5))  # on all length-scales, for the start
_START_ROWS = 1_024
_BLOCK_ROWS = 128  # whose kernel matrices about fit into a processor's cache; fewer gain nothing by a second thread
_MOST_EXAMPLES = 10_000
_LOG_LENGTHSCALES = (math.log(1e-3), math.log(1e4))
_LOG_SIGNAL = (math.log(1e-4), math.log(1e3))
_MOST_LOG_NOISE = math.log(1e2)
_START_RATIOS = (0.05, 0.5, 0.95)  # share of the noise in the variance, for the start
_BETAS, _EPS = (0.9, 0.999), 1e-8  # of Adam
# A CPU computes in float32 up to this ratio of signal to noise variance, where the gradient has three digits or more.
_COARSE_RATIO = 1e3
_COARSE_ERROR = 1e-3  # of squared distances, times that ratio: far neighbours leave few digits to those of near ones
_METRIC_SPREAD = 1.0  # prior standard deviation of the logarithm of a length-scale about its start


@dataclass(frozen=True)
class LocalTraining:
    """How the parameters are learned."""

    steps: int = 200
    batch_rows: int = 512
    searches: int = 4  # the neighbours are those of the metric at that many moments of the training
    learning_rate: float = 0.06
    search_rows: int = 2_560  # examples whose neighbours are searched at a time; the steps until the next use these
    degrees: float = math.inf  # of freedom of the density that is maximised
    coarse: bool = False  # whether a CPU may compute gradients in float32, where the noise is not low


@dataclass(frozen=True)
class Examples:
    """Rows whose density is maximised, each given its neighbours among the others."""

    points: Tensor  # coordinates, (m, D)
    targets: Tensor  # (m, q), float64
    own: Tensor  # (m,): which group of rows each belongs to
    groups: Tensor  # (n,): the groups of the rows that may be neighbours; those of its own group are left out
    row_noise: RowNoise | None = None  # of the examples themselves, (m,), where rows differ

    def __len__(self) -> int:
        return len(self.points)

    def take(self, index: Tensor | slice) -> Examples:
        noise = None if self.row_noise is None else self.row_noise.take(index)
        parts = {"points": self.points[index], "targets": self.targets[index], "own": self.own[index]}
        return replace(self, row_noise=noise, **parts)


def fit_local(
    gp: LocalGP,
    examples: Examples,
    rng: np.random.Generator,
    training: LocalTraining,
    *,
    least_noise: float = 1e-6,
    starts: Sequence[Parameters] = (),
    callback: Callback | None = None,
    model: Callable[[LocalGP], Any] = lambda gp: gp,
) -> LocalGP:
    """Learn length-scales, signal and noise, from the given length-scales on.

    ``starts`` are further starting points, which compete with those made from the length-scales. ``callback`` is told
    of every evaluation, and of every step with what ``model`` makes of it.
    """
    fit = _Fit(gp, examples, rng, training, least_noise, callback or Callback(), model)
    with fit.workers:
        return fit.run(starts)


class _Fit:
    def __init__(
        self,
        gp: LocalGP,
        examples: Examples,
        rng: np.random.Generator,
        training: LocalTraining,
        least_noise: float,
        callback: Callback,
        model: Callable[[LocalGP], Any],
    ) -> None:
        self.examples, self.rng, self.training, self.callback, self.model = examples, rng, training, callback, model
        self.workers = Workers(wanted=gp.coordinates.device.type == "cpu")
        self.log_noise = (math.log(least_noise), _MOST_LOG_NOISE)
        self.gp = replace(gp, params=self._limit(gp.params))

    def run(self, starts: Sequence[Parameters]) -> LocalGP:
        """The parameters of the last step; a time limit makes the steps smaller sooner, and ends them."""
        training, m, ending = self.training, len(self.examples), self.callback.ending
        self.params = self._start(starts)
        centre, prior = self.params.log_lengthscale, Prior.of(self.gp.n_rows, self.params)
        adam = _Adam(len(self.params.pack()))
        every = -(-training.steps // training.searches)
        batch = min(training.batch_rows, m)
        with ending.catch_end():
            for step in range(training.steps):
                if step % every == 0:
                    drawn = self._draw(min(m, max(batch, training.search_rows)))
                    near = _NearExamples(self.gp, self.params, drawn, self.workers)
                index = torch.as_tensor(self.rng.choice(len(near.examples), batch, replace=False))
                total, slope = self._evaluate(near, self.params, index)
                gradient = self.params.unpack(slope / batch)
                penalty = (self.params.log_lengthscale - centre) / (_METRIC_SPREAD**2 * m)
                ascent = replace(gradient, log_lengthscale=gradient.log_lengthscale - penalty).pack()
                if prior is not None:
                    ascent = ascent + prior.log_density(self.params.pack())[1] / m
                self.callback.report("adam", batch, partial(self._model_at, self.params), total)
                share = max(step / training.steps, ending.share)
                rate = training.learning_rate * 0.5 * (1.0 + math.cos(math.pi * share))
                self.params = self._limit(self.params.unpack(self.params.pack() + rate * adam.step(ascent)))
        return self.gp.with_parameters(self.params)

    def _model_at(self, params: Parameters) -> Any:
        return self.model(self.gp.with_parameters(params))

    def _limit(self, params: Parameters) -> Parameters:
        """Limited to the range of float64 factorisations, and to what examples can show."""
        return replace(
            params,
            log_lengthscale=np.clip(params.log_lengthscale, *_LOG_LENGTHSCALES),
            log_signal=np.clip(params.log_signal, *_LOG_SIGNAL),
            log_noise=np.clip(params.log_noise, *self.log_noise),
        )

    def _draw(self, count: int) -> Examples:
        if count >= len(self.examples):
            return self.examples
        index = np.sort(self.rng.choice(len(self.examples), count, replace=False))
        return self.examples.take(torch.as_tensor(index).to(self.examples.points.device))

    def _evaluate(self, near: _NearExamples, params: Parameters, index: Tensor | None = None) -> tuple[float, Array]:
        """Sum of the log densities of some examples, and its gradient."""
        examples = near.examples if index is None else near.examples.take(index.to(near.examples.points.device))

        def compute() -> tuple[float, Array]:
            rows = near.rows if index is None else near.rows[index.to(near.rows.device)]

            def evaluate(block: slice) -> tuple[float, Array]:
                some = examples.take(block)
                part = self.gp.gather(some.points, rows[block])
                dtype = self._precision(params, part)
                part = part.to(dtype)
                values, gradient = log_density_and_gradient(
                    self.gp.kernel, params, part, some.targets.to(dtype), self.training.degrees, some.row_noise
                )
                return float(values.double().sum()), gradient.pack() * len(some)

            count = math.ceil(len(examples) / _BLOCK_ROWS) if rows.device.type == "cpu" else 1
            values, gradients = zip(*self.workers.map(evaluate, _split(len(examples), count)), strict=True)
            return sum(values), np.sum(gradients, 0)

        self.callback.ending.check()
        return self.callback.evaluate(len(examples), params.pack(), compute)

    def _precision(self, params: Parameters, near: Neighborhoods) -> torch.dtype:
        """The precision for some examples: double if squared distances need it, or the noise does."""
        ratio = float((params.signal / params.noise).max())
        plain = self.training.coarse and near.row_noise is None and not near.offsets.is_cuda
        if not plain or ratio > _COARSE_RATIO:
            return torch.float64
        reach = (near.offsets / torch.as_tensor(params.lengthscale)).square_().sum(2).max()
        error = torch.finfo(torch.float32).eps * float(reach)
        if self.gp.kernel.degrees == 1:  # which is steep at zero: it falls with the root of a squared distance
            error **= 0.5
        return torch.float32 if error * ratio < _COARSE_ERROR else torch.float64

    def _start(self, starts: Sequence[Parameters]) -> Parameters:
        """The best of several scales of the metric and shares of the noise, and of the given starts."""
        near = _NearExamples(self.gp, self.gp.params, self._draw(min(len(self.examples), _START_ROWS)), self.workers)
        variance = near.examples.targets.var(0, correction=0).clamp_min(1e-6).cpu().numpy()
        tried = [
            replace(
                self.gp.params,
                log_lengthscale=self.gp.params.log_lengthscale + math.log(factor),
                log_signal=np.log((1.0 - share) * variance),
                log_noise=np.log(share * variance),
            )
            for factor in _FACTORS
            for share in _START_RATIOS
        ]
        limited = [self._limit(each) for each in (*starts, *tried)]
        values: list[float] = []
        with self.callback.ending.catch_end():
            for each in limited:
                values.append(self._evaluate(near, each)[0])
        return limited[int(np.argmax(values))] if values else self.gp.params


class _Adam:
    """Steps of Adam for a vector. The first optimiser of torch that a process makes loads its compiler: 1 s, 80 MB."""

    def __init__(self, size: int) -> None:
        self._first, self._second, self._steps = np.zeros(size), np.zeros(size), 0

    def step(self, ascent: Array) -> Array:
        """The direction of the next step, given the gradient of what is maximised."""
        self._steps += 1
        self._first += (1.0 - _BETAS[0]) * (ascent - self._first)
        self._second += (1.0 - _BETAS[1]) * (ascent**2 - self._second)
        first, second = self._first / (1.0 - _BETAS[0] ** self._steps), self._second / (1.0 - _BETAS[1] ** self._steps)
        direction: Array = first / (np.sqrt(second) + _EPS)
        return direction


def log_density_and_gradient(
    kernel: Kernel,
    params: Parameters,
    near: Neighborhoods,
    y: Tensor,
    degrees: float = math.inf,
    own: RowNoise | None = None,
) -> tuple[Tensor, Parameters]:
    """Log density of the points' own targets y, (m, q), given their neighbours: (m,); the gradient of its mean (N4).

    ``own`` is the noise of the points' own rows, where rows differ.

    With finite ``degrees`` of freedom, above 2, it is that of Student's t with the same mean and variance, up to a
    constant, so that a few rows far away do not decide.
    """
    scale = torch.as_tensor(params.lengthscale).to(near.offsets)
    offsets = near.offsets / scale
    between, squares, centred = scaled_distances(offsets)
    (inner, inner_slope), (r, r_slope) = kernel.value_and_slope(between), kernel.value_and_slope(squares)
    m, q = y.shape
    total = torch.zeros_like(squares[:, 0])
    gradients: list[Tensor] = []  # by signal, noise and mean of each output
    to_point, to_between = torch.zeros_like(r), torch.zeros_like(inner)  # derivatives by the kernel's values
    for k in range(q):
        signal, noise = float(params.signal[k]), float(params.noise[k])
        solved = solve_output(inner, r, near, params, k)
        observed = noise if own is None else noise * torch.exp(own.log_relative(noise))
        w, v = solved.weights, solved.variance + observed
        error = y[:, k] - solved.mean
        if math.isinf(degrees):
            total -= 0.5 * (error.square() / v + v.log() + math.log(2.0 * math.pi))
            pull = error / v
        else:
            total -= 0.5 * ((degrees + 1.0) * torch.log1p(error.square() / ((degrees - 2.0) * v)) + v.log())
            pull = (degrees + 1.0) * error / ((degrees - 2.0) * v + error.square())
        l_mu, l_v = -pull[:, None], (0.5 * (1.0 - pull * error) / v)[:, None]
        b = solved.solve(solved.residuals) / noise
        point = l_mu * b - 2.0 * l_v * w
        # <d l / d (nu A), S R> = <..., nu A> - <..., nu I>, without forming the matrix.
        whole = l_v[:, 0] * signal * (w * r).sum(1) - l_mu[:, 0] * (w * solved.residuals).sum(1)
        if solved.roots is None or near.row_noise is None:
            trace = by_noise = noise * (l_v[:, 0] * w.square().sum(1) - l_mu[:, 0] * (w * b).sum(1))
        else:
            diagonal = noise * solved.roots.square() * (l_v * w.square() - l_mu * w * b)
            trace, by_noise = diagonal.sum(1), (diagonal * torch.exp(-near.row_noise.log_level(noise))).sum(1)
        gradients.append((signal * (point * r).sum(1) + whole - trace + l_v[:, 0] * signal).mean())
        gradients.append((by_noise + l_v[:, 0] * (noise if own is None else noise / own.weight)).mean())
        gradients.append((l_mu[:, 0] * (1.0 - w.sum(1))).mean())
        to_point += signal * point
        left = signal * (0.5 * l_v * w - 0.5 * l_mu * b)
        product = torch.bmm(left[:, :, None], w[:, None, :])
        to_between += product + product.mT
    # d s / d log lengthscale_j = -2 (difference_j)^2, and for symmetric B
    # sum_uv B_uv (a_uj - a_vj)^2 = 2 sum_u a_uj^2 (B 1)_u - 2 sum_u a_uj (B a)_uj.
    to_between *= inner_slope
    inside = centred * to_between.sum(2)[:, :, None] - torch.bmm(to_between, centred)
    by_scale = (2.0 * centred * inside + offsets.square() * (to_point * r_slope)[:, :, None]).sum((0, 1))
    found = (
        torch.cat([(2.0 / m) * by_scale, -torch.stack(gradients)]).double().cpu().numpy()
    )  # a GPU is waited for once
    lengthscale, others = found[: len(scale)], found[len(scale) :].reshape(q, 3)
    return total, Parameters(lengthscale, *others.T.copy())


class _NearExamples:
    """Examples and their neighbours, found when they are needed: a checkpoint may know all that depends on them."""

    def __init__(self, gp: LocalGP, params: Parameters, examples: Examples, workers: Workers) -> None:
        self.examples, self._workers = examples, workers
        self._gp = gp.with_parameters(params)

    @cached_property
    def rows(self) -> Tensor:
        """Of the neighbours, (m, k)."""
        return neighbors_of(self._gp, self.examples, self._workers)


def neighbors_of(gp: LocalGP, examples: Examples, workers: Workers | None = None) -> Tensor:
    """Rows of the examples' neighbours among the others, (m, k); ``workers`` search for parts of them side by side."""
    k = min(gp.n_neighbors, gp.n_rows - int(torch.bincount(examples.groups).max()))  # that every example has
    search = gp.search  # made here, before several threads use it

    def query(block: slice) -> Tensor:
        return search.query(examples.points[block], k, groups=examples.groups, own=examples.own[block])

    if workers is None or gp.shards is not None:
        return query(slice(None))
    parts = min(workers.threads, max(1, len(examples) // _BLOCK_ROWS))
    return torch.cat(workers.map(query, _split(len(examples), parts)))


def _split(total: int, count: int) -> list[slice]:
    """Parts of equal size, as far as that is possible."""
    return [slice(*ends) for ends in pairwise(k * total // count for k in range(count + 1))]


def predict_examples(gp: LocalGP, examples: Examples, *, misfit: bool = False) -> Conditionals:
    """The targets of examples given their neighbours among the others; ``misfit``: with beta of (N6)."""
    return gp.predict_from(examples.points, neighbors_of(gp, examples), misfit=misfit)


def draw_examples(gp: LocalGP, rng: np.random.Generator) -> Examples:
    """Draw some rows as examples, each alone in its group: all rows but the row itself may be its neighbours."""
    n, device = gp.n_rows, gp.coordinates.device
    index = np.arange(n) if n <= _MOST_EXAMPLES else np.sort(rng.choice(n, _MOST_EXAMPLES, replace=False))
    own = torch.as_tensor(index).to(device)
    return examples_of(gp, own, torch.arange(n, device=device))


def examples_of(gp: LocalGP, own: Tensor, groups: Tensor) -> Examples:
    """The rows of these numbers as examples, in the given groups of all rows."""
    noise = None if gp.row_noise is None else gp.row_noise.take(own)
    return Examples(gp.coordinates[own], gp.targets[own], groups[own], groups, noise)


def log_evidence(gp: LocalGP) -> float:
    """Log density of all rows: exact where all rows are neighbours, else of each row given its neighbours, summed.

    The sum is estimated from at most 10,000 rows, chosen by their numbers alone, so that the value depends on nothing
    but the rows and the parameters.
    """
    if gp.whole_rows:
        return gp.evidence.value(gp.params)
    examples = draw_examples(gp, np.random.default_rng(0))
    mean, variance, noise, _ = predict_examples(gp, examples)
    if examples.row_noise is not None:
        noise = noise * torch.exp(examples.row_noise.log_relative(float(gp.params.noise[0])))[:, None]
    return gp.n_rows * float(normal_log_density(examples.targets, mean, variance + noise).sum(1).mean())

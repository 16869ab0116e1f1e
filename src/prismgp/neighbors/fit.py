"""Learning the metric and the variances of a neighbour GP, by the density of rows given their neighbours (N3)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from prismgp._types import Tensor
from prismgp.core.kernels import Parameters
from prismgp.neighbors.local import LocalGP, conditionals, log_density_and_gradient

_FACTORS = tuple(4.0**power for power in (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5))  # on all length-scales, for the start
_START_ROWS = 1_024
_LOG_LENGTHSCALES = (math.log(1e-3), math.log(1e4))
_LOG_SIGNAL = (math.log(1e-4), math.log(1e3))
_MOST_LOG_NOISE = math.log(1e2)
_START_RATIOS = (0.05, 0.5, 0.95)  # share of the noise in the variance, for the start
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


@dataclass(frozen=True)
class Examples:
    """Rows whose density is maximised, each given its neighbours among the others."""

    points: Tensor  # coordinates, (m, D)
    targets: Tensor  # (m, q), float64
    own: Tensor  # (m,): which group of rows each belongs to
    groups: Tensor  # (n,): the groups of the rows that may be neighbours; those of its own group are left out

    def __len__(self) -> int:
        return len(self.points)

    def take(self, index: Tensor) -> Examples:
        return replace(self, points=self.points[index], targets=self.targets[index], own=self.own[index])


def fit_local(
    gp: LocalGP, examples: Examples, rng: np.random.Generator, training: LocalTraining, *, least_noise: float = 1e-6
) -> LocalGP:
    """Learn length-scales, signal and noise; the given length-scales say what the metric is like at the start."""
    return _Fit(gp, examples, rng, training, least_noise).run()


class _Fit:
    def __init__(
        self, gp: LocalGP, examples: Examples, rng: np.random.Generator, training: LocalTraining, least_noise: float
    ) -> None:
        self.examples, self.rng, self.training = examples, rng, training
        self.log_noise = (math.log(least_noise), _MOST_LOG_NOISE)
        self.gp = replace(gp, params=self._limit(gp.params))

    def run(self) -> LocalGP:
        training, m = self.training, len(self.examples)
        params = self._start()
        centre = params.log_lengthscale
        vector = torch.as_tensor(params.pack()).clone().requires_grad_(True)
        optimiser = torch.optim.Adam([vector], lr=training.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, training.steps)
        every = -(-training.steps // training.searches)
        batch = min(training.batch_rows, m)
        for step in range(training.steps):
            if step % every == 0:
                used = self._draw(min(m, max(batch, training.search_rows)))
                near = self._neighbors(params, used)
            index = torch.as_tensor(self.rng.choice(len(used), batch, replace=False)).to(used.points.device)
            part = self.gp.gather(used.points[index], near[index])
            _, gradient = log_density_and_gradient(self.gp.kernel, params, part, used.targets[index], training.degrees)
            penalty = (params.log_lengthscale - centre) / (_METRIC_SPREAD**2 * m)
            gradient = replace(gradient, log_lengthscale=gradient.log_lengthscale - penalty)
            vector.grad = -torch.as_tensor(gradient.pack())
            optimiser.step()
            schedule.step()
            params = self._limit(params.unpack(vector.detach().numpy()))
            with torch.no_grad():
                vector.copy_(torch.as_tensor(params.pack()))
        return self.gp.with_parameters(params)

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

    def _neighbors(self, params: Parameters, examples: Examples) -> Tensor:
        search = self.gp.with_parameters(params).search
        return search.query(examples.points, _usable(self.gp, examples), groups=examples.groups, own=examples.own)

    def _start(self) -> Parameters:
        """The best of several scales of the metric and shares of the noise."""
        few = self._draw(min(len(self.examples), _START_ROWS))
        part = self.gp.gather(few.points, self._neighbors(self.gp.params, few))
        variance = few.targets.var(0, correction=0).clamp_min(1e-6).cpu().numpy()
        best: tuple[float, Parameters] | None = None
        for factor in _FACTORS:
            for share in _START_RATIOS:
                tried = replace(
                    self.gp.params,
                    log_lengthscale=self.gp.params.log_lengthscale + math.log(factor),
                    log_signal=np.log((1.0 - share) * variance),
                    log_noise=np.log(share * variance),
                )
                tried = self._limit(tried)
                value = float(
                    log_density_and_gradient(self.gp.kernel, tried, part, few.targets, self.training.degrees)[0].mean()
                )
                if best is None or value > best[0]:
                    best = value, tried
        assert best is not None
        return best[1]


def predict_examples(gp: LocalGP, examples: Examples) -> tuple[Tensor, Tensor]:
    """Mean and variance of the function at examples given their neighbours among the others, both (m, q)."""
    rows = gp.search.query(examples.points, _usable(gp, examples), groups=examples.groups, own=examples.own)
    size = gp.block_rows()
    blocks = [slice(start, start + size) for start in range(0, len(examples), size)]
    parts = [conditionals(gp.kernel, gp.params, gp.gather(examples.points[block], rows[block])) for block in blocks]
    return torch.cat([mean for mean, _ in parts]), torch.cat([variance for _, variance in parts])


def _usable(gp: LocalGP, examples: Examples) -> int:
    """Neighbours that every example has."""
    return min(gp.n_neighbors, gp.n_rows - int(torch.bincount(examples.groups).max()))

"""Neighbours beside the mixture: a GP on nearest rows, for detail that few frequencies miss.

The mixture of experts has mean m(x), variance of the function V(x) and noise N(x), ``s^2 = V + N``. A neighbour GP
(:mod:`prismgp.neighbors.local`) models either

- the standardised residuals, ``t = (y - m(x)) / s(x)``: then                                                   (L1)
  ``mean = m + s mu(c)``, ``variance = s^2 v(c) + nu V``, ``noise = nu N``, with mean mu and variance v of the function
  given the neighbours, and nu their noise; far from all rows mu is zero;
- or the targets themselves: then it predicts alone, and may be a Student-t process (N6).                       (L2)

The coordinates c(x) are the standardised inputs, or these with the latent columns of the members and the means of the
experts. Which of them is used, if any, is decided by the density of held-out rows.

Residuals must be those of predictions that did not know the row. Weights have leave-one-out predictions in closed
form: with y's own row in the posterior, e its residual, V its variance and N the noise it was given,       (L3)
``e_loo = e N / (N - V)``, ``V_loo = V N / (N - V)``. Parameters are learned at rows on which the networks were not
trained, with posteriors that do not know these rows at all: residuals of other rows would otherwise reveal them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.kernels import Kernel, Parameters
from prismgp.core.models import Predictor
from prismgp.core.numerics import Factor
from prismgp.core.process import Functions
from prismgp.core.rows import RowNoise
from prismgp.data import StandardisedRows
from prismgp.neighbors.fit import examples_of, predict_examples
from prismgp.neighbors.local import LocalGP, check_observations
from prismgp.prism.experts import Mixture, combine_covariances, combine_moments
from prismgp.prism.maps import RevisedMap


@dataclass(frozen=True)
class View:
    """What a neighbour GP learns from: its targets and coordinates."""

    residual: bool  # its target is the mixture's standardised residual (L1), else the target itself (L2)
    latent: bool  # coordinates include latent columns and means of the experts
    whole: bool = False  # all rows are neighbours of every point: the exact GP

    @property
    def name(self) -> str:
        if self.whole:
            return "exact GP"
        where = "inputs and latent columns" if self.latent else "inputs"
        return f"neighbours in {where}" + (" on the residuals" if self.residual else " alone")


class MixtureOutput(NamedTuple):
    """The mixture's predictions at some rows, (n, q), and the coordinates of the rows, all of them, (n, D)."""

    mean: Tensor
    variance: Tensor
    noise: Tensor
    coordinates: Tensor  # float32

    @property
    def scale(self) -> Tensor:
        """Standard deviation of a new observation, (n, q)."""
        return (self.variance + self.noise).sqrt()

    @classmethod
    def join(cls, parts: Iterable[MixtureOutput]) -> MixtureOutput:
        return cls(*map(torch.cat, zip(*parts, strict=True)))

    def take(self, index: Tensor) -> MixtureOutput:
        return MixtureOutput(*(each[index] for each in self))

    def replace_rows(self, index: Tensor, other: MixtureOutput) -> MixtureOutput:
        """With the rows of another output at these indices."""
        return MixtureOutput(*(own.index_copy(0, index, new) for own, new in zip(self, other, strict=True)))


Evaluated = tuple[MixtureOutput, Tensor]  # of rows, and their targets with the noise columns behind


def evaluate(mixture: Mixture, x: Tensor, y: Tensor | None = None) -> MixtureOutput:
    """Predict rows x, and compute their coordinates; with y, they are rows of the posterior, each left out (L3)."""
    experts = mixture.experts
    found = [each.predict(x, variance=True) if y is None else each.leave_one_out(x, y) for each in experts]
    means = [mean for mean, _, _ in found]
    latent = [expert.map.latent(x) for expert in experts if isinstance(expert.map, RevisedMap)]
    mean, variance, noise = mixture.combine(found)
    assert variance is not None
    return MixtureOutput(mean, variance, noise, torch.cat([each.float() for each in (x, *latent, *means)], 1))


def evaluate_batches(mixture: Mixture, x: Tensor) -> MixtureOutput:
    """The same of batches of rows, (..., n, d)."""
    found = evaluate(mixture, x.reshape(-1, x.shape[-1]))
    return MixtureOutput(*(each.reshape(*x.shape[:-1], -1) for each in found))


@dataclass(frozen=True)
class LeaveOneOut:
    """A pass: the output of the mixture at all rows, each left out; and their targets, with noise columns behind."""

    mixture: Mixture

    def over(
        self,
        chunks: Iterable[tuple[Tensor, Tensor]],
        *,
        rows: int,  # noqa: ARG002
        q: int,  # noqa: ARG002
    ) -> Evaluated:
        return join([(evaluate(self.mixture, x, y.double()), y.double()) for x, y in chunks])

    def merge(self, first: Evaluated, second: Evaluated) -> Evaluated:
        return join([first, second])


def join(parts: Sequence[Evaluated]) -> Evaluated:
    """The results of :class:`LeaveOneOut` for parts of the rows, as one."""
    if len(parts) == 1:  # not copied
        return parts[0]
    found, targets = zip(*parts, strict=True)
    return MixtureOutput.join(found), torch.cat(targets)


def start_lengthscales(mixture: Mixture, inputs: Array, view: View) -> Array:
    """Length-scales to start from, one for each coordinate; ``inputs`` are those of the plain SSGP."""
    if not view.latent:
        return inputs
    revised = [expert for expert in mixture.experts if isinstance(expert.map, RevisedMap)]
    latent = [each.params.lengthscale[: -len(inputs)] * len(revised) ** 0.5 for each in revised]
    means = np.full(len(mixture.experts) * len(mixture.temperature), len(mixture.experts) ** 0.5)
    return np.concatenate([inputs, *latent, means])


@dataclass(frozen=True)
class NeighborExpert:
    """A neighbour GP beside a mixture."""

    view: View
    gp: LocalGP

    def to(self, device: torch.device) -> NeighborExpert:
        return NeighborExpert(self.view, self.gp.to(device))

    def predict(self, output: MixtureOutput) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the function and noise variance at rows, (..., n, q)."""
        points = self._coordinates(output)
        mean, variance, noise, _ = self.gp.predict(points.reshape(-1, points.shape[-1]))
        return combine(self.view, output, *(each.reshape(output.mean.shape) for each in (mean, variance, noise)))

    def leave_one_out(self, output: MixtureOutput, new: MixtureOutput, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same at rows of these numbers, (n,), that are not their own neighbours.

        ``output`` is that of the mixture with the rows left out, ``new`` that of the same rows as if they were new, for
        their coordinates: without a row, the mean there would depend on its target.
        """
        points = self.gp.round(self._coordinates(new))
        examples = examples_of(self.gp, rows, torch.arange(self.gp.n_rows, device=rows.device))
        return combine(self.view, output, *predict_examples(self.gp, replace(examples, points=points))[:3])

    def covariance(self, output: MixtureOutput, base: Tensor) -> Tensor:
        """Of the function, (..., n, n, q); ``base`` is that of the mixture."""
        local = self.gp.covariance(self._coordinates(output))
        if not self.view.residual:
            return local
        nu = torch.as_tensor(self.gp.params.noise).to(local)
        return output.scale[..., :, None, :] * output.scale[..., None, :, :] * local + nu * base

    def functions(self, output: MixtureOutput, drawn: Tensor, base: Tensor) -> Tensor:
        """Functions of mixture and neighbours together, (n, q, s), from those of each."""
        if not self.view.residual:
            return drawn
        root = torch.as_tensor(self.gp.params.noise).to(drawn).sqrt()[:, None]
        mean = output.mean[:, :, None]
        return mean + output.scale[:, :, None] * drawn + root * (base - mean)

    def extend(self, output: MixtureOutput, y: Tensor) -> NeighborExpert:
        """With further rows."""
        return NeighborExpert(self.view, self.gp.extend(*view_rows(self.view, output, y, self.gp.coordinates.shape[1])))

    def draw(self, count: int, rng: np.random.Generator) -> Callable[[MixtureOutput], Tensor]:
        """Functions of the neighbour GP, which take the output of the mixture: (n, q, count)."""
        functions = self.gp.draw(count, rng)
        return lambda output: functions(self._coordinates(output))

    def _coordinates(self, output: MixtureOutput) -> Tensor:
        return output.coordinates[..., : self.gp.coordinates.shape[1]]


@dataclass(frozen=True)
class LocalMixture(Predictor):
    """A mixture of experts, and neighbour GPs on its residuals or beside it; predicts by the moments of them all."""

    base: Mixture
    near: tuple[NeighborExpert, ...]
    weights: Array  # of the mixture, which may be zero, and of the neighbour GPs, (1 + K,)
    temperature: Array  # (q,), factor on all variances

    @property
    def params(self) -> Parameters:  # type: ignore[override]
        return self.base.params

    @property
    def log_evidence(self) -> float:  # type: ignore[override]
        return self.base.log_evidence

    @property
    def factors(self) -> tuple[Factor, ...]:  # type: ignore[override]
        return self.base.factors

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def frequencies(self) -> Array:
        return self.base.frequencies

    @property
    def noise_level(self) -> Array:
        return self.base.noise_level

    def kernel_input_scale(self, input_scale: Array) -> Array:
        return self.base.kernel_input_scale(input_scale)

    def status(self) -> dict[str, Any]:
        return self.base.status()

    def to(self, device: torch.device) -> LocalMixture:
        return replace(self, base=self.base.to(device), near=tuple(each.to(device) for each in self.near))

    def prediction_rows(self, device: torch.device) -> int:
        return self.base.prediction_rows(device)

    def predict(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:  # noqa: ARG002
        """Mean, variance of the function and noise variance, (..., n, q), in the model's units."""
        return self._combine(self._evaluate(x))

    def leave_one_out(self, x: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same of rows of these numbers, (n,), among the neighbours, and of their targets, each left out (L3)."""
        output, new = evaluate(self.base, x, y), evaluate(self.base, x)
        found = [
            (output.mean, output.variance, output.noise),
            *(each.leave_one_out(output, new, rows) for each in self.near),
        ]
        mean, variance, noise = combine_moments(found, self.weights, self.temperature)
        assert variance is not None
        return mean, variance, noise

    def _combine(self, output: MixtureOutput) -> tuple[Tensor, Tensor | None, Tensor]:
        found = [(output.mean, output.variance, output.noise), *(each.predict(output) for each in self.near)]
        return combine_moments(found, self.weights, self.temperature)

    def _evaluate(self, x: Tensor) -> MixtureOutput:
        if self.weights[0] > 0 or any(each.view.residual or each.view.latent for each in self.near):
            return evaluate_batches(self.base, x)
        # The neighbours use the inputs alone.
        nothing = x.new_zeros(*x.shape[:-1], len(self.temperature), dtype=torch.float64)
        return MixtureOutput(nothing, nothing, nothing, x.float())

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the function, (..., n, n, q)."""
        output = self._evaluate(x)
        base = self.base.covariance(x)
        means = [output.mean, *(each.predict(output)[0] for each in self.near)]
        covariances = itertools.chain([base], (each.covariance(output, base) for each in self.near))
        return combine_covariances(means, covariances, self.weights, self.temperature)

    def condition(self, x: Tensor, y: Tensor, noise: Tensor | None = None) -> LocalMixture:
        """The same as :meth:`update`, for one set of rows; statistics and evidence stay those of the fit."""
        check_observations(x, y, noise)
        base = self.base.condition(x, y)
        output = evaluate(base, x, y)
        return replace(self, base=base, near=tuple(each.extend(output, y) for each in self.near))

    def to_float64(self) -> LocalMixture:
        return replace(self, base=self.base.to_float64())

    def draw(self, count: int, rng: np.random.Generator) -> Functions:
        """Functions drawn from the posterior, which take rows, (n, d), and return values, (n, q, count)."""
        owner, below, *streams = rng.spawn(2 + len(self.near))
        owners = np.array([owner.choice(len(self.weights), p=self.weights) for _ in range(count)])
        draws = [each.draw(count, stream) for each, stream in zip(self.near, streams, strict=True)]
        base_draw = self.base.draw(count, below)

        def functions(x: Tensor) -> Tensor:
            output = self._evaluate(x)
            mean = self._combine(output)[0][:, :, None]
            base = base_draw(x)
            values = base.clone()
            for k, (each, draw) in enumerate(zip(self.near, draws, strict=True), start=1):
                own = torch.as_tensor(owners == k, device=x.device)
                if bool(own.any()):
                    values[:, :, own] = each.functions(output, draw(output), base)[:, :, own]
            root = torch.as_tensor(self.temperature).to(mean).sqrt()[:, None]
            return mean + root * (values - mean)

        return functions

    def update(self, rows: StandardisedRows) -> LocalMixture:  # type: ignore[override]
        """The posteriors of the experts know more rows, exactly; the neighbours get these rows, and keep the others."""
        base = self.base.update(rows)
        output, y = rows.chunks_of(self.prediction_rows(rows.device)).reduce(LeaveOneOut(base))
        return replace(self, base=base, near=tuple(each.to(y.device).extend(output, y) for each in self.near))


def combine(
    view: View, output: MixtureOutput, mean: Tensor, variance: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance of the function and noise of mixture and neighbours together, all (..., n, q)."""
    if not view.residual:
        return mean, variance, noise
    scale = output.scale
    return output.mean + scale * mean, scale.square() * variance + noise * output.variance, noise * output.noise


def view_rows(view: View, output: MixtureOutput, y: Tensor, width: int) -> tuple[Tensor, Tensor, RowNoise | None]:
    """Coordinates, targets and noise of rows, as the neighbour GP takes them."""
    y, noise = RowNoise.split(y, output.mean.shape[1])
    targets = (y - output.mean) / output.scale if view.residual else y
    if view.residual and noise is not None and noise.variance is not None:
        noise = replace(noise, variance=noise.variance / output.scale[:, 0].square())
    return output.coordinates[:, :width].contiguous(), targets.double(), noise


def read_coordinates(evaluated: Evaluated, width: int) -> Tensor:
    """The first coordinates, (n, width), of what :class:`LeaveOneOut` returns."""
    return evaluated[0].coordinates[:, :width].contiguous()


def make_local(
    view: View, output: MixtureOutput, y: Tensor, kernel: Kernel, lengthscale: Array, n_neighbors: int
) -> LocalGP:
    """A neighbour GP on rows, with parameters to start from."""
    q = output.mean.shape[1]
    params = Parameters(np.log(lengthscale), np.zeros(q), np.zeros(q), np.zeros(q))
    coordinates, targets, noise = view_rows(view, output, y, len(lengthscale))
    return LocalGP(kernel, params, coordinates, targets, n_neighbors, noise)

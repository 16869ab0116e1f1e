"""The joint posterior of a fitted model as a space of functions, in which conditioning on a row is one vector.

For one output, C(x, x') is the posterior covariance of the function at two rows. In every model here it is, as a
function of x, a combination of D basis functions,

    C(x, x') = phi(x)' a(x')                                                                     (A1)

- Models with features: phi are the features, ``a(x') = R'R phi(x')`` with a root R of the covariance of the weights.
- A mixture of experts is taken by its first two moments, which are those of ``predict(..., return_cov=True)``. They are
  those of a model whose features are the experts' features, and the distances of the experts' means from their average.
- The exact GP: phi is the kernel with the training rows X, and with every row x' that is asked for;
  ``a(x') = S e_x' - (S^2 / s2) A^-1 k(X, x')``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch

from prismgp._system import available_bytes, format_bytes
from prismgp._types import Tensor
from prismgp.core.exact import ExactModel, ExactPosterior, check_memory
from prismgp.core.features import gated_features, limit_inputs, spectral_features
from prismgp.core.kernels import squared_distance
from prismgp.core.models import Predictor, SpectralModel
from prismgp.core.numerics import factor
from prismgp.exceptions import DataError, TooLargeError
from prismgp.prism import LocalMixture, Mixture

_MATRICES = 4  # D x D, alive at the same time
_MEMORY_SHARE = 0.5


class Space(ABC):
    """A posterior in the form (A1)."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of basis functions, D."""

    @abstractmethod
    def features(self, x: Tensor, begin: int = 0) -> Tensor:
        """phi of rows in the model's units, without its first entries: (n, D - begin), float64."""

    @abstractmethod
    def extend(self, x: Tensor) -> Space:
        """A space that has the functions C(., x) of these rows; basis functions are only added at the end."""

    @abstractmethod
    def columns(self, phi: Tensor) -> Tensor:
        """a of the rows of the last call of :meth:`extend`, from their features (n, D): (D, n, q)."""

    @abstractmethod
    def variance(self, phi: Tensor) -> Tensor:
        """C(x, x), (n, q)."""

    @abstractmethod
    def condition(self, chunks: Iterable[tuple[Tensor, Tensor]]) -> Space:
        """The posterior after observations at chunks of rows with their noise variances, (n, q)."""

    def shares_features(self, other: Space) -> bool:
        """Whether features are the same functions."""
        return self is other


@dataclass(frozen=True, eq=False)
class WeightSpace(Space):
    """The posterior of weights."""

    map: Callable[[Tensor], Tensor]
    roots: Tensor  # (q, D, D)

    @property
    def size(self) -> int:
        return self.roots.shape[2]

    def features(self, x: Tensor, begin: int = 0) -> Tensor:
        return self.map(x) if begin == 0 else x.new_empty(len(x), 0, dtype=torch.float64)

    def extend(self, x: Tensor) -> WeightSpace:  # noqa: ARG002 - the features make all functions
        return self

    def columns(self, phi: Tensor) -> Tensor:
        return torch.stack([root.T @ (root @ phi.T) for root in self.roots], 2)

    def variance(self, phi: Tensor) -> Tensor:
        return torch.stack([(phi @ root.T).square().sum(1) for root in self.roots], 1)

    def condition(self, chunks: Iterable[tuple[Tensor, Tensor]]) -> WeightSpace:
        """With ``G = sum phi phi' / noise``, the covariance is ``R'(I + R G R')^-1 R``."""
        gram = torch.zeros_like(self.roots)
        for x, noise in chunks:
            phi = self.map(x)
            for k in range(len(gram)):
                scaled = phi / noise[:, k : k + 1].sqrt()
                gram[k] += scaled.T @ scaled
        eye = torch.eye(self.size).to(gram)
        roots = [factor(eye + root @ g @ root.T).half_solve(root) for root, g in zip(self.roots, gram, strict=True)]
        return replace(self, roots=torch.stack(roots))

    def shares_features(self, other: Space) -> bool:
        return isinstance(other, WeightSpace) and other.map is self.map


@dataclass(frozen=True, eq=False)
class ExactSpace(Space):
    """The posterior of the exact GP."""

    posterior: ExactPosterior
    asked: Tensor  # rows whose functions are in the basis, (e, d)
    last: int = 0  # of which these are of the last call of extend

    @property
    def size(self) -> int:
        return len(self.posterior.x) + len(self.asked)

    def features(self, x: Tensor, begin: int = 0) -> Tensor:
        posterior = self.posterior
        basis = torch.cat([posterior.x, self.asked])[begin:]
        scale = posterior.lengthscale
        return posterior.kernel.value(squared_distance(basis / scale, x.double() / scale)).T

    def extend(self, x: Tensor) -> ExactSpace:
        return replace(self, asked=torch.cat([self.asked, x.to(self.asked)]), last=len(x))

    def columns(self, phi: Tensor) -> Tensor:
        n, signal, noise = len(self.posterior.x), self.posterior.signal, self.posterior.noise
        found = phi.new_zeros(self.size, len(phi), len(signal))
        own = torch.arange(self.last, device=phi.device)
        for k, lower in enumerate(self.posterior.lower):
            solved = torch.cholesky_solve(phi[:, :n].T, lower)
            found[:n, :, k] = -(signal[k].square() / noise[k]) * solved
            found[self.size - self.last + own, own, k] += signal[k]
        return found

    def variance(self, phi: Tensor) -> Tensor:
        posterior = self.posterior
        cross = phi[:, : len(posterior.x)].T
        parts = []
        for signal, noise, lower in zip(posterior.signal, posterior.noise, posterior.lower, strict=True):
            half = torch.linalg.solve_triangular(lower, cross, upper=False)
            parts.append(signal * (1.0 - signal / noise * half.square().sum(0)).clamp_min(0.0))
        return torch.stack(parts, 1)

    def condition(self, chunks: Iterable[tuple[Tensor, Tensor]]) -> ExactSpace:
        old = self.posterior
        x = torch.cat([old.x, *(rows.to(old.x) for rows, _ in chunks)])
        check_memory(len(x), len(old.signal), x.device)
        kernel = old.kernel.value(squared_distance(x / old.lengthscale))
        eye = torch.eye(len(x)).to(kernel)
        lower = torch.stack([factor(eye + ratio * kernel).lower for ratio in old.signal / old.noise])
        return ExactSpace(replace(old, x=x, lower=lower), x[:0])


def space_of(predictor: Predictor) -> tuple[Space, Predictor]:
    """The posterior of a fitted model, and the predictor whose variances and noise it is about.

    Of a model with neighbours, that is the mixture of its experts, without these.
    """
    if isinstance(predictor, LocalMixture):
        predictor = predictor.base
    if isinstance(predictor, ExactModel):
        return ExactSpace(predictor.posterior, predictor.posterior.x[:0]), predictor
    if isinstance(predictor, SpectralModel):
        return _spectral_space(predictor), predictor
    if isinstance(predictor, Mixture):
        return _mixture_space(predictor), predictor
    raise DataError(
        "a NeighborGPRegressor has no joint posterior from which rows could be selected, as it predicts each row from "
        "rows of its own; fit an SSGPRegressor or a PrismGPRegressor to the same rows"
    )


def _spectral_space(model: SpectralModel) -> WeightSpace:
    blocks = model.posterior.blocks
    roots = [block.inverse_root * block.signal.sqrt()[:, None, None] for block in blocks]
    _check_size(sum(root.shape[2] for root in roots), roots[0])
    gate = model.gating.gate

    def features(x: Tensor) -> Tensor:
        x = limit_inputs(x, model.limits)
        phi = spectral_features(x, model.projection(dtype=x.dtype, device=x.device))
        # One-hot gates are gates: the clusters of hard gates are blocks of features.
        return (phi if gate is None else gated_features(phi, gate.gates(x).to(phi))).double()

    return WeightSpace(features, _join_blocks(roots))


def _mixture_space(mixture: Mixture) -> WeightSpace:
    experts = mixture.experts
    like = experts[0].posterior.inverse_root
    shares, temperature = (torch.as_tensor(each).to(like) for each in (mixture.weights, mixture.temperature))
    k, q = len(experts), len(temperature)
    _check_size(sum(expert.statistics.width for expert in experts) + k * q, like)

    def features(x: Tensor) -> Tensor:
        parts = [expert.map.features(x)[0].double() for expert in experts]
        found = (expert.posterior.predict(phi, variance=False)[0] for expert, phi in zip(experts, parts, strict=True))
        means = torch.stack(list(found), 1)  # (n, K, q)
        away = means - torch.einsum("k,nkq->nq", shares, means)[:, None]
        return torch.cat([*parts, away.flatten(1)], 1)

    roots = [
        expert.posterior.inverse_root * (share * temperature * expert.posterior.signal).sqrt()[:, None, None]
        for share, expert in zip(shares, experts, strict=True)
    ]
    # The distances of the means: those of an output concern that output alone.
    own = torch.eye(q).to(like)[:, None, :].expand(q, k, q)
    between = (own * (shares[:, None] * temperature).sqrt()).reshape(q, k * q)
    return WeightSpace(features, _join_blocks([*roots, torch.diag_embed(between)]))


def _join_blocks(roots: list[Tensor]) -> Tensor:
    """Block-diagonal matrices of each output, (q, D, D)."""
    if len(roots) == 1:
        return roots[0]
    joined = roots[0].new_zeros(len(roots[0]), *2 * [sum(root.shape[2] for root in roots)])
    begin = 0
    for root in roots:
        end = begin + root.shape[2]
        joined[:, begin:end, begin:end] = root
        begin = end
    return joined


def _check_size(size: int, like: Tensor) -> None:
    needed, there = _MATRICES * len(like) * 8 * size**2, available_bytes(like.device)
    if needed > _MEMORY_SHARE * there:
        raise TooLargeError(
            f"to select rows, the joint covariance of the {size:,} features of this model needs about "
            f"{format_bytes(needed)} of memory, {format_bytes(there)} are available; fit a model with fewer "
            "frequencies or clusters"
        )

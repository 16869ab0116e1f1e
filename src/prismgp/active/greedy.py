"""Greedy choice of rows: the posterior after each choice, the scores, and how a large pool is searched.

With c(x) the variance of the function given the rows known so far, v(x) the noise variance, and s the row that was
chosen last,

    g(x) = C(x, s) / sqrt(c(s) + v(s)),   c'(x) = c(x) - g(x)^2,   C'(x, x') = C(x, x') - g(x) g(x')         (A2)

so that by (A1) one vector of coefficients for g, found in O(D^2), updates all rows of the pool in O(D) each. Taking a
row out again has the opposite sign: ``g = C(x, s) / sqrt(v(s) - c(s))``, ``c' = c + g^2``.                  (A3)

Scores, each a sum over outputs:

- entropy ``1/2 log(1 + c / v)``, by how much an observation lowers the entropy of the function;             (A4)
- mutual information of the chosen rows and all others of the pool, Krause et al. (2008), equation 6:
  ``1/2 log(1 + c / v) + 1/2 log(1 - r / v)``, with r the variance given the known rows and all rows of the pool that
  are not chosen, x among them: ``v^2 / (v - r)`` is the variance of an observation without x;               (A5)
  with a reference, of the chosen rows and observations at the reference: ``1/2 log(1 + c / v) - 1/2 log(1 + z / v)``,
  with z the variance given the known rows, the chosen ones and the reference;                               (A6)
- ALC ``mean_r C(r, x)^2 / (c + v)`` over the reference rows r, by how much their mean variance falls. With
  ``a(x) = mean_r C(r, x)^2`` and ``h(x) = mean_r g(r) C(r, x)``: ``a' = a - 2 g h + g^2 mean_r g(r)^2``.    (A7)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from prismgp._types import Tensor
from prismgp.active.space import Space

_TIE = 1e-9  # relative; scores that differ by less are equal, and the row of the lowest number is taken


class Conditional:
    """A posterior, and what later rows change of it (A2); or rows that are taken out of it, ``sign = -1`` (A3)."""

    def __init__(self, space: Space, sign: float = 1.0) -> None:
        self.space, self.sign = space, sign
        self.vectors: Tensor | None = None  # coefficients of g for each row, (D, t, q)

    @property
    def count(self) -> int:
        """How many rows came later."""
        return 0 if self.vectors is None else self.vectors.shape[1]

    def condition(self, x: Tensor, noise: Tensor) -> None:
        """Take in a row, (1, d), with noise variances, (q,)."""
        self.space = self.space.extend(x)
        phi = self.space.features(x)
        vector = self.space.columns(phi)[:, 0]
        if self.vectors is not None:
            before = self.respond(phi)[0]  # (t, q)
            self.vectors = pad_rows(self.vectors, len(vector))
            vector = vector - self.sign * torch.einsum("dtq,tq->dq", self.vectors, before)
        variance = (phi[0] @ vector).clamp_min(0.0)
        scaled = (vector / (noise + self.sign * variance).sqrt())[:, None]
        self.vectors = scaled if self.vectors is None else torch.cat([self.vectors, scaled], 1)

    def respond(self, phi: Tensor, since: int = 0) -> Tensor:
        """g at rows with features phi, for the rows that came after the first ``since``: (n, t, q)."""
        assert self.vectors is not None
        return combine(phi, self.vectors[:, since:])


def combine(phi: Tensor, vectors: Tensor) -> Tensor:
    """Functions with coefficients (D, t, q) at rows with features phi: (n, t, q)."""
    size, t, q = vectors.shape
    return (phi[:, :size] @ vectors.reshape(size, t * q)).view(len(phi), t, q)


def pad_rows(vectors: Tensor, size: int) -> Tensor:
    """Coefficients (D, ...) in a larger basis."""
    return torch.cat([vectors, vectors.new_zeros(size - len(vectors), *vectors.shape[1:])])


@dataclass
class PoolRows:
    """Some rows of the pool: their noise, variance, and what else the criterion keeps of them, all (n, q)."""

    noise: Tensor
    variance: Tensor
    other: Tensor | None

    def take(self, index: Tensor) -> PoolRows:
        other = None if self.other is None else self.other[index]
        return PoolRows(self.noise[index], self.variance[index], other)


class Criterion(ABC):
    """What is asked of the rows, and the posteriors it depends on."""

    shrinking: bool = True  # whether scores can only fall as rows are chosen: those that were low can be left for later

    def __init__(self, space: Space) -> None:
        self.known = Conditional(space)

    @property
    def posteriors(self) -> list[Conditional]:
        return [self.known]

    def features(self, x: Tensor) -> list[Tensor]:
        """Features of rows in the space of each posterior."""
        found: list[Tensor] = []
        for posterior in self.posteriors:
            if found and posterior.space.shares_features(self.known.space):
                found.append(found[0])
            else:
                found.append(posterior.space.features(x))
        return found

    def grow_features(self, phis: list[Tensor], x: Tensor) -> list[Tensor]:
        """The same, where the spaces have grown since."""
        found = []
        for phi, posterior in zip(phis, self.posteriors, strict=True):
            more = posterior.space.size - phi.shape[1]
            found.append(torch.cat([phi, posterior.space.features(x, phi.shape[1])], 1) if more else phi)
        return found

    def choose(self, x: Tensor, noise: Tensor) -> None:
        """Take in the row that was chosen."""
        for posterior in self.posteriors:
            posterior.condition(x, noise)

    def start(self, phis: list[Tensor]) -> Tensor | None:  # noqa: ARG002
        """What is kept of new rows beside their variance."""
        return None

    def update(self, rows: PoolRows, phis: list[Tensor], since: int) -> None:
        """Bring rows up to date that know the first ``since`` choices."""
        rows.variance = (rows.variance - self.known.respond(phis[0], since).square().sum(1)).clamp_min(0.0)

    @abstractmethod
    def score(self, rows: PoolRows) -> Tensor:
        """(n,)"""


class Entropy(Criterion):
    """(A4)"""

    def score(self, rows: PoolRows) -> Tensor:
        return 0.5 * torch.log1p(rows.variance / rows.noise).sum(1)


class MutualInformation(Criterion):
    """(A5); with ``reference`` (A6). ``rest`` is the posterior given the pool, or given the reference."""

    def __init__(self, space: Space, rest: Space, *, reference: bool) -> None:
        super().__init__(space)
        self.shrinking = not reference
        self.rest = Conditional(rest, 1.0 if reference else -1.0)

    @property
    def posteriors(self) -> list[Conditional]:
        return [self.known, self.rest]

    def start(self, phis: list[Tensor]) -> Tensor:
        return self.rest.space.variance(phis[1])

    def update(self, rows: PoolRows, phis: list[Tensor], since: int) -> None:
        super().update(rows, phis, since)
        assert rows.other is not None
        change = self.rest.respond(phis[1], since).square().sum(1)
        rows.other = (rows.other - self.rest.sign * change).clamp_min(0.0)

    def score(self, rows: PoolRows) -> Tensor:
        assert rows.other is not None
        sign = self.rest.sign
        # Without a row's own observation r < v; rounding may not know that.
        inner = (sign * rows.other / rows.noise).clamp_min(-1.0 + 1e-15)
        return 0.5 * (torch.log1p(rows.variance / rows.noise) - sign * torch.log1p(inner)).sum(1)


class VarianceReduction(Criterion):
    """(A7) for reference rows, (m, d)."""

    shrinking = False

    def __init__(self, space: Space, reference: Tensor) -> None:
        space = space.extend(reference)
        super().__init__(space)
        self.reference = reference
        self.at_reference = space.features(reference)
        self.sections = space.columns(self.at_reference)  # coefficients of C(., r), (D, m, q)
        m = len(reference)
        size = self.sections.shape[0]
        # Any root will do, and it need not have more rows than there are basis functions.
        whole = [(self.sections[:, :, k] / m**0.5).T for k in range(self.sections.shape[2])]
        self._roots = [torch.linalg.qr(each, mode="r").R if m > size else each for each in whole]
        self.h: list[Tensor] = []  # coefficients of h for each choice, (D, q)
        self.mean_square: list[Tensor] = []  # mean_r g(r)^2 for each choice, (q,)

    def choose(self, x: Tensor, noise: Tensor) -> None:
        super().choose(x, noise)
        known = self.known
        assert known.vectors is not None
        size = known.space.size
        (self.at_reference,) = self.grow_features([self.at_reference], self.reference)
        before = known.count - 1
        g = known.respond(self.at_reference)  # (m, t + 1, q)
        own = g[:, before] / len(g)
        h = pad_rows(torch.einsum("dmq,mq->dq", self.sections, own), size)
        h = h - torch.einsum("dtq,tq->dq", known.vectors[:, :before], torch.einsum("mtq,mq->tq", g[:, :before], own))
        self.h = [*(pad_rows(each, size) for each in self.h), h]
        self.mean_square.append((g[:, before] * own).sum(0))

    def start(self, phis: list[Tensor]) -> Tensor:
        return torch.stack([(phis[0] @ root.T).square().sum(1) for root in self._roots], 1)

    def update(self, rows: PoolRows, phis: list[Tensor], since: int) -> None:
        assert rows.other is not None
        assert self.known.vectors is not None
        # In one product: to read the features takes most of the time.
        both = combine(phis[0], torch.cat([self.known.vectors[:, since:], torch.stack(self.h[since:], 1)], 1))
        g, h = both.chunk(2, 1)
        rows.variance = (rows.variance - g.square().sum(1)).clamp_min(0.0)
        change = (g * (g * torch.stack(self.mean_square[since:]) - 2.0 * h)).sum(1)
        rows.other = (rows.other + change).clamp_min(0.0)

    def score(self, rows: PoolRows) -> Tensor:
        assert rows.other is not None
        return (rows.other / (rows.variance + rows.noise)).sum(1)


class Pool(ABC):
    """Rows to choose from, in the model's units."""

    n_rows: int

    @abstractmethod
    def chunks(self) -> Iterable[Tensor]:
        """All rows in order."""

    @abstractmethod
    def take(self, index: Tensor) -> Tensor:
        """The rows of increasing indices."""


Moments = Callable[[Tensor], tuple[Tensor, Tensor]]


def choose_rows(
    criterion: Criterion, pool: Pool, count: int, moments: Moments, *, candidates: int
) -> tuple[list[int], list[float]]:
    """Choose rows one by one, each of the highest score given those before; their numbers and scores.

    ``moments`` gives variance of the function and noise of rows. A pass over the pool finds the scores of all rows. Up
    to ``candidates`` of the highest are held in memory with their features, and are kept up to date with every choice.
    If scores can only fall, the best candidate is the best row as long as its score is above those that the other rows
    had at the last pass; so the result is that of a pass for every choice.
    """
    everything = _begin(criterion, pool, moments)
    scores = criterion.score(everything)
    rows: list[int] = []
    found: list[float] = []
    while True:
        scores[rows] = -torch.inf
        first = _find_best(scores)
        held, bound = _leaders(scores, candidates, first)
        x, near = pool.take(held), everything.take(held)
        passed = criterion.known.count
        phis = criterion.features(x)
        near_scores = scores[held]
        best = int((held == first).nonzero())
        while True:
            rows.append(int(held[best]))
            found.append(float(near_scores[best]))
            if len(rows) == count:
                return rows, found
            since = criterion.known.count
            criterion.choose(x[best : best + 1], near.noise[best])
            phis = criterion.grow_features(phis, x)
            criterion.update(near, phis, since)
            gone = torch.isneginf(near_scores)
            gone[best] = True
            near_scores = criterion.score(near).masked_fill(gone, -torch.inf)
            best = _find_best(near_scores)
            settled = criterion.shrinking and _lower_by_tie(float(near_scores[best])) > bound
            if not settled and len(held) < pool.n_rows:
                break
        _refresh(criterion, pool, everything, passed)
        scores = criterion.score(everything)


def _begin(criterion: Criterion, pool: Pool, moments: Moments) -> PoolRows:
    parts = []
    for x in pool.chunks():
        variance, noise = moments(x)
        parts.append(PoolRows(noise, variance, criterion.start(criterion.features(x))))
    other = None if parts[0].other is None else torch.cat([part.other for part in parts if part.other is not None])
    return PoolRows(torch.cat([part.noise for part in parts]), torch.cat([part.variance for part in parts]), other)


def _refresh(criterion: Criterion, pool: Pool, rows: PoolRows, since: int) -> None:
    """A pass that brings all rows up to date."""
    begin = 0
    for x in pool.chunks():
        part = torch.arange(begin, begin + len(x), device=rows.noise.device)
        begin += len(x)
        own = rows.take(part)
        criterion.update(own, criterion.features(x), since)
        rows.variance[part] = own.variance
        if rows.other is not None and own.other is not None:
            rows.other[part] = own.other


def _find_best(scores: Tensor) -> int:
    """The first row whose score is the highest, up to rounding."""
    return int((scores >= _lower_by_tie(float(scores.max()))).nonzero()[0, 0])


def _lower_by_tie(score: float) -> float:
    """The lowest score that counts as equal."""
    return score - _TIE * abs(score)


def _leaders(scores: Tensor, count: int, first: int) -> tuple[Tensor, float]:
    """Rows of the highest scores, one of them ``first``, in order; and the highest score of the others."""
    if count >= len(scores):
        return torch.arange(len(scores), device=scores.device), -torch.inf
    order = scores.sort(descending=True, stable=True).indices
    held: Tensor = torch.unique(torch.cat([order[:count], order.new_tensor([first])]))
    return held, float(scores[order[count]])

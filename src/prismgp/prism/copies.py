"""Copies: rows with the same inputs as rows that a model knows.

Neighbours, and networks too, remember what a copy's target was. Residuals of copies are therefore distributed in
another way than those of other rows, and may have a shape of the noise of their own (:mod:`prismgp.prism.shapes`). It
is learned from rows of the training that have copies there, each predicted without itself (Z7): posteriors leave a row
out in closed form (L3), and it is not its own neighbour. Networks have seen it, but have seen its copies too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from prismgp._types import AnyArray, Array, Tensor
from prismgp.core.models import Predictor
from prismgp.core.numerics import Hashes, hash_rows
from prismgp.core.rows import RowNoise
from prismgp.data import StandardisedRows
from prismgp.prism.local import LocalMixture
from prismgp.prism.stacking import HeldOut
from prismgp.vae import Indices

Mask = npt.NDArray[np.bool_]

LEAST_COPIES, MOST_COPIES = 200, 10_000  # fewer say nothing about a shape; more say no more
_LEAST_SHARE = 0.01  # of all rows: fewer make no difference
MOST_DUPLICATES = 1_000  # of one row
_LEAST_AGREEING, _MOST_AGREEING = 0.99, 0.01  # shares of pairs with the same target: of copies, and of other rows


@dataclass(frozen=True)
class Copies:
    """Rows of the training that have copies there."""

    residuals: Array  # of each predicted without itself, standardised, (m, q)
    weights: Array | None  # (m,), where rows have any
    alone: Mask  # which of the held-out rows have no copy


def find_copies(
    predictor: LocalMixture, pool: StandardisedRows, held_out: Indices, rng: np.random.Generator
) -> Copies | None:
    """Predict rows of the pool, those that may be neighbours, that have copies there; None if these are few.

    ``held_out`` are rows of the pool. Leaving rows out of an exact GP would take a factorisation for each: None.
    """
    if any(near.view.whole for near in predictor.near):
        return None
    inputs = predictor.near[0].gp.coordinates[:, : pool.n_inputs]  # they come first, whatever the view
    _, group, sizes = np.unique(_hash(inputs), return_inverse=True, return_counts=True)
    copied = sizes[group] > 1
    index = np.flatnonzero(copied)
    if len(index) < max(LEAST_COPIES, _LEAST_SHARE * len(copied)):
        return None
    if len(index) > MOST_COPIES:
        index = np.sort(rng.choice(index, MOST_COPIES, replace=False))
    rows = torch.as_tensor(index, device=pool.device)
    found, targets, done = [], [], 0
    for x, y in replace(pool, source=pool.source.take(index)).chunks_of(predictor.prediction_rows(pool.device)):
        found.append(HeldOut.of(*predictor.leave_one_out(x, y.double(), rows[done : done + len(x)])))
        targets.append(y.double())
        done += len(x)
    y, noise = RowNoise.split(torch.cat(targets), pool.n_outputs)
    seen = HeldOut.join(found).at_rows(noise)
    residuals = (y.cpu().numpy() - seen.mean) / np.sqrt(seen.total)
    return Copies(residuals, None if noise is None else noise.weight.cpu().numpy(), ~copied[held_out])


def group_duplicates(x: Tensor, y: Tensor, others: int) -> Tensor:
    """Groups of rows by inputs, (n, d), and targets, (n, q): each row alone, or with its duplicates, (n,).

    Copies that always have the same target, where other rows hardly ever have, are one observation written down several
    times, or there is no noise. As neighbours of each other they would show that neighbours know the target, which
    those of a new row do not. A group has the number of its first row. Every row must have so many ``others`` beside
    its duplicates, and not too many of these, which a search has to pass over.
    """
    inputs, targets = _hash(x), y.cpu().numpy()
    _, first, group, sizes = np.unique(
        hash_rows(targets, inputs), return_index=True, return_inverse=True, return_counts=True
    )
    alone = len(first) == len(inputs)
    if not alone:
        of_copies, of_others = (np.unique(each, return_counts=True)[1] for each in (inputs, hash_rows(targets[first])))
        chance = _pairs(of_others) / max(_pairs(of_others.sum(keepdims=True)), 1.0)
        differ = _pairs(sizes) < _LEAST_AGREEING * _pairs(of_copies) or chance > _MOST_AGREEING
        alone = differ or sizes.max() > min(MOST_DUPLICATES, len(inputs) - others)
    return torch.as_tensor(np.arange(len(inputs)) if alone else first[group], device=x.device)


def _pairs(sizes: Indices) -> float:
    """Pairs of rows in groups of these sizes."""
    return float((sizes * (sizes - 1.0)).sum())


@dataclass(frozen=True)
class KnownRows:
    """The rows among which a model looks for neighbours."""

    hashes: Hashes  # of their inputs, sorted

    @classmethod
    def of(cls, predictor: Predictor, inputs: int) -> KnownRows | None:
        """Those of a model with neighbours, and with this number of inputs; None of others."""
        return cls(predictor.near[0].gp.sorted_hashes(inputs)) if isinstance(predictor, LocalMixture) else None

    def mark_copies(self, x: Tensor) -> Mask:
        """Which of the rows x, (n, d), in the model's units, are copies of these, (n,)."""
        hashes = _hash(x)
        place = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.asarray(self.hashes[place] == hashes)


def _hash(x: Tensor) -> Hashes:
    rounded: AnyArray = x.float().cpu().numpy()  # as coordinates are
    return hash_rows(rounded)

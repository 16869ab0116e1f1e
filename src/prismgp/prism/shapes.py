"""The shapes of the noise of a fit, learned from held-out rows, from its plain SSGP, and from rows that have copies.

With few rows, a few dozen are held out. They rarely have an outlier among them, so their residuals look normal, and
their variance is too small. Residuals of the plain SSGP at all rows show how long the tails are. Their shape is used,
at the variance that suits the held-out rows best, unless these are likelier under their own:

    log t maximises sum_i log p(z_i / sqrt(t)) - (m / 2) log t - (50 / 4) (log t)^2                             (Z8)

Copies are rows with the same inputs as rows that a model knows. Neighbours, and networks too, remember what a copy's
target was. Residuals of copies are therefore distributed differently, and may have a shape of their own. It is learned
from rows of the training that have copies there, each predicted without itself (Z7): posteriors leave a row out in
closed form (L3), and it is not its own neighbour. Networks have seen it, but have seen its copies too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from prismgp._types import AnyArray, Array, Indices, Tensor
from prismgp.core.numerics import Hashes, hash_rows
from prismgp.core.rows import RowNoise
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.core.shape_fit import ShapeFit, fit_shape
from prismgp.data import StandardisedRows
from prismgp.prism.local import LocalMixture
from prismgp.prism.stacking import TEMPERATURE_ROWS, HeldOut, Residuals, average, is_significant

Mask = npt.NDArray[np.bool_]

_LOG_FACTORS = np.linspace(-1.0, 1.6, 131)  # of a shape that is not of the held-out rows
LEAST_COPIES, MOST_COPIES = 200, 10_000  # fewer cannot show a shape, more add nothing
_LEAST_SHARE = 0.01  # of all rows: fewer make no difference
MOST_DUPLICATES = 1_000  # of one row
_LEAST_AGREEING, _MOST_AGREEING = 0.99, 0.01  # shares of pairs with the same target: of copies, and of other rows


# -- copies ------------------------------------------------------------------------------------------


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


def mark_copies(known: Hashes, x: Tensor) -> Mask:
    """Which of the rows x, (n, d), in the model's units, have inputs with one of these sorted hashes, (n,)."""
    hashes = _hash(x)
    place = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return np.asarray(known[place] == hashes)


def _hash(x: Tensor) -> Hashes:
    rounded: AnyArray = x.float().cpu().numpy()  # as coordinates are
    return hash_rows(rounded)


# -- shapes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FoundShapes:
    """Shapes of each output, (q,); None: normal."""

    shapes: tuple[NoiseShape, ...] | None
    copy_shapes: tuple[NoiseShape, ...] | None  # of rows with the inputs of known rows; None: the same as of others
    status: list[dict[str, Any]]  # for ``fit_status_``
    factors: Array  # on the variances of each output, (q,), which suit the shapes


def find_shapes(
    seen: Residuals | None, q: int, copies: Copies | None = None, usual: Residuals | None = None
) -> FoundShapes:
    """Shapes from residuals at held-out rows; normal without any.

    ``usual`` are residuals of the plain SSGP at more rows, if it was not chosen.
    Copies have shapes of their own if these are significantly better for them; then those of other rows are learned
    from the held-out rows that have no copy, where these are enough.
    """
    factors = np.ones(q)
    if seen is None:
        return FoundShapes(None, None, [_about(ShapeFit(NormalShape()))] * q, factors)
    z, weights = seen.values, seen.row_weights
    found = [fit_shape(z[:, k], weights=weights) for k in range(q)]
    if usual is not None and copies is None:
        for k in range(q):
            other = fit_shape(usual.values[:, k], weights=usual.row_weights)
            found[k], factors[k] = _choose(found[k], other, z[:, k], weights)
    own = [_find_better(copies.residuals[:, k], copies.weights, found[k].shape) for k in range(q)] if copies else []
    if copies is None or all(each is None for each in own):
        normal = all(isinstance(each.shape, NormalShape) for each in found)
        shapes = None if normal else tuple(each.shape for each in found)
        return FoundShapes(shapes, None, [_about(each) for each in found], factors)
    if copies.alone.sum() >= LEAST_COPIES:
        some = None if weights is None else weights[copies.alone]
        found = [fit_shape(z[copies.alone, k], weights=some) for k in range(q)]
    known = [other if mine is None else mine for mine, other in zip(own, found, strict=True)]
    status = [_about(a) | {"copies": _about(b)} for a, b in zip(found, known, strict=True)]
    return FoundShapes(tuple(each.shape for each in found), tuple(each.shape for each in known), status, factors)


def _choose(own: ShapeFit, usual: ShapeFit, z: Array, weights: Array | None) -> tuple[ShapeFit, float]:
    """The shape of the plain SSGP, and the factor on the variances (Z8), or that of held-out rows if it is likelier."""
    if isinstance(usual.shape, NormalShape):
        return own, 1.0
    w = np.ones_like(z) if weights is None else weights * (weights.sum() / np.square(weights).sum())
    logs = usual.shape.log_density(z / np.exp(0.5 * _LOG_FACTORS)[:, None]) - 0.5 * _LOG_FACTORS[:, None]
    best = int((logs @ w - 0.25 * TEMPERATURE_ROWS * _LOG_FACTORS**2).argmax())
    if is_significant(own.shape.log_density(z) - logs[best], weights, fitted=1, margin=0.0):
        return own, 1.0
    gain = average(logs[best] - NormalShape().log_density(z), weights)
    return ShapeFit(usual.shape, {"normal": gain, usual.shape.kind: 0.0}), float(np.exp(_LOG_FACTORS[best]))


def _find_better(z: Array, weights: Array | None, other: NoiseShape) -> ShapeFit | None:
    """The shape of residuals, (m,), if they are significantly likelier than under another shape, cross-validated."""
    found = fit_shape(z, weights=weights)
    if not found.scores:
        return None
    density = found.shape.log_density(z)
    optimism = average(density, weights) + found.scores[found.shape.kind]
    gains = density - other.log_density(z) - optimism
    return found if is_significant(gains, weights, fitted=1) else None


def _about(found: ShapeFit) -> dict[str, Any]:
    return {"kind": found.shape.kind, "gain": float(found.gain)}

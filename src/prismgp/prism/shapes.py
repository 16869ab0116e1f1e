"""The shapes of the noise of a fit, learned from held-out rows, from its plain SSGP, and from rows that have copies.

With few rows, a few dozen are held out. They rarely have an outlier among them, so their residuals look normal, and
their variance is too small. Residuals of the plain SSGP at all rows show how long the tails are. Their shape is used,
at the variance that suits the held-out rows best, unless these are likelier under their own:

    log t maximises sum_i log p(z_i / sqrt(t)) - (m / 2) log t - (50 / 4) (log t)^2                             (Z8)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from prismgp._types import Array
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.core.shape_fit import ShapeFit, fit_shape
from prismgp.prism.copies import LEAST_COPIES, Copies
from prismgp.prism.stacking import TEMPERATURE_ROWS, Residuals, average, is_significant

_LOG_FACTORS = np.linspace(-1.0, 1.6, 131)  # of a shape that is not of the held-out rows


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

    ``usual`` are those of the plain SSGP at more rows, where these are others.
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

"""The shapes of the noise of a fit, learned from its held-out rows, and from rows that have copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prismgp._types import Array
from prismgp.core.shape import NoiseShape, NormalShape
from prismgp.core.shape_fit import ShapeFit, fit_shape
from prismgp.prism.copies import LEAST_COPIES, Copies
from prismgp.prism.stacking import average, is_significant


@dataclass(frozen=True)
class FoundShapes:
    """Shapes of each output, (q,); None: normal."""

    shapes: tuple[NoiseShape, ...] | None
    copy_shapes: tuple[NoiseShape, ...] | None  # of rows with the inputs of known rows; None: the same as of others
    status: list[dict[str, Any]]  # for ``fit_status_``


def find_shapes(
    residuals: Array | None, q: int, weights: Array | None = None, copies: Copies | None = None
) -> FoundShapes:
    """Shapes from standardised residuals of held-out rows, (m, q), which may have weights, (m,).

    They are normal without residuals. Copies have shapes of their own if these are significantly better for them;
    then those of other rows are learned from the held-out rows that have no copy, where these are enough.
    """
    if residuals is None:
        return FoundShapes(None, None, [_about(ShapeFit(NormalShape()))] * q)
    found = [fit_shape(residuals[:, k], weights=weights) for k in range(q)]
    status, shapes = [_about(each) for each in found], tuple(each.shape for each in found)
    if copies is not None:
        own = [_better(copies.residuals[:, k], copies.weights, shapes[k]) for k in range(q)]
        if any(each is not None for each in own):
            if copies.alone.sum() >= LEAST_COPIES:
                some = None if weights is None else weights[copies.alone]
                found = [fit_shape(residuals[copies.alone, k], weights=some) for k in range(q)]
            known = [other if each is None else each for each, other in zip(own, found, strict=True)]
            status = [_about(a) | {"copies": _about(b)} for a, b in zip(found, known, strict=True)]
            return FoundShapes(tuple(each.shape for each in found), tuple(each.shape for each in known), status)
    normal = all(isinstance(each, NormalShape) for each in shapes)
    return FoundShapes(None if normal else shapes, None, status)


def _better(z: Array, weights: Array | None, other: NoiseShape) -> ShapeFit | None:
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

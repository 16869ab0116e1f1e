"""Tensors of a model file."""

from __future__ import annotations

from prismgp._types import Tensor
from prismgp.exceptions import ModelFileError

__all__ = ["take"]


def take(tensors: dict[str, Tensor], **shapes: tuple[int, ...]) -> list[Tensor]:
    """Tensors of a model file by name, after a check of their shapes."""
    for name, shape in shapes.items():
        found = tuple(tensors[name].shape) if name in tensors else None
        if found != shape:
            raise ModelFileError(f"tensor {name!r} has shape {found}, expected {shape}")
    return [tensors[name] for name in shapes]

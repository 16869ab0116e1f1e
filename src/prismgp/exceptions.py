"""Errors and warnings. Every error PrismGP raises on purpose is one of these."""

from __future__ import annotations

__all__ = [
    "DataError",
    "DataTypeError",
    "ModelFileError",
    "NumericalError",
    "PrismGPError",
    "PrismGPWarning",
    "TooLargeError",
]


class PrismGPError(Exception):
    """Base of all PrismGP errors."""


class DataError(PrismGPError, ValueError):
    """The data cannot be used; the message names the column, the value and the remedy."""


class DataTypeError(DataError, TypeError):
    """A cell holds an object that is not a number.

    Also a ``TypeError``, because scikit-learn's conventions ask for one.
    """


class ModelFileError(PrismGPError):
    """A model file is damaged, hostile, or of a format this version cannot read."""


class TooLargeError(PrismGPError, MemoryError):
    """The request does not fit into memory; raised beforehand where that can be foreseen, or when memory runs out."""


class NumericalError(PrismGPError, ArithmeticError):
    """A computation left the range of floating-point numbers."""


class PrismGPWarning(UserWarning):
    """Something was handled, but the user should know."""

"""The interface of the libraries that are compared, and whether they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch

import prismgp
from experiments.internals import Array

__all__ = [
    "PATIENCE",
    "ROUNDS",
    "ConstantStd",
    "Fitted",
    "Library",
    "blocks",
    "boosting_rate",
    "explain_absence",
    "fit_function",
    "library_version",
    "predict_blocks",
    "split_off",
    "usable_threads",
]

ROUNDS = 3_000  # of boosting, at most
PATIENCE = 100  # rounds without progress on held-out rows that end it
_LEAST_STD = 1e-6


class Fitted(Protocol):
    """What the ``fit_...`` function of every library returns."""

    facts: dict[str, Any]
    """What the fit chose or found, plain data, stored with the result."""

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of a new observation at each row, (n,) each."""
        ...


@dataclass(frozen=True)
class Library:
    """Where a library comes from.

    Attributes
    ----------
    name : str
        As its users write it.
    distribution : str
        What pip calls it.
    module : str
        What Python calls it.
    extra : str or None
        The extra of prismgp that brings it; None: it is installed anyway.
    licence : str
    """

    name: str
    distribution: str
    module: str
    extra: str | None
    licence: str


def explain_absence(library: Library) -> str | None:
    """Why the library cannot be used, with the remedy; None where it can."""
    if find_spec(library.module) is not None:
        return None
    return f'{library.name} is not installed; pip install "prismgp[{library.extra}]" brings it'


def library_version(library: Library) -> str | None:
    """The installed version."""
    if library.module == "prismgp":  # also from a source tree that is not installed
        return prismgp.__version__
    try:
        return version(library.distribution)
    except PackageNotFoundError:
        return None


def fit_function(name: str) -> Callable[..., Fitted]:
    """The function behind ``module:function``, a module of this package."""
    module, _, function = name.partition(":")
    found: Callable[..., Fitted] = getattr(import_module(f"{__package__}.{module}"), function)
    return found


def blocks(n: int, rows: int) -> Iterator[slice]:
    """Slices that cover n rows, ``rows`` at a time."""
    return (slice(begin, min(begin + rows, n)) for begin in range(0, n, rows))


def predict_blocks(predict: Callable[[Array], tuple[Array, Array]], X: Array, rows: int = 4096) -> tuple[Array, Array]:
    """Predictions made a block of rows at a time, so that memory stays bounded."""
    parts = [predict(X[block]) for block in blocks(len(X), rows)]
    return np.concatenate([mean for mean, _ in parts]), np.concatenate([std for _, std in parts])


def split_off(n: int, share: float, seed: int, most: int = 10_000) -> tuple[Any, Any]:
    """Indices of rows to train on and of rows to choose settings by, at random."""
    order = np.random.default_rng(seed).permutation(n)
    held_out = min(max(1, round(share * n)), most)
    return order[held_out:], order[:held_out]


def usable_threads() -> int:
    """Threads of this job, for libraries that would otherwise take all cores."""
    return torch.get_num_threads()


def boosting_rate(n: int) -> float:
    """The learning rate of boosted trees for n rows: few rows have time for small steps, many need large ones."""
    return 0.03 if n < 5_000 else 0.05 if n < 100_000 else 0.1


class ConstantStd:
    """Predictions of a library that has no variance; residuals of held-out rows give one for all rows."""

    def __init__(self, predict_mean: Callable[[Array], Any], residuals: Array, facts: dict[str, Any]) -> None:
        self.predict_mean = predict_mean
        self.std = max(float(np.sqrt(np.mean(np.square(residuals)))), _LEAST_STD)
        self.facts = {**facts, "std": self.std}

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Mean, and the same standard deviation for each row."""
        mean = np.asarray(self.predict_mean(X), dtype=np.float64)
        return mean, np.full(len(mean), self.std)

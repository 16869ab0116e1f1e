"""The Pareto front of error and time."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Losses", "dominators", "front"]

Losses = Mapping[str, tuple[float, float]]
"""Label to seconds and error; of both, less is better."""


def dominators(points: Losses, name: str) -> list[str]:
    """The points that are at least as fast and as accurate, and better in one; the fastest first."""
    x, y = points[name]
    better = [other for other, (a, b) in points.items() if a <= x and b <= y and (a, b) != (x, y)]
    return sorted(better, key=lambda other: points[other])


def front(points: Losses) -> list[str]:
    """The labels that no other point dominates, the fastest first.

    Examples
    --------
    >>> from experiments.pareto import front
    >>> front({"slow": (9.0, 0.1), "fast": (1.0, 0.3), "neither": (9.5, 0.4)})
    ['fast', 'slow']
    """
    return sorted((name for name in points if not dominators(points, name)), key=lambda name: points[name])

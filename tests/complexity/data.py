"""Data that satisfy the conditions of the paper, and dense references."""

from __future__ import annotations

import numpy as np


def condition_data(n_clusters: int, d: int, bound: float, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Clusters of sizes 2^(i/2), widths gamma_i^2 = (U + L) / (8 d), centres just beyond Condition 3.

    Returns rows, labels and the distance of the centres. The order of the draws fixes the reference values.
    """
    sizes = [max(1, round(2 ** (i / 2))) for i in range(1, n_clusters + 1)]
    n = sum(sizes)
    a = -np.log2(1.0 - (bound / n) ** 4)

    def band(i: int) -> float:
        return 4.0 * np.log(n / bound) if i == 1 else -np.log(1.0 - 2.0 ** -(a + i - 1))

    apart = np.sqrt(6.0 * np.log(n / bound)) * 1.0001
    rng = np.random.default_rng(seed)
    rows = []
    for i, size in enumerate(sizes, start=1):
        centre = np.zeros(d)
        centre[(i - 1) % d] = apart / np.sqrt(2.0)
        gamma = np.sqrt((band(i) + band(i + 1)) / (8.0 * d))
        rows.append(centre + gamma * rng.standard_normal((size, d)))
    return np.concatenate(rows), np.repeat(np.arange(n_clusters), sizes), float(apart)


def squared_distances(x: np.ndarray) -> np.ndarray:
    """By differences, one column at a time."""
    s = np.zeros((len(x), len(x)))
    for column in x.T:
        s += (column[:, None] - column[None, :]) ** 2
    return s


def approximation(x: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """K' of all rows: the average of the cosines."""
    angle = x @ frequencies.T
    features = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) / np.sqrt(len(frequencies))
    return features @ features.T


def norm(matrix: np.ndarray) -> float:
    """The largest absolute eigenvalue."""
    return float(np.abs(np.linalg.eigvalsh(matrix)[[0, -1]]).max())


def clusters(rng: np.random.Generator, sizes: list[int], d: int, spread: float, apart: float) -> tuple:
    """Round clusters around random centres at mutual distances of about ``apart``; rows and labels."""
    directions = rng.standard_normal((len(sizes), d))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centres = directions * apart * np.arange(1, len(sizes) + 1)[:, None]
    return centres[labels] + spread * rng.standard_normal((len(labels), d)), labels

"""Dense float64 NumPy oracle: slow, plain, and written without looking at the fast code."""

from __future__ import annotations

import numpy as np


def distances(a: np.ndarray, b: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """Scaled Euclidean distances by explicit differences."""
    difference = (a[:, None, :] - b[None, :, :]) / lengthscale
    return np.sqrt((difference**2).sum(-1))


def kernel(name: str, a: np.ndarray, b: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """Kernels of unit variance, from the textbook."""
    r = distances(a, b, lengthscale)
    if name == "rbf":
        return np.exp(-(r**2) / 2)
    if name == "matern12":
        return np.exp(-r)
    if name == "matern32":
        return (1 + np.sqrt(3) * r) * np.exp(-np.sqrt(3) * r)
    if name == "matern52":
        return (1 + np.sqrt(5) * r + 5 * r**2 / 3) * np.exp(-np.sqrt(5) * r)
    raise ValueError(name)


def spectral_kernel(frequencies: np.ndarray, a: np.ndarray, b: np.ndarray, lengthscale: np.ndarray) -> np.ndarray:
    """Average of cosines, entry by entry."""
    out = np.zeros((len(a), len(b)))
    rows, columns = frequencies @ (a / lengthscale).T, frequencies @ (b / lengthscale).T
    for u, v in zip(rows, columns, strict=True):
        out += np.cos(u[:, None] - v)
    return out / len(frequencies)


def log_density(y: np.ndarray, mean: float, covariance: np.ndarray) -> float:
    """Multivariate normal log density by an eigen-decomposition."""
    values, vectors = np.linalg.eigh(covariance)
    z = vectors.T @ (y - mean)
    return float(-0.5 * (len(y) * np.log(2 * np.pi) + np.log(values).sum() + (z**2 / values).sum()))


def predict(
    k: np.ndarray, k_star: np.ndarray, k_star_star: np.ndarray, noise: float, y: np.ndarray, mean: float
) -> tuple[np.ndarray, np.ndarray]:
    """Posterior mean and covariance of the function; k_star is (n, m)."""
    q = k + noise * np.eye(len(k))
    posterior_mean = mean + k_star.T @ np.linalg.solve(q, y - mean)
    return posterior_mean, k_star_star - k_star.T @ np.linalg.solve(q, k_star)


def gated_kernel(
    frequencies: np.ndarray, u: np.ndarray, gates: np.ndarray | None, lengthscale: np.ndarray
) -> np.ndarray:
    """Spectral kernel of latent inputs u times the sum over clusters of products of gates, cluster by cluster."""
    k = spectral_kernel(frequencies, u, u, lengthscale)
    if gates is None:
        return k
    out = np.zeros_like(k)
    for column in gates.T:
        out += np.outer(column, column) * k
    return out


def mixture_moments(weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of mixtures of normals by raw moments; weights (K,), the others (K, ...)."""
    mean, square = np.zeros(means.shape[1:]), np.zeros(means.shape[1:])
    for w, m, v in zip(weights, means, variances, strict=True):
        mean += w * m
        square += w * (v + m**2)
    return mean, square - mean**2

"""Base frequencies: drawn once, independent of the kernel's parameters.

``k(x, x') = E[cos(e'(x - x') / lengthscale)]`` over base frequencies e, so the length-scales enter
by scaling only, and the evidence is a smooth function of them. Every kind below has the exact
marginal law of the kernel, hence an unbiased kernel estimate; they differ in variance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from prismgp._types import Array
from prismgp.core.kernels import Kernel
from prismgp.exceptions import DataError

FREQUENCY_KINDS = ("auto", "iid", "orthogonal", "sobol")
_SOBOL_UP_TO = 4  # inputs; beyond that orthogonal frequencies have the smaller error at p of 16 to 128
_SOBOL_LIMIT = 21_200


def resolve_kind(kind: str, d: int) -> str:
    """Replace "auto": Sobol for few inputs, orthogonal otherwise."""
    if kind not in FREQUENCY_KINDS:
        raise DataError(f"frequencies={kind!r} is unknown; choose one of {', '.join(FREQUENCY_KINDS)}")
    if kind == "auto":
        return "sobol" if d <= _SOBOL_UP_TO else "orthogonal"
    return kind


def given_frequencies(value: Any, p: int, d: int) -> Array | None:
    """Frequencies that the user brings, (p, d); None when ``value`` names a kind."""
    if isinstance(value, str):
        return None
    try:
        array = np.array(value, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.shape != (p, d) or not np.isfinite(array).all():
        kinds = ", ".join(FREQUENCY_KINDS)
        raise DataError(f"frequencies must be one of {kinds}, or a finite array of shape ({p}, {d}): p rows, d inputs")
    return array


def draw_frequencies(kernel: Kernel, p: int, d: int, kind: str, rng: np.random.Generator) -> Array:
    """Draw p base frequencies for d inputs, (p, d), by a generator that was not used to make the data.

    "orthogonal": directions orthogonal within blocks of d, norms stratified over all p.
    "sobol": scrambled Sobol points through the quantile functions.
    """
    kind = resolve_kind(kind, d)
    if kind == "iid":
        return rng.standard_normal((p, d)) * kernel.mixing(rng.random(p))[:, None]
    if kind == "orthogonal":
        strata = (rng.permutation(p) + rng.random(p)) / p
        # Row by row in memory, as files give them back: in another order, products may round otherwise.
        return np.ascontiguousarray(_orthogonal_directions(p, d, rng)) * kernel.radius(_open(strata), d)[:, None]
    # One more coordinate drives the mixing variable of the Matern laws.
    if d + 1 > _SOBOL_LIMIT:
        raise DataError(f'frequencies="sobol" takes at most {_SOBOL_LIMIT - 1} inputs, got {d}; use "orthogonal"')
    from scipy.stats import norm, qmc  # as in kernels.py: to draw, not to predict

    points = _open(qmc.Sobol(d + 1, scramble=True, rng=rng).random_base2(max(p - 1, 0).bit_length())[:p])
    return np.asarray(norm.ppf(points[:, :d])) * kernel.mixing(points[:, d])[:, None]


def _orthogonal_directions(p: int, d: int, rng: np.random.Generator) -> Array:
    """Unit rows, uniform on the sphere, orthogonal to each other within blocks of d rows; (p, d)."""
    blocks = []
    for start in range(0, p, d):
        rows = min(d, p - start)
        # Haar measure: QR of a normal matrix with the signs of R's diagonal moved into Q.
        q, r = np.linalg.qr(rng.standard_normal((d, rows)))
        blocks.append((q * np.where(np.diagonal(r) < 0, -1.0, 1.0)).T)
    return np.concatenate(blocks)


def _open(u: Array) -> Array:
    """Keep uniforms away from 0 and 1, where quantile functions are infinite."""
    return np.clip(u, 1e-12, 1.0 - 1e-12)

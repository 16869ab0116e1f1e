"""Factorisation that does not fail, other pieces of linear algebra, and hashes of rows.

All matrices factored here have the form ``I + c B`` with ``B`` positive semi-definite, so in exact
arithmetic every eigenvalue is at least one. Rounding can spoil that when ``c`` is huge; the ladder
below then adds a recorded jitter of the size of the rounding error, and as a last resort clamps
the eigenvalues at the value one that theory guarantees.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from prismgp._types import AnyArray, Tensor
from prismgp.exceptions import NumericalError

Hashes = npt.NDArray[np.uint64]

_JITTER_STEPS = (1.0, 10.0, 100.0)
_BLOCK = 32  # rows of the smallest blocks of an inverse


@dataclass(frozen=True)
class Factor:
    """Lower-triangular ``L`` with ``A = L L'``, and what it took to get it."""

    lower: Tensor  # (k, k)
    jitter: float = 0.0  # added to the diagonal; 0 in the ordinary case
    method: str = "cholesky"  # or "cholesky+jitter" or "eigen"

    def half_solve(self, b: Tensor) -> Tensor:
        """``L^-1 b`` for b of shape (k, m)."""
        half: Tensor = torch.linalg.solve_triangular(self.lower, b, upper=False)
        return half

    def solve(self, b: Tensor) -> Tensor:
        """``A^-1 b`` for b of shape (k, m)."""
        return torch.cholesky_solve(b, self.lower)

    def inverse(self) -> Tensor:
        """``A^-1``, (k, k)."""
        return torch.cholesky_inverse(self.lower)

    def inverse_root(self) -> Tensor:
        """``T = L^-1``, (k, k), so that ``A^-1 = T' T``."""
        return self.half_solve(torch.eye(len(self.lower), dtype=self.lower.dtype, device=self.lower.device))

    def logdet(self) -> Tensor:
        """``log |A|``, a scalar."""
        total: Tensor = self.lower.diagonal().log().sum()
        return 2.0 * total


def factor(a: Tensor) -> Factor:
    """Factor a symmetric ``a = I + c B``, (k, k) float64, B positive semi-definite; fails only at NaN or infinity."""
    lower, info = torch.linalg.cholesky_ex(a)
    if int(info) == 0 and bool(torch.isfinite(lower[-1, -1])):
        return Factor(lower)
    if not bool(torch.isfinite(a).all()):
        raise NumericalError("the matrix to factor holds NaN or infinity: rescale the columns, or use dtype='float64'")
    # Weyl: rounding moves eigenvalues by at most about eps * k * max|diagonal|.
    unit = torch.finfo(a.dtype).eps * len(a) * float(a.diagonal().max())
    for step in _JITTER_STEPS:
        lower, info = torch.linalg.cholesky_ex(a + step * unit * torch.eye(len(a), dtype=a.dtype, device=a.device))
        if int(info) == 0:
            return Factor(lower, step * unit, "cholesky+jitter")
    values, vectors = torch.linalg.eigh(a)
    clamped = values.clamp_min(1.0)
    # A = V D V' = R' R with R = D^(1/2) V'; the QR of R gives the triangular root.
    upper = torch.linalg.qr(clamped.sqrt()[:, None] * vectors.T, mode="r").R
    lower = (upper * upper.diagonal().sign()[:, None]).T.contiguous()
    return Factor(lower, float((clamped - values).max()), "eigen")


def factor_all(a: Tensor) -> Tensor:
    """Factor matrices as :func:`factor` does, (M, k, k) float64; one with NaN or infinity has a factor of NaN.

    While the steps of a GPU are recorded, values cannot be read: there, every matrix that fails has a factor of NaN.
    """
    lower: Tensor
    lower, info = torch.linalg.cholesky_ex(a)
    failed = (info != 0) | ~torch.isfinite(lower[:, -1, -1])
    if a.is_cuda and torch.cuda.is_current_stream_capturing():
        return lower.masked_fill(failed[:, None, None], torch.nan)
    if bool(failed.any()):
        lower = lower.clone()
        for m in torch.nonzero(failed)[:, 0].tolist():
            lower[m] = factor(a[m]).lower if bool(torch.isfinite(a[m]).all()) else torch.nan
    return lower


def invert_lower(lower: Tensor) -> Tensor:
    """Invert lower triangular matrices, (M, k, k), from blocks on the diagonal to the whole.

    [[A, 0], [C, B]]^-1 = [[A^-1, 0], [-B^-1 C A^-1, B^-1]]: products, in which a GPU is fast, of blocks that double.
    """
    m, k, _ = lower.shape
    size = _BLOCK << max(0, math.ceil(math.log2(k / _BLOCK)))
    whole = torch.diag_embed(torch.ones(m, size, dtype=lower.dtype, device=lower.device))
    whole[:, :k, :k] = lower
    eye = torch.eye(_BLOCK, dtype=lower.dtype, device=lower.device)
    blocks = _diagonal_blocks(whole, _BLOCK)
    found: Tensor = torch.linalg.solve_triangular(blocks, eye.expand_as(blocks), upper=False)  # (M, blocks, half, half)
    for half in (_BLOCK << step for step in range(int(math.log2(size // _BLOCK)))):
        below = _diagonal_blocks(whole, 2 * half)[:, :, half:, :half]
        first, second = found[:, 0::2], found[:, 1::2]
        found = torch.zeros(m, size // (2 * half), 2 * half, 2 * half, dtype=lower.dtype, device=lower.device)
        found[:, :, :half, :half], found[:, :, half:, half:] = first, second
        found[:, :, half:, :half] = second @ below @ -first
    return found[:, 0, :k, :k]


def _diagonal_blocks(a: Tensor, size: int) -> Tensor:
    """A view of the blocks of this size on the diagonals of a, (M, k, k): (M, k / size, size, size)."""
    count = a.shape[1] // size
    return a.view(len(a), count, size, count, size).diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def mix_bits(z: Hashes) -> Hashes:
    """The finaliser of splitmix64, a bijection that mixes all bits (Steele et al. 2014), of each number."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def hash_rows(x: AnyArray, known: Hashes | None = None) -> Hashes:
    """A number for each row, (n, d), that is the same for equal rows: (n,).

    ``known`` are hashes of further columns, (n,), which are then part of the rows.
    """
    hashes = np.zeros(len(x), dtype=np.uint64) if known is None else known
    for column in range(x.shape[1]):
        values = np.ascontiguousarray(x[:, column], dtype=np.float64) + 0.0  # -0.0 is 0.0
        hashes = mix_bits(values.view(np.uint64) ^ (hashes * np.uint64(0x9E3779B97F4A7C15)))
    return hashes


def raise_diagonal(matrix: Tensor, least: float) -> Tensor:
    """Raise diagonal entries of matrices, (..., k, k), to the least value; differentiable, unlike by assignment."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    return matrix + torch.diag_embed((least - diagonal).clamp_min(0.0))


def record_gradients(x: Tensor) -> AbstractContextManager[object]:
    """A context in which operations are recorded only if derivatives with respect to x are wanted."""
    if torch.compiler.is_compiling():  # an exported program has no derivatives, and could not be saved with a switch
        return nullcontext()
    return torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad)

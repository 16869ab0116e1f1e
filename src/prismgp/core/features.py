"""The feature map: X to ``[cos(X W), sin(X W)]``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.core.gating import Gate

GATINGS = ("none", "hard", "soft")


def projection(frequencies: Array, lengthscale: Array, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``W = (E / lengthscale)'``, (d, p)."""
    return torch.as_tensor(np.ascontiguousarray((frequencies / lengthscale).T), dtype=dtype, device=device)


def spectral_features(x: Tensor, w: Tensor) -> Tensor:
    """``Phi = [cos(X W), sin(X W)] / sqrt(p)``, (n, 2p); every row has norm one."""
    p = w.shape[1]
    phi = x.new_empty(len(x), 2 * p)
    z = x @ w
    torch.cos(z, out=phi[:, :p])
    torch.sin(z, out=phi[:, p:])
    return phi.mul_(p**-0.5)


def gated_features(phi: Tensor, gates: Tensor) -> Tensor:
    """``r(x) (x) phi(x)``, (n, 2p b): features whose kernel is ``(r'r) k``, by the Schur product theorem.

    Rows of the gates, (n, b), have norm one, so that rows of the result have the norm of those of phi, (n, 2p).
    One-hot rows give the masked kernel, zero between clusters.
    """
    return (gates[:, :, None] * phi[:, None, :]).reshape(len(phi), -1)


@dataclass(frozen=True)
class Gating:
    """The gate of a model, or none."""

    gate: Gate | None = None
    about: dict[str, Any] = field(default_factory=dict)  # what fit_status_ says of it

    @property
    def kind(self) -> str:
        return "none" if self.gate is None else self.gate.kind

    @property
    def soft(self) -> Gate | None:
        """Gates that multiply the features; hard ones split the rows instead."""
        return self.gate if self.kind == "soft" else None

    @property
    def widening(self) -> int:
        """By how much they multiply the number of features."""
        return 1 if self.soft is None else self.soft.n_clusters

    def features(self, phi: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gated features of rows in the model's units, or the features and the blocks they belong to."""
        if self.gate is None:
            return phi, None
        if self.kind == "hard":
            return phi, self.gate.labels(x)
        return gated_features(phi, self.gate.gates(x).to(phi)), None


class FeatureBuffers:
    """Memory reused by all chunks of a pass: ``Psi = [cos(X W), sin(X W), 1, Y]``, not scaled.

    The scale ``1 / sqrt(p)`` is applied to the small matrices made from Psi instead of to its rows,
    and the last columns let one matrix product give all sufficient statistics at once.
    """

    def __init__(self, rows: int, w: Tensor, q: int) -> None:
        p = w.shape[1]
        self.w = w
        self.width = 2 * p
        self._psi = w.new_empty(rows, 2 * p + 1 + q)
        self._psi[:, 2 * p] = 1.0
        self._z = w.new_empty(rows, p)

    def fill(self, x: Tensor, y: Tensor) -> Tensor:
        """Psi of one chunk, (rows, 2p + 1 + q); valid until the next call."""
        n, p = len(x), self.w.shape[1]
        psi, z = self._psi[:n], self._z[:n]
        torch.mm(x, self.w, out=z)
        torch.cos(z, out=psi[:, :p])
        torch.sin(z, out=psi[:, p : 2 * p])
        psi[:, 2 * p + 1 :] = y
        return psi

    def phase_gradient(self, psi: Tensor, d: Tensor) -> Tensor:
        """``cos * D_sin - sin * D_cos``, (rows, p): the chain rule through cos and sin."""
        p = self.w.shape[1]
        z = self._z[: len(psi)]
        torch.mul(psi[:, :p], d[:, p:], out=z)
        return z.addcmul_(psi[:, p : 2 * p], d[:, :p], value=-1.0)


class GatedBuffers(FeatureBuffers):
    """The same for gated features: ``Psi = [r_1 cos, r_1 sin, ..., r_b cos, r_b sin, 1, Y]``, not scaled (G1)."""

    def __init__(self, rows: int, w: Tensor, q: int, gate: Gate) -> None:
        super().__init__(rows, w, q)
        self.gate = gate
        self.width = 2 * w.shape[1] * gate.n_clusters
        self._wide = w.new_empty(rows, self.width + 1 + q)
        self._wide[:, self.width] = 1.0
        self._gates = w.new_empty(0)

    def fill(self, x: Tensor, y: Tensor) -> Tensor:
        """Psi of one chunk, (rows, 2p b + 1 + q); valid until the next call."""
        psi = super().fill(x, y)
        n, p = len(x), self.w.shape[1]
        self._gates = self.gate.gates(x).to(psi)
        wide = self._wide[:n]
        products = wide[:, : self.width].view(n, -1, 2 * p)
        torch.mul(self._gates[:, :, None], psi[:, None, : 2 * p], out=products)
        wide[:, self.width + 1 :] = y
        return wide

    def phase_gradient(self, psi: Tensor, d: Tensor) -> Tensor:
        """The derivative by ``phi`` is ``sum_c r_c D_c``; the rest is that of features without gates."""
        parts = d.view(len(d), -1, 2 * self.w.shape[1])
        inner = parts[:, 0] * self._gates[:, :1]
        for c in range(1, self.gate.n_clusters):
            inner.addcmul_(parts[:, c], self._gates[:, c : c + 1])
        return super().phase_gradient(self._psi[: len(psi)], inner)

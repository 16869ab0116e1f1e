"""The plain SSGP of the authors' released code, reproduced with its flaws, as the baseline it was in their figures.

Features ``[cos(X E), sin(X E)] / sqrt(p)``, ``X`` divided by ``exp(w / 2)``: E uniform on [0, 1), not normal, and not
learned; w starts from a normal distribution. The loss of a batch is that of `prismgp.prism.released` without the ELBO:
no log-determinant, no penalty of the weights. Length-scales and the mean are learned, *the noise is not*: its standard
deviation stays at one. The revised model of the same code learns its noise and takes up to 2.4 times the steps.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch

from experiments.internals import AnyArray
from experiments.paper.data import RunData

__all__ = ["ReleasedSSGP", "preprocess"]

_PASSES, _PASS_BATCHES = 101, 21
_CLIP = 10.0
_CHUNK = 65_536


def preprocess(data: RunData, *, standardise_target: bool) -> RunData:
    """Rows as the released scripts prepare them: inputs standardised, the target only for the gas array.

    Their scripts standardise by the moments of all rows, or of training and test rows apart; here moments are those of
    the training rows.
    """
    x, y = (np.asarray(each, dtype=np.float64) for each in data.fit)
    shift, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    y_shift, y_scale = (y.mean(), y.std()) if standardise_target else (0.0, 1.0)
    return RunData(
        ((x - shift) / scale, (y - y_shift) / y_scale),
        (np.asarray(data.x_test, dtype=np.float64) - shift) / scale,
        (np.asarray(data.y_test, dtype=np.float64) - y_shift) / y_scale,
        data.scale / y_scale,
        data.rows,
    )


class ReleasedSSGP:
    """The baseline; inputs and targets as `preprocess` gives them."""

    def __init__(self, n_frequencies: int, *, batch_size: int, random_state: int, passes: int = _PASSES) -> None:
        self.n_frequencies, self.batch_size, self.random_state, self.passes = (
            n_frequencies,
            batch_size,
            random_state,
            passes,
        )
        self.callback: Callable[[Any], None] | None = None
        self.fit_status_: dict[str, Any] = {"message": "", "jitter": 0.0}

    def fit(self, x: AnyArray, y: AnyArray) -> Self:
        """Train on batches, and compute the posterior of the weights on all rows."""
        rng = np.random.default_rng([self.random_state, 11])
        rows, target = torch.as_tensor(x).float(), torch.as_tensor(y).float()[:, None]
        self.frequencies = torch.as_tensor(rng.random((x.shape[1], self.n_frequencies))).float()
        self.log_square_scale = torch.as_tensor(rng.standard_normal(x.shape[1])).float().requires_grad_()
        self.mean = torch.zeros(1, requires_grad=True)
        optimiser = torch.optim.Adam([self.log_square_scale, self.mean])
        began, in_callback, steps = time.perf_counter(), 0.0, 0

        def report(stage: str) -> None:
            nonlocal in_callback
            seconds = time.perf_counter() - began - in_callback
            at = time.perf_counter()
            if self.callback is not None:
                self.callback(
                    SimpleNamespace(
                        stage=stage,
                        iteration=steps,
                        seconds=seconds,
                        rows=len(rows),
                        log_evidence=None,
                        final=stage == "final",
                        model=lambda: self._condition(rows, target),
                    )
                )
            in_callback += time.perf_counter() - at

        report("start")
        for _ in range(self.passes):
            order = torch.as_tensor(rng.permutation(len(rows)))
            for batch in order.split(self.batch_size)[:_PASS_BATCHES]:
                optimiser.zero_grad()
                self._loss(rows[batch], target[batch]).backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_value_([self.log_square_scale, self.mean], _CLIP)
                optimiser.step()
                steps += 1
            report("adam")
        self._condition(rows, target)
        self.fit_status_["message"] = f"all {steps} steps taken"
        report("final")
        return self

    def _features(self, x: torch.Tensor) -> torch.Tensor:
        angle = (x * torch.exp(-0.5 * self.log_square_scale)) @ self.frequencies
        return torch.cat([angle.cos(), angle.sin()], 1) / math.sqrt(self.n_frequencies)

    def _loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        phi, centred = self._features(x), y - self.mean
        weights = torch.linalg.solve(phi.T @ phi + torch.eye(phi.shape[1]), phi.T @ centred)
        return 0.5 * (centred - phi @ weights).square().sum()  # the noise is one, so the rest is constant

    @torch.no_grad()
    def _condition(self, x: torch.Tensor, y: torch.Tensor) -> Self:
        size = 2 * self.n_frequencies
        matrix, vector = torch.eye(size, dtype=torch.float64), torch.zeros(size, 1, dtype=torch.float64)
        for part, targets in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            phi = self._features(part).double()
            matrix += phi.T @ phi
            vector += phi.T @ (targets - self.mean).double()
        self._factor = torch.linalg.cholesky(matrix)
        self._weights = torch.cholesky_solve(vector, self._factor)
        return self

    @torch.no_grad()
    def predict(self, x: AnyArray, return_std: bool = False) -> Any:
        """Mean, and standard deviation with the noise."""
        phi = self._features(torch.as_tensor(x).float()).double()
        mean = (phi @ self._weights).squeeze(1) + self.mean.double()
        if not return_std:
            return mean.numpy()
        spread = torch.linalg.solve_triangular(self._factor, phi.T, upper=False).square().sum(0)
        return mean.numpy(), torch.sqrt(1.0 + spread).numpy()

"""GPyTorch's exact GP, made exact: it would turn to iterative solvers above 800 rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpytorch
import numpy as np
import torch
from scipy.optimize import minimize

from experiments.comparison.peers.library import predict_blocks
from experiments.internals import Array

__all__ = ["ExactModel", "cholesky_only", "fit_exact"]


@contextmanager
def cholesky_only(rows: int) -> Iterator[None]:
    """Every solve and determinant by Cholesky factorisation, for matrices of up to ``rows`` rows."""
    with (
        gpytorch.settings.max_cholesky_size(rows + 1),
        gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False),
    ):
        yield


class ExactModel(gpytorch.models.ExactGP):
    """A constant mean and an RBF kernel with one length-scale per input."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, likelihood: Any) -> None:
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1]))

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class _Exact:
    def __init__(self, model: ExactModel, rows: int, facts: dict[str, Any]) -> None:
        self.model, self.rows, self.facts = model.eval(), rows, facts
        self.model.likelihood.eval()

    def predict(self, X: Array) -> tuple[Array, Array]:
        def block(rows: Array) -> tuple[Array, Array]:
            with torch.no_grad(), cholesky_only(self.rows + len(rows)):
                found = self.model.likelihood(self.model(torch.as_tensor(rows)))
                return found.mean.numpy(), found.stddev.numpy()

        return predict_blocks(block, X, 1024)


def fit_exact(X: Array, y: Array, *, seed: int, seconds: float, max_iter: int = 200) -> _Exact:
    """Maximise the marginal likelihood by L-BFGS-B, in float64; ``seconds`` end it early."""
    torch.manual_seed(seed)
    deadline = time.perf_counter() + seconds
    x, targets = torch.as_tensor(X, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64)
    model = ExactModel(x, targets, gpytorch.likelihoods.GaussianLikelihood()).double()
    model.kernel.base_kernel.lengthscale = X.shape[1] ** 0.5
    model.kernel.outputscale, model.likelihood.noise = 1.0, 0.1
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    parameters = list(model.parameters())

    def load(vector: Array) -> None:
        torch.nn.utils.vector_to_parameters(torch.as_tensor(vector), parameters)

    def loss(vector: Array) -> tuple[float, Array]:
        load(vector)
        model.zero_grad()
        value = -objective(model(x), targets)
        value.backward()
        gradient = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        return value.item(), np.concatenate([each.reshape(-1).numpy() for each in gradient])

    def watch(intermediate_result: Any) -> None:
        del intermediate_result
        if time.perf_counter() > deadline:
            raise StopIteration

    model.train()
    start = torch.nn.utils.parameters_to_vector(parameters).detach().numpy().copy()
    with cholesky_only(len(y)):
        found = minimize(
            loss, start, jac=True, method="L-BFGS-B", callback=watch, options={"maxiter": max_iter, "gtol": 1e-6}
        )
    load(found.x)
    facts = {"log_evidence": float(-found.fun * len(y)), "iterations": int(found.nit), "message": str(found.message)}
    return _Exact(model, len(y), {**facts, "ended_by_time": time.perf_counter() > deadline})

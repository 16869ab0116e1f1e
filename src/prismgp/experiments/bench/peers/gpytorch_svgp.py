"""GPyTorch's stochastic variational GP, trained as its documentation and experienced users do.

Whitened variational distribution, inducing points started at k-means centres and learned, Adam on mini-batches. The
learning rate is chosen by held-out density after short runs; then all rows are used, and the rate falls when the
training bound stops rising.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import gpytorch
import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans

from prismgp._types import Array
from prismgp.experiments.bench.peers._common import predict_blocks, split_off

__all__ = ["fit_svgp"]

_FLOAT32_ROWS = 20_000  # more rows: float32, as on large data everywhere
_GAIN = 2e-3  # nats per row that count as progress
_FALL = 0.3  # of the learning rate
_FALLS = 3  # and then it ends


class _Model(gpytorch.models.ApproximateGP):  # type: ignore[misc]  # the library has no types
    def __init__(self, inducing: torch.Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        super().__init__(
            gpytorch.variational.VariationalStrategy(self, inducing, distribution, learn_inducing_locations=True)
        )
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=inducing.shape[1]))
        self.kernel.base_kernel.lengthscale = inducing.shape[1] ** 0.5
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.likelihood.noise = 0.1

    def forward(self, x: torch.Tensor) -> Any:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


class _SVGP:
    def __init__(self, model: _Model, dtype: torch.dtype, facts: dict[str, Any]) -> None:
        self.model, self.dtype, self.facts = model.eval(), dtype, facts

    def predict(self, X: Array) -> tuple[Array, Array]:
        def block(rows: Array) -> tuple[Array, Array]:
            with torch.no_grad():
                found = self.model.likelihood(self.model(torch.as_tensor(rows, dtype=self.dtype)))
                return found.mean.double().numpy(), found.stddev.double().numpy()

        return predict_blocks(block, X, 2048)


def fit_svgp(
    X: Array,
    y: Array,
    *,
    seed: int,
    seconds: float,
    inducing: int = 512,
    batch: int = 1024,
    rates: tuple[float, ...] = (0.01, 0.03, 0.1),
    trial_steps: int = 200,
    epochs: int = 50,
    steps: int = 3_000,
) -> _SVGP:
    """Train for ``epochs`` or ``steps``, whichever is more, or until progress or ``seconds`` end.

    Parameters
    ----------
    inducing, batch : int
        Points, and rows of a step; of a small set, all.
    rates : tuple of float
        Learning rates that are tried, for ``trial_steps`` each.
    """
    began = time.perf_counter()
    torch.manual_seed(seed)
    dtype = torch.float32 if len(y) > _FLOAT32_ROWS else torch.float64
    batch = min(batch, len(y))
    count = min(inducing, len(y))
    some = np.random.default_rng(seed).permutation(len(y))[:20_000]
    means = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=max(1024, count)).fit(X[some])
    centres = torch.as_tensor(means.cluster_centers_, dtype=dtype)
    x, targets = torch.as_tensor(X, dtype=dtype), torch.as_tensor(y, dtype=dtype)
    fresh = _Model(centres).to(dtype)

    train, held_out = split_off(len(y), 0.1, seed, most=5_000)
    tried = []
    for rate in rates if len(rates) > 1 else ():
        model = copy.deepcopy(fresh)
        _train(model, x[train], targets[train], rate, batch, trial_steps, began + 0.2 * seconds, every=10**9)
        mean, std = _SVGP(model, dtype, {}).predict(X[held_out])
        nlpd = np.mean(0.5 * np.square((y[held_out] - mean) / std) + np.log(std) + 0.5 * np.log(2 * np.pi))
        tried.append({"rate": rate, "held_out_nlpd": float(nlpd) if np.isfinite(nlpd) else 1e9})
    rate = min(tried, key=lambda each: each["held_out_nlpd"])["rate"] if tried else rates[0]

    per_epoch = -(-len(y) // batch)
    most = max(epochs * per_epoch, steps)
    facts = _train(
        fresh, x, targets, rate, batch, most, began + seconds, every=min(max(per_epoch, 100), max(100, most // 20))
    )
    facts |= {"rate": rate, "tried": tried, "inducing": count, "batch": batch, "dtype": str(dtype)}
    return _SVGP(fresh, dtype, {**facts, "epochs": facts["steps"] / per_epoch})


def _train(
    model: _Model,
    x: torch.Tensor,
    y: torch.Tensor,
    rate: float,
    batch: int,
    steps: int,
    deadline: float,
    every: int,
) -> dict[str, Any]:
    """Adam; the rate falls when the mean bound of ``every`` steps has not risen for two such stretches."""
    model.train()
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, len(y))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    best, since, falls, total, counted, done, late = -np.inf, 0, 0, 0.0, 0, 0, False
    while done < steps and falls <= _FALLS and not late:
        for rows in torch.split(torch.randperm(len(y)), batch):
            optimiser.zero_grad()
            loss = -objective(model(x[rows]), y[rows])
            loss.backward()
            optimiser.step()
            total, counted, done = total - loss.item(), counted + 1, done + 1
            late = time.perf_counter() > deadline
            if counted >= every:
                mean, total, counted = total / counted, 0.0, 0
                since = 0 if mean > best + _GAIN else since + 1
                best = max(best, mean)
                if since >= 2:
                    falls, since = falls + 1, 0
                    for group in optimiser.param_groups:
                        group["lr"] *= _FALL
            if done >= steps or falls > _FALLS or late:
                break
    return {"steps": done, "bound_per_row": float(best) if np.isfinite(best) else None, "ended_by_time": late}

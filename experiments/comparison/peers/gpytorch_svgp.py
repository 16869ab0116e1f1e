"""GPyTorch's stochastic variational GP, trained as its documentation and experienced users do.

Whitened variational distribution, inducing points started at k-means centres and learned, mini-batches. Adam for all
parameters, or natural gradients for the variational ones and Adam for the rest, and the learning rate, are chosen
by held-out density after short runs; then all rows are used, and the rates fall when the training bound stops rising.
"""

from __future__ import annotations

import time
from typing import Any

import gpytorch
import numpy as np
import torch
from linear_operator.utils.errors import NanError, NotPSDError
from sklearn.cluster import MiniBatchKMeans

from experiments.comparison.peers.library import predict_blocks, split_off
from experiments.internals import Array
from prismgp.metrics import nlpd

__all__ = ["fit_svgp"]

_FLOAT32_ROWS = 20_000  # more rows: float32, as on large data everywhere
_NATURAL_RATE = 0.1  # of natural gradients, as its documentation has it
_GAIN = 2e-3  # nats per row that count as progress
_FALL = 0.3  # of the learning rates
_FALLS = 3  # and then it ends
_BROKEN = (NanError, NotPSDError, RuntimeError, ValueError)  # what a diverging fit ends with
_DISTRIBUTIONS = {
    "adam": gpytorch.variational.CholeskyVariationalDistribution,
    "natural": gpytorch.variational.NaturalVariationalDistribution,
}


class _Model(gpytorch.models.ApproximateGP):
    def __init__(self, inducing: torch.Tensor, method: str) -> None:
        distribution = _DISTRIBUTIONS[method](len(inducing))
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
    def __init__(self, model: _Model, like: torch.Tensor, facts: dict[str, Any]) -> None:
        self.model, self.like, self.facts = model.eval(), like, facts

    def predict(self, X: Array) -> tuple[Array, Array]:
        def block(rows: Array) -> tuple[Array, Array]:
            with torch.no_grad():
                found = self.model.likelihood(self.model(torch.as_tensor(rows).to(self.like)))
                return found.mean.double().cpu().numpy(), found.stddev.double().cpu().numpy()

        return predict_blocks(block, X, 2048)


def fit_svgp(
    X: Array,
    y: Array,
    *,
    seed: int,
    seconds: float,
    inducing: int = 512,
    batch: int = 1024,
    ways: tuple[tuple[str, float], ...] = (("adam", 0.01), ("adam", 0.03), ("natural", 0.01), ("natural", 0.03)),
    trial_steps: int = 100,
    epochs: int = 50,
    steps: int = 3_000,
    device: str = "cpu",
) -> _SVGP:
    """Train for ``epochs`` or ``steps``, whichever is more, or until progress or ``seconds`` end.

    Parameters
    ----------
    inducing, batch : int
        Points, and rows of a step; of a small set, all.
    ways : tuple of pairs
        Methods, "adam" or "natural", and Adam's learning rates that are tried, for ``trial_steps`` each.
    """
    began = time.perf_counter()
    torch.manual_seed(seed)
    dtype = torch.float32 if len(y) > _FLOAT32_ROWS else torch.float64
    batch, count = min(batch, len(y)), min(inducing, len(y))
    some = np.random.default_rng(seed).permutation(len(y))[:20_000]
    means = MiniBatchKMeans(count, random_state=seed, n_init=1, batch_size=max(1024, count)).fit(X[some])
    centres, x, targets = (torch.as_tensor(a, dtype=dtype, device=device) for a in (means.cluster_centers_, X, y))

    def trained(way: tuple[str, float], chosen: Any, most: int, deadline: float, every: int) -> _SVGP:
        model = _Model(centres.clone(), way[0]).to(centres)
        facts = _train(model, x[chosen], targets[chosen], way, batch, most, deadline, every)
        return _SVGP(model, centres, facts)

    train, held_out = split_off(len(y), 0.1, seed, most=5_000)
    tried: list[dict[str, Any]] = []
    for k, way in enumerate(ways if len(ways) > 1 else ()):
        deadline = began + 0.25 * seconds * (k + 1) / len(ways)
        try:
            mean, std = trained(way, train, trial_steps, deadline, 10**9).predict(X[held_out])
            loss = nlpd(y[held_out], mean, std)
        except _BROKEN:
            loss = np.inf
        tried.append({"method": way[0], "rate": way[1], "held_out_nlpd": loss if np.isfinite(loss) else None})
    order = np.argsort([np.inf if each["held_out_nlpd"] is None else each["held_out_nlpd"] for each in tried])

    per_epoch = -(-len(y) // batch)
    most = max(epochs * per_epoch, steps)
    every = min(max(per_epoch, 100), max(100, most // 20))
    fitted = None
    for way in [ways[k] for k in order] or [ways[0]]:  # the best, or the next best where it breaks later
        try:
            fitted = trained(way, slice(None), most, began + seconds, every)
            break
        except _BROKEN:
            continue
    if fitted is None:
        raise ArithmeticError("no way of training stays finite")
    fitted.facts |= {"method": way[0], "rate": way[1], "tried": tried, "inducing": count, "batch": batch}
    fitted.facts |= {"dtype": str(dtype), "epochs": fitted.facts["steps"] / per_epoch}
    return fitted


def _train(
    model: _Model,
    x: torch.Tensor,
    y: torch.Tensor,
    way: tuple[str, float],
    batch: int,
    steps: int,
    deadline: float,
    every: int,
) -> dict[str, Any]:
    """The rates fall when the mean bound of ``every`` steps has not risen for two such stretches."""
    method, rate = way
    model.train()
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, len(y))
    if method == "natural":
        optimisers = [
            gpytorch.optim.NGD(model.variational_parameters(), num_data=len(y), lr=_NATURAL_RATE),
            torch.optim.Adam(model.hyperparameters(), lr=rate),
        ]
    else:
        optimisers = [torch.optim.Adam(model.parameters(), lr=rate)]
    best, since, falls, total, counted, done, late = -np.inf, 0, 0, 0.0, 0, 0, False
    while done < steps and falls <= _FALLS and not late:
        for rows in torch.split(torch.randperm(len(y)), batch):
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss = -objective(model(x[rows]), y[rows])
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
            total, counted, done = total - loss.item(), counted + 1, done + 1
            if not np.isfinite(total):
                raise ValueError("the bound is not finite")
            late = time.perf_counter() > deadline
            if counted >= every:
                mean, total, counted = total / counted, 0.0, 0
                since = 0 if mean > best + _GAIN else since + 1
                best = max(best, mean)
                if since >= 2:
                    falls, since = falls + 1, 0
                    for group in (group for optimiser in optimisers for group in optimiser.param_groups):
                        group["lr"] *= _FALL
            if done >= steps or falls > _FALLS or late:
                break
    return {"steps": done, "bound_per_row": float(best) if np.isfinite(best) else None, "ended_by_time": late}

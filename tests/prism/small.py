"""Small data, small fits and small networks for the tests of this folder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp import PrismGPRegressor
from prismgp.core.kernels import Parameters
from prismgp.prism import LocalMixture, NetworkSizes, RevisedMap
from prismgp.prism.batch import batch_log_evidence
from tests import reference

GATINGS = ["none", "soft", "hard"]
NOISES = ["constant", "input"]

# Fixed kernel parameters save most of the time of a fit; the networks are trained all the same. The noise is far too
# low for the data, which only the members can correct, so that held-out rows decide for them after a few steps.
SMALL = {
    "n_members": 2,
    "lengthscale": 1.0,
    "noise_variance": 1e-3,
    "optimize": False,
    "max_steps": 6,
    "hidden": 8,
    "batch_size": 64,
    "latent_dim": 2,
    "n_components": 3,
    "max_iter": 3,
    "random_state": 0,
    "local": "never",  # these are tests of the mixture of experts; test_local.py adds neighbours
}


def nightly_seeds(count):
    """Seeds, of which every change tries the first."""
    return [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, count))]


def data(n=150, d=2, q=None, seed=0):
    """Rows in units far from standard ones; q outputs, or a flat target."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, d)) * np.array([1.0, 10.0, 0.1])[:d] + 3.0
    y = 5.0 + 2.0 * np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.2 * rng.normal(size=n)
    return x, y if q is None else np.column_stack([y, *(-3.0 * y + rng.normal(size=n) for _ in range(q - 1))])


def model(**changes):
    """A regressor of four frequencies and two small members."""
    return PrismGPRegressor(**{"n_frequencies": 4, **SMALL, **changes})


def has_members(fit):
    """Whether the mixture of a fit holds trained networks."""
    predictor = fit.model_.predictor
    mixture = predictor.base if isinstance(predictor, LocalMixture) else predictor
    return any(isinstance(expert.map, RevisedMap) for expert in mixture.experts)


def assert_same_predictions(a, b, x):
    for got, expected in zip(a.predict(x, return_std=True), b.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(got, expected)


def make_map(rng, *, gating="soft", noise="input", d=3, q=2, p=5, latent=2, components=3, hidden=(6, 4)):
    """A network in float64 whose every part does something: no weights at zero, overlapping clusters."""
    sizes = NetworkSizes(d, q, p, latent, hidden, components, gating, noise)
    start = Parameters(rng.normal(size=d) * 0.3, rng.normal(size=q) * 0.3, rng.normal(size=q) - 1, rng.normal(size=q))
    frequencies = rng.normal(size=(p, latent + d))
    network = RevisedMap(sizes, start, frequencies, torch.Generator().manual_seed(int(rng.integers(2**31)))).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.as_tensor(rng.normal(size=parameter.shape)))
        # Latent inputs spread around the origin, over all clusters.
        latent = network(torch.as_tensor(rng.normal(size=(200, d)))).latent
        network.latent_head.bias.sub_(latent.mean(0))
        network.latent_head.weight.mul_(2.0 / latent.std())
        network.latent_head.bias.mul_(2.0 / latent.std())
    return network


def rows(rng, n=40, d=3, q=2):
    return torch.as_tensor(rng.normal(size=(n, d))), torch.as_tensor(rng.normal(size=(n, q)) + 0.3)


def dense(network, x):
    """Kernel of unit signal and relative noise of rows, from the network's latent inputs alone."""
    with torch.no_grad():
        encoded = network(x)
    u = np.hstack([encoded.latent.numpy(), x.numpy()])
    gates = None if network.sizes.gating == "none" else encoded.gates.numpy()
    params = network.parameters_now()
    k = reference.gated_kernel(network.frequencies.numpy(), u, gates, params.lengthscale)
    v = np.ones(len(x)) if encoded.log_noise is None else np.exp(encoded.log_noise.numpy())
    return k, v, params


def evidence(network, x, y):
    return float(batch_log_evidence(network, network(x), y).detach())

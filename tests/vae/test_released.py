"""The auto-encoder of the released code, against the formulas written out with loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp.vae import ReleasedVAE

D, K, L, H, N, S = 3, 4, 2, 5, 7, 6


@pytest.fixture
def vae() -> ReleasedVAE:
    return ReleasedVAE(D, K, L, H, generator=torch.Generator().manual_seed(0)).double()


def network(net, x: np.ndarray, j: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log variance of component j, batch norm with the moments of x."""
    p = {name: value.detach().numpy() for name, value in net.state_dict().items()}
    rows = slice(j * H, (j + 1) * H)
    hidden = x @ p["first_weight"][rows].T + p["first_bias"][rows]
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    hidden = np.maximum(hidden * p["norm_scale"][rows] + p["norm_shift"][rows], 0)
    mean = hidden @ p["mean_weight"][j] + p["mean_bias"][j] + p["offsets"][j]
    return mean, np.tanh(hidden @ p["log_var_weight"][j] + p["log_var_bias"][j])


def log_density(z: np.ndarray, parts: list[tuple[np.ndarray, np.ndarray]], logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits) / np.exp(logits).sum()
    total = np.zeros(z.shape[:2])
    for w, (mean, log_var) in zip(weights, parts, strict=True):
        total += w * np.exp(-0.5 * (((z - mean) ** 2 * np.exp(-2 * log_var)).sum(-1) + log_var.sum(-1)))
    return np.log(total)


def test_objective(vae, rng):  # R9
    x, noise = rng.normal(size=(N, D)), rng.normal(size=(S, N, L))
    components = rng.integers(0, K, S)
    q, p = ([network(net, rows, j) for j in range(K)] for net, rows in ((vae.encoder, x), (vae.prior, 0 * x)))
    z = np.stack([q[c][0] + np.exp(0.5 * q[c][1]) * e for c, e in zip(components, noise, strict=True)])
    log_q = log_density(z, q, vae.mixing.detach().numpy())
    log_p = log_density(z, p, vae.prior_mixing.detach().numpy())
    decoded, log_var = (each.reshape(S, N, D) for each in network(vae.decoder, z.reshape(-1, L), 0))
    log_x = -0.5 * ((x - decoded) ** 2 * np.exp(-2 * log_var) + log_var).sum(-1).mean()
    centre = [np.mean([part[i] for part in q], 0) for i in range(2)]
    apart = [(lv - centre[1] + np.exp(centre[1] - lv) + (centre[0] - m) ** 2 * np.exp(centre[1])).sum() for m, lv in q]
    marginal = np.log(np.exp(log_q).mean()) - log_p.mean()
    expected = log_x - 1.3 * (log_q.mean() - log_p.mean()) - 0.7 * marginal + 0.5 * min(apart) / N
    tensors = torch.as_tensor(x), torch.as_tensor(components), torch.as_tensor(noise)
    assert float(vae.train().elbo(*tensors, alpha=0.7, beta=1.3).detach()) == pytest.approx(expected, rel=1e-9)


def test_encoding_is_the_mean_of_draws(vae, rng):
    """Components are drawn in proportion to w / (1 - w); the mean over many draws is the encoding."""
    x = torch.as_tensor(rng.normal(size=(N, D)))
    vae.set_moments(x)
    w = np.exp(vae.mixing.detach().numpy())
    w /= w.sum()
    chances = w / (1 - w) / (w / (1 - w)).sum()
    np.testing.assert_allclose(vae.probabilities(), chances)
    count = 4000
    components = torch.as_tensor(rng.choice(K, count, p=chances))
    noise = torch.as_tensor(rng.normal(size=(count, N, L)))
    draws = vae.draw(*vae.encoder(x), components, noise)
    spread = draws.std(0) / np.sqrt(count)
    assert bool(((draws.mean(0) - vae.encode(x)).abs() < 5 * spread).all())


def test_offsets_and_moments(vae, rng):
    """Offsets have norm 10 and are not learned; a row's encoding does not depend on the others."""
    np.testing.assert_allclose(vae.encoder.offsets.norm(dim=-1), 10.0, rtol=1e-6)
    assert not any("offsets" in name for name, _ in vae.named_parameters())
    x = torch.as_tensor(rng.normal(size=(N, D)))
    vae.set_moments(x)
    alone = torch.cat([vae.reconstruct(vae.encode(row[None])) for row in x])
    torch.testing.assert_close(vae.reconstruct(vae.encode(x)), alone)


def test_one_component():
    vae = ReleasedVAE(D, 1, L, H, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(vae.probabilities(), [1.0])

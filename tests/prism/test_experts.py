"""Experts and their mixture equal their dense definitions, also where rows differ in their noise."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from prismgp.core.features import WeightPosterior
from prismgp.core.kernels import Parameters
from prismgp.core.statistics import accumulate_features, solve_outputs
from prismgp.prism import Expert, Mixture, PlainMap
from tests import reference
from tests.prism.small import GATINGS, NOISES, dense, evidence, make_map, rows
from tests.tolerances import EVIDENCE, PREDICTION, STATISTICS

# -- rows that differ in their noise -------------------------------------------------------------------


def heteroscedastic(rng, n=50, k=12, q=2):
    phi = rng.normal(size=(n, k))
    # Rows of norm one, as all features here have: the variance never exceeds the prior's.
    phi /= np.linalg.norm(phi, axis=1, keepdims=True)
    params = Parameters(np.zeros(1), rng.normal(size=q), rng.normal(size=q) - 1.5, rng.normal(size=q))
    return phi, rng.normal(size=n), rng.normal(size=(n, q)) + 0.5, params


def chunked(phi, log_noise, y, size):
    for a in range(0, len(phi), size):
        part = slice(a, a + size)
        noise = None if log_noise is None else torch.as_tensor(log_noise[part])
        yield torch.as_tensor(phi[part]), noise, torch.as_tensor(y[part])


@pytest.mark.parametrize("n", [1, 5, 50])
def test_heteroscedastic_posterior_is_the_dense_one(rng, n):
    phi, log_noise, y, params = heteroscedastic(rng, n)
    test = heteroscedastic(rng, 20)[0]
    solved = solve_outputs(accumulate_features(chunked(phi, log_noise, y, 7), 2), params)
    posterior = WeightPosterior.from_evidence(solved, device=torch.device("cpu"))
    mean, variance = posterior.predict(torch.as_tensor(test), variance=True)
    covariance = posterior.covariance(torch.as_tensor(test))
    for o in range(2):
        s, noise = params.signal[o], params.noise[o] * np.diag(np.exp(log_noise))
        total = s * phi @ phi.T + noise
        expected = reference.log_density(y[:, o], params.mean[o], total)
        assert solved[o].log_evidence == pytest.approx(expected, rel=EVIDENCE)
        # The reference adds a multiple of the identity; here the noise is already in the kernel.
        dense_mean, dense_cov = reference.predict(
            total, s * phi @ test.T, s * test @ test.T, 0.0, y[:, o], params.mean[o]
        )
        scale = {"rtol": PREDICTION, "atol": PREDICTION}
        np.testing.assert_allclose(mean[:, o], dense_mean, **scale)
        np.testing.assert_allclose(variance[:, o], np.diag(dense_cov), **scale)
        np.testing.assert_allclose(covariance[:, :, o], dense_cov, **scale)


def test_log_noise_sum_is_part_of_the_evidence(rng):
    """A constant factor on all noise is the same as that factor on the noise variance."""
    phi, _, y, params = heteroscedastic(rng)
    shift = 0.8
    moved = solve_outputs(accumulate_features(chunked(phi, np.full(len(phi), shift), y, 50), 2), params)
    plain = solve_outputs(
        accumulate_features(chunked(phi, None, y, 50), 2), replace(params, log_noise=params.log_noise + shift)
    )
    for got, expected in zip(moved, plain, strict=True):
        assert got.log_evidence == pytest.approx(expected.log_evidence, rel=EVIDENCE)


def close(a, b, tolerance):
    assert a.n == b.n
    assert a.log_noise_sum == pytest.approx(b.log_noise_sum, rel=tolerance, abs=tolerance * b.n)
    assert float((a.moments - b.moments).abs().max()) <= tolerance * float(b.moments.abs().max())


@pytest.mark.parametrize("size", [1, 7, 100, 299, 300, 1000])
def test_chunking_and_merging(rng, size):
    phi, log_noise, y, _ = heteroscedastic(rng, 300)
    whole = accumulate_features(chunked(phi, log_noise, y, 300), 2)
    close(accumulate_features(chunked(phi, log_noise, y, size), 2), whole, STATISTICS)
    parts = [accumulate_features([chunk], 2) for chunk in chunked(phi, log_noise, y, max(size, 30))]
    order = rng.permutation(len(parts))
    close(functools.reduce(lambda a, b: a.merge(b), [parts[i] for i in order]), whole, STATISTICS)


def test_without_undoes_merge(rng):
    phi, log_noise, y, _ = heteroscedastic(rng, 300)
    first = accumulate_features(chunked(phi[:200], log_noise[:200], y[:200], 64), 2)
    second = accumulate_features(chunked(phi[200:], log_noise[200:], y[200:], 64), 2)
    close(first.merge(second).without(second), first, 10 * STATISTICS)  # a sum and a difference
    whole = accumulate_features(chunked(phi, log_noise, y, 300), 2)
    close(whole.without(first), second, 10 * STATISTICS)
    with pytest.raises(ValueError, match="different feature maps"):
        whole.without(accumulate_features(chunked(phi[:, :5], log_noise, y, 64), 2))


def test_nothing_to_accumulate():
    with pytest.raises(ValueError, match="no rows"):
        accumulate_features([], 1)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("gating", GATINGS)
def test_expert_is_the_dense_gp_of_its_network(rng, gating, noise):
    """Network, statistics, posterior and noise factor together."""
    network = make_map(rng, gating=gating, noise=noise)
    x, y = rows(rng, 60)
    params = network.parameters_now()
    stats = accumulate_features([(*network.features(x[:40]), y[:40])], 2)
    expert = replace(Expert.of("e", network, params, stats), noise_scale=np.array([2.0, 0.5]))
    mean, variance, noise_variance = expert.predict(x[40:], variance=True)
    covariance = expert.covariance(x[40:])
    k, v, _ = dense(network, x)
    for o in range(2):
        kernel = params.signal[o] * k
        train = kernel[:40, :40] + params.noise[o] * np.diag(v[:40])
        expected_mean, expected = reference.predict(
            train, kernel[:40, 40:], kernel[40:, 40:], 0.0, y[:40, o].numpy(), params.mean[o]
        )
        scale = {"rtol": PREDICTION, "atol": PREDICTION}
        np.testing.assert_allclose(mean[:, o], expected_mean, **scale)
        np.testing.assert_allclose(variance[:, o], np.diag(expected), **scale)
        np.testing.assert_allclose(covariance[:, :, o], expected, **scale)
        # The factor from the held-out rows is for predictions; the posterior is that of the trained noise.
        np.testing.assert_allclose(noise_variance[:, o], params.noise[o] * expert.noise_scale[o] * v[40:], **scale)
    assert expert.log_evidence == pytest.approx(evidence(network, x[:40], y[:40]), rel=1e-8)


def test_adding_rows_to_an_expert(rng):
    network = make_map(rng)
    x, y = rows(rng, 90)
    params = network.parameters_now()
    part = Expert.of("e", network, params, accumulate_features([(*network.features(x[:50]), y[:50])], 2))
    part = replace(part, noise_scale=np.array([2.0, 3.0]))
    grown = part.with_statistics(part.statistics.merge(part.accumulate([(x[50:70], y[50:70]), (x[70:], y[70:])], 2)))
    whole = Expert.of("e", network, params, accumulate_features([(*network.features(x), y)], 2))
    for got, expected in zip(grown.predict(x, variance=True)[:2], whole.predict(x, variance=True)[:2], strict=True):
        torch.testing.assert_close(got, expected, rtol=PREDICTION, atol=PREDICTION)
    assert grown.log_evidence == pytest.approx(whole.log_evidence, rel=EVIDENCE)
    np.testing.assert_array_equal(grown.noise_scale, [2.0, 3.0])


# -- the mixture -----------------------------------------------------------------------------------------


def make_mixture(rng, q=2, weights=(0.5, 0.3, 0.2), temperature=(1.7, 0.6)):
    """Two networks and a plain SSGP, different enough that the spread between them matters."""
    x, y = rows(rng, 40, q=q)
    experts = []
    for gating, noise in (("soft", "input"), ("hard", "constant")):
        network = make_map(rng, gating=gating, noise=noise, q=q)
        stats = accumulate_features([(*network.features(x), y)], q)
        expert = Expert.of(f"member {len(experts)}", network, network.parameters_now(), stats)
        experts.append(replace(expert, noise_scale=rng.uniform(0.5, 2.0, q)))
    params = Parameters(np.zeros(3), np.zeros(q), np.full(q, -1.0), np.full(q, 0.2))
    plain = PlainMap.of(rng.normal(size=(6, 3)), params, dtype=torch.float64)
    stats = accumulate_features([(*plain.features(x), y)], q)
    experts.append(Expert.of("ssgp", plain, params, stats))
    return Mixture(tuple(experts), np.array(weights), np.array(temperature[:q]))


def parts_of(mixture, x):
    found = [expert.predict(x, variance=True) for expert in mixture.experts]
    return tuple(np.stack([part[i].numpy() for part in found]) for i in range(3))


def test_mixture_moments(rng):
    mixture = make_mixture(rng)
    x, _ = rows(rng, 15)
    means, variances, noises = parts_of(mixture, x)
    mean, variance = reference.mixture_moments(mixture.weights, means, variances)
    got_mean, got_variance, got_noise = mixture.predict(x, variance=True)
    np.testing.assert_allclose(got_mean, mean, rtol=1e-10)
    np.testing.assert_allclose(got_variance, mixture.temperature * variance, rtol=1e-10)
    np.testing.assert_allclose(got_noise, mixture.temperature * np.tensordot(mixture.weights, noises, 1), rtol=1e-10)
    mean_alone, nothing, noise_alone = mixture.predict(x, variance=False)
    assert nothing is None
    assert torch.equal(mean_alone, got_mean)
    assert torch.equal(noise_alone, got_noise)


def test_mixture_moments_by_sampling():
    """Draw an expert, then its function, then its noise; stretch about the common mean."""
    rng = np.random.default_rng(0)
    mixture = make_mixture(rng)
    x, _ = rows(rng, 3)
    means, variances, noises = parts_of(mixture, x)
    chosen = rng.choice(3, 400_000, p=mixture.weights)
    drawn = means[chosen] + np.sqrt((variances + noises)[chosen]) * rng.normal(size=(len(chosen), 3, 2))
    mean, variance, noise = (part.numpy() for part in mixture.predict(x, variance=True))
    stretched = mean + np.sqrt(mixture.temperature) * (drawn - mean)
    total = variance + noise
    # Five standard errors.
    np.testing.assert_allclose(stretched.mean(0), mean, atol=5 * np.sqrt(total.max() / len(chosen)))
    np.testing.assert_allclose(stretched.var(0), total, rtol=5 * np.sqrt(8 / len(chosen)))


def test_density_of_the_mixture():
    """It integrates to one, and its mean and variance are those that predict returns."""
    rng = np.random.default_rng(1)
    mixture = make_mixture(rng, q=1)
    x, _ = rows(rng, 6, q=1)
    mean, variance, noise = (part.numpy()[:, 0] for part in mixture.predict(x, variance=True))
    deviation = np.sqrt(variance + noise)
    grid = np.linspace(-15, 15, 6001)
    for k in range(len(x)):
        y = mean[k] + deviation[k] * grid
        at = x[k : k + 1].expand(len(y), -1)
        density = np.exp(mixture.log_density(at, torch.as_tensor(y)[:, None]).numpy())
        assert np.trapezoid(density, y) == pytest.approx(1.0, rel=1e-8)
        assert np.trapezoid(density * y, y) == pytest.approx(mean[k], abs=1e-8)
        assert np.trapezoid(density * (y - mean[k]) ** 2, y) == pytest.approx(deviation[k] ** 2, rel=1e-8)


def test_density_of_several_outputs():
    """Outputs share the expert: the joint density is a mixture of products, and its marginals are the mixtures."""
    rng = np.random.default_rng(2)
    mixture = make_mixture(rng)
    x, y = rows(rng, 5)
    means, variances, noises = parts_of(mixture, x)
    common = np.tensordot(mixture.weights, means, 1)
    centres = common + np.sqrt(mixture.temperature) * (means - common)
    deviations = np.sqrt(mixture.temperature * (variances + noises))
    products = distributions.norm.pdf(y.numpy(), centres, deviations).prod(2)
    np.testing.assert_allclose(mixture.log_density(x, y), np.log(mixture.weights @ products), rtol=1e-10)
    grid = np.linspace(-30, 30, 20_001)
    over = torch.as_tensor(np.stack([np.full_like(grid, y[0, 0].item()), grid], 1))
    marginal = np.trapezoid(np.exp(mixture.log_density(x[:1].expand(len(grid), -1), over).numpy()), grid)
    single = distributions.norm.pdf(y[0, 0].item(), centres[:, 0, 0], deviations[:, 0, 0])
    assert marginal == pytest.approx(mixture.weights @ single, rel=1e-6)


def test_density_far_away_does_not_underflow():
    mixture = make_mixture(np.random.default_rng(0))
    x, y = rows(np.random.default_rng(1), 4)
    assert torch.isfinite(mixture.log_density(x, y + 1e6)).all()


def test_joint_covariance(rng):
    mixture = make_mixture(rng)
    x, _ = rows(rng, 12)
    _, variance, _ = mixture.predict(x, variance=True)
    covariance = mixture.covariance(x).numpy()
    np.testing.assert_allclose(np.einsum("iiq->iq", covariance), variance, rtol=1e-10)
    means = parts_of(mixture, x)[0]
    for o in range(2):
        common = mixture.weights @ means[:, :, o]
        second = sum(
            w * (expert.covariance(x)[:, :, o].numpy() + np.outer(means[k, :, o], means[k, :, o]))
            for k, (w, expert) in enumerate(zip(mixture.weights, mixture.experts, strict=True))
        )
        expected = mixture.temperature[o] * (second - np.outer(common, common))
        np.testing.assert_allclose(covariance[:, :, o], expected, atol=1e-10)
        assert np.linalg.eigvalsh(covariance[:, :, o]).min() > -1e-10


def test_sampled_functions_have_the_moments():
    mixture = make_mixture(np.random.default_rng(3))
    x, _ = rows(np.random.default_rng(4), 4)
    draws = mixture.sample([x[:3], x[3:]], 2_000, np.random.default_rng(5))
    mean, variance, _ = (part.numpy() for part in mixture.predict(x, variance=True))
    covariance = mixture.covariance(x).numpy()
    deviation = np.sqrt(variance)
    # Five standard errors; fourth moments of these mixtures are below six squares of the variance.
    assert (np.abs(draws.mean(2) - mean) < 5 * deviation / np.sqrt(2_000)).all()
    for o in range(2):
        got = np.cov(draws[:, o])
        scale = np.outer(deviation[:, o], deviation[:, o])
        assert (np.abs(got - covariance[:, :, o]) < 5 * scale * np.sqrt(6 / 2_000)).all()


def test_samples_are_functions():
    """The draws know neither the rows nor their chunks, and the first ones not how many there are."""
    mixture = make_mixture(np.random.default_rng(3))
    x, _ = rows(np.random.default_rng(4), 9)
    whole = mixture.sample([x], 6, np.random.default_rng(5))
    assert whole.shape == (9, 2, 6)
    np.testing.assert_allclose(mixture.sample([x[:2], x[2:]], 6, np.random.default_rng(5)), whole, rtol=1e-10)
    np.testing.assert_allclose(mixture.sample([x[5:]], 6, np.random.default_rng(5)), whole[5:], rtol=1e-10)
    np.testing.assert_allclose(mixture.sample([x], 2, np.random.default_rng(5)), whole[:, :, :2], rtol=1e-10)


def test_one_expert_is_itself():
    rng = np.random.default_rng(0)
    expert = make_mixture(rng).experts[0]
    mixture = Mixture((expert,), np.ones(1), np.ones(2))
    x, y = rows(rng, 8)
    for got, expected in zip(mixture.predict(x, variance=True), expert.predict(x, variance=True), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    mean, variance, noise = (part.numpy() for part in expert.predict(x, variance=True))
    expected = distributions.norm.logpdf(y, mean, np.sqrt(variance + noise)).sum(1)
    np.testing.assert_allclose(mixture.log_density(x, y), expected, rtol=1e-10)
    assert mixture.leader is expert

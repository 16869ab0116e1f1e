"""The revised SSGP: batch evidence, gates, heteroscedastic posteriors and the mixture equal their dense definitions."""

from __future__ import annotations

import copy
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from prismgp.core.evidence import solve_outputs
from prismgp.core.features import gated_features, spectral_features
from prismgp.core.parameters import Parameters
from prismgp.core.posterior import WeightPosterior
from prismgp.core.statistics import accumulate_features
from prismgp.prism import Expert, Mixture, NetworkSizes, PlainMap, RevisedMap
from prismgp.prism._batch import batch_log_evidence, batch_predict
from prismgp.prism._network import Encoded
from tests import reference
from tests.tolerances import EVIDENCE, GRADIENT, PREDICTION, STATISTICS

GATINGS = ["none", "soft", "hard"]
NOISES = ["constant", "input"]
BATCHES = {"few rows": 9, "many rows": 40}  # fewer than there are features: by the kernel matrix; more: by the features


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


def gates_of(network, latent):
    """Responsibilities from SciPy's densities, and what each gating makes of them."""
    prior = network.prior
    centres = prior.centres().detach().numpy()
    widths = prior.log_widths.detach().exp().numpy()
    weights = 2.0 ** (np.arange(1, len(widths) + 1) / 2)
    joint = np.stack(
        [
            w * distributions.multivariate_normal(c, g**2 * np.eye(len(c))).pdf(latent)
            for w, c, g in zip(weights / weights.sum(), centres, widths, strict=True)
        ],
        1,
    )
    if network.sizes.gating == "hard":
        return np.eye(len(widths))[joint.argmax(1)]
    return np.sqrt(joint / joint.sum(1, keepdims=True))


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


# -- (B1) to (B4): the evidence of a batch -----------------------------------------------------------


@pytest.mark.parametrize("n", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("gating", GATINGS)
def test_batch_evidence_is_the_normal_density(rng, gating, noise, q, n):
    network = make_map(rng, gating=gating, noise=noise, q=q)
    assert (n <= network.sizes.width) == (n == BATCHES["few rows"])
    x, y = rows(rng, n, q=q)
    k, v, params = dense(network, x)
    expected = sum(
        distributions.multivariate_normal(
            np.full(len(x), params.mean[o]), params.signal[o] * k + params.noise[o] * np.diag(v)
        ).logpdf(y[:, o].numpy())
        for o in range(q)
    )
    got = batch_log_evidence(network, network(x), y)
    assert got.dtype == torch.float64
    assert float(got.detach()) == pytest.approx(expected, rel=EVIDENCE)


@pytest.mark.parametrize("gating", GATINGS)
def test_batch_evidence_is_that_of_the_features(rng, gating):
    """(B1), by the rows, and (E1), by the features, are one density."""
    network = make_map(rng, gating=gating, p=40)
    x, y = rows(rng, 60)
    phi, log_noise = network.features(x)
    solved = solve_outputs(accumulate_features([(phi, log_noise, y)], 2), network.parameters_now())
    expected = sum(out.log_evidence for out in solved)
    assert evidence(network, x, y) == pytest.approx(expected, rel=EVIDENCE)


def differences(value, tensor, step=1e-5):
    """Central differences with respect to every element of a tensor."""
    out = torch.zeros_like(tensor)
    for place in itertools.product(*map(range, tensor.shape)):
        values = []
        for sign in (1.0, -1.0):
            moved = tensor.clone()
            moved[place] += sign * step
            values.append(float(value(moved)))
        out[place] = (values[0] - values[1]) / (2 * step)
    return out


@pytest.mark.parametrize("p", [5, 1], ids=BATCHES)
@pytest.mark.parametrize("q", [1, 2])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("gating", GATINGS)
def test_batch_gradients(rng, gating, noise, q, p):
    """(B2), (B4) with respect to what the network makes, as free variables: rows of norm one are not assumed."""
    network = make_map(rng, gating=gating, noise=noise, q=q, p=p)
    x, y = rows(rng, 7, q=q)
    assert (len(x) <= network.sizes.width) == (p == 5)
    with torch.no_grad():
        encoded = network(x)
    parts = {name: value for name, value in encoded._asdict().items() if value is not None and name != "latent"}
    leaves = {name: value.clone().requires_grad_() for name, value in parts.items()}
    scale = 0.7  # the incoming gradient must be passed on
    (scale * batch_log_evidence(network, encoded._replace(**leaves), y)).backward()
    expected = {"phi", "gates", "log_noise"} - {"none": {"gates"}}.get(gating, set())
    assert set(leaves) == expected - {"constant": {"log_noise"}}.get(noise, set())
    for name, leaf in leaves.items():
        numeric = scale * differences(
            lambda t, name=name: batch_log_evidence(network, encoded._replace(**{name: t}), y).detach(), parts[name]
        )
        torch.testing.assert_close(leaf.grad, numeric, rtol=GRADIENT, atol=GRADIENT * float(numeric.abs().max()))
    for parameter in (network.log_signal, network.log_noise, network.mean):
        start = parameter.detach().clone()

        def value(t, parameter=parameter):
            with torch.no_grad():
                parameter.copy_(t)
                return batch_log_evidence(network, encoded, y)

        numeric = scale * differences(value, start)
        value(start)
        torch.testing.assert_close(parameter.grad, numeric, rtol=GRADIENT, atol=GRADIENT)


@pytest.mark.parametrize("gating", GATINGS)
def test_gradients_reach_the_network(rng, gating):
    """Through the features, the gates and the noise, by the chain rule, to parameters of every layer."""
    network = make_map(rng, gating=gating)
    x, y = rows(rng, 12)
    batch_log_evidence(network, network(x), y).backward()
    names = ["log_input_scale", "layers.0.bias", "layers.1.weight", "latent_head.weight", "noise_head.weight"]
    names += ["noise_head.bias", "log_lengthscale"] + ([] if gating != "soft" else ["prior.log_widths"])
    for name in names:
        parameter = network.get_parameter(name)
        start = parameter.detach().clone()

        def value(t, parameter=parameter):
            with torch.no_grad():
                parameter.copy_(t)
                return batch_log_evidence(network, network(x), y)

        numeric = differences(value, start)
        value(start)
        torch.testing.assert_close(
            parameter.grad, numeric, rtol=GRADIENT, atol=GRADIENT * max(1.0, float(numeric.abs().max()))
        )


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("gating", GATINGS)
def test_batch_prediction_is_that_of_the_features(rng, gating, noise):
    """The posterior by the rows of a batch, by the weights of the features, and by the dense kernel are one."""
    network = make_map(rng, gating=gating, noise=noise)
    x, y = rows(rng, 50)
    k, v, params = dense(network, x)
    with torch.no_grad():
        got = batch_predict(params, network(x[:30]), y[:30], network(x[30:]))
    expert = Expert.of("e", network, params, accumulate_features([(*network.features(x[:30]), y[:30])], 2))
    for part, expected in zip(got, expert.predict(x[30:], variance=True), strict=True):
        torch.testing.assert_close(part, expected, rtol=PREDICTION, atol=PREDICTION)
    for o in range(2):
        kernel = params.signal[o] * k
        train = kernel[:30, :30] + params.noise[o] * np.diag(v[:30])
        mean, covariance = reference.predict(
            train, kernel[:30, 30:], kernel[30:, 30:], 0.0, y[:30, o].numpy(), params.mean[o]
        )
        np.testing.assert_allclose(got[0][:, o], mean, rtol=PREDICTION, atol=PREDICTION)
        np.testing.assert_allclose(got[1][:, o], np.diag(covariance), rtol=PREDICTION, atol=PREDICTION)
        np.testing.assert_allclose(got[2][:, o], params.noise[o] * v[30:], rtol=PREDICTION)


@pytest.mark.parametrize("p", [40, 5], ids=BATCHES)
@pytest.mark.parametrize("noise_variance", [1e-6, 1e-4, 1e-1])
def test_single_precision_gradients_stay_close(rng, noise_variance, p):
    """Members are trained in float32, with the factor in float64; also where the noise is low."""
    network = make_map(rng, p=p)
    x, y = rows(rng, 60)
    gradients = []
    with torch.no_grad():
        network.log_noise.fill_(np.log(noise_variance))
    for each in (network, copy.deepcopy(network).float()):  # float() works in place
        dtype = each.mean.dtype
        batch_log_evidence(each, each(x.to(dtype)), y).backward()
        gradients.append(torch.cat([p.grad.double().flatten() for p in each.parameters() if p.grad is not None]))
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < 1e-2


def test_batch_of_one_row(rng):
    network = make_map(rng)
    x, y = rows(rng, 1)
    _, v, params = dense(network, x)
    expected = distributions.norm.logpdf(y[0], params.mean, np.sqrt(params.signal + params.noise * v[0])).sum()
    assert evidence(network, x, y) == pytest.approx(expected, rel=EVIDENCE)


# -- (V3): gates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("gating", ["soft", "hard"])
def test_gates_are_the_roots_of_the_responsibilities(rng, gating):
    network = make_map(rng, gating=gating)
    x, _ = rows(rng, 200)
    encoded = network(x)
    gates = encoded.gates.detach().numpy()
    np.testing.assert_allclose((gates**2).sum(1), 1.0, rtol=1e-12)
    # Soft gates have a floor of 1e-3 (1e-6 shared out), which keeps them out of the denormal numbers.
    np.testing.assert_allclose(gates, gates_of(network, encoded.latent.detach().numpy()), atol=1e-3)
    if gating == "soft":
        assert gates.min() > 1e-4
    assert len(np.unique(gates.argmax(1))) > 1  # otherwise the test says nothing


@pytest.mark.parametrize("gating", GATINGS)
def test_gram_matrix_of_the_features(rng, gating):
    network = make_map(rng, gating=gating)
    x, _ = rows(rng, 60)
    phi, log_noise = network.features(x)
    assert phi.shape == (60, network.sizes.width)
    assert not phi.requires_grad
    assert float(log_noise.abs().max()) <= 3.0
    k = (phi @ phi.T).numpy()
    np.testing.assert_allclose(k, dense(network, x)[0], atol=1e-12)
    np.testing.assert_allclose(np.diag(k), 1.0, rtol=1e-12)
    assert np.linalg.eigvalsh(k).min() > -1e-12


def test_hard_gating_masks_the_kernel(rng):
    network = make_map(rng, gating="hard")
    x, _ = rows(rng, 80)
    with torch.no_grad():
        encoded = network(x)
    cluster = encoded.gates.argmax(1).numpy()
    order = np.argsort(cluster, kind="stable")
    phi = network.features(x)[0]
    k = (phi @ phi.T).numpy()[np.ix_(order, order)]
    same = cluster[order][:, None] == cluster[order]
    assert not same.all()
    np.testing.assert_array_equal(k[~same], 0.0)
    u = np.hstack([encoded.latent.numpy(), x.numpy()])[order]
    sizes = np.bincount(cluster[order])
    edges = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
    for a, b in itertools.pairwise(edges):
        block = reference.spectral_kernel(
            network.frequencies.numpy(), u[a:b], u[a:b], network.parameters_now().lengthscale
        )
        np.testing.assert_allclose(k[a:b, a:b], block, atol=1e-12)


@pytest.mark.parametrize("gating", GATINGS)
def test_a_rows_features_do_not_depend_on_the_other_rows(rng, gating):
    """Test points meet the kernel that the training rows met."""
    network = make_map(rng, gating=gating)
    x, _ = rows(rng, 30)
    together, together_noise = network.features(x)
    for k in range(30):
        alone, alone_noise = network.features(x[k : k + 1])
        torch.testing.assert_close(alone[0], together[k], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(alone_noise[0], together_noise[k], rtol=1e-12, atol=1e-14)


def test_inputs_beyond_ten_deviations_are_limited(rng):
    network = make_map(rng)
    x, _ = rows(rng, 5)
    far = x.clone()
    far[:, 0] = 10.0
    further = far.clone()
    further[:, 0] = torch.tensor([11.0, 1e9, 1e300, np.inf, 10.0])
    for got, expected in zip(network.features(further), network.features(far), strict=True):
        torch.testing.assert_close(got, expected)


def test_gated_features_order_and_norm(rng):
    phi = spectral_features(torch.as_tensor(rng.normal(size=(7, 2))), torch.as_tensor(rng.normal(size=(2, 3))))
    gates = torch.as_tensor(rng.dirichlet(np.ones(4), 7) ** 0.5)
    got = gated_features(phi, gates)
    np.testing.assert_allclose(got, np.stack([np.kron(g, f) for g, f in zip(gates, phi, strict=True)]))
    np.testing.assert_allclose((got**2).sum(1), 1.0)


def test_float32_network_stays_close(rng):
    """Members are trained in float32 and used in float64."""
    network = make_map(rng)
    x, y = rows(rng)
    exact = evidence(network, x, y)
    assert evidence(network.float(), x.float(), y.float()) == pytest.approx(exact, rel=1e-4)


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


def test_a_network_that_adds_nothing_leaves_a_plain_ssgp():
    """A network that adds nothing leaves the sparse spectrum GP of the inputs (V2)."""
    rng = np.random.default_rng(0)
    network = make_map(rng, gating="none", noise="constant")
    with torch.no_grad():
        network.frequencies[:, :2] = 0.0
    x, _ = rows(rng, 20)
    encoded = network(x)
    assert isinstance(encoded, Encoded)
    k = reference.spectral_kernel(
        network.frequencies[:, 2:].numpy(), x.numpy(), x.numpy(), network.parameters_now().lengthscale[2:]
    )
    np.testing.assert_allclose((encoded.phi @ encoded.phi.T).detach(), k, atol=1e-12)

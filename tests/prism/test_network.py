"""The network and the evidence of its batches equal their dense definitions."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from scipy import stats as distributions

from prismgp.core.features import gated_features, spectral_features
from prismgp.core.statistics import accumulate_features, solve_outputs
from prismgp.prism import Expert
from prismgp.prism.batch import batch_log_evidence, batch_predict
from prismgp.prism.maps import NetworkOutput
from tests import reference
from tests.prism.small import GATINGS, NOISES, dense, evidence, make_map, rows
from tests.tolerances import EVIDENCE, GRADIENT, PREDICTION

BATCHES = {"few rows": 9, "many rows": 40}  # fewer than there are features: by the kernel matrix; more: by the features


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


@pytest.mark.slow
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
    """Members are trained in float32; where the noise is low, the factor is in float64."""
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


def test_low_noise_has_factors_in_double_precision(rng):
    """In single precision the evidence has six digits at most, and fewer where the noise is low."""
    network = make_map(rng, noise="constant", p=40).float()
    x, y = rows(rng, 60)
    errors = []
    for noise_variance in (1e-1, 1e-6):
        with torch.no_grad():
            network.log_noise.fill_(np.log(noise_variance))
            output = network(x.float())
            precise = output._replace(**{k: v.double() for k, v in output._asdict().items() if v is not None})
            got, expected = (float(batch_log_evidence(network, each, y)) for each in (output, precise))
        errors.append(abs(got / expected - 1.0))
    assert 1e-9 < errors[0] < 1e-5
    assert errors[1] < 1e-9


def test_batch_of_one_row(rng):
    network = make_map(rng)
    x, y = rows(rng, 1)
    _, v, params = dense(network, x)
    expected = distributions.norm.logpdf(y[0], params.mean, np.sqrt(params.signal + params.noise * v[0])).sum()
    assert evidence(network, x, y) == pytest.approx(expected, rel=EVIDENCE)


# -- (V3): gates ---------------------------------------------------------------------------------------


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


def test_a_network_that_adds_nothing_leaves_a_plain_ssgp():
    """A network that adds nothing leaves the sparse spectrum GP of the inputs (V2)."""
    rng = np.random.default_rng(0)
    network = make_map(rng, gating="none", noise="constant")
    with torch.no_grad():
        network.frequencies[:, :2] = 0.0
    x, _ = rows(rng, 20)
    encoded = network(x)
    assert isinstance(encoded, NetworkOutput)
    k = reference.spectral_kernel(
        network.frequencies[:, 2:].numpy(), x.numpy(), x.numpy(), network.parameters_now().lengthscale[2:]
    )
    np.testing.assert_allclose((encoded.phi @ encoded.phi.T).detach(), k, atol=1e-12)

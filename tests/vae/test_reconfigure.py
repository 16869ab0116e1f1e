"""The mixture auto-encoder: prior, networks and objective against independent references, and its training."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp
from sklearn.metrics import adjusted_rand_score

from prismgp import Reconfigurer
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning
from prismgp.vae import (
    SEPARATION_CAP,
    GaussianMixtureNet,
    MixturePrior,
    MixtureVAE,
    conditional_kl,
    elbo_terms,
    marginal_kl,
    sample_components,
)
from prismgp.vae._prior import sphere_directions

ROUNDING = 1e-5  # relative, float32 parameters against float64 references


def some_prior(b=3, latent_dim=2, seed=0):
    prior = MixturePrior(b, latent_dim, radius=1.7).double()
    with torch.no_grad():
        prior.log_widths.copy_(torch.as_tensor(np.random.default_rng(seed).normal(size=b) * 0.3))
    return prior


def some_posterior(n, k, latent_dim, seed=0):
    rng = np.random.default_rng(seed)
    log_weights = torch.log_softmax(torch.as_tensor(rng.normal(size=(n, k))), -1)
    mean, log_var = (torch.as_tensor(rng.normal(size=(n, k, latent_dim))) for _ in range(2))
    return log_weights, mean, log_var - 1.0


# -- prior ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("b", "latent_dim"), [(1, 3), (3, 2), (8, 4)])
def test_prior_density_r1(b, latent_dim):
    prior = some_prior(b, latent_dim)
    z = np.random.default_rng(1).normal(size=(20, latent_dim))
    weights = 2.0 ** (np.arange(1, b + 1) / 2)
    weights /= weights.sum()
    widths = np.exp(prior.log_widths.detach().numpy())
    centres = 1.7 * sphere_directions(b, latent_dim)
    parts = np.stack(
        [
            np.log(w) + stats.multivariate_normal(c, g**2).logpdf(z)
            for w, c, g in zip(weights, centres, widths, strict=True)
        ],
        1,
    )
    found = prior.log_joint(torch.as_tensor(z)).detach().numpy()
    np.testing.assert_allclose(found, parts, rtol=ROUNDING, atol=ROUNDING)
    expected = logsumexp(parts, axis=1)
    np.testing.assert_allclose(prior.log_prob(torch.as_tensor(z)).detach(), expected, rtol=ROUNDING, atol=ROUNDING)
    responsibilities = prior.responsibilities(torch.as_tensor(z)).detach().numpy()
    np.testing.assert_allclose(responsibilities, np.exp(parts - expected[:, None]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("b", "latent_dim"), [(2, 1), (3, 2), (5, 4), (4, 7)])
def test_simplex_is_equidistant(b, latent_dim):
    u = sphere_directions(b, latent_dim)
    distances = np.linalg.norm(u[:, None] - u[None], axis=2)[np.triu_indices(b, 1)]
    np.testing.assert_allclose(distances, math.sqrt(2 * b / (b - 1)), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(u.sum(0), 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("b", "latent_dim", "least"),
    [(8, 4, math.sqrt(2)), (7, 4, math.sqrt(2)), (7, 2, 2 * math.sin(math.pi / 7)), (12, 3, 1.0514), (20, 4, 0.85)],
)
def test_other_directions_are_spread_evenly(b, latent_dim, least):
    """12 points in space: the icosahedron, whose edge is 1.05146 radii, is the known optimum."""
    u = sphere_directions(b, latent_dim)
    np.testing.assert_allclose(np.linalg.norm(u, axis=1), 1.0, rtol=1e-12)
    distances = np.linalg.norm(u[:, None] - u[None], axis=2)[np.triu_indices(b, 1)]
    assert distances.min() >= least - 1e-3
    np.testing.assert_array_equal(u, sphere_directions(b, latent_dim))


def test_special_directions():
    np.testing.assert_array_equal(sphere_directions(1, 3), np.zeros((1, 3)))
    np.testing.assert_allclose(sphere_directions(5, 1)[:, 0], [-1, -0.5, 0, 0.5, 1])


def test_separations_r2_against_torch():
    prior = some_prior(5, 3)
    normals = [
        torch.distributions.MultivariateNormal(c, g**2 * torch.eye(3, dtype=torch.float64))
        for c, g in zip(prior.centres().detach(), prior.log_widths.detach().exp(), strict=True)
    ]
    expected = [[torch.distributions.kl_divergence(p, q).item() for q in normals] for p in normals]
    np.testing.assert_allclose(prior.separations().detach(), expected, rtol=1e-9, atol=1e-12)


def test_bonus_r3_saturates():
    def bonus(radius):
        return float(MixturePrior(4, 2, radius=radius).double().separation_bonus().detach())

    # For clusters close together it is the printed sum of divergences.
    near = MixturePrior(4, 2, radius=0.01).double()
    assert near.separation_bonus().item() == pytest.approx(near.separations().sum().item(), rel=1e-3)
    values = [bonus(radius) for radius in (0.1, 1.0, 3.0, 6.0)]
    assert values == sorted(values)
    assert bonus(20.0) == bonus(1e3) == pytest.approx(12 * SEPARATION_CAP / 2)
    far = MixturePrior(4, 2, radius=50.0)
    far.separation_bonus().backward()
    assert float(far.log_radius.grad) == 0.0  # nothing drives them further apart


def test_cap_is_where_kernel_entries_between_clusters_are_negligible():
    """The mean kernel entry between clusters of the kernel's width is 3^(-L/2) exp(-KL/3)."""
    rng = np.random.default_rng(0)
    gap, latent_dim = 2.0, 3
    z, other = rng.normal(size=(2, 400_000, latent_dim))
    other[:, 0] += gap
    mean = np.exp(-0.5 * np.square(z - other).sum(1)).mean()
    assert mean == pytest.approx(3 ** (-latent_dim / 2) * math.exp(-(gap**2 / 2) / 3), rel=0.02)
    assert math.exp(-SEPARATION_CAP / 3) == pytest.approx(1e-6)


# -- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_vectorised_nets_equal_a_loop_r4(training):
    k, d, out, h, n = 3, 5, 2, 10, 16
    net = GaussianMixtureNet(d, out, k, h, generator=torch.Generator().manual_seed(0)).double()
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(n, d)))
    net(x)  # moves the running moments away from their start
    net.train(training)
    moments = net.running_mean.clone(), net.running_var.clone()
    found = net(x)
    for j in range(k):
        part = slice(j * h, (j + 1) * h)
        first, norm = torch.nn.Linear(d, h).double(), torch.nn.BatchNorm1d(h).double()
        first.weight.data, first.bias.data = net.first_weight[part], net.first_bias[part]
        norm.weight.data, norm.bias.data = net.norm_scale[part], net.norm_shift[part]
        norm.running_mean.data, norm.running_var.data = moments[0][part].clone(), moments[1][part].clone()
        shared = torch.relu(norm.train(training)(first(x)))
        heads = []
        for half, weight, bias in (
            (slice(0, h), net.mean_weight, net.mean_bias),
            (slice(h, 2 * h), net.log_var_weight, net.log_var_bias),
        ):
            hidden = torch.relu(shared @ net.head_weight[j][:, half] + net.head_bias[j][:, half])
            heads.append(hidden @ weight[j] + bias[j])
        torch.testing.assert_close(found.mean[:, j], heads[0])
        torch.testing.assert_close(found.log_var[:, j], 10 * torch.tanh(heads[1] / 10))
        torch.testing.assert_close(net.running_var[part], norm.running_var)
    logits = x @ net.mixing_weight.T + net.mixing_bias
    torch.testing.assert_close(found.log_weights.exp(), torch.softmax(logits, 1))


def test_mixture_density_and_mean():
    net = GaussianMixtureNet(3, 2, 4, generator=torch.Generator().manual_seed(1)).double()
    q = net(torch.as_tensor(np.random.default_rng(0).normal(size=(6, 3))))
    x = torch.as_tensor(np.random.default_rng(1).normal(size=(6, 2)))
    parts = torch.distributions.Independent(torch.distributions.Normal(q.mean, torch.exp(q.log_var / 2)), 1)
    mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=q.log_weights), parts)
    torch.testing.assert_close(q.log_prob(x), mixture.log_prob(x))
    torch.testing.assert_close(q.mean_of_mixture(), mixture.mean)
    only_first = torch.tensor([1.0, 0.0], dtype=torch.float64)
    moved = x.clone()
    moved[:, 1] += 100.0
    torch.testing.assert_close(q.log_prob(x, only_first), q.log_prob(moved, only_first))


# -- objective -----------------------------------------------------------------------------------


def mixture_of(log_weights, mean, log_var):
    parts = torch.distributions.Independent(torch.distributions.Normal(mean, torch.exp(log_var / 2)), 1)
    return torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=log_weights), parts)


def draws(q, count, seed):
    """Points of the mixtures by ancestral sampling: not the estimator's way."""
    log_weights, mean, log_var = q
    rng = np.random.default_rng(seed)
    n, k, latent_dim = mean.shape
    chosen = np.stack([rng.choice(k, count, p=row) for row in log_weights.exp().numpy()])
    picked = np.arange(n)[:, None]
    noise = rng.normal(size=(n, count, latent_dim))
    return mean[picked, chosen] + torch.exp(0.5 * log_var[picked, chosen]) * torch.as_tensor(noise)


@pytest.mark.parametrize("k", [1, 3])
def test_conditional_kl_is_unbiased_r6(k):
    q, prior = some_posterior(4, k, 2), some_prior()
    points = draws(q, 100_000, 1)
    log_ratio = torch.stack([mixture_of(*(part[i] for part in q)).log_prob(points[i]) for i in range(4)])
    reference = (log_ratio - prior.log_prob(points)).mean(1).detach()
    repeats = 20_000
    many = [part.repeat_interleave(repeats, 0) for part in q]
    noise = torch.randn(many[1].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = conditional_kl(*many, sample_components(many[1], many[2], noise), prior).detach().reshape(4, repeats)
    error = estimate.std(1) / math.sqrt(repeats)
    assert bool(((estimate.mean(1) - reference).abs() < 5 * error + 0.01).all())


def test_gaussian_conditional_kl_has_its_closed_form():
    """Against one cluster, a single Gaussian's divergence is known exactly."""
    prior, q = MixturePrior(1, 2, width=0.8).double(), some_posterior(1, 1, 2)
    normal = torch.distributions.Normal(q[1][0, 0], torch.exp(q[2][0, 0] / 2))
    exact = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 0.8)).sum()
    many = [part.repeat_interleave(50_000, 0) for part in q]
    noise = torch.randn(many[1].shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    estimate = conditional_kl(*many, sample_components(many[1], many[2], noise), prior).detach()
    assert float(estimate.mean()) == pytest.approx(
        float(exact), abs=5 * float(estimate.std()) / math.sqrt(50_000) + 1e-6
    )


@pytest.mark.parametrize("k", [1, 2])
def test_marginal_kl_r7(k):
    """With S all rows it is unbiased for KL(q || p); with fewer rows it is too high, and less so for more."""
    n, prior = 48, some_prior()
    q = some_posterior(n, k, 2)
    points = draws(q, 2_000, 1).reshape(-1, 2)
    everything = mixture_of((q[0] - math.log(n)).reshape(-1), q[1].reshape(-1, 2), q[2].reshape(-1, 2))
    ratios = (everything.log_prob(points) - prior.log_prob(points)).detach()
    exact = float(ratios.mean())
    generator = torch.Generator().manual_seed(0)

    def average(reference_rows):
        values = []
        for _ in range(200):
            order = torch.randperm(n, generator=generator)
            rows = [part[order] for part in q]
            noise = torch.randn(rows[1].shape, generator=generator, dtype=torch.float64)
            z = sample_components(rows[1], rows[2], noise)
            values.append(float(marginal_kl(*rows, z, prior, reference_rows=reference_rows).detach()))
        return np.mean(values), np.std(values) / math.sqrt(len(values))

    full, error = average(n)
    assert full == pytest.approx(exact, abs=5 * error + 0.01)
    half, few = average(24)[0], average(4)[0]
    assert exact < half < few
    one = marginal_kl(*(part[:1] for part in q), q[1][:1], prior)
    torch.testing.assert_close(one, conditional_kl(*(part[:1] for part in q), q[1][:1], prior)[0])


def test_narrow_components_keep_their_digits_in_float32():
    q = [part.float() for part in some_posterior(8, 2, 3)]
    q[2] = torch.full_like(q[2], -10.0)
    z = sample_components(q[1] + 20.0, q[2], torch.ones_like(q[1]))
    prior = some_prior(2, 3)
    double = [part.double() for part in (q[0], q[1] + 20.0, q[2], z)]
    found = conditional_kl(q[0], q[1] + 20.0, q[2], z, prior.float())
    torch.testing.assert_close(found.double(), conditional_kl(*double, prior.double()), rtol=1e-3, atol=1e-2)


def test_gradients_reach_everything_and_are_right():
    generator = torch.Generator().manual_seed(0)
    vae = MixtureVAE(3, 3, 2, 4, generator=generator).double()
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(6, 3, 2, generator=generator, dtype=torch.float64)

    def objective():
        return elbo_terms(x, vae.encoder(x), vae.decoder, vae.prior, noise, alpha=8.0, beta=1.2).objective

    objective().backward()
    for name, parameter in vae.named_parameters():
        assert parameter.grad is not None, name
        if name.endswith("first_bias"):
            continue  # batch norm takes the shift away
        assert float(parameter.grad.abs().max()) > 0, name
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        step, values = 1e-6, []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
                values.append(objective().item())
                parameter.sub_(sign * step * direction)
        assert (values[0] - values[1]) / (2 * step) == pytest.approx(
            float((parameter.grad * direction).sum()), rel=1e-4, abs=1e-6
        ), name


def test_terms_add_up():
    vae = MixtureVAE(3, 2, 2, 4, generator=torch.Generator().manual_seed(0))
    x, noise = torch.ones(4, 3), torch.zeros(4, 2, 2)
    terms = elbo_terms(x, vae.encoder(x), vae.decoder, vae.prior, noise, alpha=3.0, beta=0.5).as_floats()
    total = terms["reconstruction"] - terms["conditional_kl"] - 3 * terms["marginal_kl"] + 0.5 * terms["separation"]
    assert terms["objective"] == pytest.approx(total, rel=1e-5)


# -- training ------------------------------------------------------------------------------------


def small(**arguments):
    return Reconfigurer(**{"n_components": 3, "latent_dim": 2, "max_steps": 10, "random_state": 0, **arguments})


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(3), [70, 100, 130])
    x = 4 * np.eye(3)[truth] + 0.5 * rng.normal(size=(300, 3))
    return x, truth, small(max_steps=900, batch_size=64).fit(x)


def test_blobs_become_clusters(blobs):
    x, truth, model = blobs
    assert adjusted_rand_score(truth, model.predict(x)) > 0.8
    assert model.history_["smallest_separation"][0] < 1.0
    assert model.history_["smallest_separation"][-1] > 8.0
    # Separated in the latent space itself, not by name only.
    z = model.transform(x)
    centres = np.stack([z[truth == c].mean(0) for c in range(3)])
    within = max(z[truth == c].std() for c in range(3))
    gaps = np.linalg.norm(centres[:, None] - centres[None], axis=2)[np.triu_indices(3, 1)]
    assert gaps.min() > within


def test_training_improves_on_held_out_rows(blobs):
    _, _, model = blobs
    history = model.history_
    assert history["held_out_objective"][-1] > history["held_out_objective"][0] + 50
    assert history["reconstruction"][-1] > history["reconstruction"][0] + 0.5
    assert min(history["marginal_kl"]) > -0.3  # an estimate of something that is not negative
    lengths = {len(column) for column in history.values()}
    assert len(lengths) == 1
    assert history["step"] == sorted(set(history["step"]))
    assert all(sum(sizes) == model.fit_status_["held_out_rows"] == 30 for sizes in history["cluster_sizes"])
    np.testing.assert_allclose(model.responsibilities(blobs[0]).sum(1), 1.0)


def test_same_seed_same_bits(blobs):
    x = blobs[0]
    first, second = (small(max_steps=30).fit(x) for _ in range(2))
    for name, value in first._state_tensors().items():
        assert torch.equal(value, second._state_tensors()[name]), name
    np.testing.assert_array_equal(first.transform(x), second.transform(x))
    assert first.history_["objective"] == second.history_["objective"]
    assert not np.array_equal(small(random_state=1).fit(x).transform(x), first.transform(x))


def test_interrupt_keeps_the_best_state(blobs, monkeypatch):
    x = blobs[0]
    calm = small(max_steps=50).fit(x)
    original = torch.optim.Adam.step
    count = 0

    def impatient(self, *arguments, **keywords):
        nonlocal count
        count += 1
        if count == 61:
            raise KeyboardInterrupt
        return original(self, *arguments, **keywords)

    monkeypatch.setattr(torch.optim.Adam, "step", impatient)
    with pytest.warns(PrismGPWarning, match="interrupted after 60 steps; the state of step 50 is kept"):
        stopped = small(max_steps=100).fit(x)
    assert stopped.fit_status_["interrupted"]
    assert stopped.n_iter_ == 60
    np.testing.assert_array_equal(stopped.transform(x), calm.transform(x))


def test_patience_stops_and_restores_the_best(blobs, monkeypatch):
    x = blobs[0]
    # Steps downhill: nothing after the start is better.
    monkeypatch.setattr("prismgp.vae._vae._LEARNING_RATE", 0.0)
    model = small(max_steps=500, patience=60).fit(x)
    assert model.fit_status_["steps"] < 500
    assert "no better objective" in model.fit_status_["message"]


def test_not_a_number_ends_the_training(blobs, monkeypatch):
    monkeypatch.setattr("prismgp.vae._vae._LEARNING_RATE", 1e30)
    model = small(max_steps=200).fit(blobs[0])
    assert "range of floating-point numbers" in model.fit_status_["message"]
    assert np.isfinite(model.transform(blobs[0])).all()
    assert np.isfinite(model.history_["objective"]).all()


# -- hostile and unusual data --------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5, 11])
def test_few_rows(n):
    x = np.random.default_rng(0).normal(size=(n, 4))
    for output in ("latent", "reconstruction"):
        out = small(output=output).fit_transform(x)
        assert out.shape == (n, 2 if output == "latent" else 4)
        assert np.isfinite(out).all()


def test_constant_columns_do_no_harm():
    x = np.random.default_rng(0).normal(size=(50, 3))
    x[:, 1] = 1e6
    model = small(output="reconstruction").fit(x)
    out = model.transform(x)
    np.testing.assert_array_equal(out[:, 1], 1e6)
    assert np.abs(out[:, [0, 2]]).max() < 100
    other = x.copy()
    other[:, 1] = -3.0
    np.testing.assert_allclose(model.transform(other), out, rtol=1e-10, atol=1e-10)
    everything = small(output="reconstruction").fit_transform(np.full((20, 2), 7.0))
    np.testing.assert_array_equal(everything, 7.0)


def test_values_far_from_the_training_rows_stay_finite(blobs):
    far = np.array([[1e140, 0.0, 0.0], [-1e140, 1e9, 0.0]])
    model = blobs[2]
    assert np.isfinite(model.transform(far)).all()
    np.testing.assert_allclose(model.responsibilities(far).sum(1), 1.0)


def test_reconstruction_is_in_the_users_units(blobs):
    x, _, model = blobs
    out = model.set_params(output="reconstruction").transform(x)
    model.set_params(output="latent")
    # A good part of the spread, most of which is between the blobs, is found again.
    assert np.square(out - x).mean() < 0.3 * np.square(x - x.mean(0)).mean()


def test_float32_pandas_and_chunks(blobs, monkeypatch):
    x = blobs[0]
    model = small().fit(x)
    single = model.transform(x.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, model.transform(x), rtol=1e-4, atol=1e-4)
    frame = pd.DataFrame(x, columns=["a", "b", "c"])
    named = small().fit(frame)
    # The memory order of a frame changes the last bit of the columns' means.
    np.testing.assert_allclose(named.transform(frame), model.transform(x), rtol=1e-9, atol=1e-12)
    assert list(named.get_feature_names_out()) == ["reconfigurer0", "reconfigurer1"]
    named.set_params(output="reconstruction")
    assert list(named.get_feature_names_out()) == ["a", "b", "c"]
    assert list(named.set_output(transform="pandas").transform(frame).columns) == ["a", "b", "c"]
    monkeypatch.setattr("prismgp.estimators._reconfigurer._CHUNK_ROWS", 7)
    np.testing.assert_allclose(model.transform(x), single, rtol=1e-4, atol=1e-4)
    assert model.predict(x).shape == (300,)


def test_read_only_and_fortran_rows(blobs):
    x = np.asfortranarray(blobs[0])
    x.flags.writeable = False
    np.testing.assert_allclose(small().fit_transform(x), small().fit_transform(blobs[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_components": 0},
        {"latent_dim": 1.5},
        {"alpha": -1.0},
        {"beta": math.nan},
        {"output": "x"},
        {"max_steps": 0},
        {"patience": 0},
        {"device": "tpu"},
    ],
)
def test_wrong_arguments(wrong):
    with pytest.raises(DataError, match=next(iter(wrong))):
        small(**wrong).fit(np.ones((3, 2)))


# -- state ---------------------------------------------------------------------------------------


def rebuilt(model, tensors=None, names=None):
    return Reconfigurer._from_state(
        model.get_params(),
        model._state_tensors() if tensors is None else tensors,
        fit_status=model.fit_status_,
        history=model.history_,
        feature_names=names,
    )


def test_state_round_trip(blobs):
    x, _, model = blobs
    tensors = model._state_tensors()
    assert all(value.dtype == torch.float64 and value.is_contiguous() for value in tensors.values())
    again = rebuilt(model, names=["a", "b", "c"])
    for output in ("latent", "reconstruction"):
        frame = pd.DataFrame(x, columns=["a", "b", "c"])
        np.testing.assert_array_equal(
            again.set_params(output=output).transform(frame), model.set_params(output=output).transform(x)
        )
    model.set_params(output="latent")
    assert again.n_iter_ == model.n_iter_


def test_damaged_state_is_refused(blobs):
    model = blobs[2]
    for name, value in (
        ("vae.prior.directions", torch.zeros(3)),
        ("vae.decoder.mean_weight", torch.zeros(1)),
        ("x_scale", torch.zeros(3, dtype=torch.float64)),
        ("x_shift", None),
    ):
        tensors = model._state_tensors()
        tensors.pop(name) if value is None else tensors.update({name: value})
        with pytest.raises(ModelFileError):
            rebuilt(model, tensors)
    with pytest.raises(ModelFileError, match="feature names"):
        rebuilt(model, names=["a"])

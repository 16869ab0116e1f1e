"""Gated models equal the dense GP with the gated kernel, whatever is done inside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.mixture import GaussianMixture

import prismgp
from prismgp import SSGPRegressor
from prismgp.core import fit
from prismgp.core.evidence import BlockEvidence
from prismgp.core.gating import ClusterMoments, RuleGate
from prismgp.core.kernels import Parameters
from prismgp.core.models import Standardiser
from prismgp.data import ArraySource, Chunks
from prismgp.exceptions import PrismGPWarning
from tests import reference
from tests.core.test_evidence import central_differences
from tests.tolerances import EVIDENCE, FLOAT32, GRADIENT, PREDICTION, STATISTICS

CPU = torch.device("cpu")
KINDS = ("hard", "soft")
NEARER = pytest.mark.filterwarnings("ignore:.*nearer to the mean of another cluster:prismgp.exceptions.PrismGPWarning")
FIXED = {"lengthscale": [1.5, 12.0, 0.3], "signal_variance": 9.0, "noise_variance": 0.2, "mean": 6.0, "optimize": False}


def make_data(rng, n=120, d=3, clusters=4):
    """Rows in clusters, in very different units."""
    centres = 3.0 * rng.normal(size=(clusters, d))
    x = (centres[rng.integers(clusters, size=n)] + rng.normal(size=(n, d))) * [1.0, 10.0, 0.1][:d] + 5.0
    return x, 7.0 + 3.0 * np.sin(x[:, 0]) + 0.1 * x[:, 1] + 0.3 * rng.normal(size=n)


def random_gate(rng, kind, b, d):
    roots = rng.uniform(0.5, 1.5, (b, d))
    return RuleGate(kind, *(torch.tensor(each) for each in (rng.normal(size=(b, d)), roots, rng.normal(size=b))))


def dense_gates(gate, x):
    """(G2) and (G3), from densities of SciPy where they are densities."""
    scores = np.empty((len(x), gate.n_clusters))
    for c, (m, h, o) in enumerate(zip(gate.centres.numpy(), gate.roots.numpy(), gate.offsets.numpy(), strict=True)):
        normal = multivariate_normal(m, np.diag(h**-2.0))
        scores[:, c] = o + normal.logpdf(x) - normal.logpdf(m)
    if gate.kind == "hard":
        return np.eye(gate.n_clusters)[scores.argmax(1)]
    return np.sqrt(softmax(scores, axis=1))


def dense_kernel(gates, frequencies, a, b, lengthscale):
    """(G1) between rows a and b, cluster by cluster; gates is a pair."""
    k = reference.spectral_kernel(frequencies, a, b, lengthscale)
    return sum(np.outer(u, v) for u, v in zip(gates[0].T, gates[1].T, strict=True)) * k


def objective(rng, kind, *, n=80, d=3, q=2, p=5, b=3, rows=33, dtype=torch.float64, learn=False):
    x, y = rng.normal(size=(n, d)), rng.normal(size=(n, q)) + 0.3
    gate = random_gate(rng, kind, b, d)
    identity = Standardiser(np.zeros(d), np.ones(d), np.zeros(q), np.ones(q), np.zeros(q))
    source = ArraySource(x, y)
    parts = source.split(gate.labels(torch.tensor(x)).numpy(), b) if kind == "hard" else [source]
    blocks = [Chunks(part, identity, rows=rows, dtype=dtype, device=CPU) for part in parts]
    frequencies = rng.normal(size=(p, d))
    params = Parameters(
        rng.normal(size=d) * 0.5,
        rng.normal(size=q),
        rng.normal(size=q) - 1.5,
        rng.normal(size=q),
        frequencies if learn else None,
    )
    return x, y, gate, params, BlockEvidence(blocks, frequencies, gate if kind == "soft" else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5, 80])
@pytest.mark.parametrize("b", [1, 3])
def test_evidence_is_the_normal_density(rng, kind, n, b):
    """(G1), (G4)"""
    x, y, gate, params, evidence = objective(rng, kind, n=n, b=b)
    gates = dense_gates(gate, x)
    k = dense_kernel((gates, gates), evidence.frequencies, x, x, params.lengthscale)
    if kind == "hard":
        apart = gates.argmax(1)[:, None] != gates.argmax(1)
        assert (k[apart] == 0.0).all()
    np.testing.assert_allclose(np.diag(k), 1.0, rtol=1e-12)
    assert np.linalg.eigvalsh(k).min() > -1e-12
    expected = sum(
        reference.log_density(y[:, o], params.mean[o], params.signal[o] * k + params.noise[o] * np.eye(n))
        for o in range(2)
    )
    assert evidence.value(params) == pytest.approx(expected, rel=EVIDENCE)
    assert evidence.value_and_gradient(params)[0] == pytest.approx(expected, rel=EVIDENCE)
    assert evidence.n_rows == n


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learn", [False, True])
def test_gradient(rng, kind, learn):
    *_, params, evidence = objective(rng, kind, learn=learn)
    _, gradient = evidence.value_and_gradient(params)
    expected = central_differences(lambda v: evidence.value(params.unpack(v)), params.pack())
    np.testing.assert_allclose(gradient.pack(), expected, rtol=GRADIENT, atol=GRADIENT)


@pytest.mark.parametrize("kind", KINDS)
def test_chunking(rng, kind):
    state = rng.bit_generator.state
    *_, params, whole = objective(rng, kind, rows=1000)
    for rows in (1, 7, 79):
        rng.bit_generator.state = state
        *_, parts = objective(rng, kind, rows=rows)
        for a, b in zip(parts.statistics(params), whole.statistics(params), strict=True):
            assert a.n == b.n
            assert float((a.moments - b.moments).abs().max()) <= STATISTICS * float(b.moments.abs().max())
        np.testing.assert_allclose(
            parts.value_and_gradient(params)[1].pack(), whole.value_and_gradient(params)[1].pack(), rtol=1e-9
        )


@pytest.mark.parametrize("kind", KINDS)
def test_float32_features_stay_close(rng, kind):
    state = rng.bit_generator.state
    *_, params, double = objective(rng, kind, n=500)
    rng.bit_generator.state = state
    *_, single = objective(rng, kind, n=500, dtype=torch.float32)
    value, gradient = double.value_and_gradient(params)
    value32, gradient32 = single.value_and_gradient(params)
    assert value32 == pytest.approx(value, rel=FLOAT32)
    np.testing.assert_allclose(
        gradient32.pack(), gradient.pack(), rtol=FLOAT32, atol=FLOAT32 * np.abs(gradient.pack()).max()
    )


def test_mixture_gates_are_roots_of_responsibilities(rng):
    """(G2), (G3): with weights and widths as offsets, the scores are those of a mixture of Gaussians."""
    b, d = 4, 3
    x, labels = rng.normal(size=(200, d)), rng.integers(b, size=200)
    lengthscale = rng.uniform(0.5, 2.0, d)
    pairs = [(torch.tensor(x), torch.tensor(labels))]
    moments = ClusterMoments.of(lambda: ((*pair, None) for pair in pairs), b, d)
    for c in range(b):
        np.testing.assert_allclose(moments.means[c], x[labels == c].mean(0))
        np.testing.assert_allclose(moments.squares[c], x[labels == c].var(0) * (labels == c).sum())
    gate = moments.mixture(torch.tensor(lengthscale))
    widths = 1.0 / (gate.roots.numpy() * lengthscale)
    np.testing.assert_allclose(widths, widths[:, :1].repeat(d, 1))  # spherical in length-scales
    np.testing.assert_allclose(widths, 1.0 / lengthscale.mean(), rtol=1.0)  # of the size of the spread
    # An input that does not matter changes nothing.
    wide = torch.tensor(np.column_stack([x, rng.normal(size=200)]))
    longer = ClusterMoments.of(lambda: iter([(wide, pairs[0][1], None)]), b, d + 1).mixture(
        torch.tensor([*lengthscale, 1e9])
    )
    np.testing.assert_allclose(longer.gates(wide), gate.gates(pairs[0][0]), rtol=1e-9)
    nearest = moments.nearest_mean(torch.tensor(lengthscale)).labels(torch.tensor(x)).numpy()
    distances = reference.distances(x, moments.means.numpy(), lengthscale)
    np.testing.assert_array_equal(nearest, distances.argmin(1))


def test_gates_of_extreme_rows(rng):
    for kind in KINDS:
        gate = random_gate(rng, kind, 3, 2)
        gates = gate.gates(torch.tensor([[1e300, 0.0], [-1e300, 1e300], [np.inf, 0.0], [1e9, -1e9]]))
        assert bool(torch.isfinite(gates).all())
        np.testing.assert_allclose(gates.square().sum(1), 1.0)


# -- the estimator -------------------------------------------------------------------------------


def gated(model, a):
    """Gates of rows in the user's units, by the fitted rule."""
    return dense_gates(model.model_.predictor.gating.gate, model.model_.to_model(a).numpy())


def check_against_dense(model, x, y, x_test, gates, test_gates):
    def k(a, b, ga, gb):
        return dense_kernel((ga, gb), model.frequencies_, a, b, model.lengthscale_)

    s, noise, mean = model.signal_variance_, model.noise_variance_, model.mean_
    train = s * k(x, x, gates, gates)
    mean, cov = reference.predict(
        train, s * k(x, x_test, gates, test_gates), s * k(x_test, x_test, test_gates, test_gates), noise, y, mean
    )
    tolerance = {"rtol": PREDICTION, "atol": PREDICTION * 10}
    got_mean, got_std = model.predict(x_test, return_std=True)
    np.testing.assert_allclose(got_mean, mean, **tolerance)
    np.testing.assert_allclose(got_std**2, np.diag(cov) + noise, **tolerance)
    _, function_std = model.predict(x_test, return_std=True, include_noise=False)
    np.testing.assert_allclose(function_std**2, np.diag(cov), **tolerance)
    _, got_cov = model.predict(x_test, return_cov=True, include_noise=False)
    np.testing.assert_allclose(got_cov, cov, **tolerance)
    expected = reference.log_density(y, model.mean_, train + noise * np.eye(len(x)))
    assert model.log_evidence_ == pytest.approx(expected, rel=EVIDENCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_size", ["auto", 13])
def test_found_partition(rng, kind, chunk_size):
    x, y = make_data(rng)
    x_test = make_data(rng, 40)[0]
    model = SSGPRegressor(7, **FIXED, gating=kind, n_components=4, chunk_size=chunk_size, random_state=3).fit(x, y)
    assert model.fit_status_["gating"]["clusters"] == 4
    check_against_dense(model, x, y, x_test, gated(model, x), gated(model, x_test))
    rows = model.model_.to_model(x_test)
    np.testing.assert_allclose(
        model.model_.predictor.gating.gate.gates(rows), gated(model, x_test), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_labels(rng, kind):
    """Under hard gates the labels themselves are the mask, even where they make no sense."""
    x, y = make_data(rng)
    labels = rng.choice([2, 3, 11], size=len(x))
    model = SSGPRegressor(7, **FIXED, gating=kind, partition=labels, random_state=3)
    if kind == "hard":
        with pytest.warns(PrismGPWarning, match="nearer to the mean of another cluster") as caught:
            model.fit(x, y)
        assert caught[0].filename == __file__
        gates = (labels[:, None] == [2, 3, 11]).astype(float)
        assert model.fit_status_["gating"]["rows"] == gates.sum(0).astype(int).tolist()
    else:
        model.fit(x, y)
        gates = gated(model, x)
    differ = (gated(model, x).argmax(1) != np.searchsorted([2, 3, 11], labels)).sum()
    assert model.fit_status_["gating"]["rows_nearer_to_another_cluster"] == differ > 0
    x_test = make_data(rng, 40)[0]
    check_against_dense(model, x, y, x_test, gates, gated(model, x_test))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_clusters_mean_nothing(rng, kind):
    x, y = make_data(rng)
    labels = KMeans(4, n_init=1, random_state=0).fit_predict(x / FIXED["lengthscale"])
    first = SSGPRegressor(7, **FIXED, gating=kind, partition=labels, random_state=0).fit(x, y)
    renamed = SSGPRegressor(7, **FIXED, gating=kind, partition=[[9, 0, 5, 2][c] for c in labels], random_state=0)
    np.testing.assert_allclose(renamed.fit(x, y).log_evidence_, first.log_evidence_, rtol=1e-10)
    np.testing.assert_allclose(renamed.predict(x), first.predict(x), rtol=1e-9)
    order = rng.permutation(len(x))
    shuffled = SSGPRegressor(7, **FIXED, gating=kind, partition=labels[order], random_state=0)
    np.testing.assert_allclose(shuffled.fit(x[order], y[order]).log_evidence_, first.log_evidence_, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_one_cluster_is_no_gating(rng, kind):
    x, y = make_data(rng)
    plain = SSGPRegressor(7, **FIXED, random_state=0).fit(x, y)
    for options in ({"partition": np.zeros(len(x), dtype=int)}, {"n_components": 1}):
        model = SSGPRegressor(7, **FIXED, gating=kind, **options, random_state=0).fit(x, y)
        assert model.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-10)
        for a, b in zip(model.predict(x, return_std=True), plain.predict(x, return_std=True), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "clusterer",
    [
        KMeans(4, n_init=1, random_state=0),
        MiniBatchKMeans(4, n_init=1, random_state=0),
        GaussianMixture(4, covariance_type="diag", random_state=0),
        GaussianMixture(4, covariance_type="spherical", random_state=0),
        GaussianMixture(4, covariance_type="full", random_state=0),
        GaussianMixture(4, covariance_type="tied", random_state=0),
    ],
    ids=lambda each: f"{type(each).__name__}-{getattr(each, 'covariance_type', '')}",
)
def test_clusterers(rng, kind, clusterer):
    """The gates are the clusterer's own, in the user's units, wherever it gives any."""
    x, y = make_data(rng)
    x_test = make_data(rng, 40)[0]
    clusterer.fit(x)
    model = SSGPRegressor(7, **FIXED, gating=kind, partition=clusterer, random_state=0).fit(x, y)
    if kind == "hard":
        gates, test_gates = (np.eye(4)[clusterer.predict(a)] for a in (x, x_test))
    elif hasattr(clusterer, "predict_proba"):
        gates, test_gates = (np.sqrt(clusterer.predict_proba(a)) for a in (x, x_test))
    else:
        gates, test_gates = gated(model, x), gated(model, x_test)
    check_against_dense(model, x, y, x_test, gates, test_gates)


@pytest.mark.parametrize("kind", KINDS)
def test_partial_fit_is_exact(rng, kind):
    x, y = make_data(rng, 200)
    labels = KMeans(4, n_init=1, random_state=0).fit(x)
    options = {**FIXED, "gating": kind, "partition": labels, "random_state": 0}
    if kind == "soft":  # widths come from the rows of the first fit, so the gate must be given
        options["partition"] = GaussianMixture(4, covariance_type="diag", random_state=0).fit(x)
    whole = SSGPRegressor(7, **options).fit(x, y)
    parts = SSGPRegressor(7, **options).fit(x[:70], y[:70])
    for a, b in ((70, 71), (71, 150), (150, 200)):
        parts.partial_fit(x[a:b], y[a:b])
    x_test = make_data(rng, 50)[0]
    for a, b in zip(parts.predict(x_test, return_std=True), whole.predict(x_test, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    assert parts.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-8)
    assert parts.fit_status_["gating"] == whole.fit_status_["gating"]


@pytest.mark.parametrize("kind", KINDS)
def test_function_draws(rng, kind):
    x, y = make_data(rng)
    model = SSGPRegressor(6, **FIXED, gating=kind, n_components=3, random_state=0).fit(x, y)
    x_test = make_data(rng, 6)[0]
    draws = model.sample_y(x_test, 4000, random_state=1)
    np.testing.assert_allclose(draws[:, :5], model.sample_y(x_test, 5, random_state=1), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(draws[2:4], model.sample_y(x_test[2:4], 4000, random_state=1), rtol=1e-10)
    mean, cov = model.predict(x_test, return_cov=True, include_noise=False)
    spread = np.sqrt(np.diag(cov))
    assert np.all(np.abs(draws.mean(1) - mean) < 5 * spread / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(draws), cov, atol=0.12 * spread.max() ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_several_outputs(rng, kind):
    x, y = make_data(rng)
    both = np.column_stack([y, -2.0 * y + rng.normal(size=len(y))])
    options = {**FIXED, "signal_variance": [9.0, 20.0], "noise_variance": [0.2, 1.0], "mean": [6.0, -12.0]}
    model = SSGPRegressor(6, **options, gating=kind, n_components=3, random_state=0).fit(x, both)
    assert model.predict(x[:9], return_cov=True)[1].shape == (9, 9, 2)
    assert model.sample_y(x[:9], 4).shape == (9, 2, 4)
    evidence = 0.0
    for o in range(2):
        single = {k: (v[o] if k not in ("lengthscale", "optimize") else v) for k, v in options.items()}
        alone = SSGPRegressor(6, **single, gating=kind, n_components=3, random_state=0).fit(x, both[:, o])
        evidence += alone.log_evidence_
        for a, b in zip(model.predict(x, return_std=True), alone.predict(x, return_std=True), strict=True):
            np.testing.assert_allclose(a[:, o], b, rtol=1e-9, atol=1e-9)
    assert model.log_evidence_ == pytest.approx(evidence, rel=1e-10)


@pytest.mark.slow
@NEARER
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("partition", ["none", "labels", "diagonal"])
@pytest.mark.usefixtures("short_race")
def test_model_files(tmp_path, kind, dtype, partition):
    x, y = make_data(np.random.default_rng(0))
    given = {
        "none": None,
        "labels": (x[:, 0] > 5.0).astype(int),
        "diagonal": GaussianMixture(3, covariance_type="diag", random_state=0).fit(x),
    }[partition]
    model = SSGPRegressor(5, gating=kind, partition=given, n_components=3, dtype=dtype, max_iter=5, random_state=0)
    model.fit(x, y)
    model.save(tmp_path / "m.prism")
    other = prismgp.load(tmp_path / "m.prism")
    for a, b in zip(other.predict(x, return_std=True), model.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(other.sample_y(x, 3, random_state=1), model.sample_y(x, 3, random_state=1))
    assert other.fit_status_ == model.fit_status_
    assert (other.gating, other.partition) == (kind, None)
    other.partial_fit(x[:9], y[:9])
    np.testing.assert_array_equal(model.partial_fit(x[:9], y[:9]).predict(x), other.predict(x))
    assert other.fit_status_ == model.fit_status_


@NEARER
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learning(rng, kind, monkeypatch):
    """All stages, with labels that follow their rows into the subsamples."""

    monkeypatch.setattr(fit, "SSGP_STAGES", replace(fit.SSGP_STAGES, race_rows=200, main_rows=280))
    x = rng.uniform(-3, 3, (450, 2))
    labels = (x[:, 0] > 0).astype(int)
    y = 10 + np.where(labels, 4 * np.sin(2 * x[:, 1]), x[:, 1]) + 0.4 * rng.normal(size=450)
    for partition in (labels, None):
        model = SSGPRegressor(16, gating=kind, partition=partition, n_components=2, random_state=0)
        model.fit(x, y)
        assert model.fit_status_["stages"][-1]["method"] == "quasi-newton"
        assert model.fit_status_["rows"] == 450
        gates = model.model_.predictor.gating.gate.gates(model.model_.to_model(x)).numpy()
        if kind == "hard" and partition is not None:
            gates = np.eye(2)[labels]
            assert np.sqrt(model.noise_variance_) == pytest.approx(0.4, rel=0.08)
        k = dense_kernel((gates, gates), model.frequencies_, x, x, model.lengthscale_)
        expected = reference.log_density(
            y, model.mean_, model.signal_variance_ * k + model.noise_variance_ * np.eye(450)
        )
        assert model.log_evidence_ == pytest.approx(expected, rel=1e-7)


@pytest.mark.slow
@NEARER
def test_a_discontinuity_is_what_hard_gates_are_for(rng):
    x = rng.uniform(-3, 3, (600, 1))
    y = np.where(x[:, 0] > 0, 5.0 + np.sin(3 * x[:, 0]), -x[:, 0]) + 0.05 * rng.normal(size=600)
    labels = (x[:, 0] > 0).astype(int)
    plain = SSGPRegressor(8, random_state=0).fit(x, y)
    hard = SSGPRegressor(8, gating="hard", partition=labels, random_state=0).fit(x, y)
    assert hard.log_evidence_ > plain.log_evidence_ + 100

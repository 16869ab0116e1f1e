"""Certificates through the public interface, against dense exact GPs."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import torch

import prismgp
from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor, certify
from prismgp.certificates import Interval
from prismgp.certificates.certify_model import mix_intervals
from prismgp.data import from_csv
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.prism import ReconfiguredMap, RevisedMap, clip_inputs
from tests import reference
from tests.certificates.exact import KERNELS

QUICK = {"random_state": 0, "rank": 60, "products": 8}


def rows(n=120, d=2, q=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) * np.linspace(0.5, 20.0, d) + 3.0
    z = (x - 3.0) / np.linspace(0.5, 20.0, d)
    y = np.sin(2 * z[:, :1]) + 0.5 * z[:, 1:2] * np.arange(1, q + 1) + 0.2 * rng.normal(size=(n, q))
    return x, 5.0 + 3.0 * (y[:, 0] if q == 1 else y), x[:7] + 0.3


def columns(values):
    return np.asarray(values, dtype=float).reshape(len(values), -1)


def exact_gp(model, x, y, x_test, gates=None, test_gates=None):
    """Log evidence, mean and variance in the data's units, from the fitted attributes alone."""
    lengthscale = columns([model.lengthscale_])[0]
    k = reference.kernel(model.kernel, x, x, lengthscale)
    cross = reference.kernel(model.kernel, x, x_test, lengthscale)
    if gates is not None:
        k, cross = k * (gates @ gates.T), cross * (gates @ test_gates.T)
    evidence, means, variances = 0.0, [], []
    targets = columns(y)
    for j in range(targets.shape[1]):
        signal, noise, mean = (
            float(np.ravel(each)[j]) for each in (model.signal_variance_, model.noise_variance_, model.mean_)
        )
        q = signal * k + noise * np.eye(len(x))
        evidence += reference.log_density(targets[:, j], mean, q)
        solved = np.linalg.solve(q, np.column_stack([targets[:, j] - mean, signal * cross]))
        means.append(mean + signal * cross.T @ solved[:, 0])
        variances.append(signal - signal * (cross * solved[:, 1:]).sum(0))
    shape = (len(x_test), -1) if np.ndim(y) == 2 else (len(x_test),)
    return evidence, np.array(means).T.reshape(shape), np.array(variances).T.reshape(shape)


def check(certificate, model, x, y, x_test, *gates):
    assert certificate.holds, certificate.reason
    evidence, mean, variance = exact_gp(model, x, y, x_test, *gates)
    near = 1e-9 * (1.0 + np.abs(evidence))  # the dense reference is itself in float64
    found = certificate.log_evidence
    assert found.lower - near <= evidence <= found.upper + near
    assert found.ours == pytest.approx(model.log_evidence_)
    for each in (certificate.mean, certificate.mean.certain):
        assert each is None or ((each.lower - 1e-8 <= mean) & (mean <= each.upper + 1e-8)).all()
    for each in (certificate.variance, certificate.variance.certain):
        assert each is None or ((each.lower - 1e-8 <= variance) & (variance <= each.upper + 1e-8)).all()
    ours, std = model.predict(x_test, return_std=True)
    np.testing.assert_allclose(certificate.mean.ours, ours, rtol=1e-6)
    np.testing.assert_allclose(certificate.std.ours, std, rtol=1e-6)
    far = np.abs(mean - ours)
    assert (far <= certificate.mean.difference + 1e-8).all()
    assert (far >= certificate.mean.difference_at_least - 1e-8).all()
    assert certificate.std.contains(np.sqrt(variance + certificate.noise_variance)).all()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"learn_frequencies": True}])
def test_ssgp(kernel, options):
    x, y, x_test = rows()
    model = SSGPRegressor(12, kernel=kernel, random_state=0, max_iter=25, **options).fit(x, y)
    order = np.random.default_rng(0).permutation(len(x))  # rows in any order
    certificate = certify(model, x[order], y[order], x_test, **QUICK)
    check(certificate, model, x, y, x_test)
    assert certificate.probability >= 0.99
    if kernel != "matern12":  # a rank of 60 says little of a rough kernel
        assert (certificate.mean.width < 0.1 * np.sqrt(certificate.noise_variance)).all()


@pytest.mark.parametrize("n_outputs", [1, 2, 3])
def test_outputs(n_outputs):
    x, y, x_test = rows(q=n_outputs)
    y = columns(y)
    model = SSGPRegressor(12, random_state=0, max_iter=15).fit(x, y)
    certificate = model.certify(x, y, x_test, **QUICK)
    check(certificate, model, x, y, x_test)
    assert certificate.mean.lower.shape == certificate.noise_variance.shape == (7, n_outputs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("kept", ["full", "gated", "auto"])
def test_gates(kind, kept):
    x, y, x_test = rows()
    model = SSGPRegressor(12, gating=kind, n_components=3, random_state=0, max_iter=15).fit(x, y)
    certificate = certify(model, x, y, x_test, reference=kept, **QUICK)
    gates = (
        [model.model_.predictor.gating.gate.gates(model.model_.to_model(each)).numpy() for each in (x, x_test)]
        if kept == "gated"
        else []
    )
    check(certificate, model, x, y, x_test, *gates)
    assert ("gated" in certificate.statement) == (kept == "gated")


def test_labels():
    x, y, x_test = rows()
    labels = (x[:, 0] > 3.0).astype(int) + (x[:, 1] > 10.0)
    model = SSGPRegressor(12, gating="hard", partition=labels, random_state=0, max_iter=15)
    with pytest.warns(PrismGPWarning, match="the fit uses the labels as given"):
        model.fit(x, y)
    check(certify(model, x, y, x_test, **QUICK), model, x, y, x_test)
    with pytest.raises(DataError, match="not the rows"):
        certify(model, x[::-1], y[::-1], x_test, **QUICK)  # labels are by position


def member_gp(expert, kernel, x, target, x_test):
    """One member's exact GP in the model's units, from its map and parameters."""

    def seen(each):
        each = torch.as_tensor(each)
        if isinstance(expert.map, RevisedMap):
            with torch.no_grad():
                code = expert.map(each.to(expert.map.mean.dtype))
            points = torch.cat([code.latent, clip_inputs(each.to(expert.map.mean.dtype))], 1).double().numpy()
            gates = None if code.gates is None else code.gates.double().numpy()
            noise = np.zeros(len(each)) if code.log_noise is None else code.log_noise.double().numpy()
            return points, gates, np.exp(noise)
        log_noise = expert.map.training_features(each)[1]
        noise = np.ones(len(each)) if log_noise is None else np.exp(log_noise.double().numpy())
        if isinstance(expert.map, ReconfiguredMap):
            each = (expert.map.reconfigure(each) - expert.map.shift) / expert.map.scale
        return each.numpy(), None, noise

    (a, g, v), (b, h, _) = seen(x), seen(x_test)
    k, cross = (reference.kernel(kernel, a, other, expert.params.lengthscale) for other in (a, b))
    if g is not None:
        g, h = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (g, h))
        k, cross = k * (g @ g.T), cross * (g @ h.T)
    signal, noise, mean = (float(each[0]) for each in (expert.params.signal, expert.params.noise, expert.params.mean))
    q = signal * k + noise * np.diag(v)
    solved = np.linalg.solve(q, np.column_stack([target - mean, signal * cross]))
    evidence = reference.log_density(target, mean, q)
    return evidence, mean + signal * cross.T @ solved[:, 0], signal - signal * (cross * solved[:, 1:]).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["joint", "paper"])
def test_ensembles(recipe):
    x, y, x_test = rows(n=150)
    options = {"recipe": recipe, "n_members": 2, "max_steps": 60, "random_state": 0}
    # The noise is far too low for the data, which only the members can correct, so that the mixture keeps them.
    model = PrismGPRegressor(8, **options, optimize=False, noise_variance=0.005).fit(x, y)
    assert len(model.model_.predictor.experts) == (4 if recipe == "joint" else 1)
    certificate = certify(model, x, y, x_test, **QUICK)
    assert certificate.holds, certificate.reason
    s, mixture = model.model_.standardiser, model.model_.predictor
    a, b = ((each - s.x_shift) / s.x_scale for each in (x, x_test))
    target = (y - s.y_shift[0]) / s.y_scale[0]
    found = [member_gp(expert, model.model_.kernel, a, target, b) for expert in mixture.experts]
    assert len(certificate.members) == len(found)
    for member, (evidence, mean, variance) in zip(certificate.members, found, strict=True):
        assert member.log_evidence.contains(evidence - len(x) * np.log(s.y_scale[0]))
        assert member.mean.contains(mean * s.y_scale[0] + s.y_shift[0]).all()
        assert member.variance.contains(variance * s.y_scale[0] ** 2).all()
    mean, variance = reference.mixture_moments(
        mixture.weights, np.array([each for _, each, _ in found]), np.array([each for _, _, each in found])
    )
    assert certificate.mean.contains(mean * s.y_scale[0] + s.y_shift[0]).all()
    stretched = variance * mixture.temperature[0] * s.y_scale[0] ** 2
    for each in (certificate.variance, certificate.variance.certain):
        assert each is None or each.contains(stretched).all()
    ours, std = model.predict(x_test, return_std=True)
    np.testing.assert_allclose(certificate.mean.ours, ours, rtol=1e-6)
    np.testing.assert_allclose(certificate.std.ours, std, rtol=1e-6)
    lost = sum(1.0 - member.probability for member in certificate.members)
    assert certificate.probability == pytest.approx(1.0 - lost)
    assert certificate.probability >= 0.99 - 1e-12
    json.dumps(certificate.to_dict(), allow_nan=False)
    assert "every member replaced" in repr(certificate)


@pytest.fixture(scope="module")
def fitted():
    x, y, x_test = rows()
    return SSGPRegressor(12, random_state=0, max_iter=15).fit(x, y), x, y, x_test


def test_what_is_refused(fitted):
    model, x, y, x_test = fitted
    with pytest.raises(DataError, match="fitted on"):
        certify(model, x[:-1], y[:-1])
    other = y.copy()
    other[0] += 1.0
    moved = x.copy()
    moved[0] += 1.0
    for a, b in ((x, other), (moved, y), (x[::-1], y), (x, np.full_like(y, y.mean()))):
        with pytest.raises(DataError, match="not the rows"):
            certify(model, a, b)
    with pytest.raises(DataError, match="nothing to certify"):
        certify(ExactGPRegressor(max_iter=1).fit(x, y), x, y)
    with pytest.raises(DataError, match="Ridge"):
        certify(__import__("sklearn.linear_model").linear_model.Ridge().fit(x, y), x, y)
    with pytest.raises(Exception, match="not fitted"):
        certify(SSGPRegressor(), x, y)
    wrong = (
        {"rank": 0}, {"rank": 2.5}, {"products": -1}, {"seconds": -1.0}, {"delta": 1.0}, {"delta": -0.1},
        {"delta": "much"}, {"tolerance": -1.0}, {"reference": "exact"},
        {"parts": "mean"}, {"parts": ()}, {"parts": ("kernel", "mean")}, {"parts": "predictions"}, {"parts": 3},
    )  # fmt: skip
    for options in wrong:
        with pytest.raises(DataError, match=next(iter(options))):
            certify(model, x, y, **options)
    with pytest.raises(DataError, match="X_test"):
        certify(model, x, y, x_test, parts="evidence")
    with pytest.raises(DataError):
        certify(model, x, y, x_test[:0])
    with pytest.raises(DataError):
        certify(model, x, y, x_test[:, :1])


def test_constant_targets_do_not_hide_other_rows():
    x, _, x_test = rows()
    y = np.full(len(x), 4.0)
    model = SSGPRegressor(12, optimize=False, noise_variance=0.1, random_state=0).fit(x, y)
    assert certify(model, x, y, x_test, **QUICK).mean.contains(4.0).all()
    with pytest.raises(DataError, match="not the rows"):
        certify(model, x + 0.1 * np.random.default_rng(0).normal(size=x.shape), y)


def test_many_other_rows_are_noticed():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40_000, 2)), rng.normal(size=40_000)
    model = SSGPRegressor(4, optimize=False, noise_variance=1.0, random_state=0).fit(x, y)
    with pytest.raises(DataError, match="not the rows"):
        certify(model, rng.normal(size=x.shape), rng.normal(size=len(y)), rank=5, products=0)


def test_rounding_is_admitted():
    x, y, x_test = rows()
    model = SSGPRegressor(12, optimize=False, noise_variance=1e-14, random_state=0).fit(x, y)
    certificate = certify(model, x, y, x_test, **QUICK)
    assert not certificate.holds
    assert "rounding" in certificate.reason
    assert "rounding" in repr(certificate)
    for name in ("kernel_error", "kernel_error_frobenius", "log_evidence", "mean", "variance", "std"):
        assert not np.isfinite(getattr(certificate, name).upper).any()
    assert not any(entry["valid"] for entry in certificate.paper_bounds.values())
    json.dumps(certificate.to_dict(), allow_nan=False)


def plain(certificate):
    """Everything but the clock."""
    found = certificate.to_dict()
    del found["spent"]["seconds"]
    return found


def test_same_seed_and_files(fitted, tmp_path):
    model, x, y, x_test = fitted
    first = plain(certify(model, x, y, x_test, **QUICK))
    assert plain(certify(model, x, y, x_test, **QUICK)) == first
    model.save(tmp_path / "m.prism")
    assert plain(certify(prismgp.load(tmp_path / "m.prism"), x, y, x_test, **QUICK)) == first
    assert plain(certify(model, x, y, x_test, **{**QUICK, "random_state": 1})) != first
    assert json.loads(json.dumps(first, allow_nan=False)) == first


def test_text(fitted):
    model, x, y, x_test = fitted
    text = repr(certify(model, x, y, x_test, **QUICK))
    for part in ("Certificate of SSGPRegressor", "predicted mean", "log evidence", "kernel matrix", "effort", "holds"):
        assert part in text
    assert "predicted" not in repr(certify(model, x, y, **QUICK))
    assert "no randomness" in repr(certify(model, x, y, x_test, rank=20, products=0))


@pytest.mark.parametrize("products", [0, 1, 2])
def test_few_products(fitted, products):
    model, x, y, x_test = fitted
    certificate = certify(model, x, y, x_test, rank=40, products=products, random_state=0)
    check(certificate, model, x, y, x_test)
    assert certificate.spent["products"] == products
    sure = certify(model, x, y, x_test, rank=40, products=products, delta=0.0)
    check(sure, model, x, y, x_test)
    assert sure.probability == 1.0
    assert sure.variance.certain is None


def test_no_time(fitted):
    model, x, y, x_test = fitted
    certificate = certify(model, x, y, x_test, rank=40, products=30, seconds=0.0, random_state=0)
    check(certificate, model, x, y, x_test)
    assert certificate.spent["products"] == 0


def test_more_effort_is_not_wider(fitted):
    """Ranks are nested, so bounds without randomness shrink; what rounding adds may grow by very little."""
    model, x, y, x_test = fitted

    def widths(**options):
        found = certify(model, x, y, x_test, delta=0.0, tolerance=0.0, **options)
        return np.array([found.kernel_error.width, found.log_evidence.width, *found.mean.width, *found.variance.width])

    by_rank = [widths(rank=rank, products=0) for rank in (1, 2, 5, 9, 20, 47, 48, 49, 60, 90, 120)]
    by_products = [widths(rank=10, products=products) for products in (0, 1, 2, 3, 5, 8, 12)]
    for ladder in (by_rank, by_products):
        for less, more in itertools.pairwise(ladder):
            assert (more <= less * (1 + 1e-9) + 1e-6 * ladder[0]).all()
        assert (ladder[-1] <= ladder[0]).all()
    assert (by_rank[-1] < 0.01 * by_rank[0]).all()


@pytest.mark.parametrize("parts", ["predictions", "evidence", "kernel", ("evidence", "kernel")])
def test_parts(fitted, parts):
    """What is not asked for is not there; what is, is true."""
    model, x, y, x_test = fitted
    chosen = (parts,) if isinstance(parts, str) else parts
    found = certify(model, x, y, x_test if "predictions" in chosen else None, parts=parts, **QUICK)
    evidence, mean, variance = exact_gp(model, x, y, x_test)
    assert found.holds
    assert (found.mean is None) == (found.variance is None) == ("predictions" not in chosen)
    assert (found.log_evidence is None) == ("evidence" not in chosen)
    assert (found.kernel_error is None) == (found.kernel_error_frobenius is None) == ("kernel" not in chosen)
    assert bool(found.paper_bounds) == ("kernel" in chosen)
    if found.mean is not None:
        assert found.mean.contains(mean).all()
        assert found.variance.contains(variance).all()
        assert found.probability >= 0.99
    if found.log_evidence is not None:
        assert found.log_evidence.contains(evidence)
    assert prismgp.Certificate.from_dict(json.loads(json.dumps(found.to_dict()))).to_dict() == found.to_dict()
    assert len(repr(found).splitlines()) > 3


@pytest.mark.slow
def test_parts_of_an_ensemble():
    x, y, x_test = rows()
    model = PrismGPRegressor(8, n_members=2, max_steps=20, max_iter=5, random_state=0).fit(x, y)
    found = certify(model, x, y, x_test, parts="predictions", **QUICK)
    assert found.holds
    assert all(each.log_evidence is None and each.kernel_error is None for each in found.members)
    whole = certify(model, x, y, x_test, **QUICK)
    assert (found.mean.lower <= whole.mean.upper).all()
    assert (whole.mean.lower <= found.mean.upper).all()
    alone = certify(model, x, y, parts="evidence", **QUICK)
    assert alone.mean is None
    assert all(each.log_evidence.finite for each in alone.members)


def test_paper_bounds():  # corrected Lemma 10
    """|l - l'| is below the additive bound, in every case; the printed factors are not called valid."""
    close = true_here = 0
    for seed in range(30):
        x, y, _ = rows(n=60, seed=seed)
        noise = 10.0 ** (seed % 5 - 3)
        model = SSGPRegressor(
            2 ** (seed % 7), kernel=KERNELS[seed % 4], optimize=False, noise_variance=noise, random_state=seed
        ).fit(x, y)
        certificate = certify(model, x, y, rank=60, products=4, delta=0.0)
        found = certificate.paper_bounds
        difference = abs(exact_gp(model, x, y, x[:1])[0] - model.log_evidence_)
        assert difference <= found["evidence_difference"]["value"]
        close += difference > 1e-3 * found["evidence_difference"]["value"]
        valid = {name for name, entry in found.items() if entry["valid"]}
        # Lemma 10 holds where the noise, in units of the signal variance, is at least one and c below one.
        signal = float(model.signal_variance_)
        lemma_10 = model.noise_variance_ >= signal and found["mean_factor"]["value"] < 1.0
        assert valid == {"closeness", "evidence_difference"} | ({"evidence_factor"} if lemma_10 else set())
        for name in ("mean_factor", "variance_factor", *(() if lemma_10 else ("evidence_factor",))):
            assert "heuristic" in found[name]["why"]
        assert "true with the exact k_*" in found["variance_factor"]["why"]
        if lemma_10:
            true_here += 1
            negative = -exact_gp(model, x, y, x[:1])[0] - 30.0 * np.log(2.0 * np.pi * signal)  # as the paper has it
            assert difference <= found["evidence_factor"]["value"] * negative
    assert close > 10  # the bound is of the size of what it bounds
    assert true_here > 0


def test_mixtures_of_intervals():
    """Whatever the members' values are inside their intervals, corners first, the mixture's are inside its own."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        k, shape = int(rng.integers(1, 5)), (3, 2)
        weights, temperature = rng.dirichlet(np.ones(k)), rng.uniform(0.5, 2.0, 2)
        ends = [np.sort(rng.normal(size=(2, k, *shape)), axis=0) for _ in range(2)]
        ends[1] = np.abs(ends[1])
        ends[1].sort(axis=0)
        means, variances = ([Interval(*each[:, i], 1.0, "", np.zeros(shape)) for i in range(k)] for each in ends)
        mean, variance = mix_intervals(weights, temperature, means, variances)
        for corner in range(30):
            share = rng.integers(0, 2, size=(2, k, *shape)) if corner < 20 else rng.uniform(size=(2, k, *shape))
            inside = ((1 - t) * low + t * high for t, (low, high) in zip(share, ends, strict=True))
            m, v = reference.mixture_moments(weights, *inside)
            assert (mean.lower - 1e-9 <= m).all()
            assert (m <= mean.upper + 1e-9).all()
            assert (variance.lower - 1e-9 <= v * temperature).all()
            assert (v * temperature <= variance.upper + 1e-9).all()


def test_labels_of_rows_in_a_file(tmp_path):
    x, y, _ = rows()
    pd.DataFrame(x, columns=[f"x{j}" for j in range(x.shape[1])]).assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
    source = from_csv(tmp_path / "rows.csv", target="y")
    labels = np.arange(len(x)) % 3
    with pytest.warns(PrismGPWarning, match="nearer to the mean of another cluster"):
        model = SSGPRegressor(6, gating="hard", partition=labels, random_state=0, max_iter=5).fit(source)
    assert certify(model, source, **QUICK).holds


def test_soft_labels_after_an_update():
    x, y, x_test = rows()
    labels = np.arange(len(x)) % 3
    model = SSGPRegressor(6, gating="soft", partition=labels, random_state=0, max_iter=5).fit(x, y)
    model.partial_fit(x_test, y[: len(x_test)])
    assert certify(model, np.r_[x, x_test], np.r_[y, y[: len(x_test)]], **QUICK).holds


def test_what_cannot_be_certified():
    x, y, _ = rows()
    for wrong in (SSGPRegressor, 3):
        with pytest.raises(DataError, match="needs a fitted model"):
            certify(wrong, x, y)

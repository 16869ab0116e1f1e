"""What a fit does: starts, stages, status, memory, refusal."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.core import fit
from prismgp.core.exact import check_memory, required_bytes
from prismgp.exceptions import DataError, PrismGPError, PrismGPWarning, TooLargeError


def wave(rng, n, noise=0.1):
    x = rng.uniform(-3, 3, (n, 2))
    return x, 10 + 4 * np.sin(2 * x[:, 0]) + x[:, 1] + 4 * noise * rng.normal(size=n)


@pytest.mark.slow
def test_recovers_noise_and_covers(rng):
    x, y = wave(rng, 500)
    x_test, y_test = wave(rng, 1000)
    for model in (SSGPRegressor(32, random_state=0), ExactGPRegressor(random_state=0)):
        mean, std = model.fit(x, y).predict(x_test, return_std=True)
        assert np.sqrt(model.noise_variance_) == pytest.approx(0.4, rel=0.08)
        assert np.sqrt(np.mean((mean - y_test) ** 2)) < 0.45
        assert 0.93 < np.mean(np.abs(mean - y_test) < 1.96 * std) < 0.97
        _, function_std = model.predict(x_test, return_std=True, include_noise=False)
        assert np.all(function_std < std)


@pytest.mark.slow
def test_irrelevant_inputs_are_found(rng):
    """Isotropic starts get stuck when most inputs are irrelevant; the exact start finds the two that matter."""
    x = rng.normal(size=(1000, 30))
    y = np.sin(2 * x[:, 3]) * x[:, 17] + 0.1 * rng.normal(size=1000)
    model = SSGPRegressor(32, random_state=0).fit(x[:500], y[:500])
    rmse = np.sqrt(np.mean((model.predict(x[500:]) - y[500:]) ** 2))
    assert rmse < 0.25  # the standard deviation of y is about 0.7
    assert set(np.argsort(model.lengthscale_)[:2]) == {3, 17}


@pytest.mark.usefixtures("short_race")
def test_a_noise_that_is_far_too_small_is_no_trap(rng):
    """The exact GP of the start has next to no noise where it explains almost everything; few frequencies cannot."""
    x = rng.uniform(-1, 1, (400, 12))
    f = x @ rng.normal(size=12) + 0.2 * (x @ rng.normal(size=12)) ** 2
    y = f / f.std() + 0.01 * rng.normal(size=400)
    model = SSGPRegressor(8, lengthscale=3.0, signal_variance=10.0, noise_variance=1e-8, random_state=0).fit(x, y)
    assert model.log_evidence_ > -1.1 * 400  # that of noise alone is -1.42 for each row
    assert model.fit_status_["stages"][-1]["converged"]


@pytest.mark.usefixtures("short_race")
def test_noise_alone_is_said_to_be(rng):
    x = rng.normal(size=(300, 4))
    with pytest.warns(PrismGPWarning, match="the fit explains no more than noise would"):
        SSGPRegressor(8, random_state=0).fit(x, rng.normal(size=300))


@pytest.mark.usefixtures("short_race")
def test_starting_variances_do_not_decide_the_outcome(rng):
    x, y = wave(rng, 200)
    given = {"lengthscale": [1.0, 4.0], "random_state": 0}
    first = SSGPRegressor(8, **given).fit(x, y)
    other = SSGPRegressor(8, signal_variance=1e-3, noise_variance=1e-6, mean=-50.0, **given).fit(x, y)
    assert other.log_evidence_ == pytest.approx(first.log_evidence_, abs=1e-6)


@pytest.mark.slow
def test_pumadyn(data_folder):
    """The real data set on which the plain start fails: RMSE 1.0 instead of about 0.22."""
    folder = data_folder / "uci" / "pumadyn32nm"
    table = pd.read_csv(folder / "data.csv.gz", header=None).to_numpy(dtype=float)
    test = pd.read_csv(folder / "test_mask.csv.gz", header=None).to_numpy()[:, 0].astype(bool)
    x, y = table[~test][:2000, :-1], table[~test][:2000, -1]
    model = SSGPRegressor(32, random_state=0).fit(x, y)
    error = (model.predict(table[test, :-1]) - table[test, -1]) / y.std()
    assert np.sqrt(np.mean(error**2)) < 0.25


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["ssgp", pytest.param("exact", marks=pytest.mark.slow)])
def test_staged_fit_comes_close_to_the_full_one(rng, estimator, monkeypatch):
    x, y = wave(rng, 2000, noise=0.3)
    name = {"ssgp": "SSGP_STAGES", "exact": "EXACT_STAGES"}[estimator]
    stages = replace(getattr(fit, name), race_rows=200)
    make = {
        "ssgp": lambda: SSGPRegressor(16, random_state=0),
        "exact": lambda: ExactGPRegressor(random_state=0),
    }[estimator]
    n = 2000 if estimator == "ssgp" else 700  # more than half as much again as the main rows
    monkeypatch.setattr(fit, name, replace(stages, main_rows=10**9))
    full = make().fit(x[:n], y[:n])
    monkeypatch.setattr(fit, name, replace(stages, main_rows=400))
    staged = make().fit(x[:n], y[:n])
    assert staged.fit_status_["stages"][-1]["method"] == "quasi-newton"
    assert full.fit_status_["stages"][-1]["method"] == "l-bfgs"
    assert [stage["rows"] for stage in staged.fit_status_["stages"][-2:]] == [400, n]
    assert staged.log_evidence_ > full.log_evidence_ - 2e-3 * n


def test_optimize_false_uses_the_values_given(rng):
    x, y = wave(rng, 50)
    for model in (
        SSGPRegressor(4, lengthscale=2.0, signal_variance=3.0, noise_variance=0.5, mean=1.0, optimize=False),
        ExactGPRegressor(lengthscale=2.0, signal_variance=3.0, noise_variance=0.5, mean=1.0, optimize=False),
    ):
        model.fit(x, y)
        np.testing.assert_allclose(model.lengthscale_, 2.0)
        assert (model.signal_variance_, model.noise_variance_, model.mean_) == pytest.approx((3.0, 0.5, 1.0))
        assert model.fit_status_["stages"] == []


@pytest.mark.usefixtures("short_race")
def test_starting_values_are_used(rng):
    x, y = wave(rng, 400)
    model = SSGPRegressor(16, lengthscale=[1.0, 4.0], random_state=0).fit(x, y)
    assert "exact GP start" not in [stage["method"] for stage in model.fit_status_["stages"]]
    assert SSGPRegressor(16, random_state=0).fit(x, y).fit_status_["stages"][0]["method"] == "exact GP start"


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_learned_frequencies_raise_the_evidence(rng):
    x, y = wave(rng, 400)
    plain = SSGPRegressor(6, random_state=0).fit(x, y)
    learned = SSGPRegressor(6, learn_frequencies=True, random_state=0).fit(x, y)
    assert learned.log_evidence_ > plain.log_evidence_
    assert learned.frequencies_.shape == (6, 2)
    fixed = SSGPRegressor(
        6,
        frequencies=learned.frequencies_,
        lengthscale=learned.lengthscale_,
        signal_variance=learned.signal_variance_,
        noise_variance=learned.noise_variance_,
        mean=learned.mean_,
        optimize=False,
    ).fit(x, y)
    np.testing.assert_array_equal(fixed.frequencies_, learned.frequencies_)
    assert fixed.log_evidence_ == pytest.approx(learned.log_evidence_, rel=1e-8)


@pytest.mark.slow
def test_restarts_do_not_hurt(rng):
    x, y = wave(rng, 300)
    base = ExactGPRegressor(random_state=0).fit(x, y)
    more = ExactGPRegressor(random_state=0, n_restarts=2).fit(x, y)
    assert more.log_evidence_ > base.log_evidence_ - 1e-3 * 300
    races = [stage for stage in more.fit_status_["stages"] if stage["method"] == "race"]
    assert len(races) == 3


@pytest.mark.usefixtures("short_race")
def test_history_and_status_tell_what_happened(rng):
    x, y = wave(rng, 300)
    model = SSGPRegressor(8, random_state=0).fit(x, y)
    lengths = {len(values) for values in model.history_.values()}
    assert lengths == {sum(stage["evaluations"] for stage in model.fit_status_["stages"])}
    assert model.fit_status_["rows"] == 300
    assert model.fit_status_["factorisation"] == "cholesky"
    assert model.fit_status_["jitter"] == 0.0
    # Both in the user's units; the last evaluation is at or near the optimum.
    assert model.log_evidence_ == pytest.approx(model.history_["log_evidence"][-1], abs=0.5)


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
@pytest.mark.parametrize("kernel", ["rbf", "matern12", "matern32", "matern52"])
def test_every_kernel_learns(rng, kernel):
    x, y = wave(rng, 300)
    x_test, y_test = wave(rng, 300)
    for model in (SSGPRegressor(64, kernel=kernel, random_state=0), ExactGPRegressor(kernel=kernel)):
        assert model.fit(x, y).score(x_test, y_test) > 0.9


def test_memory_is_refused_before_allocation():
    x = np.zeros((400_000, 1))
    with pytest.raises(
        TooLargeError, match=r"400,000 rows needs about .*TiB \(10,240,000,000,000 bytes\).*SSGPRegressor"
    ):
        ExactGPRegressor().fit(x, np.arange(400_000.0))
    assert required_bytes(1000) == 8 * 8 * 10**6
    check_memory(1000, 1, torch.device("cpu"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_frequencies": 0}, "n_frequencies=0 must be an integer of at least 1"),
        ({"n_frequencies": 2.5}, "must be an integer"),
        ({"kernel": "linear"}, "kernel='linear' is unknown; choose one of 'rbf'"),
        ({"frequencies": "halton"}, "frequencies='halton' is unknown"),
        ({"frequencies": np.zeros((2, 2))}, "an array of shape|finite array of shape"),
        ({"dtype": "float16"}, "dtype='float16' is unknown"),
        ({"device": "tpu"}, "device='tpu' is unknown"),
        ({"max_iter": 0}, "max_iter=0"),
        ({"n_restarts": -1}, "n_restarts=-1"),
        ({"chunk_size": "big"}, "chunk_size='big'"),
        ({"lengthscale": -1.0}, "lengthscale=-1.0 must be positive; leave it None"),
        ({"lengthscale": [1.0, 2.0, 3.0]}, "an array of 2, one for each"),
        ({"noise_variance": "high"}, "noise_variance='high' must be a number"),
    ],
)
def test_bad_arguments(rng, arguments, message):
    x, y = wave(rng, 20)
    with pytest.raises(DataError, match=message.replace("[", r"\[")):
        SSGPRegressor(**arguments).fit(x, y)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpu_is_said(rng):
    x, y = wave(rng, 20)
    with pytest.raises(PrismGPError, match="no CUDA device is available"):
        SSGPRegressor(4, device="cuda").fit(x, y)
    SSGPRegressor(4, device="auto").fit(x, y)


@pytest.mark.usefixtures("short_race")
def test_normalisation_changes_units_not_the_model(rng):
    """Scaling the data scales the answer, exactly up to rounding."""
    x, y = wave(rng, 300)
    plain = SSGPRegressor(8, random_state=0).fit(x, y)
    scaled = SSGPRegressor(8, random_state=0).fit(x * [1024.0, 0.125], y * 256.0)
    np.testing.assert_allclose(scaled.lengthscale_, plain.lengthscale_ * [1024.0, 0.125], rtol=1e-6)
    np.testing.assert_allclose(scaled.predict(x * [1024.0, 0.125]), plain.predict(x) * 256.0, rtol=1e-6)
    assert scaled.log_evidence_ == pytest.approx(plain.log_evidence_ - 300 * np.log(256.0), rel=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_float32_is_close_to_float64(rng):
    x, y = wave(rng, 500)
    double = SSGPRegressor(16, random_state=0, dtype="float64").fit(x, y)
    single = SSGPRegressor(16, random_state=0, dtype="float32").fit(x.astype(np.float32), y.astype(np.float32))
    assert np.abs(single.predict(x) - double.predict(x)).max() < 0.1 * np.sqrt(double.noise_variance_)
    assert single.log_evidence_ == pytest.approx(double.log_evidence_, rel=1e-2)

"""NeighborGPRegressor: against the exact GP, and in all the ways regressors are used."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from prismgp import ExactGPRegressor, NeighborGPRegressor, certify
from prismgp.checkpoint import Checkpoint
from prismgp.core.kernels import KERNELS
from prismgp.data import from_parquet
from prismgp.exceptions import DataError, TooLargeError
from prismgp.neighbors import fit_model
from tests.prism.small import data

GIVEN = {"lengthscale": [1.0, 8.0], "signal_variance": 4.0, "noise_variance": 0.1, "optimize": False}
FIXED = {"random_state": 0, **GIVEN}


def all_of(model, x):
    mean, std = model.predict(x, return_std=True)
    _, latent = model.predict(x, return_std=True, include_noise=False)
    covariances = (model.predict(x, return_cov=True, include_noise=noise)[1] for noise in (True, False))
    return mean, std, latent, *covariances


def assert_same(first, second, x, atol=0.0):
    for found, expected in zip(all_of(first, x), all_of(second, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


# Against the exact GP


@pytest.mark.parametrize("kernel", list(KERNELS))
@pytest.mark.parametrize("q", [None, 2])
@pytest.mark.parametrize("k", [50, 80])
def test_all_neighbours_are_the_exact_gp(kernel, q, k):
    x, y = data(50, q=q)
    test = data(12, seed=1)[0]
    model = NeighborGPRegressor(k, kernel=kernel, **FIXED).fit(x, y)
    exact = ExactGPRegressor(kernel=kernel, **FIXED).fit(x, y)
    assert_same(model, exact, test, atol=1e-8)
    assert model.log_evidence_ == pytest.approx(exact.log_evidence_, rel=1e-10)
    np.testing.assert_allclose(model.log_density(x, y), exact.log_density(x, y), atol=1e-7)


@pytest.mark.parametrize("q", [None, 2])
def test_few_rows_learn_by_the_evidence(q):
    x, y = data(40, q=q)
    options = {"kernel": "matern52", "random_state": 0, "max_iter": 60, "n_restarts": 1}
    model, exact = NeighborGPRegressor(40, **options).fit(x, y), ExactGPRegressor(**options).fit(x, y)
    for name in ("lengthscale_", "signal_variance_", "noise_variance_", "mean_", "log_evidence_", "n_iter_"):
        np.testing.assert_allclose(getattr(model, name), getattr(exact, name), rtol=1e-10)
    assert_same(model, exact, data(12, seed=1)[0], atol=1e-8)


@pytest.mark.slow
def test_more_neighbours_come_closer_to_the_exact_gp():
    x, y = data(300)
    test = data(50, seed=1)[0]
    exact = ExactGPRegressor(kernel="matern32", **FIXED).fit(x, y).predict(test)
    errors = [np.abs(NeighborGPRegressor(k, **FIXED).fit(x, y).predict(test) - exact).max() for k in (4, 32, 256)]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]


def test_too_many_neighbours_for_the_memory():
    x = np.zeros((200_000, 1))
    with pytest.raises(TooLargeError, match="exact GP"):
        NeighborGPRegressor(10**6).fit(x, x[:, 0])


# Learning


@pytest.fixture(scope="module")
def fitted():
    x, y = data(500, q=2)
    return NeighborGPRegressor(16, max_iter=60, random_state=0).fit(x, y), x, y


def test_learned_model(fitted):
    model, x, y = fitted
    assert model.score(*data(200, q=2, seed=1)) > 0.8
    assert model.lengthscale_.shape == (2,)
    assert model.noise_variance_.shape == model.mean_.shape == (2,)
    assert model.noise_variance_[0] == pytest.approx(0.04, rel=0.5)
    assert model.n_iter_ >= 60
    assert model.fit_status_["neighbors"] == 16
    assert [stage["method"] for stage in model.fit_status_["stages"]] == ["exact GP start", "adam"]
    assert len(model.history_["rows"]) == len(model.history_["log_evidence"]) >= 60
    given = {"lengthscale": model.lengthscale_, "signal_variance": model.signal_variance_, "mean": model.mean_}
    same = NeighborGPRegressor(16, optimize=False, noise_variance=model.noise_variance_, **given).fit(x, y)
    np.testing.assert_allclose(model.predict(x), same.predict(x), atol=1e-9)
    assert model.log_evidence_ == pytest.approx(same.log_evidence_, rel=1e-9)


def test_samples_and_covariance(fitted):
    model, x, _ = fitted
    drawn = model.sample_y(x[:20], 3, random_state=1)
    assert drawn.shape == (20, 2, 3)
    np.testing.assert_allclose(model.sample_y(x[5:9], 2, random_state=1), drawn[5:9, :, :2], atol=1e-9)
    cov = model.predict(x[:30], return_cov=True, include_noise=False)[1]
    for output in range(2):
        assert np.linalg.eigvalsh(cov[:, :, output]).min() > -1e-9 * cov[:, :, output].max()


def test_given_starts_and_restarts():
    x, y = data(200)
    options = {"max_iter": 20, "random_state": 0}
    model = NeighborGPRegressor(8, lengthscale=1.0, n_restarts=2, **options).fit(x, y)
    assert [stage["method"] for stage in model.fit_status_["stages"]] == ["adam"]
    assert model.score(x, y) > 0.8


def test_callback_sees_models():
    x, y = data(120)
    seen = []
    model = NeighborGPRegressor(8, max_iter=5, random_state=0)
    model._callback = lambda event: seen.append((event.stage, event.model().predict(x[:1])[0].shape))
    model.fit(x, y)
    stages = [stage for stage, _ in seen]
    assert stages[0] == "start"
    assert stages[-1] == "final"
    assert stages.count("adam") == 5
    assert {shape for _, shape in seen} == {(1, 1)}


def test_progress_only_when_asked(capsys):
    x, y = data(60)
    NeighborGPRegressor(8, max_iter=2, random_state=0).fit(x, y)
    assert capsys.readouterr().err == ""
    NeighborGPRegressor(8, max_iter=2, random_state=0, verbose=1).fit(x, y)
    assert "NeighborGPRegressor" in capsys.readouterr().err


# Rows


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [90, 30])
def test_partial_fit_is_a_fit_to_all_rows(dtype, n):
    x, y = data(150, q=2)
    first = NeighborGPRegressor(40, dtype=dtype, **FIXED).fit(x[:n], y[:n])
    given = {"lengthscale": first.lengthscale_, "mean": first.mean_}
    rest = first.partial_fit(x[n:100], y[n:100]).partial_fit(x[100:], y[100:])
    whole = NeighborGPRegressor(40, dtype=dtype, **{**FIXED, **given}).fit(x, y)
    assert_same(rest, whole, data(20, seed=1)[0], atol=1e-9 if dtype == "float64" else 1e-4)
    assert rest.log_evidence_ == pytest.approx(whole.log_evidence_, rel=1e-9 if dtype == "float64" else 1e-4)
    assert rest.fit_status_["rows"] == 150
    unfitted = NeighborGPRegressor(40, dtype=dtype, **{**FIXED, **given}).partial_fit(x, y)
    assert_same(unfitted, whole, x[:5])


def test_sources_equal_arrays(tmp_path):
    pd = pytest.importorskip("pandas")
    x, y = data(300)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})
    frame.to_parquet(tmp_path / "rows.parquet")
    options = {"max_iter": 10, "chunk_size": 70, "random_state": 0}
    expected = NeighborGPRegressor(8, **options).fit(frame[["a", "b"]], frame["y"])
    model = NeighborGPRegressor(8, **options).fit(from_parquet(tmp_path / "rows.parquet", target="y"))
    np.testing.assert_array_equal(model.predict(frame[["a", "b"]]), expected.predict(frame[["a", "b"]]))


def test_dask_collections_equal_arrays():
    da = pytest.importorskip("dask.array")
    x, y = data(300)
    model = NeighborGPRegressor(8, **FIXED).fit(da.from_array(x, chunks=(90, 2)), da.from_array(y, chunks=90))
    np.testing.assert_allclose(model.predict(x), NeighborGPRegressor(8, **FIXED).fit(x, y).predict(x), atol=1e-9)


def test_local_rows():
    x, y = data(400)
    model = NeighborGPRegressor(8, local_rows=100, **FIXED).fit(x, y)
    assert model.fit_status_["rows"] == 100
    assert model.score(x, y) > 0.5
    with pytest.raises(DataError, match="local_rows"):
        NeighborGPRegressor(8, local_rows=0).fit(x, y)
    with pytest.raises(DataError, match="n_neighbors"):
        NeighborGPRegressor(0).fit(x, y)


def test_order_of_rows_does_not_matter():
    x, y = data(200)
    order = np.random.default_rng(0).permutation(200)
    first, second = (NeighborGPRegressor(8, **FIXED).fit(x[i], y[i]) for i in (np.arange(200), order))
    assert_same(first, second, data(20, seed=1)[0], atol=1e-9)


# Checkpoints


class KilledError(Exception):
    pass


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
@pytest.mark.parametrize("n", [150, 30])
@pytest.mark.parametrize("after", [3, 30, 33, 1000])
def test_killed_fit_goes_on_to_the_same_model(tmp_path, monkeypatch, n, after):
    x, y = data(n)
    options = {"max_iter": 12, "random_state": 0}
    expected = NeighborGPRegressor(40, **options).fit(x, y)
    monkeypatch.setattr("prismgp.checkpoint.WRITE_SECONDS", 0.0)
    model = NeighborGPRegressor(40, checkpoint=tmp_path / "fit", **options)
    put, count = Checkpoint.put, 0

    def kill(self, name, make, **how):
        nonlocal count
        put(self, name, make, **how)
        count += 1
        if count >= after or name == "neighbors":
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "put", kill)
        with pytest.raises(KilledError):
            clone(model).fit(x, y)
    if after == 1000:  # nothing is left to learn
        monkeypatch.setattr(fit_model, "_learn", lambda *_: pytest.fail("learned again"))
    model.fit(x, y)
    assert_same(model, expected, x[:9])
    for name in ("rows", "log_evidence"):
        assert model.history_[name] == expected.history_[name]
    assert model.n_iter_ == expected.n_iter_


# scikit-learn


@pytest.mark.slow
def test_clone_pickle_and_search(fitted):
    model, x, y = fitted
    copied = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copied.predict(x), model.predict(x))
    again = clone(model).fit(x, y)
    np.testing.assert_array_equal(again.predict(x), model.predict(x))
    search = GridSearchCV(NeighborGPRegressor(8, **FIXED), {"n_neighbors": [1, 8]}, cv=2).fit(x, y)
    assert search.best_params_ == {"n_neighbors": 8}


# How well the parameters are learned is not the point of the checks, which fit hundreds of times.
@pytest.mark.slow
@pytest.mark.usefixtures("small_defaults")
@parametrize_with_checks([NeighborGPRegressor(), NeighborGPRegressor(8)])
@pytest.mark.filterwarnings("ignore:.*(too few to learn|target is constant):prismgp.exceptions.PrismGPWarning")
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("small_defaults")
@parametrize_with_checks([NeighborGPRegressor(dtype="float32")])
@pytest.mark.filterwarnings("ignore:.*(too few to learn|target is constant):prismgp.exceptions.PrismGPWarning")
def test_estimator_checks_in_single_precision(estimator, check):
    check(estimator)


# Certificates


@pytest.mark.parametrize("q", [None, 2])
def test_certificate_of_predictions_contains_the_exact_gp(q):
    x, y = data(150, q=q)
    test = data(10, seed=1)[0]
    model = NeighborGPRegressor(10, **FIXED).fit(x, y)
    exact_mean, exact_std = (
        ExactGPRegressor(kernel="matern32", **FIXED).fit(x, y).predict(test, return_std=True, include_noise=False)
    )
    order = np.random.default_rng(0).permutation(150)
    certificate = certify(model, x[order], y[order], test, random_state=0)
    assert certificate.holds
    assert certificate.log_evidence is None
    assert certificate.mean.contains(exact_mean).all()
    assert certificate.variance.contains(exact_std**2).all()
    np.testing.assert_allclose(certificate.mean.ours, model.predict(test), atol=1e-9)


def test_certificates_of_anything_else_are_refused(fitted):
    model, x, y = fitted
    for options in ({"parts": "evidence"}, {"parts": ("kernel", "predictions"), "X_test": x[:2]}):
        with pytest.raises(DataError, match="certify its predictions"):
            model.certify(x, y, **options)
    with pytest.raises(DataError, match="X_test"):
        model.certify(x, y)
    with pytest.raises(DataError, match="rows the model was fitted on"):
        model.certify(x, y[::-1], x[:2])
    with pytest.raises(DataError, match="500"):
        model.certify(x[:9], y[:9], x[:2])

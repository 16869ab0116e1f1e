"""scikit-learn's own checks, and the places where people put estimators."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from prismgp import ExactGPRegressor, SpectralFeatures, SSGPRegressor

pytestmark = pytest.mark.usefixtures("short_fits")  # they fit hundreds of times; which start wins is not their point


@pytest.mark.slow
@parametrize_with_checks([SSGPRegressor(), ExactGPRegressor(), SpectralFeatures()])
@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        SSGPRegressor(4, dtype="float32", kernel="matern32", max_iter=3),
        SSGPRegressor(4, gating="hard", n_components=2, max_iter=3),
    ]
)
@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_estimator_checks_of_other_settings(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.nightly
@parametrize_with_checks([SSGPRegressor(4, gating="soft", n_components=2, max_iter=3)])
@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_estimator_checks_of_soft_gates(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = pd.DataFrame(rng.uniform(-2, 2, (200, 3)), columns=["a", "b", "c"])
    y = pd.Series(np.sin(2 * x["a"]) + x["b"] + 0.1 * rng.normal(size=200), name="y")
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("model", [SSGPRegressor(16, random_state=0), ExactGPRegressor()], ids=["ssgp", "exact"])
def test_pipeline_and_search(table, model):
    x, y = table
    pipeline = make_pipeline(StandardScaler(), PolynomialFeatures(1, include_bias=False), model)
    assert cross_val_score(pipeline, x, y, cv=3).min() > 0.8
    assert cross_val_predict(model, x, y, cv=3).shape == (200,)
    search = GridSearchCV(model, {"kernel": ["rbf", "matern52"]}, cv=2).fit(x, y)
    assert search.best_score_ > 0.8
    copied = clone(search.best_estimator_)
    assert not hasattr(copied, "lengthscale_")


def test_feature_names_and_frames(table):
    x, y = table
    model = SSGPRegressor(8, random_state=0).fit(x, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    assert model.n_features_in_ == 3
    expected = SSGPRegressor(8, random_state=0).fit(x.to_numpy(), y.to_numpy())
    assert not hasattr(expected, "feature_names_in_")
    np.testing.assert_array_equal(model.predict(x), expected.predict(x.to_numpy()))
    polars = SSGPRegressor(8, random_state=0).fit(pl.from_pandas(x), pl.from_pandas(y))
    assert list(polars.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(polars.predict(pl.from_pandas(x)), expected.predict(x.to_numpy()))
    tensor = SSGPRegressor(8, random_state=0).fit(torch.tensor(x.to_numpy()), torch.tensor(y.to_numpy()))
    np.testing.assert_array_equal(tensor.predict(torch.tensor(x.to_numpy())), expected.predict(x.to_numpy()))
    fortran = SSGPRegressor(8, random_state=0).fit(np.asfortranarray(x.to_numpy()), y.to_numpy())
    np.testing.assert_array_equal(fortran.predict(x.to_numpy()), expected.predict(x.to_numpy()))


def test_set_output_and_names_out(table):
    x, y = table
    features = SpectralFeatures(4, random_state=0).set_output(transform="pandas")
    out = features.fit_transform(x)
    assert list(out.columns) == [f"spectralfeatures{k}" for k in range(8)]
    assert list(out.index) == list(x.index)
    polars = SpectralFeatures(4, random_state=0).set_output(transform="polars").fit_transform(pl.from_pandas(x))
    np.testing.assert_array_equal(polars.to_numpy(), out.to_numpy())
    ridge = make_pipeline(SpectralFeatures(64, random_state=0), BayesianRidge())
    assert cross_val_score(ridge, x, y, cv=3).min() > 0.8


@pytest.mark.parametrize("model", [SSGPRegressor(8, random_state=0), ExactGPRegressor()], ids=["ssgp", "exact"])
def test_pickle_and_determinism(table, model):
    x, y = table
    first = clone(model).fit(x, y)
    second = pickle.loads(pickle.dumps(clone(model).fit(x, y)))
    np.testing.assert_array_equal(first.predict(x), second.predict(x))
    assert first.log_evidence_ == second.log_evidence_


def test_progress_bar_only_when_asked(table, capsys):
    x, y = table
    SSGPRegressor(4, random_state=0).fit(x, y)
    silent = capsys.readouterr()
    assert silent.out + silent.err == ""
    SSGPRegressor(4, random_state=0, verbose=1).fit(x, y)
    shown = capsys.readouterr()
    assert "SSGPRegressor" in shown.err
    assert "log evidence per row" in shown.err
    ExactGPRegressor(verbose=1).fit(x, y)
    assert "log evidence per row" in capsys.readouterr().err


def test_global_random_state_is_untouched(table):
    x, y = table
    np.random.seed(3)  # noqa: NPY002 - the global state is what this test is about
    state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    SSGPRegressor(4, random_state=0).fit(x, y).sample_y(x, random_state=1)
    np.testing.assert_array_equal(np.random.get_state()[1], state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)

"""The arguments of gating: what is accepted, what is refused, and what the fit says about it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.frozen import FrozenEstimator
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_score

import prismgp
import prismgp.estimators.gating as gating_module
from prismgp import Reconfigurer, SSGPRegressor
from prismgp.data import ArraySource
from prismgp.exceptions import DataError, PrismGPError, TooLargeError

KINDS = ("hard", "soft")
N = 60


def rows(n=N, d=2, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) + 4.0 * rng.integers(3, size=(n, 1))
    return x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=n)


def model(**options):
    return SSGPRegressor(4, random_state=0, **{"gating": "hard", "optimize": False, **options})


class Halves:
    """A clusterer that is nobody's class; its threshold is a value that rows have."""

    def predict(self, x):
        return np.where(np.asarray(x)[:, 0] >= 3.0, 70, -1)


class Broken:
    def __init__(self, labels=None, probabilities=None):
        self.predict = lambda _: labels
        if probabilities is not None:
            self.predict_proba = lambda x: np.full((len(x), 2), probabilities)


LABELS = np.arange(N) % 3
REFUSED = {
    "kind": ({"gating": "fuzzy"}, "gating='fuzzy' is unknown; choose one of 'none', 'hard', 'soft'"),
    "components zero": ({"n_components": 0}, "n_components=0 must be an integer of at least 1"),
    "components text": ({"n_components": "8"}, "n_components='8' must be an integer"),
    "without effect": ({"gating": "none", "partition": LABELS}, 'partition is given, but gating="none"'),
    "too few labels": ({"partition": LABELS[:-1]}, "partition has 59 labels for 60 training rows"),
    "table": ({"partition": LABELS[:, None]}, "partition is ndarray of 2 dimension"),
    "number": ({"partition": 3}, "partition is int of 0 dimension"),
    "negative": (
        {"partition": np.where(LABELS == 1, -1, LABELS)},
        "partition holds .*-1.* at row 1 .*label of their own",
    ),
    "fraction": ({"partition": LABELS + 0.5}, "partition holds .*0.5.* at row 0"),
    "nan": ({"partition": np.where(LABELS == 2, np.nan, LABELS)}, "partition holds .*nan.* at row 2"),
    "text": ({"partition": ["a"] * N}, "not an integer; number them, e.g. by numpy.unique"),
    "not fitted": ({"partition": KMeans(3)}, "partition=KMeans is not fitted: fit it first.*FrozenEstimator"),
    "other inputs": (
        {"partition": KMeans(3, n_init=1).fit(np.random.default_rng(0).normal(size=(9, 5)))},
        "KMeans was fitted to 5 inputs, X has 2",
    ),
    "no labels": ({"partition": Broken(np.zeros((N, 2), dtype=int))}, "Broken.predict gave int64 of shape"),
    "float labels": ({"partition": Broken(np.zeros(N))}, "it must give one integer for each"),
    "no probabilities": ({"gating": "soft", "partition": Broken(probabilities=np.nan)}, "no probabilities of clusters"),
    "zero probabilities": ({"gating": "soft", "partition": Broken(probabilities=0.0)}, "no probabilities of clusters"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_refused(case):
    options, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        model(**options).fit(*rows())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "convert",
    [list, pd.Series, torch.tensor, lambda each: each.astype(float), lambda each: each.astype(np.uint8)],
    ids=["list", "series", "tensor", "float", "uint8"],
)
def test_labels_of_any_type(kind, convert):
    x, y = rows()
    labels = KMeans(2, n_init=1, random_state=0).fit_predict((x - x.mean(0)) / x.std(0))
    expected = model(gating=kind, partition=labels).fit(x, y)
    np.testing.assert_array_equal(
        model(gating=kind, partition=convert(labels)).fit(x, y).predict(x), expected.predict(x)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.filterwarnings(
    "ignore:.*(too few to learn|is constant|no more than noise):prismgp.exceptions.PrismGPWarning"
)
def test_few_distinct_rows_make_few_clusters(kind, dtype):
    x = np.repeat([[0.0, 1.0], [5.0, 1.0], [5.0, 2.0]], 10, axis=0)
    fitted = model(gating=kind, dtype=dtype).fit(x, np.arange(30.0))
    status = fitted.fit_status_["gating"]
    assert status["clusters"] == 3
    assert status["message"] == "3 of 8 clusters: there are no more distinct rows"
    assert status["partition"] == "k-means"
    one = model(gating=kind, dtype=dtype).fit(x[:1], [2.0])
    assert one.fit_status_["gating"]["clusters"] == 1
    assert np.isfinite(one.predict(x)).all()
    assert "message" not in model(gating=kind, n_components=3).fit(x, np.arange(30.0)).fit_status_["gating"]


def test_clusters_follow_what_matters():
    """An input that the target does not depend on must not decide about clusters, however bimodal."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-3, 3, 800), rng.normal(size=800) + 10.0 * rng.integers(2, size=800)])
    y = np.sin(3 * x[:, 0]) + 0.1 * rng.normal(size=800)
    fitted = SSGPRegressor(12, gating="hard", n_components=2, random_state=0, max_iter=10).fit(x, y)
    labels = fitted.model_.predictor.gating.gate.labels(fitted.model_.to_model(x)).numpy()
    assert abs(np.corrcoef(labels, x[:, 0] > 0)[0, 1]) > 0.9


def test_many_rows_are_sampled(monkeypatch):
    monkeypatch.setattr(gating_module, "CLUSTERING_ROWS", 40)
    x, y = rows(400)
    fitted = model(n_components=3).fit(x, y)
    assert sum(fitted.fit_status_["gating"]["rows"]) == 400
    np.testing.assert_array_equal(fitted.predict(x), model(n_components=3).fit(x, y).predict(x))


def test_a_stranger_is_asked_about_every_row(tmp_path):
    """Grids stay grids: rows at a threshold are on their side of it, in both precisions."""
    x, y = rows()
    x = np.round(x)
    for dtype in ("float64", "float32"):
        fitted = model(partition=Halves(), dtype=dtype).fit(x, y)
        above = x[:, 0] >= 3.0
        assert fitted.fit_status_["gating"] == {
            "kind": "hard",
            "clusters": 3,
            "partition": "Halves",
            "rows": [int((~above).sum()), int(above.sum()), 0],
        }
        np.testing.assert_array_equal(
            fitted.model_.predictor.gating.gate.gates(fitted.model_.to_model(x)).argmax(1), above.astype(int)
        )
    with pytest.raises(PrismGPError, match=r"Halves, which a model file cannot hold.*partition=labels"):
        fitted.save(tmp_path / "m.prism")
    assert list(tmp_path.iterdir()) == []
    # Without probabilities, soft gates come from the labels, and can be saved.
    soft = model(gating="soft", partition=Halves()).fit(x, y)
    labelled = model(gating="soft", partition=above.astype(int)).fit(x, y)
    np.testing.assert_array_equal(soft.predict(x), labelled.predict(x))
    soft.save(tmp_path / "m.prism")
    np.testing.assert_array_equal(prismgp.load(tmp_path / "m.prism").predict(x), soft.predict(x))


def test_labels_nobody_has_seen_have_the_prior():
    x, y = rows()
    fitted = model(partition=Halves(), signal_variance=4.0, noise_variance=1.0, mean=3.0).fit(
        x[x[:, 0] < 3], y[x[:, 0] < 3]
    )
    new = x[x[:, 0] >= 3]
    mean, std = fitted.predict(new, return_std=True, include_noise=False)
    np.testing.assert_allclose(mean, 3.0)
    np.testing.assert_allclose(std, 2.0)
    fitted.partial_fit(new, y[x[:, 0] >= 3])
    assert fitted.fit_status_["gating"]["rows"][-1] == len(new)
    assert np.abs(fitted.predict(new) - 3.0).max() > 0.1


@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_a_clusterer_may_go_its_own_way_later(covariance):
    x, y = rows()
    mixture = GaussianMixture(3, covariance_type=covariance, random_state=0).fit(x)
    fitted = model(partition=mixture).fit(x, y)
    before = fitted.predict(x)
    mixture.fit(-x[:20])
    np.testing.assert_array_equal(fitted.predict(x), before)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", range(5))
def test_a_stranger_sees_the_values_that_were_given(dtype, seed):
    x, y = rows(seed=seed)
    x = np.round(x * [1.0, 1000.0] + seed, 1)
    fitted = model(partition=Halves(), dtype=dtype).fit(x, y)
    np.testing.assert_array_equal(fitted.model_.predictor.gating.gate.user_rows(fitted.model_.to_model(x)), x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_reconfigurer(kind):
    x, y = rows()
    encoder = Reconfigurer(3, 2, max_steps=20, random_state=0).fit(x)
    fitted = model(gating=kind, partition=encoder).fit(x, y)
    gates = fitted.model_.predictor.gating.gate.gates(fitted.model_.to_model(x)).numpy()
    if kind == "soft":
        np.testing.assert_allclose(gates**2, encoder.responsibilities(x), atol=1e-8)
    else:
        known = np.unique(encoder.predict(x))
        np.testing.assert_array_equal(known[gates.argmax(1)], encoder.predict(x))
    assert np.isfinite(fitted.predict(x)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("covariance", ["full", "diag"])
def test_clusterers_that_know_names(kind, covariance):
    x, y = rows()
    frame = pd.DataFrame(x, columns=["a", "b"])
    mixture = GaussianMixture(3, covariance_type=covariance, random_state=0).fit(frame)
    fitted = model(gating=kind, partition=mixture).fit(frame, y)
    plain = model(gating=kind, partition=mixture.fit(x)).fit(x, y)
    np.testing.assert_allclose(fitted.predict(frame), plain.predict(x), rtol=1e-9)


def test_cloning():
    x, y = rows()
    frozen = FrozenEstimator(KMeans(3, n_init=1, random_state=0).fit(x))
    assert np.isfinite(cross_val_score(model(partition=frozen), x, y, cv=3)).all()
    with pytest.raises(DataError, match="FrozenEstimator"):
        clone(model(partition=frozen.estimator)).fit(x, y)
    fitted = model(partition=frozen).fit(x, y)
    np.testing.assert_array_equal(fitted.predict(x), model(partition=frozen.estimator).fit(x, y).predict(x))


def test_prediction_does_not_depend_on_later_arguments(tmp_path):
    x, y = rows()
    fitted = model(n_components=3).fit(x, y)
    before = fitted.predict(x)
    fitted.set_params(gating="soft", n_components=5)
    np.testing.assert_array_equal(fitted.predict(x), before)
    fitted.save(tmp_path / "m.prism")
    loaded = prismgp.load(tmp_path / "m.prism")
    assert loaded.gating == "hard"
    np.testing.assert_array_equal(loaded.predict(x), before)
    fitted.set_params(gating="none").fit(x, y)
    assert fitted.model_.predictor.gating.gate is None
    assert "gating" not in fitted.fit_status_
    np.testing.assert_array_equal(fitted.predict(x), model(gating="none").fit(x, y).predict(x))


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_clusters_are_refused(kind, monkeypatch):
    monkeypatch.setattr(gating_module, "available_bytes", lambda _: 10_000)
    with pytest.raises(TooLargeError, match=f"{kind} gating with 8 clusters and 4 frequencies"):
        model(gating=kind).fit(*rows())


def test_labels_follow_their_rows():
    x = np.arange(100.0)[:, None]
    source = ArraySource(x, x, (np.arange(100) % 7).astype(np.int64))
    for part in source.subsamples([5, 60], np.random.default_rng(0)):
        np.testing.assert_array_equal(part.labels, part.x[:, 0].astype(int) % 7)
    parts = source.split(source.labels, 9)
    assert [part.n_rows for part in parts] == [15, 15, 14, 14, 14, 14, 14, 0, 0]
    for c, part in enumerate(parts):
        blocks = list(part.blocks(4))
        assert all(len(block) <= 4 for block, _ in blocks)
        np.testing.assert_array_equal(
            np.concatenate([block[:, 0] for block, _ in blocks]) if blocks else [],
            np.arange(100)[np.arange(100) % 7 == c],
        )

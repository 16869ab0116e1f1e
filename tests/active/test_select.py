"""Selected rows against dense formulas, which are written here once more from the papers."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest

import prismgp
from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.active import CRITERIA, select, select_rows
from prismgp.exceptions import DataError
from prismgp.prism import LocalMixture, RevisedMap
from tests.prism import small

N = 7
MODELS = ["exact", "ssgp", "ssgp soft", "ssgp hard", "ssgp two", "exact two", "prism", "prism two"]


def rows_of(n, seed):
    x, _ = small.data(n, seed=seed)
    return x * [1.0, 1.3]  # beyond the training rows


def train(name, n=60):
    x, y = small.data(n, q=2 if "two" in name else None)
    if "exact" in name:
        return ExactGPRegressor(max_iter=20).fit(x, y)
    if "prism" in name:
        return small.model().fit(x, y)
    gating = name.split()[1] if name.split()[1:] in (["soft"], ["hard"]) else "none"
    return SSGPRegressor(8, gating=gating, n_components=3, max_iter=20, random_state=0).fit(x, y)


@pytest.fixture(scope="module")
def fits():
    known = {}

    def fit(name):
        if name not in known:
            known[name] = train(name)
        return known[name]

    return fit


class Dense:
    """The joint posterior at some rows, as the model publishes it, and scores by the definitions."""

    def __init__(self, model, x):
        scale = model.model_.standardiser.y_scale
        cov = model.predict(x, return_cov=True, include_noise=False)[1].reshape(len(x), len(x), -1)
        whole = model.predict(x, return_std=True)[1].reshape(len(x), -1)
        inner = model.predict(x, return_std=True, include_noise=False)[1].reshape(len(x), -1)
        self.cov, self.noise = cov / scale**2, (whole**2 - inner**2) / scale**2
        self.q = cov.shape[2]

    def variance(self, at, given, k):
        """Of the function at one row, given observations of others."""
        c, given = self.cov[:, :, k], list(given)
        if not given:
            return c[at, at]
        inner = c[np.ix_(given, given)] + np.diag(self.noise[given, k])
        return c[at, at] - c[at, given] @ np.linalg.solve(inner, c[given, at])

    def score(self, criterion, row, chosen, pool, reference):
        total = 0.0
        for k in range(self.q):
            observed = self.variance(row, chosen, k) + self.noise[row, k]
            if criterion == "entropy":
                total += 0.5 * np.log(observed / self.noise[row, k])
            elif criterion == "mutual_information":
                others = set(pool) - {*chosen, row} if reference is None else {*chosen, *reference}
                total += 0.5 * np.log(observed / (self.variance(row, others, k) + self.noise[row, k]))
            else:
                places = pool if reference is None else reference
                total += np.mean([self.variance(r, chosen, k) - self.variance(r, [*chosen, row], k) for r in places])
        return total

    def select(self, criterion, n, pool, reference=None, exclude=()):
        pool = [row for row in pool if row not in set(exclude)]
        chosen, scores = [], []
        for _ in range(n):
            found = {row: self.score(criterion, row, chosen, pool, reference) for row in pool if row not in chosen}
            best = max(found, key=found.get)
            chosen.append(best)
            scores.append(found[best])
        return chosen, scores


@pytest.mark.slow
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("name", MODELS)
def test_equals_the_dense_formulas(fits, name, criterion):
    model, x = fits(name), rows_of(30, seed=5)
    rows, scores = select(model, x, N, criterion, return_scores=True)
    expected, values = Dense(model, x).select(criterion, N, range(len(x)))
    assert rows.tolist() == expected
    np.testing.assert_allclose(scores, values, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("criterion", CRITERIA[1:])
@pytest.mark.parametrize("name", ["exact two", "ssgp soft", "prism"])
def test_reference_and_exclude(fits, name, criterion):
    model, x, r = fits(name), rows_of(25, seed=5), rows_of(9, seed=6) + 0.5
    exclude = [2, 3, 11, 24]
    rows, scores = select(model, x, N, criterion, reference=r, exclude=exclude, return_scores=True)
    dense = Dense(model, np.vstack([x, r]))
    expected, values = dense.select(criterion, N, range(25), list(range(25, 34)), exclude)
    assert rows.tolist() == expected
    assert not set(rows) & set(exclude)
    np.testing.assert_allclose(scores, values, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_excluded_rows_are_as_if_absent(fits, criterion):
    model, x = fits("ssgp"), rows_of(40, seed=2)
    exclude = np.array([0, 7, 8, 30])
    kept = np.delete(np.arange(40), exclude)
    rows = select(model, x, N, criterion, exclude=exclude)
    np.testing.assert_array_equal(rows, kept[select(model, x[kept], N, criterion)])


@pytest.mark.parametrize("name", ["ssgp hard", "exact", "prism"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_result_depends_on_neither_candidates_nor_chunks(fits, name, criterion):
    """With few candidates, rows come into play again by further passes over the pool."""
    model, x = fits(name), rows_of(300, seed=3)
    x[50:60] = x[250:260]  # equal rows: the lower numbers win
    pool = model.read_pool(x)
    whole = select_rows(model.current_model(), pool, 12, criterion, candidates=300)
    for candidates, chunk in ((1, None), (5, 7), (40, 128)):
        fitted = model.model_.on(model.model_.dtype, model.model_.device, chunk)
        found = select_rows(fitted, pool, 12, criterion, candidates=candidates)
        np.testing.assert_array_equal(found.rows, whole.rows)
        np.testing.assert_allclose(found.scores, whole.scores, rtol=1e-7)


def test_scores_of_entropy_add_up_to_the_log_determinant(fits):
    model, x = fits("ssgp"), rows_of(100, seed=3)
    rows, scores = select(model, x, N, return_scores=True)
    dense = Dense(model, x[rows])
    _, total = np.linalg.slogdet(dense.cov[:, :, 0] + np.diag(dense.noise[:, 0]))
    assert scores.sum() == pytest.approx(0.5 * (total - np.log(dense.noise).sum()), rel=1e-8)
    assert rows[0] == model.predict(x, return_std=True)[1].argmax()
    assert (np.diff(scores) <= 1e-12).all()


def test_equal_rows_are_taken_in_order(fits):
    x = np.repeat(rows_of(1, seed=0), 20, axis=0)
    for criterion in CRITERIA:
        assert select(fits("ssgp"), x, 5, criterion).tolist() == [0, 1, 2, 3, 4]


def test_arrays_frames_and_files_select_the_same_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=400), "b": rng.choice(["u", "v", "w"], 400), "c": rng.uniform(size=400)})
    frame["y"] = np.sin(frame.a) + (frame.b == "u") + 0.1 * rng.normal(size=400)
    frame[:100].to_parquet(tmp_path / "train.parquet")
    (tmp_path / "pool").mkdir()
    frame[100:250].drop(columns="y").to_parquet(tmp_path / "pool" / "1.parquet")
    frame[250:].drop(columns="y").to_parquet(tmp_path / "pool" / "2.parquet")
    train_source = prismgp.data.from_parquet(tmp_path / "train.parquet", target="y")
    model = SSGPRegressor(8, random_state=0, max_iter=20).fit(train_source)
    pool = frame[100:].drop(columns="y")
    source = prismgp.data.from_parquet(tmp_path / "pool")
    for criterion in CRITERIA:
        rows = select(model, pool, 6, criterion)
        np.testing.assert_array_equal(select(model, source, 6, criterion), rows)
        streamed = model.read_pool(source)
        with monkeypatch.context() as patch:
            patch.setattr(type(streamed), "small", property(lambda _: False))  # as for files larger than memory
            found = select_rows(model.model_, streamed, 6, criterion, candidates=10, exclude=[1])
        assert found.rows.tolist() == select(model, pool, 6, criterion, exclude=[1]).tolist()
    numbers = SSGPRegressor(8, random_state=0, max_iter=20).fit(frame[["a", "c"]][:100], frame.y[:100])
    plain = SSGPRegressor(8, random_state=0, max_iter=20).fit(frame[["a", "c"]][:100].to_numpy(), frame.y[:100])
    expected = select(plain, pool[["a", "c"]].to_numpy(), 6)
    np.testing.assert_array_equal(select(numbers, pool[["a", "c"]], 6), expected)
    np.testing.assert_array_equal(select(numbers, pl.from_pandas(pool[["a", "c"]]), 6), expected)


def test_rows_with_less_noise_are_worth_more(fits):
    """Noise that depends on the inputs enters the scores row by row."""
    model, x = copy.deepcopy(fits("prism")), rows_of(200, seed=4)
    for expert in model.model_.predictor.experts:
        network = getattr(expert.map, "network", expert.map)
        if isinstance(network, RevisedMap) and network.noise_head is not None:
            network.noise_head.weight.add_(0.5)
    dense = Dense(model, x)
    assert dense.noise.max() > 1.05 * dense.noise.min()
    row = int(select(model, x, 1)[0])
    gain = dense.cov[:, :, 0].diagonal() / dense.noise[:, 0]
    assert row == gain.argmax()


def test_alc_samples_its_reference_from_a_large_pool(fits):
    model, x = fits("ssgp"), rows_of(3_000, seed=4)
    rows = select(model, x, 3, "alc")
    np.testing.assert_array_equal(select(model, x, 3, "alc", random_state=0), rows)
    _, scores = select(model, x, 3, "alc", return_scores=True)
    _, exact = select(model, x, 3, "alc", reference=x, return_scores=True)
    np.testing.assert_allclose(scores, exact, rtol=0.3)
    assert not np.allclose(scores, exact, rtol=1e-6)


@pytest.mark.slow
def test_models_with_neighbours():
    x, y = small.data(300)
    fit = small.model(local="always", n_neighbors=8).fit(x, y)
    assert isinstance(fit.model_.predictor, LocalMixture)
    pool = rows_of(50, seed=1)
    spectrum = replace(fit.model_, predictor=fit.model_.predictor.base)
    expected = select_rows(spectrum, fit.read_pool(pool), 4)
    np.testing.assert_array_equal(select(fit, pool, 4), expected.rows)
    with pytest.raises(DataError, match="NeighborGPRegressor has no joint posterior"):
        select(NeighborGPRegressor(max_iter=2).fit(x, y), pool, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n=0 must be an integer of at least 1"),
        ({"n": 31}, "n=31 rows were asked for, but the pool has 30"),
        ({"n": 28, "exclude": [1, 2, 3]}, "but the pool has 27"),
        ({"criterion": "variance"}, "criterion='variance' is unknown; choose one of 'entropy'"),
        ({"reference": [[1.0, 2.0]]}, "takes no reference"),
        ({"exclude": [30]}, "exclude has row 30, but the rows of the pool are 0 to 29"),
        ({"exclude": [-1]}, "exclude has row -1"),
        ({"exclude": [0.5]}, "must be a sequence of row numbers"),
        ({"pool": [[1.0, 2.0, 3.0]]}, "3 features"),
        ({"pool": [[1.0, np.inf]]}, "infin"),
    ],
)
def test_bad_arguments(fits, arguments, message):
    with pytest.raises(DataError, match=message):
        select(**{"model": fits("ssgp"), "pool": rows_of(30, 0), "n": 2, **arguments})


def test_needs_a_fitted_model():
    with pytest.raises(DataError, match="needs a fitted model of this library"):
        select(SSGPRegressor, [[1.0]], 1)
    with pytest.raises(Exception, match="not fitted"):
        select(PrismGPRegressor(), [[1.0]], 1)

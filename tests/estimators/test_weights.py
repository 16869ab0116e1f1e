"""Weights of rows and known noise variances: against repeated rows, and against dense algebra."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp import ExactGPRegressor, NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.data import from_csv, from_parquet
from prismgp.exceptions import DataError
from tests.prism.small import SMALL

FIXED = {"optimize": False, "lengthscale": 0.8, "signal_variance": 1.3, "noise_variance": 0.2, "mean": 0.1}
MODELS = {
    "exact": ExactGPRegressor(**FIXED),
    "ssgp": SSGPRegressor(12, random_state=0, chunk_size=32, **FIXED),
    "hard": SSGPRegressor(6, random_state=0, gating="hard", n_components=2, **FIXED),
    "soft": SSGPRegressor(6, random_state=0, gating="soft", n_components=2, **FIXED),
    "neighbors": NeighborGPRegressor(500, **FIXED),
}
LEARNED = {
    "exact": ExactGPRegressor(max_iter=5),
    "ssgp": SSGPRegressor(6, random_state=0, max_iter=5),
    "neighbors": NeighborGPRegressor(8, max_iter=5, random_state=0),
    "prism": PrismGPRegressor(4, **SMALL),
    "paper": PrismGPRegressor(4, recipe="paper", max_steps=5, max_iter=3, random_state=0),
}


def rows(n=150, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 2))
    y = 3.0 + np.sin(2 * x[:, 0]) + 0.3 * x[:, 1] + 0.3 * rng.normal(size=n)
    return x, y, rng.integers(0, 4, n), rng.uniform(0, 0.5, n)


def fresh(model):
    return type(model)(**model.get_params(deep=False))


def assert_same(a, b, x, **tolerance):
    for got, expected in zip(a.predict(x, return_std=True), b.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(got, expected, **tolerance)


@pytest.mark.filterwarnings("ignore:.*nearer to the mean of another cluster:prismgp.exceptions.PrismGPWarning")
@pytest.mark.parametrize("name", MODELS)
def test_integer_weights_repeat_rows(name):
    x, y, w, v = rows()
    many = np.repeat(np.arange(len(x)), w)
    first, second = fresh(MODELS[name]), fresh(MODELS[name])
    if name == "hard":  # one more cluster loses all its rows
        labels = np.where(w == 0, 2, x[:, 0] > 0)
        first.set_params(partition=labels)
        second.set_params(partition=labels[many])
    first.fit(x, y, sample_weight=w, noise_variance=v)
    second.fit(x[many], y[many], noise_variance=v[many])
    assert_same(first, second, x, rtol=1e-8)


@pytest.mark.parametrize("kind", [ExactGPRegressor, SSGPRegressor])
def test_evidence_differs_from_that_of_repeated_rows_by_what_equal_targets_say(kind):
    x, y, w, _ = rows()
    many, kept = np.repeat(np.arange(len(x)), w), w[w > 0]
    extra = {"n_frequencies": 8, "random_state": 0} if kind is SSGPRegressor else {}
    for noise, lengthscale in ((0.1, 0.8), (0.4, 0.5)):
        options = {**FIXED, "noise_variance": noise, "lengthscale": lengthscale, **extra}
        weighted, repeated = kind(**options).fit(x, y, sample_weight=w), kind(**options).fit(x[many], y[many])
        # w copies: N(y | f, s2)^w = N(y | f, s2 / w) (2 pi s2)^((1 - w) / 2) w^(-1/2)
        expected = -0.5 * ((kept - 1) * np.log(2 * np.pi * noise) + np.log(kept)).sum()
        assert repeated.log_evidence_ - weighted.log_evidence_ == pytest.approx(expected, abs=1e-8 * len(many))


@pytest.mark.parametrize("name", ["exact", "ssgp"])
def test_known_variances_add_to_the_noise(name):
    x, y, w, v = rows(60)
    w = w + 0.5
    model = fresh(MODELS[name]).fit(x, y, sample_weight=w, noise_variance=v)
    if name == "exact":
        inner = np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(2) / 0.8**2)
    else:
        z = x @ (model.frequencies_ / 0.8).T
        inner = (np.cos(z[:, None] - z[None])).mean(2)
    q = 1.3 * inner + np.diag((0.2 + v) / w)
    residual = y - 0.1
    mean = 0.1 + 1.3 * inner @ np.linalg.solve(q, residual)
    variance = 1.3 - 1.3**2 * np.einsum("ij,ji->i", inner, np.linalg.solve(q, inner))
    found, std = model.predict(x, return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(variance + 0.2), rtol=1e-8)
    _, logdet = np.linalg.slogdet(q)
    density = -0.5 * (logdet + residual @ np.linalg.solve(q, residual) + len(y) * np.log(2 * np.pi))
    assert model.log_evidence_ == pytest.approx(density, rel=1e-9)


def test_known_variances_are_told_from_noise():
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (600, 1))
    v = np.where(rng.random(600) < 0.5, 0.0, 1.0)
    y = np.sin(2 * x[:, 0]) + rng.normal(size=600) * np.sqrt(0.04 + v)
    model = SSGPRegressor(8, random_state=0).fit(x, y, noise_variance=v)
    assert model.noise_variance_ == pytest.approx(0.04, rel=0.25)
    assert SSGPRegressor(8, random_state=0).fit(x, y).noise_variance_ > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_equal_weights_are_none_and_zero_weights_leave_rows_out(name):
    x, y, w, _ = rows()
    plain = fresh(LEARNED[name]).fit(x, y)
    assert_same(fresh(LEARNED[name]).fit(x, y, sample_weight=np.ones(len(x))), plain, x, rtol=0)
    some = w > 0
    left = fresh(LEARNED[name]).fit(x[some], y[some], sample_weight=w[some], noise_variance=0.1 * w[some])
    assert_same(fresh(LEARNED[name]).fit(x, y, sample_weight=w, noise_variance=0.1 * w), left, x, rtol=0)
    assert not np.array_equal(left.predict(x), plain.predict(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNED)
def test_few_weighted_rows_are_repeated_rows_to_the_last_bit(name):
    x, y, w, _ = rows(30)
    many = np.random.default_rng(0).permutation(np.repeat(np.arange(30), w))
    assert_same(fresh(LEARNED[name]).fit(x, y, sample_weight=w), fresh(LEARNED[name]).fit(x[many], y[many]), x, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ssgp", "neighbors", "prism", "paper"])
def test_files_and_updates_know_the_noise_of_rows(name, tmp_path):
    x, y, w, v = rows()
    model = fresh(LEARNED[name])
    if name == "prism":
        model.set_params(local="always", validation_fraction=0.3)
    model.fit(x[:100], y[:100], w[:100], v[:100])
    model.save(tmp_path / "model.prism")
    loaded = prismgp.load(tmp_path / "model.prism")
    assert_same(loaded, model, x, rtol=0)
    assert_same(
        loaded.partial_fit(x[100:], y[100:], w[100:], v[100:]),
        model.partial_fit(x[100:], y[100:], w[100:], v[100:]),
        x,
        rtol=1e-10,
    )
    with pytest.raises(DataError, match="certify needs them too"):
        model.certify(x, y, x[:2])


@pytest.mark.parametrize("name", ["ssgp", "neighbors"])
def test_updates_are_fits_to_all_rows(name):
    x, y, w, v = rows()
    model = fresh(MODELS[name])
    part = fresh(model).fit(x[:80], y[:80], w[:80], v[:80])
    # The units are those of the first rows, and the parameters are fixed in the user's units.
    assert_same(part.partial_fit(x[80:], y[80:], w[80:], v[80:]), model.fit(x, y, w, v), x, rtol=1e-8)


@pytest.mark.parametrize("name", ["ssgp", "neighbors"])
def test_certificates_contain_the_exact_gp_with_the_same_weights(name):
    x, y, w, v = rows()
    model = SSGPRegressor(40, random_state=0, **FIXED) if name == "ssgp" else NeighborGPRegressor(30, **FIXED)
    exact = ExactGPRegressor(kernel=model.kernel, **FIXED).fit(x, y, w, v)
    model.fit(x, y, w, v)
    found = model.certify(x, y, x[:20] + 0.1, sample_weight=w, noise_variance=v, random_state=0)
    mean, std = exact.predict(x[:20] + 0.1, return_std=True, include_noise=False)
    assert (found.mean.lower <= mean).all()
    assert (mean <= found.mean.upper).all()
    assert (found.mean.width < 1e-3).all()
    assert (found.variance.lower <= std**2).all()
    assert (std**2 <= found.variance.upper).all()
    if name == "ssgp":
        assert found.log_evidence.lower <= exact.log_evidence_ <= found.log_evidence.upper
        assert found.log_evidence.width < 0.1
    with pytest.raises(DataError, match="not the rows"):
        model.certify(x, y, x[:2], sample_weight=w, noise_variance=2 * v)


def test_copies_among_few_rows_can_be_certified():
    x, y, w, _ = rows(30)
    many = np.repeat(np.arange(30), w)
    model = SSGPRegressor(20, random_state=0, **FIXED).fit(x[many], y[many])
    found = model.certify(x[many], y[many], x, random_state=0)
    mean = ExactGPRegressor(**FIXED).fit(x[many], y[many]).predict(x)
    assert ((found.mean.lower <= mean) & (mean <= found.mean.upper)).all()


def test_gradients_of_a_neighbour_density():
    import torch

    from prismgp.core.kernels import KERNELS, Parameters
    from prismgp.core.rows import RowNoise
    from prismgp.neighbors.fit import log_density_and_gradient
    from prismgp.neighbors.local import LocalGP

    rng = np.random.default_rng(0)
    noise = RowNoise(torch.as_tensor(rng.uniform(0.5, 3, 40)), torch.as_tensor(rng.uniform(0, 0.3, 40)))
    params = Parameters(np.array([0.1, -0.2]), np.array([0.3]), np.array([-1.0]), np.array([0.2]))
    c, t = torch.as_tensor(rng.normal(size=(40, 2))), torch.as_tensor(rng.normal(size=(40, 1)))
    gp = LocalGP(KERNELS["matern32"], params, c, t, 6, noise)
    near, own = gp.gather(c[:5], torch.arange(5, 35).reshape(5, 6)), noise.take(slice(0, 5))

    def mean(vector):
        at = params.unpack(vector)
        return float(log_density_and_gradient(gp.kernel, at, near, t[:5], 8.0, own)[0].mean())

    gradient = log_density_and_gradient(gp.kernel, params, near, t[:5], 8.0, own)[1].pack()
    at, step = params.pack(), 1e-5 * np.eye(5)
    numeric = [(mean(at + each) - mean(at - each)) / 2e-5 for each in step]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample_weight": -np.ones(150)}, "sample_weight holds -1.0 at row 0"),
        ({"sample_weight": np.where(np.arange(150) == 7, np.nan, 1.0)}, "sample_weight holds nan at row 7"),
        ({"sample_weight": np.zeros(150)}, "at least one weight must not be zero"),
        ({"noise_variance": np.where(np.arange(150) == 3, np.inf, 1.0)}, "noise_variance holds inf at row 3"),
        ({"noise_variance": np.ones(3)}, r"noise_variance has shape \(3,\).*150 rows"),
        ({"sample_weight": ["a"] * 150}, "sample_weight must hold numbers"),
    ],
)
def test_bad_weights_are_named(options, message):
    x, y, _, _ = rows()
    with pytest.raises(DataError, match=message):
        ExactGPRegressor().fit(x, y, **options)


def test_known_variances_are_for_one_target():
    x, y, w, v = rows()
    two = np.column_stack([y, -y])
    with pytest.raises(DataError, match="noise_variance is for one target"):
        ExactGPRegressor().fit(x, two, noise_variance=v)
    many = np.repeat(np.arange(150), w)
    model = fresh(MODELS["ssgp"]).set_params(mean=None)
    assert_same(
        fresh(model).fit(x, two, sample_weight=w), fresh(model).fit(x[many], two[many]), x, rtol=1e-8, atol=1e-10
    )


def test_columns_of_tables(tmp_path):
    x, y, w, v = rows()
    table = pd.DataFrame(x, columns=["a", "b"]).assign(y=y, w=w, v=v)
    table.to_csv(tmp_path / "rows.csv", index=False)
    table.to_parquet(tmp_path / "rows.parquet")
    model = MODELS["ssgp"]
    expected, named = fresh(model).fit(x, y, w, v), fresh(model).fit(table[["a", "b"]], y, w, v)
    for source in (
        from_csv(tmp_path / "rows.csv", target="y", weight="w", noise="v"),
        from_parquet(tmp_path / "rows.parquet", target="y", weight="w", noise="v"),
    ):
        assert source.n_rows == (w > 0).sum()
        assert source.feature_names == ["a", "b"]
        found = fresh(model).fit(source)
        assert_same(found, named, table[["a", "b"]], rtol=1e-12)
        assert found.score(source) == pytest.approx(expected.score(x, y, w))
        assert found.score(source) != pytest.approx(expected.score(x[w > 0], y[w > 0]), rel=1e-4)
        with pytest.raises(DataError, match="sample_weight beside a source"):
            found.score(source, sample_weight=w)
        np.testing.assert_allclose(found.log_density(source), expected.log_density(x[w > 0], y[w > 0]))
        np.testing.assert_allclose(
            found.conformalize(source).predict_interval(table[["a", "b"]]),
            expected.conformalize(x[w > 0], y[w > 0]).predict_interval(x),
        )
        with pytest.raises(DataError, match="sample_weight beside a source"):
            found.fit(source, sample_weight=w)
    one = from_csv(tmp_path / "rows.csv", target="y", noise="v", exclude=["w"])
    other = fresh(model).fit(table[["a", "b"]], y, noise_variance=v)
    assert_same(fresh(model).fit(one), other, table[["a", "b"]], rtol=1e-12)
    with pytest.raises(DataError, match="'w' holds weights or noise variances"):
        from_csv(tmp_path / "rows.csv", target="y", weight="w", columns=["a", "w"])
    table.assign(w=np.where(np.arange(150) == 4, -2, w)).to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(DataError, match="'w' holds -2 in row 5"):
        from_csv(tmp_path / "bad.csv", target="y", weight="w")


def test_dask_weights():
    da = pytest.importorskip("dask.array")
    x, y, w, v = rows()
    model = MODELS["ssgp"]
    parts = [da.from_array(each, chunks=(50, *each.shape[1:])) for each in (x, y, w.astype(float), v)]
    fitted = fresh(model).fit(*parts)
    assert_same(fitted, fresh(model).fit(x, y, w, v), x, rtol=1e-10)
    assert fitted.score(*parts[:3]) == pytest.approx(fitted.score(x, y, w))
    with pytest.raises(DataError, match="sample_weight is ndarray"):
        fresh(model).fit(*parts[:2], w)


def test_weights_are_no_durations():
    x = np.arange(12.0)[:, None]
    with pytest.raises(DataError, match="sample_weight must hold numbers: dates and times are not numbers"):
        SSGPRegressor(2, optimize=False).fit(x, x[:, 0], np.full(12, 3, "m8[s]"))


@pytest.mark.parametrize("kind", [ExactGPRegressor, SSGPRegressor, NeighborGPRegressor])
def test_equal_ratings_at_equal_inputs_are_measurements(kind):
    """Of repeated measurements with few possible values many are equal; the noise is not that of their averages."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (90, 1)).astype(float)
    y = (rng.random(90) < 0.3 + 0.1 * x[:, 0]).astype(float)
    model, apart = kind(random_state=0).fit(x, y), kind(random_state=0).fit(x, y + 1e-6 * rng.normal(size=90))
    assert model.noise_variance_ == pytest.approx(apart.noise_variance_, rel=0.05)
    assert model.noise_variance_ < 1.2 * y.var()

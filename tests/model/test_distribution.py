"""The predictive distribution of a fitted model: density, quantiles and intervals, with and without shapes."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import prismgp
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp.core.shape import NormalShape, SkewedShape, SplineShape, StudentShape
from prismgp.exceptions import DataError, ModelFileError
from prismgp.model.row_shapes import tailed_log_density, tailed_quantiles
from tests.model.test_io import rewritten

SPLINE = SplineShape(5.0, 1.3, (0.1, 0.4, 0.6, 0.9), (0.3, -0.5, 0.7, 0.1))
SHAPES = [StudentShape(3.0), SkewedShape(4.0, 2.0), SPLINE]
LEVELS = [0.01, 0.3, 0.5, 0.95, 0.999]
COVERAGES = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]


def shaped(*shapes, kind=SSGPRegressor, q=None, n=80, chunk_size=None):
    """A model with parameters as they start, and the given shapes; rows of other units."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (n, 2)) * [1.0, 10.0]
    y = 50.0 + 7.0 * np.sin(x[:, 0]) + rng.normal(size=n)
    y = y if q is None else np.column_stack([y, *(-3.0 * y + rng.normal(size=n) for _ in range(q - 1))])
    model = kind(optimize=False, random_state=0).fit(x, y)
    if chunk_size is not None:
        model.set_params(chunk_size=chunk_size)
    model.model_ = replace(model.model_, shapes=shapes or None)
    return model, x, y


# -- density and quantiles -------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind)
@pytest.mark.parametrize("kind", [SSGPRegressor, ExactGPRegressor])
def test_density_and_quantiles_have_the_shape(kind, shape):
    model, x, y = shaped(shape, kind=kind)
    mean, std = model.predict(x, return_std=True)
    expected = shape.log_density((y - mean) / std) - np.log(std)
    np.testing.assert_allclose(model.log_density(x, y), expected, rtol=1e-9, atol=1e-9)
    found = model.predict_quantiles(x, LEVELS)
    assert found.shape == (len(x), len(LEVELS))
    np.testing.assert_allclose(found, mean[:, None] + std[:, None] * shape.quantile(np.array(LEVELS)), rtol=1e-12)


def test_student_density_is_scipys():
    model, x, y = shaped(StudentShape(3.0))
    mean, std = model.predict(x, return_std=True)
    expected = stats.t.logpdf(y, 3.0, mean, std / np.sqrt(3.0))
    np.testing.assert_allclose(model.log_density(x, y), expected, rtol=1e-9)
    np.testing.assert_allclose(
        model.predict_interval(x, 0.8)[:, 0], stats.t.ppf(0.1, 3.0, mean, std / np.sqrt(3.0)), rtol=1e-10
    )


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind)
def test_quantiles_integrate_the_density(shape):
    """In the user's units."""
    model, x, _ = shaped(shape)
    ends = model.predict_quantiles(x[:1], [0.2, 0.7])[0]
    grid = np.linspace(*ends, 20_001)
    density = np.exp(model.log_density(np.repeat(x[:1], len(grid), 0), grid))
    assert np.trapezoid(density, grid) == pytest.approx(0.5, abs=1e-6)


def test_normal_shapes_change_nothing():
    plain, x, y = shaped()
    model, _, _ = shaped(NormalShape())
    np.testing.assert_array_equal(model.log_density(x, y), plain.log_density(x, y))
    np.testing.assert_array_equal(model.predict_quantiles(x, LEVELS), plain.predict_quantiles(x, LEVELS))
    mean, std = plain.predict(x, return_std=True)
    expected = np.column_stack([stats.norm.ppf(level, mean, std) for level in LEVELS])
    np.testing.assert_allclose(plain.predict_quantiles(x, LEVELS), expected, rtol=1e-12)


def test_shapes_leave_moments_and_functions_alone():
    plain, x, _ = shaped()
    model, _, _ = shaped(StudentShape(3.0))
    for got, expected in zip(model.predict(x, return_std=True), plain.predict(x, return_std=True), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(model.sample_y(x, 2, random_state=0), plain.sample_y(x, 2, random_state=0))
    without = [m.model_.predict_quantiles(x, LEVELS, include_noise=False)[2] for m in (model, plain)]
    np.testing.assert_array_equal(*without)


def test_several_outputs_have_shapes_of_their_own():
    shapes = (SkewedShape(5.0, 0.5), NormalShape(), StudentShape(4.0))
    model, x, y = shaped(*shapes, q=3)
    mean, std = model.predict(x, return_std=True)
    z = (y - mean) / std
    expected = sum(shape.log_density(z[:, k]) - np.log(std[:, k]) for k, shape in enumerate(shapes))
    np.testing.assert_allclose(model.log_density(x, y), expected, rtol=1e-9, atol=1e-9)
    found = model.predict_quantiles(x, LEVELS)
    assert found.shape == (len(x), 3, len(LEVELS))
    for k, shape in enumerate(shapes):
        expected = mean[:, k, None] + std[:, k, None] * shape.quantile(np.array(LEVELS))
        np.testing.assert_allclose(found[:, k], expected, rtol=1e-12)
    assert model.predict_interval(x).shape == (len(x), 3, 2)


def test_chunks_make_no_difference():
    model, x, _ = shaped(SPLINE)
    parts, _, _ = shaped(SPLINE, chunk_size=7)
    np.testing.assert_allclose(parts.predict_interval(x), model.predict_interval(x), rtol=1e-12)


def test_intervals_are_quantiles():
    model, x, _ = shaped(SkewedShape(4.0, 2.0))
    np.testing.assert_allclose(model.predict_interval(x), model.predict_quantiles(x, [0.025, 0.975]), rtol=1e-12)
    np.testing.assert_array_equal(model.predict_interval(x, coverage=0.5), model.predict_quantiles(x, [0.25, 0.75]))


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", [0, 1, -0.1, 95, float("nan"), "0.95", None, True, [0.5], 1 - 2.0**-53])
def test_coverage_is_checked(coverage):
    model, x, _ = shaped()
    with pytest.raises(DataError, match="coverage="):
        model.predict_interval(x, coverage)


@pytest.mark.parametrize("q", [0.5, [], [0.0, 0.5], [0.5, 1.0], [float("nan")], [[0.5]], "median", None, ["a"]])
def test_levels_are_checked(q):
    model, x, _ = shaped()
    with pytest.raises(DataError, match="q="):
        model.predict_quantiles(x, q)


def test_levels_come_in_any_order_and_type():
    model, x, _ = shaped()
    np.testing.assert_array_equal(
        model.predict_quantiles(x, np.array([0.9, 0.1], dtype=np.float32)).argsort(1), [[1, 0]] * len(x)
    )


# -- calibration -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind)
def test_intervals_cover_what_they_promise(shape):
    """New observations with noise of the shape; the normal intervals do not."""
    model, x, _ = shaped(shape)
    rows = np.repeat(x, 500, 0)
    mean, std = model.predict(rows, return_std=True)
    y = mean + std * shape.sample(np.random.default_rng(1), len(rows))
    for coverage in COVERAGES:
        lower, upper = model.predict_interval(rows, coverage).T
        inside = np.mean((lower <= y) & (y <= upper))
        assert abs(inside - coverage) < 5 * np.sqrt(coverage * (1 - coverage) / len(rows))


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("copy", ["file", "pickle"])
def test_shapes_survive_exactly(tmp_path, copy):
    model, x, y = shaped(SPLINE, SkewedShape(7.1, 1 / 3), NormalShape(), q=3)
    model.log_density(x, y)  # which caches numbers in the shapes
    if copy == "file":
        model.save(tmp_path / "m")
        other = prismgp.load(tmp_path / "m")
    else:
        other = pickle.loads(pickle.dumps(model))
    assert other.model_.shapes == model.model_.shapes
    np.testing.assert_array_equal(other.log_density(x, y), model.log_density(x, y))
    np.testing.assert_array_equal(other.predict_interval(x), model.predict_interval(x))


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [{"kind": "normal"}] * 2,
        {"kind": "normal"},
        "normal",
        [None],
        [{"kind": "cauchy"}],
        [{"kind": "student", "degrees": 1.0}],
        [{"kind": "student", "degrees": "3"}],
        [{"kind": "student"}],
        [{"kind": "spline", "degrees": 3.0, "skew": 1.0, "knots": [0.5, 0.2], "log_ratio": [0.0, 0.0]}],
    ],
    ids=str,
)
def test_hostile_shapes_are_refused(tmp_path, shapes):
    with pytest.raises(ModelFileError, match="nois"):
        load_changed(tmp_path, noise_shape=shapes)


@pytest.mark.parametrize("share", [-0.1, 0.6, "0.1", None, True])
def test_hostile_shares_of_tails_are_refused(tmp_path, share):
    with pytest.raises(ModelFileError, match="share of the tails"):
        load_changed(tmp_path, tail_share=share)


def load_changed(folder, **changes):
    """Load the file of a model whose configuration someone has changed."""
    model, _, _ = shaped(StudentShape(3.0))
    model.save(folder / "m")
    path = folder / "hostile"
    path.write_bytes(rewritten((folder / "m").read_bytes(), lambda config: config.update(changes)))
    return prismgp.load(path)


@pytest.mark.parametrize("shape", [NormalShape(), StudentShape(3.0)], ids=lambda shape: shape.kind)
def test_tails(tmp_path, shape):
    """Density and quantiles have them, mean, standard deviation and the function do not; they are in the file."""
    model, x, y = shaped(shape)
    mean, std = model.predict(x, return_std=True)
    narrow, function = model.predict_interval(x, 0.999), model.model_.predict_interval(x, 0.9, include_noise=False)[2]
    model.model_ = replace(model.model_, tail_share=0.1)
    z = (y - mean) / std
    expected = tailed_log_density(shape, 0.1, z) - np.log(std)
    np.testing.assert_allclose(model.log_density(x, y), expected, rtol=1e-9)
    ends = mean[:, None] + std[:, None] * tailed_quantiles(shape, 0.1, [0.0005, 0.9995])
    np.testing.assert_allclose(model.predict_interval(x, 0.999), ends, rtol=1e-9)
    assert not np.allclose(ends, narrow)
    np.testing.assert_array_equal(model.model_.predict_interval(x, 0.9, include_noise=False)[2], function)
    model.save(tmp_path / "m")
    loaded = prismgp.load(tmp_path / "m")
    assert loaded.model_.tail_share == 0.1
    np.testing.assert_array_equal(loaded.log_density(x, y), model.log_density(x, y))


def test_updates_keep_the_shape():
    model, x, y = shaped(StudentShape(3.0))
    assert model.partial_fit(x[:5], y[:5]).model_.shapes == (StudentShape(3.0),)

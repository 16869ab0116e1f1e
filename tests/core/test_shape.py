"""Shapes of the noise: identities of the distributions, what is learned from simulated residuals, and model files."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable
from dataclasses import fields

import numpy as np
import pytest
from scipy import stats

import prismgp.core.shape as shape_module
from prismgp._types import Array
from prismgp.core.shape import (
    MAX_DEGREES,
    MAX_KNOTS,
    MIN_DEGREES,
    NoiseShape,
    NormalShape,
    SkewedShape,
    SplineShape,
    StudentShape,
    shape_from_dict,
)
from prismgp.core.shape_fit import fit_shape
from prismgp.exceptions import DataError, ModelFileError


def _wavy(degrees: float, skew: float, k: int = 20) -> SplineShape:
    knots = tuple(np.linspace(0.01, 0.97, k).tolist())
    return SplineShape(degrees, skew, knots, tuple(np.random.default_rng(k).normal(size=k).tolist()))


SHAPES = [
    NormalShape(),
    StudentShape(MIN_DEGREES),
    StudentShape(5.0),
    StudentShape(MAX_DEGREES),
    SkewedShape(MIN_DEGREES, 2.0),
    SkewedShape(4.0, 0.3),
    SkewedShape(MAX_DEGREES, 7.0),
    _wavy(MIN_DEGREES, 1.0),
    _wavy(4.0, 1.7),
    _wavy(MAX_DEGREES, 0.4, k=60),
    SplineShape(5.0, 2.0, (0.9, 0.95), (0.0, 1.0)),  # all knots are on one side of the mode
]
Draw = Callable[[np.random.Generator, int], Array]


def _mixture(rng: np.random.Generator, n: int, share: float, spike: Array | float, std: float, mean: float) -> Array:
    return np.where(rng.random(n) < share, spike, mean + std * rng.standard_normal(n))


# All with mean 0 and variance 1.
SIMULATED: dict[str, Draw] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "student": lambda rng, n: rng.standard_t(3.0, n) / np.sqrt(3.0),
    "gamma": lambda rng, n: (rng.gamma(3.0, size=n) - 3.0) / np.sqrt(3.0),
    "exponential": lambda rng, n: rng.exponential(size=n) - 1.0,
    "spike": lambda rng, n: _mixture(rng, n, 1 / 3, 0.3, np.sqrt(1.4325), -0.15),
    "narrow": lambda rng, n: _mixture(rng, n, 1 / 3, 0.05 * rng.standard_normal(n), np.sqrt(1.5 - 0.00125), 0.0),
    "lumps": lambda rng, n: rng.choice([-0.9, 0.9], n) + np.sqrt(0.19) * rng.standard_normal(n),
}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind)
class TestDistribution:
    def test_probability_mean_and_variance_by_quadrature(self, shape: NoiseShape) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(20)

        def panels(edges: Array) -> tuple[Array, Array]:
            half = 0.5 * np.diff(edges)[:, None]
            return (edges[:-1, None] + half * (nodes + 1.0)).ravel(), (half * weights).ravel()

        inner = shape.quantile(np.array([1e-4, *np.linspace(0.002, 0.998, 250), 1 - 1e-4]))
        edges = np.union1d(inner, _kinks(shape))
        z, dz = panels(edges)
        # Tails in the logarithm of the distance, as those of 2.1 degrees have their variance far out.
        s, ds = panels(np.linspace(-30.0, 300.0, 331))
        z = np.concatenate([edges[0] - np.exp(s), z, edges[-1] + np.exp(s)])
        dz = np.concatenate([ds * np.exp(s), dz, ds * np.exp(s)])
        density = np.exp(shape.log_density(z)) * dz
        found = [density.sum(), (density * z).sum(), (density * z * z).sum()]
        np.testing.assert_allclose(found, [1.0, 0.0, 1.0], atol=1e-7)

    def test_density_is_the_derivative_of_the_cdf(self, shape: NoiseShape) -> None:
        z = shape.quantile(np.linspace(0.0005, 0.9995, 999))
        z = z[np.abs(z[:, None] - _kinks(shape)).min(1) > 1e-4]
        slope = (shape.cdf(z + 1e-5) - shape.cdf(z - 1e-5)) / 2e-5
        np.testing.assert_allclose(slope, np.exp(shape.log_density(z)), rtol=1e-5)

    def test_density_is_continuous_and_positive(self, shape: NoiseShape) -> None:
        kinks = _kinks(shape)
        np.testing.assert_allclose(shape.log_density(kinks - 1e-9), shape.log_density(kinks + 1e-9), atol=1e-5)
        assert np.isfinite(shape.log_density(np.array([-1e6, -40.0, 40.0, 1e6]))).all()

    def test_quantile_inverts_the_cdf(self, shape: NoiseShape) -> None:
        u = np.concatenate([[1e-12, 1e-6], np.linspace(0.001, 0.999, 999), [1 - 1e-6]])
        np.testing.assert_allclose(shape.cdf(shape.quantile(u)), u, rtol=1e-9, atol=1e-14)
        z = np.linspace(-6.0, 6.0, 1001)
        # Far out the probability itself is rounded, which no inverse can undo.
        resolved = np.minimum(shape.cdf(z), 1.0 - shape.cdf(z)) > 1e-7
        np.testing.assert_allclose(shape.quantile(shape.cdf(z))[resolved], z[resolved], atol=1e-8)
        assert (np.diff(shape.quantile(u)) > 0).all()

    def test_any_array_shape(self, shape: NoiseShape) -> None:
        z = np.linspace(-1.0, 1.0, 6)
        for function in (shape.log_density, shape.cdf, lambda z: shape.quantile(0.5 + 0.4 * z)):
            np.testing.assert_array_equal(function(z.reshape(2, 3)).ravel(), function(z))
            assert function(np.array(0.3)).shape == ()

    def test_sample(self, shape: NoiseShape) -> None:
        drawn = shape.sample(np.random.default_rng(0), (50, 100))
        assert drawn.shape == (50, 100)
        assert stats.kstest(shape.cdf(drawn.ravel()), "uniform").pvalue > 1e-3

    def test_round_trip_through_json_is_exact(self, shape: NoiseShape) -> None:
        again = shape_from_dict(json.loads(json.dumps(shape.to_dict())))
        assert again == shape
        z = np.linspace(-5.0, 5.0, 101)
        np.testing.assert_array_equal(again.log_density(z), shape.log_density(z))
        assert set(shape.to_dict()) == {"kind", *(each.name for each in fields(shape) if each.init)}  # type: ignore[arg-type]


def _kinks(shape: NoiseShape) -> Array:
    """Where derivatives of the density may jump."""
    if isinstance(shape, SplineShape):
        mean, std = shape.moments
        base = SkewedShape(shape.degrees, shape.skew)
        return (np.append(base.quantile(np.array(shape.knots)), base.mode) - mean) / std
    return np.array([shape.mode if isinstance(shape, SkewedShape) else 0.0])


@pytest.mark.parametrize("degrees", [MIN_DEGREES, 3.0, 11.5, MAX_DEGREES])
def test_student_agrees_with_scipy(degrees: float) -> None:
    shape, reference = StudentShape(degrees), stats.t(degrees, scale=np.sqrt(1.0 - 2.0 / degrees))
    z, u = np.linspace(-9.0, 9.0, 77), np.linspace(0.001, 0.999, 77)
    np.testing.assert_allclose(shape.log_density(z), reference.logpdf(z), rtol=1e-12)
    np.testing.assert_allclose(shape.cdf(z), reference.cdf(z), rtol=1e-12)
    np.testing.assert_allclose(shape.quantile(u), reference.ppf(u), rtol=1e-10, atol=1e-14)


def test_normal_agrees_with_scipy() -> None:
    z = np.linspace(-9.0, 9.0, 77)
    np.testing.assert_allclose(NormalShape().log_density(z), stats.norm.logpdf(z), rtol=1e-13)
    np.testing.assert_allclose(NormalShape().cdf(z), stats.norm.cdf(z), rtol=1e-13)


def test_many_degrees_are_normal_and_flat_splines_are_their_base() -> None:
    z = np.linspace(-3.0, 3.0, 61)
    np.testing.assert_allclose(StudentShape(MAX_DEGREES).cdf(z), NormalShape().cdf(z), atol=1e-3)
    flat = SplineShape(4.0, 1.5, (0.1, 0.4, 0.9), (0.7, 0.7, 0.7))
    np.testing.assert_allclose(flat.moments, [0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(flat.log_density(z), SkewedShape(4.0, 1.5).log_density(z), atol=1e-12)


def test_extreme_values_give_no_warnings() -> None:
    z = np.array([-1e300, -1e10, 0.0, 1e10, 1e300])
    for shape in SHAPES:
        assert not np.isnan(shape.log_density(z)).any()
        np.testing.assert_allclose(shape.cdf(z)[[0, 1, 3, 4]], [0.0, 0.0, 1.0, 1.0], atol=1e-12)


# -- learning --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "n", "kinds", "gain"),
    [
        # Somewhat below what large samples gain.
        ("student", 100, {"normal", "student"}, 0.0),
        ("student", 300, {"student"}, 0.1),
        ("student", 3000, {"student"}, 0.13),
        ("gamma", 300, {"skewed"}, 0.09),
        ("exponential", 300, {"skewed", "spline"}, 0.33),
        ("exponential", 3000, {"skewed", "spline"}, 0.38),
        ("lumps", 300, {"spline"}, 0.12),
        ("lumps", 3000, {"spline"}, 0.16),
        ("narrow", 3000, {"spline"}, 0.3),
        ("spike", 300, {"spline"}, 0.7),
        ("spike", 3000, {"spline"}, 0.8),
    ],
)
def test_gains_on_held_out_values(name: str, n: int, kinds: set[str], gain: float) -> None:
    for seed in range(3):
        rng = np.random.default_rng([seed, n])
        found = fit_shape(SIMULATED[name](rng, n))
        test = SIMULATED[name](rng, 20_000)
        gains = found.shape.log_density(test) - NormalShape().log_density(test)
        assert found.shape.kind in kinds
        assert gains.mean() >= gain
        # What cross-validation says is about what new values say.
        assert found.gain == pytest.approx(gains.mean(), abs=4.0 * gains.std() / np.sqrt(n) + 0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "seeds"), [(70, 20), (100, 20), (300, 10), (1000, 5), (10_000, 2)])
def test_no_loss_on_normal_values(n: int, seeds: int) -> None:
    z = np.linspace(-10.0, 10.0, 4001)
    normal = NormalShape().log_density(z)
    for seed in range(seeds):
        found = fit_shape(np.random.default_rng(seed).standard_normal(n))
        loss = np.sum(np.exp(normal) * (normal - found.shape.log_density(z))) * 0.005
        assert loss < 0.005


@pytest.mark.parametrize("name", list(SIMULATED))
def test_central_intervals_cover_what_they_promise(name: str) -> None:
    rng = np.random.default_rng(1)
    n = 3000
    shape = fit_shape(SIMULATED[name](rng, n)).shape
    test = SIMULATED[name](rng, n)
    for level in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99):
        low, high = shape.quantile(np.array([0.5 - 0.5 * level, 0.5 + 0.5 * level]))
        # Both samples err. An interval that ends inside a spike of repeated values covers all of it or nothing.
        allowed = 4.0 * np.sqrt(2.0 * level * (1.0 - level) / n) + (0.35 if name == "spike" and level < 0.5 else 0.01)
        assert np.mean((low <= test) & (test <= high)) == pytest.approx(level, abs=allowed)


def test_values_of_three_scales_are_where_the_shape_expects_them() -> None:
    """Half of them known almost exactly, a few far away, as where a target has few levels (pol)."""
    errors, levels = [], np.array([0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99])
    for seed in range(6):
        rng = np.random.default_rng(seed)
        z = rng.standard_normal(1350) * rng.choice([0.03, 0.3, 2.3], p=[0.55, 0.27, 0.18], size=1350)
        z /= z.std()
        u = fit_shape(z).shape.cdf(z)
        errors.append(np.abs([np.mean(np.abs(u - 0.5) <= 0.5 * level) - level for level in levels]).max())
    assert np.mean(errors) < 0.022  # 0.029 with two thirds of the knots and steps of at most one


@pytest.mark.parametrize("shifted", [0.0, 3.2])
def test_repeated_values_have_a_bounded_density(shifted: float) -> None:
    z = np.where(np.arange(3000) % 3 == 0, shifted, np.random.default_rng(0).standard_normal(3000))
    shape = fit_shape(z).shape
    assert shape.kind == "spline"
    assert shape.log_density(np.linspace(-5.0, 5.0, 100_001)).max() < np.log(1.0 / 0.005)  # the narrowest spike


def test_weights_have_no_unit_and_zero_leaves_out() -> None:
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.standard_normal(500), rng.standard_t(3.0, 500) / np.sqrt(3.0)])
    weights = np.repeat([0.0, 2.0], 500)
    assert fit_shape(z, weights=weights).shape == fit_shape(z[500:]).shape
    assert fit_shape(z, weights=np.full(1000, 1e200)).shape == fit_shape(z).shape


def test_unequal_weights_count_as_fewer_values() -> None:
    z = np.random.default_rng(0).standard_t(3.0, 300) / np.sqrt(3.0)
    weights = np.ones(300)
    weights[np.argmin(np.abs(z - 0.7))] = 5.0
    # One value that counts five times hardly matters, and must not make the others count a fifth against the prior.
    plain, weighted = fit_shape(z).shape, fit_shape(z, weights=weights).shape
    assert isinstance(plain, StudentShape)
    assert isinstance(weighted, StudentShape)
    assert weighted.degrees == pytest.approx(plain.degrees, rel=0.05)
    weights[weights == 1.0] = 1e-3
    assert fit_shape(z, weights=weights).shape == NormalShape()


@pytest.mark.parametrize("weights", [np.ones(3), -np.ones(50), np.full(50, np.nan)])
def test_bad_weights(weights: Array) -> None:
    with pytest.raises(DataError, match="weights must be 50 finite numbers"):
        fit_shape(np.zeros(50), weights=weights)


_NORMAL = np.random.default_rng(3).standard_normal(500)


@pytest.mark.parametrize(
    "z",
    [
        np.empty(0),
        np.zeros(1000),
        np.full(1000, 3.5),
        np.append(_NORMAL, np.nan),
        np.append(_NORMAL, -np.inf),
        np.append(_NORMAL, 1e6),
        1e6 * _NORMAL,
        1e300 * _NORMAL,
        1e-9 * _NORMAL,
        _NORMAL[:19],
    ],
    ids=["none", "zero", "constant", "nan", "infinite", "far", "large", "overflow", "tiny", "few"],
)
def test_useless_values_give_the_normal(z: Array) -> None:
    found = fit_shape(z)
    assert found.shape == NormalShape()
    assert found.scores == {}
    assert found.gain == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "z",
    [
        np.append(np.zeros(1000), 1.0),
        np.repeat([-1.0, 1.0], 200),
        np.append(_NORMAL, [500.0, -9000.0]),
        0.01 * _NORMAL,
        50.0 * _NORMAL,
        _NORMAL + 20.0,
        np.sort(_NORMAL),
        np.round(_NORMAL),
    ],
    ids=["almost constant", "two values", "outliers", "narrow", "wide", "shifted", "sorted", "rounded"],
)
def test_odd_values_give_a_usable_shape(z: Array) -> None:
    found = fit_shape(z)
    assert np.isfinite(found.shape.log_density(z)).all()
    assert shape_from_dict(found.shape.to_dict()) == found.shape
    assert found.gain >= 0.0
    assert set(found.scores) == {"normal", "student", "skewed", "spline"}


def test_fit_is_deterministic() -> None:
    z = SIMULATED["lumps"](np.random.default_rng(0), 400)
    assert fit_shape(z) == fit_shape(z.copy())


# -- model files -----------------------------------------------------------------------------------

_SPLINE = SplineShape(4.0, 1.5, (0.1, 0.4, 0.9), (0.1, -0.2, 0.3)).to_dict()


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        "normal",
        {},
        {"kind": "cauchy"},
        {"kind": ["normal"]},
        {"kind": 10**5000},
        {"kind": "normal", "degrees": 3.0},
        {"kind": "student"},
        {"kind": "student", "degrees": 2.0},
        {"kind": "student", "degrees": float("nan")},
        {"kind": "student", "degrees": float("inf")},
        {"kind": "student", "degrees": 10**5000},
        {"kind": "student", "degrees": True},
        {"kind": "student", "degrees": "__import__('os')"},
        {"kind": "skewed", "degrees": 3.0, "skew": 0.0},
        {"kind": "skewed", "degrees": 3.0, "skew": -1.0},
        _SPLINE | {"knots": [0.1, 0.4]},
        _SPLINE | {"knots": [0.4, 0.1, 0.9]},
        _SPLINE | {"knots": [0.1, 0.1, 0.9]},
        _SPLINE | {"knots": [0.0, 0.1, 0.9]},
        _SPLINE | {"knots": [0.1, 0.4, float("nan")]},
        _SPLINE | {"knots": "0.1"},
        _SPLINE | {"knots": [], "log_ratio": []},
        _SPLINE | {"log_ratio": [0.0, 1e6, 0.0]},
        _SPLINE | {"log_ratio": [0.0, None, 0.0]},
        _SPLINE | {"knots": [0.3] * 10**6},
        _SPLINE | {"knots": np.linspace(0.1, 0.9, MAX_KNOTS + 1).tolist(), "log_ratio": [0.0] * (MAX_KNOTS + 1)},
        _SPLINE | {"knots": [0.5, 0.5 + 2e-8, 0.5 + 4e-8], "log_ratio": [-20.0, 20.0, -20.0]},
    ],
    ids=range(29),
)
def test_hostile_states(state: object) -> None:
    with pytest.raises(ModelFileError, match="noise"):
        shape_from_dict(state)


def test_predictions_import_nothing_slow() -> None:
    # In the source, as the tests themselves have imported everything.
    imports = [
        node for node in ast.walk(ast.parse(inspect.getsource(shape_module))) if isinstance(node, ast.ImportFrom)
    ]
    found = {node.module for node in imports if str(node.module).startswith("scipy")}
    assert found == {"scipy.special"}
    assert not any(node.col_offset == 0 for node in imports if str(node.module).startswith("scipy"))

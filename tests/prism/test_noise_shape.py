"""Shapes of the noise that PrismGPRegressor learns from its held-out rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize_scalar

import prismgp
from prismgp.core.shape import NormalShape, StudentShape
from prismgp.data import ArraySource
from prismgp.exceptions import DataError
from prismgp.prism import fit as fit_module
from prismgp.prism.shapes import find_shapes
from prismgp.prism.stacking import Residuals
from tests.prism.small import data, model, nightly_seeds

pytestmark = pytest.mark.usefixtures("short_fits")
COVERAGES = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99]

# All with mean 0 and variance 1.
NOISES = {
    "heavy": lambda rng, n: rng.standard_t(3.0, n) / np.sqrt(3.0),
    "skewed": lambda rng, n: (rng.gamma(3.0, size=n) - 3.0) / np.sqrt(3.0),
    "edge": lambda rng, n: rng.exponential(size=n) - 1.0,
}
# How far coverage may be off. The density of the exponential jumps at its edge, and where the edge is depends on the
# error of the mean: over eight seeds, half with 1,500 held-out rows and half with 6,000, it was off by up to 4.4 and
# 2.7 points.
MOST_OFF = {"heavy": 0.025, "skewed": 0.025, "edge": 0.04}


def noisy(kind, n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, (n, 2))
    return x, 10.0 + 3.0 * np.sin(x[:, 0]) + x[:, 1] + 2.0 * NOISES[kind](rng, n)


# Many rows are held out, so that there is a shape to learn; the noise is learned by a plain SSGP.
SETTINGS = {
    "n_members": 1,
    "n_frequencies": 8,
    "optimize": True,
    "noise_variance": None,
    "lengthscale": None,
    "max_iter": 20,
    "validation_fraction": 0.5,
    "noise_model": "constant",
}


@pytest.fixture(scope="module", params=list(NOISES))
def shaped(request):
    """A fit to rows with noise that is not normal."""
    x, y = noisy(request.param, 3_000)
    return request.param, model(**SETTINGS).fit(x, y), x, y


def test_the_shape_is_found(shaped):
    kind, fit, _, _ = shaped
    (shape,) = fit.model_.shapes
    assert shape.kind in (("student", "spline") if kind == "heavy" else ("skewed", "spline"))
    (status,) = fit.fit_status_["noise_shape"]
    assert status["kind"] == shape.kind
    assert status["gain"] > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", nightly_seeds(3))
@pytest.mark.parametrize("kind", list(NOISES))
def test_intervals_are_calibrated(kind, seed):
    """With 6,000 held-out rows, of which a share has a standard error of 0.6 points."""
    fit = model(**{**SETTINGS, "random_state": seed}).fit(*noisy(kind, 12_000, seed=seed))
    x, y = noisy(kind, 20_000, seed=100 + seed)
    for coverage in COVERAGES:
        lower, upper = fit.predict_interval(x, coverage).T
        inside = np.mean((lower <= y) & (y <= upper))
        assert abs(inside - coverage) < MOST_OFF[kind], (coverage, inside)


def test_density_is_better_than_normal(shaped):
    kind, fit, _, _ = shaped
    x, y = noisy(kind, 5_000, seed=1)
    shaped_density = fit.log_density(x, y).mean()
    fit.model_, kept = replace(fit.model_, shapes=None), fit.model_
    normal_density = fit.log_density(x, y).mean()
    fit.model_ = kept
    assert shaped_density > normal_density + 0.05


def test_file_keeps_the_shape(shaped, tmp_path):
    _, fit, x, y = shaped
    fit.save(tmp_path / "m")
    other = prismgp.load(tmp_path / "m")
    assert other.model_.shapes == fit.model_.shapes
    assert other.fit_status_ == fit.fit_status_
    np.testing.assert_array_equal(other.predict_interval(x), fit.predict_interval(x))
    np.testing.assert_array_equal(other.log_density(x, y), fit.log_density(x, y))


def test_final_event_has_the_shape():
    x, y = noisy("heavy", 1_000)
    fit = model(**SETTINGS)
    events = []

    def callback(event):
        if event.final:
            events.append(event.model())

    fit._callback = callback
    fit.fit(x, y)
    assert fit.model_.shapes is not None
    assert events[-1] is fit.model_


@pytest.mark.slow
def test_normal_on_request():
    x, y = noisy("heavy", 1_000)
    auto, normal = model(**SETTINGS).fit(x, y), model(**SETTINGS, noise_shape="normal").fit(x, y)
    assert auto.model_.shapes is not None
    assert normal.model_.shapes is None
    assert normal.fit_status_["noise_shape"] == [{"kind": "normal", "gain": 0.0}]
    np.testing.assert_array_equal(auto.predict(x), normal.predict(x))


@pytest.mark.parametrize("changes", [{}, {"recipe": "paper"}], ids=str)
def test_few_rows_and_the_paper_are_normal(changes):
    x, y = data(80, q=2)
    fit = model(**changes).fit(x, y)
    assert fit.model_.shapes is None
    assert fit.fit_status_["noise_shape"] == [{"kind": "normal", "gain": 0.0}] * 2


def test_interrupted_fits_are_normal(monkeypatch):
    x, y = noisy("heavy", 1_000)
    original = fit_module.JointRecipe.fit

    def interrupted(self, streams, context):
        found = original(self, streams, context)
        with context.ending.catch_end():
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(fit_module.JointRecipe, "fit", interrupted)
    with pytest.warns(prismgp.exceptions.PrismGPWarning, match="interrupted"):
        fit = model(**SETTINGS, on_interrupt="keep").fit(x, y)
    assert fit.model_.shapes is None


@pytest.mark.slow
def test_outputs_have_their_own():
    x, y = noisy("heavy", 2_000)
    both = np.column_stack([y, 5.0 - x[:, 0] + np.random.default_rng(5).normal(size=len(x))])
    fit = model(**SETTINGS).fit(x, both)
    assert [each["kind"] for each in fit.fit_status_["noise_shape"]] == ["student", "normal"]
    assert isinstance(fit.model_.shapes[1], NormalShape)
    assert fit.predict_interval(x).shape == (len(x), 2, 2)
    assert fit.log_density(x, both).shape == (len(x),)


def test_unknown_shape_is_refused():
    x, y = data(60)
    with pytest.raises(DataError, match="noise_shape='cauchy'"):
        model(noise_shape="cauchy").fit(x, y)


# -- the distribution of the mixture ---------------------------------------------------------------


def test_intervals_of_a_mixture_integrate_its_density(fitted):
    fit, x, _ = fitted
    assert fit.model_.shapes is None
    for row in range(3):
        here = x[row : row + 1]
        lower, upper = fit.predict_interval(here, 0.8)[0]
        grid = np.linspace(lower, upper, 20_001)
        assert np.trapezoid(np.exp(fit.log_density(np.repeat(here, len(grid), 0), grid)), grid) == pytest.approx(0.8)


def test_outputs_without_a_shape_keep_the_mixture(fitted_two):
    """Density and quantiles of the second output are those of the mixture's margin, whatever the first one has."""
    fit, x, y = fitted_two
    shapes = (StudentShape(4.0), NormalShape())
    part, plain = (replace(fit.model_, shapes=each, tail_share=0.0) for each in (shapes, None))
    both, expected = (each.predict_quantiles(x, [0.1, 0.9])[2] for each in (part, plain))
    np.testing.assert_array_equal(both[:, 1], expected[:, 1])
    mean, std = fit.predict(x[:1], return_std=True)
    shape_part = shapes[0].log_density((y[:1, 0] - mean[:, 0]) / std[:, 0]) - np.log(std[:, 0])
    grid = np.linspace(*both[0, 1], 4_001)
    rows = [(np.repeat(x[:1], len(grid), 0), np.column_stack([np.full(len(grid), y[0, 0]), grid]))]
    assert np.trapezoid(np.exp(part.log_density(rows) - shape_part), grid) == pytest.approx(0.8, rel=1e-5)


def test_frames_and_sources(fitted):
    fit, x, _ = fitted
    expected = fit.predict_interval(x, 0.9)
    np.testing.assert_array_equal(fit.predict_interval(ArraySource(x, np.zeros((len(x), 0))), 0.9), expected)
    np.testing.assert_array_equal(fit.predict_interval(x.tolist(), 0.9), expected)
    frame = pd.DataFrame(x, columns=["a", "b"])
    _, y = data(80)
    named = model().fit(frame[:80], y)
    np.testing.assert_array_equal(
        named.predict_quantiles(frame, [0.3]), model().fit(x[:80], y).predict_quantiles(x, [0.3])
    )


# -- the shape of another model ----------------------------------------------------------------------


def residuals_of(shape, n, seed):
    return shape.sample(np.random.default_rng(seed), (n, 1))


def find_of(own, q, usual=None, weights=None):
    """Shapes from values of residuals, and of those of the plain SSGP."""
    nowhere = torch.zeros(len(own), 1)
    return find_shapes(
        Residuals(own, nowhere, weights), q, usual=None if usual is None else Residuals(usual, nowhere, None)
    )


def without_outliers(n):
    """Residuals with long tails, of which none is far away, and whose mean square is therefore taken for one."""
    own = StudentShape(5.0).quantile((np.arange(n)[:, None] + 0.5) / n)
    return own / own.std()


@pytest.mark.parametrize("weighted", [False, True])
def test_few_held_out_rows_take_up_the_tails_of_the_plain_ssgp(weighted):
    """Forty residuals without an outlier look normal; those of all rows show tails, and the forty how wide (Z8)."""
    usual, own = residuals_of(StudentShape(5.0), 800, 0), without_outliers(40)
    assert find_of(own, 1).shapes is None
    weights = np.full(40, 7.0) if weighted else None  # equal weights, in any unit
    found = find_of(own, 1, usual, weights)
    (shape,) = found.shapes
    assert shape == find_of(usual, 1).shapes[0]
    assert shape.kind == found.status[0]["kind"] == "student"

    def loss(log_factor):
        logs = shape.log_density(own / np.exp(0.5 * log_factor)).sum() - 20.0 * log_factor
        return 12.5 * log_factor**2 - logs

    best = minimize_scalar(loss, bounds=(-1.0, 1.6), method="bounded", options={"xatol": 1e-8}).x
    assert found.factors[0] == pytest.approx(np.exp(best), rel=0.011)  # half a step of the grid
    gain = (shape.log_density(own / np.sqrt(found.factors[0])) - NormalShape().log_density(own)).mean()
    assert found.status[0]["gain"] == pytest.approx(gain - 0.5 * np.log(found.factors[0]))


def test_rows_without_tails_do_not():
    """Of a model that explains what looked like outliers."""
    usual, own = residuals_of(StudentShape(3.0), 800, 0), residuals_of(NormalShape(), 400, 1)
    found = find_of(own, 1, usual)
    assert found.shapes == find_of(own, 1).shapes
    assert found.factors == 1.0


def test_each_output_may():
    heavy, light = residuals_of(StudentShape(5.0), 800, 0), residuals_of(NormalShape(), 800, 1)
    own = np.column_stack([without_outliers(40), residuals_of(NormalShape(), 40, 3)])
    found = find_of(own, 2, np.column_stack([heavy, light]))
    assert [each.kind for each in found.shapes] == ["student", "normal"]
    assert found.factors[0] != 1.0 == found.factors[1]

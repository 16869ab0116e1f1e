"""The mathematics of the neighbour GP, (N1) to (N6), against dense computations and finite differences."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.stats import multivariate_t

from prismgp.core.kernels import KERNELS, Parameters
from prismgp.core.parallel import Workers
from prismgp.core.rows import RowNoise
from prismgp.exceptions import TooLargeError
from prismgp.neighbors import local
from prismgp.neighbors.conditional import conditionals
from prismgp.neighbors.fit import (
    LocalTraining,
    draw_examples,
    fit_local,
    log_density_and_gradient,
    log_evidence,
    neighbors_of,
    predict_examples,
)
from prismgp.neighbors.local import LocalGP
from tests import reference
from tests.tolerances import EVIDENCE, GRADIENT, PREDICTION

NAMES = list(KERNELS)


def make(rng, name="matern32", n=60, d=3, q=2, k=12):
    params = Parameters(
        0.4 * rng.normal(size=d) + 0.3, 0.3 * rng.normal(size=q), rng.normal(size=q) - 2, rng.normal(size=q)
    )
    x, y = torch.as_tensor(rng.normal(size=(n, d))), torch.as_tensor(rng.normal(size=(n, q)) + 0.5)
    return LocalGP(KERNELS[name], params, x, y, k)


def dense(gp, points, rows, output):
    """Mean and covariance of the function at points given some rows."""
    params, name = gp.params, gp.kernel.name
    x, t = gp.coordinates.numpy()[rows], gp.targets.numpy()[rows, output]
    signal, noise, mean = (float(each[output]) for each in (params.signal, params.noise, params.mean))
    k, star, own = (
        signal * reference.kernel(name, a, b, params.lengthscale) for a, b in ((x, x), (x, points), (points, points))
    )
    return reference.predict(k, star, own, noise, t, mean)


def nearest(gp, point):
    r = reference.distances(point[None], gp.coordinates.numpy(), gp.params.lengthscale)[0]
    return np.argsort(r, kind="stable")[: gp.k]


@pytest.mark.parametrize("name", NAMES)
def test_prediction_is_that_of_a_gp_on_the_nearest_rows(rng, name):
    gp = make(rng, name)
    points = rng.normal(size=(9, 3))
    mean, variance, *_ = gp.predict(torch.as_tensor(points))
    for i, point in enumerate(points):
        for output in range(2):
            expected, covariance = dense(gp, point[None], nearest(gp, point), output)  # (N1), (N2)
            assert mean[i, output] == pytest.approx(expected[0], rel=PREDICTION, abs=PREDICTION)
            assert variance[i, output] == pytest.approx(covariance[0, 0], rel=PREDICTION, abs=PREDICTION)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [60, 100])
def test_all_rows_are_the_exact_gp(rng, name, k):
    gp = make(rng, name, k=k)
    points = torch.as_tensor(rng.normal(size=(9, 3)))
    mean, variance, *_ = gp.predict(points)
    everywhere = gp.gather(points, torch.arange(60).expand(9, -1))
    by_weights = torch.einsum("mkq,kq->mq", gp.whole_weights(points), gp.targets - torch.as_tensor(gp.params.mean))
    for output in range(2):
        expected, covariance = dense(gp, points.numpy(), np.arange(60), output)
        np.testing.assert_allclose(mean[:, output], expected, atol=PREDICTION)
        np.testing.assert_allclose(variance[:, output], np.diag(covariance), atol=PREDICTION)
        np.testing.assert_allclose(gp.covariance(points)[:, :, output], covariance, atol=PREDICTION)
        np.testing.assert_allclose(by_weights[:, output] + gp.params.mean[output], expected, atol=PREDICTION)
    for found, expected in zip(conditionals(gp.kernel, gp.params, everywhere)[:2], (mean, variance), strict=True):
        np.testing.assert_allclose(found, expected, atol=PREDICTION)


# -- the spread of the neighbours (N6) ----------------------------------------------------------------


@pytest.mark.parametrize("degrees", [3.0, 34.0])
def test_moments_are_those_of_a_student_t_process(rng, degrees):
    """Against the joint density of the neighbours' targets and the point's, integrated over the latter."""
    gp = replace(make(rng, q=1, k=4), degrees=degrees)
    point = rng.normal(size=(1, 3))
    rows = nearest(gp, point[0])
    mean, variance, noise, _ = gp.predict(torch.as_tensor(point))
    x = np.concatenate([gp.coordinates.numpy()[rows], point])
    params = gp.params
    covariance = params.signal[0] * reference.kernel(gp.kernel.name, x, x, params.lengthscale)
    covariance += params.noise[0] * np.eye(5)
    joint = multivariate_t(np.full(5, params.mean[0]), covariance * (degrees - 2) / degrees, degrees)
    known = gp.targets.numpy()[rows, 0]

    def moment(power):
        def value(t):
            return (t - float(mean[0, 0])) ** power * joint.pdf([*known, t])

        return sum(integrate.quad(value, *ends, limit=200)[0] for ends in ((-np.inf, 0.0), (0.0, np.inf)))

    total = moment(0)
    assert moment(1) / total == pytest.approx(0.0, abs=1e-6)
    assert moment(2) / total == pytest.approx(float(variance[0, 0] + noise[0, 0]), rel=1e-5)


def test_many_degrees_are_the_gp(rng):
    gp, points = make(rng), torch.as_tensor(rng.normal(size=(9, 3)))
    expected, found = gp.predict(points), replace(gp, degrees=1e300).predict(points)
    for a, b in zip(found[:3], expected[:3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert expected.misfit is None
    with_misfit = gp.predict_from(points, gp.search.query(points, gp.k), misfit=True)
    np.testing.assert_array_equal(with_misfit.noise, expected.noise)
    np.testing.assert_allclose(with_misfit.variance, expected.variance, rtol=1e-12)
    np.testing.assert_allclose(with_misfit.misfit, found.misfit, rtol=1e-12)


def test_spread_where_rows_differ_in_their_noise(rng):
    """A row of weight two is as good as two rows for the mean; the spread is of the rows as they are."""
    gp = make(rng, q=1, k=5)
    weight = torch.as_tensor(rng.uniform(0.5, 2, 60))
    gp = replace(gp, row_noise=RowNoise(weight, None), degrees=6.0)
    point = rng.normal(size=(1, 3))
    rows = nearest(gp, point[0])
    x, params = gp.coordinates.numpy()[rows], gp.params
    c = params.signal[0] * reference.kernel(gp.kernel.name, x, x, params.lengthscale)
    c += np.diag(params.noise[0] / weight.numpy()[rows])
    t = gp.targets.numpy()[rows, 0] - params.mean[0]
    factor = (4.0 + t @ np.linalg.solve(c, t)) / (4.0 + 5)
    found, plain = gp.predict(torch.as_tensor(point)), replace(gp, degrees=np.inf).predict(torch.as_tensor(point))
    for a, b in zip(found[1:3], plain[1:3], strict=True):
        np.testing.assert_allclose(a, factor * b, rtol=PREDICTION)


def test_joint_covariance_and_draws_have_the_spread(rng):
    gp = replace(make(rng, k=12), degrees=5.0)
    points = torch.as_tensor(rng.normal(size=(6, 3)))
    found = gp.predict(points)
    for i in range(6):  # alone, a point is conditioned on its own neighbours
        np.testing.assert_allclose(gp.covariance(points[i : i + 1])[0, 0], found.variance[i], rtol=PREDICTION)
    joint = gp.covariance(points)
    for output in range(2):
        assert np.linalg.eigvalsh(joint[:, :, output].numpy()).min() > -1e-12
    drawn = gp.draw(4_000, np.random.default_rng(0))(points)
    error = 4 * (found.variance / 4_000).sqrt()
    assert bool(((drawn.mean(2) - found.mean).abs() < error).all())
    # Random frequencies have an error of their own in the variance, relative to the prior's.
    scale = (found.variance / replace(gp, degrees=np.inf).predict(points).variance) * torch.as_tensor(gp.params.signal)
    assert bool(((drawn.var(2) - found.variance).abs() < 0.15 * (found.variance + 0.3 * scale)).all())


def test_points_far_from_their_neighbours_lose_no_digits(rng):
    """Distances between neighbours do not suffer from a point that is far from all of them."""
    gp = make(rng, "matern12", k=59)
    gp = replace(gp, params=replace(gp.params, log_noise=np.full(2, np.log(1e-9))))
    points = np.array([[30.0, 0.0, 0.0], [1e8, 0.0, 0.0], [1e200, -1e300, 0.0]])
    mean, variance, *_ = gp.predict(torch.as_tensor(points))
    expected, _ = dense(gp, points[:1], nearest(gp, points[0]), 0)
    assert mean[0, 0] == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_allclose(mean[1:], np.tile(gp.params.mean, (2, 1)), rtol=1e-12)
    np.testing.assert_allclose(variance[1:], np.tile(gp.params.signal, (2, 1)), rtol=1e-12)


def test_factorisations_do_not_fail(rng):
    """Equal rows, far from the others, with next to no noise."""
    gp = make(rng, "rbf", n=40, k=20)
    x = gp.coordinates.clone()
    x[::2] = x[0]
    x[1::4] = x[0] + 1e-9
    gp = replace(gp, coordinates=x, params=replace(gp.params, log_noise=np.full(2, np.log(1e-18))))
    for found in (*gp.predict(x)[:3], gp.covariance(x[:5])):
        assert bool(found.isfinite().all())
    assert bool((gp.predict(x)[1] > 0).all())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("q", [1, 2])
def test_gradient_by_finite_differences(rng, name, q):
    gp = make(rng, name, q=q)
    examples = draw_examples(gp, rng)
    near = gp.search.query(examples.points, gp.k, groups=examples.groups, own=examples.own)
    part = gp.gather(examples.points, near)

    def value(vector):
        params = gp.params.unpack(vector)
        return float(log_density_and_gradient(gp.kernel, params, part, examples.targets)[0].mean())

    vector = gp.params.pack()
    gradient = log_density_and_gradient(gp.kernel, gp.params, part, examples.targets)[1].pack()  # (N4)
    for j in range(len(vector)):
        step = np.zeros_like(vector)
        step[j] = 1e-5
        expected = (value(vector + step) - value(vector - step)) / 2e-5
        assert gradient[j] == pytest.approx(expected, rel=GRADIENT, abs=GRADIENT * np.abs(gradient).max())


@pytest.mark.parametrize("name", NAMES)
def test_gradient_in_single_precision(rng, name):
    gp = make(rng, name)
    gp = replace(
        gp, coordinates=torch.cat([gp.coordinates, gp.coordinates[:5]]), targets=torch.cat([gp.targets] * 2)[:65]
    )
    examples = draw_examples(gp, rng)
    near = gp.search.query(examples.points, gp.k, groups=examples.groups, own=examples.own)
    found = []
    for dtype in (torch.float64, torch.float32):  # rows that are equal have distance zero, where slopes are infinite
        part, y = gp.gather(examples.points, near).to(dtype), examples.targets.to(dtype)
        values, gradient = log_density_and_gradient(gp.kernel, gp.params, part, y)
        found.append(np.append(gradient.pack(), float(values.mean())))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_single_precision_is_used_where_the_noise_is_not_low(rng):
    gp = make(rng, q=1)
    examples = draw_examples(gp, rng)

    def learn(gp, coarse):
        training = LocalTraining(steps=30, coarse=coarse)
        return fit_local(gp, examples, np.random.default_rng(0), training).params.pack()

    precise, coarse = learn(gp, False), learn(gp, True)
    assert (coarse != precise).any()
    np.testing.assert_allclose(coarse, precise, atol=1e-3)
    # Rows with a noise of their own are computed in double precision.
    weighted = replace(gp, row_noise=RowNoise(torch.ones(gp.n_rows, dtype=torch.float64)))
    np.testing.assert_array_equal(learn(weighted, True), learn(weighted, False))


def test_workers_find_the_same_neighbours(rng):
    gp = make(rng, q=1)
    copies = [torch.cat([each] * 8) for each in (gp.coordinates, gp.targets)]  # so that there are ties
    gp = replace(gp, coordinates=copies[0], targets=copies[1])
    examples = draw_examples(gp, rng)
    expected, before = neighbors_of(gp, examples), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with Workers() as workers:
            assert torch.equal(neighbors_of(gp, examples, workers), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "distance", "error"), [("matern32", 1e3, 1e-3), ("matern12", 10.0, 1e-6)])
def test_clusters_far_apart_are_learned_as_in_double_precision(name, distance, error, rng):
    """Squared distances by products leave no digits in float32 to those within a cluster.

    Fewer are enough for Matern 1/2, which falls with their root.
    """
    gp = replace(make(rng, q=1), kernel=KERNELS[name])
    apart = distance * torch.as_tensor(rng.integers(3, size=(gp.n_rows, 1))) * torch.as_tensor(gp.params.lengthscale)
    gp = replace(gp, coordinates=gp.coordinates + apart, n_neighbors=gp.n_rows // 2)
    examples = draw_examples(gp, rng)
    precise, coarse = (
        fit_local(gp, examples, np.random.default_rng(0), LocalTraining(steps=20, coarse=coarse)).params.pack()
        for coarse in (False, True)
    )
    np.testing.assert_allclose(coarse, precise, atol=error)


def test_density_is_that_of_the_predictions(rng):
    gp = make(rng)
    examples = draw_examples(gp, rng)
    mean, variance, *_ = predict_examples(gp, examples)
    total = 0.0
    for i in range(gp.n_rows):
        point = gp.coordinates[i].numpy()
        others = [row for row in nearest(replace(gp, n_neighbors=13), point) if row != i][:12]
        for output in range(2):
            expected, covariance = dense(gp, point[None], others, output)
            assert mean[i, output] == pytest.approx(expected[0], abs=PREDICTION)
            spread = covariance + gp.params.noise[output]
            assert variance[i, output] == pytest.approx(covariance[0, 0], abs=PREDICTION)
            total += reference.log_density(gp.targets[i, output : output + 1].numpy(), expected[0], spread)  # (N3)
    assert log_evidence(gp) == pytest.approx(total, rel=EVIDENCE)


@pytest.mark.parametrize("name", NAMES)
def test_evidence_with_all_rows_is_exact(rng, name):
    gp = make(rng, name, k=60)
    expected = 0.0
    for output in range(2):
        k = reference.kernel(name, *2 * (gp.coordinates.numpy(),), gp.params.lengthscale) * gp.params.signal[output]
        y, mean = gp.targets[:, output].numpy(), float(gp.params.mean[output])
        expected += reference.log_density(y, mean, k + gp.params.noise[output] * np.eye(60))
    assert log_evidence(gp) == pytest.approx(expected, rel=EVIDENCE)


@pytest.mark.parametrize("name", NAMES)
def test_covariance_is_positive_and_given_the_union_of_neighbours(rng, name):
    gp = make(rng, name, k=5)
    points = rng.normal(size=(8, 3))
    points[3] = points[2]
    union = np.unique(np.concatenate([nearest(gp, point) for point in points]))
    found = gp.covariance(torch.as_tensor(points)).numpy()
    _, variance, *_ = gp.predict(torch.as_tensor(points))
    for output in range(2):
        np.testing.assert_allclose(found[:, :, output], dense(gp, points, union, output)[1], atol=PREDICTION)
        assert np.linalg.eigvalsh(found[:, :, output]).min() > -PREDICTION
        assert (np.diag(found[:, :, output]) <= variance[:, output].numpy() + PREDICTION).all()


def test_covariance_of_too_many_points_is_refused(rng, monkeypatch):
    gp = make(rng, k=5)
    monkeypatch.setattr(local, "MOST_JOINT", 6)
    with pytest.raises(TooLargeError, match="return_std"):
        gp.covariance(gp.coordinates)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("k", [40, 39])
def test_moments_of_drawn_functions(name, k):
    """(N5): mean to the sampling error; the covariance also has the error of 1,024 frequencies."""
    rng = np.random.default_rng(3)
    gp = make(rng, name, n=40, q=1, d=2, k=k)
    points = torch.as_tensor(rng.normal(size=(6, 2)))
    count = 4_000
    values = gp.draw(count, np.random.default_rng(0))(points)[:, 0].numpy()
    mean, covariance = dense(gp, points.numpy(), np.arange(40), 0)
    spread = np.sqrt(np.diag(covariance))
    slack = 0.0 if k == 40 else 0.01  # one row is missing
    assert (np.abs(values.mean(1) - mean) < 5 * spread / np.sqrt(count) + slack).all()
    np.testing.assert_allclose(np.cov(values), covariance, atol=0.1 * float(gp.params.signal[0]))


@pytest.mark.parametrize("k", [7, 60])
def test_drawn_functions_are_functions(rng, k):
    gp = make(rng, k=k)
    points = torch.as_tensor(rng.normal(size=(11, 3)))
    many = gp.draw(5, np.random.default_rng(1))
    few = gp.draw(2, np.random.default_rng(1))(points[3:6])
    np.testing.assert_allclose(many(points)[3:6, :, :2], few, atol=1e-10)
    again = many(points.flip(0)).flip(0)
    np.testing.assert_allclose(again, many(points), atol=1e-10)


def test_more_rows(rng):
    gp = make(rng, n=61)
    first = replace(gp, coordinates=gp.coordinates[:30], targets=gp.targets[:30])
    assert bool(first.predict(gp.coordinates)[0].isfinite().all())  # the search of few rows is not kept
    joined = first.extend(gp.coordinates[30:], gp.targets[30:])
    for found, expected in zip(joined.predict(gp.coordinates)[:3], gp.predict(gp.coordinates)[:3], strict=True):
        assert torch.equal(found, expected)


def test_pickles_hold_rows_and_parameters_alone(rng):
    gp = make(rng, n=300)
    before = len(pickle.dumps(gp))
    expected = gp.predict(gp.coordinates)[:3]
    again = pickle.dumps(gp)
    assert len(again) == before
    for found, value in zip(pickle.loads(again).predict(gp.coordinates)[:3], expected, strict=True):
        assert torch.equal(found, value)


@pytest.mark.slow
def test_learning_finds_the_parameters_of_the_data():
    rng = np.random.default_rng(5)
    x = rng.uniform(-2, 2, (700, 3))
    truth = np.array([0.5, 2.0, 1.0])
    k = reference.kernel("matern32", x, x, truth)
    y = np.linalg.cholesky(k + 1e-9 * np.eye(700)) @ rng.normal(size=700) + 0.1 * rng.normal(size=700)
    start = Parameters(np.zeros(3), np.zeros(1), np.zeros(1), np.zeros(1))
    gp = LocalGP(KERNELS["matern32"], start, torch.as_tensor(x), torch.as_tensor(y[:, None]), 20)
    learned = fit_local(gp, draw_examples(gp, rng), rng, LocalTraining(steps=150)).params
    np.testing.assert_allclose(learned.lengthscale, truth, rtol=0.35)
    assert float(learned.noise[0]) == pytest.approx(0.01, rel=0.35)

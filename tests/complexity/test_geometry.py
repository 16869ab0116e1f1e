"""Linear-time inputs equal the dense ones where they should, and bound them from above everywhere else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prismgp.complexity.geometry import cell_bounds, cluster_geometry, kernel_values
from prismgp.complexity.inputs import box_inputs, exact_inputs, linear_inputs
from prismgp.core.kernels import KERNELS, get_kernel
from tests.complexity.data import clusters, norm, squared_distances

SLACK = 2e-9  # relative: both sides carry the slack of upper bounds
ABOVE = ("tau_out", "variance", "square_sum", "fourth_sum", "clipped", "theory_clipped", "largest_square", "diameter")


def hostile(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Partitions that break careless code."""
    d = int(rng.integers(1, 6))
    if kind == "singletons":
        return 3.0 * rng.standard_normal((25, d)), np.arange(25)
    if kind == "duplicates":
        return np.repeat(2.0 * rng.standard_normal((5, d)), 8, axis=0), np.repeat(np.arange(5), 8)
    if kind == "one cluster":
        return rng.standard_normal((60, d)), np.zeros(60, dtype=int)
    if kind == "far outlier":
        x, labels = clusters(rng, [30, 20, 10], d, 0.2, 6.0)
        x[0] += 1e6
        return x, labels
    if kind == "far from the origin":
        x, labels = clusters(rng, [30, 20, 10], d, 0.2, 6.0)
        return x + 1e6, labels
    if kind == "imbalance":
        return clusters(rng, [120, 1, 2], d, 0.3, 5.0)
    if kind == "wrong partition":
        return rng.standard_normal((60, d)), rng.permutation(np.arange(60) % 4)
    if kind == "constant column":
        x, labels = clusters(rng, [20, 20], d, 0.3, 4.0)
        return np.column_stack([x, np.ones(40)]), labels
    x, labels = clusters(rng, [25, 20, 15, 10], d, 0.5, 4.0)
    order = rng.permutation(len(x))
    return x[order], labels[order]


KINDS = [
    "plain",
    "singletons",
    "duplicates",
    "one cluster",
    "far outlier",
    "far from the origin",
    "imbalance",
    "wrong partition",
    "constant column",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(KERNELS))
def test_linear_inputs_bound_the_exact_ones(kind, name, rng):
    x, labels = hostile(kind, rng)
    kernel = get_kernel(name)
    scale = np.exp(rng.uniform(-0.5, 0.5, x.shape[1]))
    linear = linear_inputs(cluster_geometry(x, labels, scale, kernel), kernel)
    exact = exact_inputs(x, labels, scale, kernel)
    for field in ABOVE:
        assert getattr(linear, field) >= getattr(exact, field) * (1.0 - SLACK), field
    assert np.all(linear.norms >= exact.norms * (1.0 - SLACK))
    assert np.all(linear.deficits >= exact.deficits * (1.0 - SLACK) - 1e-10)
    assert linear.matrix_variance >= exact.matrix_variance * (1.0 - SLACK) - 1e-9
    assert linear.pairs == exact.pairs
    if kind != "far from the origin":  # there the data themselves have lost the digits
        assert linear.square_sum == pytest.approx(exact.square_sum, rel=1e-7, abs=1e-12)  # S11


@pytest.mark.slow
@settings(max_examples=60)
@given(
    n=st.integers(2, 40),
    d=st.integers(1, 5),
    b=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    spread=st.floats(1e-3, 30.0),
    name=st.sampled_from(list(KERNELS)),
)
def test_any_partition(n, d, b, seed, spread, name):
    rng = np.random.default_rng(seed)
    x = spread * rng.standard_normal((n, d)) ** 3  # heavy tails
    labels = np.unique(rng.integers(0, b, n), return_inverse=True)[1]
    kernel = get_kernel(name)
    linear = linear_inputs(cluster_geometry(x, labels, np.ones(d), kernel), kernel)
    exact = exact_inputs(x, labels, np.ones(d), kernel)
    for field in ABOVE:
        assert getattr(linear, field) >= getattr(exact, field) * (1.0 - SLACK), field
    assert np.all(linear.norms >= exact.norms * (1.0 - SLACK))
    assert linear.matrix_variance >= exact.matrix_variance * (1.0 - SLACK) - 1e-9


def test_dense_reference(rng):
    """The exact inputs themselves, against sums written out pair by pair."""
    x, labels = clusters(rng, [12, 9, 5], 3, 0.6, 3.0)
    scale = np.array([0.7, 1.3, 1.0])
    s = squared_distances(x / scale)
    k = np.exp(-0.5 * s)
    inside = labels[:, None] == labels[None, :]
    pairs = inside & ~np.eye(len(x), dtype=bool)
    exact = exact_inputs(x, labels, scale, get_kernel("rbf"), noise_variance=0.1)
    assert exact.variance == pytest.approx((0.5 * (1 - k[pairs] ** 2) ** 2).sum())
    assert exact.square_sum == pytest.approx((s[pairs] ** 2).sum())
    assert exact.fourth_sum == pytest.approx((s[pairs] ** 4).sum())
    assert exact.tau_out == pytest.approx(norm(np.where(inside, 0.0, k)))
    assert exact.diameter == pytest.approx(math.sqrt(s[inside].max()))
    block = k[labels == 0][:, labels == 0]
    assert exact.norms[0] == pytest.approx(norm(block))
    assert exact.matrix_variance >= norm(12 * block - block @ block) * (1 - 1e-9)
    assert exact.effective_dimension == pytest.approx(np.trace(np.linalg.solve(k + 0.1 * np.eye(26), k)))
    # The largest |C - K|_F over many frequencies stays below B.
    z = x / scale
    for omega in 3.0 * rng.standard_normal((200, 3)):
        angle = z @ omega
        term = np.where(inside, np.cos(angle[:, None] - angle[None, :]) - k, 0.0)
        assert (term**2).sum() <= exact.largest_square


def test_bound_is_tight_for_compact_separated_clusters(rng):
    """The bounds are no formality: V within a few per cent, where the theory is meant to work."""
    x, labels = clusters(rng, [60, 40, 20], 3, 0.05, 5.0)
    kernel = get_kernel("rbf")
    linear = linear_inputs(cluster_geometry(x, labels, np.ones(3), kernel), kernel)
    exact = exact_inputs(x, labels, np.ones(3), kernel)
    assert linear.variance <= 1.05 * exact.variance
    assert linear.tau_out <= 2.0 * exact.tau_out


def test_one_far_row_does_not_spoil_the_off_cluster_norm(rng):
    """Balls around centres would overlap; counting by distance does not care."""
    x, labels = clusters(rng, [40, 40], 2, 0.2, 5.0)
    x[0] = x[0] + 0.9 * (x[-1] - x[0]) + 2.0
    geometry = cluster_geometry(x, labels, np.ones(2), get_kernel("rbf"))
    balls = np.maximum(geometry.centre_distances()[0, 1] - geometry.radii.sum(), 0.0)
    assert geometry.off_cluster_norm(get_kernel("rbf")) < 0.5 * 40 * np.exp(-0.5 * balls**2)


def test_rows_that_face_each_other():
    """On a line, with half of each cluster at the near end, S12 is tight: the far half and the bins cost a factor.

    So far apart that a distance off by one bin or shell would show.
    """
    x = np.repeat([-1.0, 1.0, 21.0, 23.0], 10)[:, None]
    labels = np.repeat([0, 1], 20)
    kernel = get_kernel("rbf")
    exact = exact_inputs(x, labels, np.ones(1), kernel).tau_out
    linear = cluster_geometry(x, labels, np.ones(1), kernel).off_cluster_norm(kernel)
    assert exact * (1.0 - SLACK) <= linear <= 3.0 * exact


def test_norm_by_cells(rng):
    x = 4.0 * rng.standard_normal((500, 2))
    k = np.exp(-0.5 * squared_distances(x))
    bound, squares = cell_bounds(x, get_kernel("rbf"))
    assert norm(k) <= bound <= 3.0 * norm(k)
    assert (k**2).sum() <= squares <= 3.0 * (k**2).sum()


@pytest.mark.parametrize("chunk_size", [1, 7, 10**6])
def test_chunks_change_nothing(chunk_size, rng):
    x, labels = hostile("plain", rng)
    kernel = get_kernel("rbf")
    whole = cluster_geometry(x, labels, np.ones(x.shape[1]), kernel)
    parts = cluster_geometry(x, labels, np.ones(x.shape[1]), kernel, chunk_size=chunk_size)
    for field in ("sizes", "centres", "radii", "variances", "distance_sums", "square_sums"):
        np.testing.assert_allclose(getattr(parts, field), getattr(whole, field), rtol=1e-12, atol=1e-12)
    assert parts.off_cluster_norm(kernel) == pytest.approx(whole.off_cluster_norm(kernel), rel=0.1)  # bins may flip


@pytest.mark.parametrize("name", list(KERNELS))
def test_monotone_in_the_length_scales(name, rng):
    """Section on boxes: V, the deficits and distances fall with every length-scale; tau_out, norms and B grow."""
    x, labels = clusters(rng, [15, 12, 9], 3, 0.6, 2.5)
    kernel = get_kernel(name)
    scale = np.exp(rng.uniform(-0.3, 0.3, 3))
    previous = exact_inputs(x, labels, scale, kernel)
    for _ in range(6):
        ratio = np.exp(rng.uniform(0.0, 0.3, 3))
        scale = scale * ratio
        following = exact_inputs(x, labels, scale, kernel)
        for field in ("variance", "square_sum", "fourth_sum", "clipped", "diameter"):
            assert getattr(following, field) <= getattr(previous, field)
        for field in ("tau_out", "largest_square"):
            assert getattr(following, field) >= getattr(previous, field)
        assert np.all(following.norms >= previous.norms)
        assert np.all(following.deficits <= previous.deficits)
        box = box_inputs(previous, following)
        between = exact_inputs(x, labels, scale / np.exp(rng.uniform(0.0, 0.3, 3)).clip(max=ratio), kernel)
        for field in (*ABOVE, "matrix_variance"):
            for inside in (previous, between, following):
                assert getattr(box, field) >= getattr(inside, field) * (1 - 1e-8), field
        assert np.all(box.norms >= between.norms)
        previous = following


@pytest.mark.parametrize("name", list(KERNELS))
def test_variance_of_a_cosine_grows_with_the_distance(name):
    """For every kernel, so that V is largest at the lower end of a box."""
    kernel = get_kernel(name)
    s = np.geomspace(1e-6, 1e3, 4000)
    variance = 0.5 * (1.0 + kernel_values(kernel, 4.0 * s)) - kernel_values(kernel, s) ** 2
    assert np.all(np.diff(variance) >= -1e-12)
    w = np.minimum(1.0 - kernel_values(kernel, s), 0.75)
    assert np.all(variance <= 0.5 * w * (3.0 - 2.0 * w) + 1e-12)  # g of linear_inputs

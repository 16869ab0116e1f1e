"""Conditions 1 to 3, as printed and as corrected."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.cluster import KMeans

from prismgp import ConditionReport, check_conditions
from prismgp.complexity.formulas import condition_caps
from prismgp.complexity.inputs import exact_inputs
from prismgp.core.kernels import get_kernel
from prismgp.exceptions import DataError
from tests.complexity.data import clusters, condition_data, squared_distances


def by_name(checks) -> dict:
    """Checks by their names."""
    return {check.name: check for check in checks}


@pytest.fixture(scope="module")
def paper_data():
    return condition_data(12, 64, 2.0, 3)


def test_data_of_the_paper(paper_data):
    x, labels, _ = paper_data
    report = check_conditions(x, lengthscale=1.0, bound=2.0, labels=labels)
    assert isinstance(report, ConditionReport)
    assert report.holds
    assert all(check.holds and check.margin >= 1.0 for check in report.sufficient)
    assert by_name(report.printed)["1 clusters"].limit == pytest.approx(2 * math.log2(len(x)))
    assert by_name(report.printed)["3 separation"].limit == pytest.approx(math.sqrt(6 * math.log(len(x) / 2.0)))
    assert by_name(report.printed)["2 sizes"].holds
    assert [row.size for row in report.clusters] == sorted(np.bincount(labels))
    assert "applies" in report.conclusion


def test_measured_values_against_all_pairs(rng):
    """Worst places, by brute force."""
    x, labels = clusters(rng, [3, 5, 9], 2, 0.2, 5.0)
    scale = np.array([0.8, 1.5])
    report = check_conditions(x, lengthscale=scale, bound=1.0, labels=labels)
    s = squared_distances(x / scale)
    inside = (labels[:, None] == labels[None, :]) & ~np.eye(len(x), dtype=bool)
    k = np.exp(-0.5 * s)
    needed = by_name(report.sufficient)
    assert needed["in-cluster S_F"].measured == pytest.approx(math.sqrt((s[inside] ** 2).sum()))
    assert needed["in-cluster V"].measured >= 0.5 * ((1 - k[inside] ** 2) ** 2).sum() * (1 - 1e-9)
    exact = exact_inputs(x, labels, scale, get_kernel("rbf"))
    assert needed["off-cluster norm"].measured >= exact.tau_out * (1 - 1e-9)
    for c, row in enumerate(report.clusters):
        mine = labels == c  # sizes are in order
        block = s[mine][:, mine]
        pairs = mine.sum() * (mine.sum() - 1)
        assert row.spread == pytest.approx(math.sqrt((block**2).sum() / pairs))
        variances = x[mine].var(axis=0, ddof=1)
        assert row.width == pytest.approx(math.sqrt((variances * scale**2).mean()))  # gamma^2 Theta^-1, as printed
        means = np.stack([(x / scale)[labels == e].mean(0) for e in range(3)])
        distances = np.linalg.norm(means - means[c], axis=1)
        assert row.nearest == pytest.approx(np.sort(distances)[1])
        assert row.gap <= math.sqrt(s[mine][:, ~mine].min()) + 1e-9


@pytest.mark.slow
def test_corrected_conditions_suffice(rng):
    """Where the three corrected conditions hold, so does what the theorem uses."""
    seen = 0
    for seed in range(30):
        b = int(rng.integers(4, 11))
        x, labels, _ = condition_data(b, int(rng.integers(2, 100)), 1.0, seed)
        scale = float(np.exp(rng.uniform(-0.3, 0.3)))
        report = check_conditions(x, lengthscale=scale, bound=1.0, labels=labels)
        if all(check.holds for check in report.corrected):
            seen += 1
            assert report.holds
    assert seen > 3


def test_box(paper_data):
    """The box is where the conditions turn: inside they hold, just outside they do not."""
    x, labels, _ = paper_data
    report = check_conditions(x, lengthscale=1.0, bound=2.0, labels=labels)
    low, high = report.box_factors
    assert low < 1.0 < high
    np.testing.assert_allclose(report.box[0], low)
    np.testing.assert_allclose(report.box[1], high)
    for factor, holds in ((low * 0.999, False), (low * 1.001, True), (high * 0.999, True), (high * 1.01, False)):
        assert check_conditions(x, lengthscale=factor, bound=2.0, labels=labels).holds == holds, factor
    # Any length-scales inside, not only multiples of the given ones, and by all pairs.
    rng = np.random.default_rng(0)
    cap_variance, cap_norm = condition_caps()
    for _ in range(3):
        scale = np.exp(rng.uniform(math.log(low), math.log(high), x.shape[1]))
        exact = exact_inputs(x, labels, scale, get_kernel("rbf"))
        assert exact.tau_out <= 1.0
        assert exact.variance <= cap_variance
        assert math.sqrt(exact.square_sum) <= cap_norm
    # From outside, the report points to the same box.
    wide = check_conditions(x, lengthscale=3.0, bound=2.0, labels=labels)
    assert not wide.holds
    assert wide.box_factors[1] * 3.0 == pytest.approx(high, rel=1e-3)
    assert "it would for length-scales between" in wide.conclusion


def test_wrong_partition(rng):
    x = rng.standard_normal((200, 3))
    labels = rng.permutation(np.arange(200) % 5)
    report = check_conditions(x, lengthscale=1.0, bound=5.0, labels=labels)
    assert not report.holds
    assert not report.holds_printed
    assert report.box is None
    assert "no common factor" in report.conclusion


def test_margins_follow_the_length_scales(rng):
    """Larger length-scales: compacter clusters, smaller gaps."""
    x, labels = clusters(rng, [10, 20, 30], 3, 0.3, 6.0)
    reports = [check_conditions(x, lengthscale=t, bound=5.0, labels=labels) for t in (0.5, 1.0, 2.0)]
    for name, direction in (("in-cluster V", 1), ("in-cluster S_F", 1), ("off-cluster norm", -1)):
        margins = [by_name(report.sufficient)[name].margin for report in reports]
        assert np.all(direction * np.diff(margins) > 0), name


def test_one_cluster_and_single_rows():
    one = check_conditions([[0.0], [1e-3], [2e-3]], lengthscale=1.0, bound=1.0, labels=[0, 0, 0])
    assert one.holds
    assert one.box_factors[1] == math.inf
    single = check_conditions(20.0 * np.eye(6), lengthscale=1.0, bound=1.0, labels=np.arange(6))
    assert single.holds
    assert single.box_factors[0] == 0.0
    twins = check_conditions(np.zeros((8, 2)), lengthscale=1.0, bound=1.0)
    assert twins.n_clusters == 1
    assert twins.holds


def test_partition(rng):
    x, labels = clusters(rng, [40, 30, 20], 3, 0.01, 7.0)
    found = check_conditions(x, lengthscale=1.0, bound=2.0)
    assert found.partition_found
    assert found.holds
    assert found.n_clusters >= 3
    again = check_conditions(x, lengthscale=1.0, bound=2.0)
    np.testing.assert_array_equal(found.labels, again.labels)
    fixed = check_conditions(x, lengthscale=1.0, bound=2.0, n_clusters=3)
    assert len(np.unique(np.column_stack([fixed.labels, labels]), axis=0)) == 3  # the same clusters
    model = KMeans(3, n_init=4, random_state=0).fit(x)
    given = check_conditions(x, lengthscale=1.0, bound=2.0, labels=model)
    assert not given.partition_found
    assert given.to_dict()["sufficient"] == fixed.to_dict()["sufficient"]


@pytest.mark.slow
def test_more_rows_than_the_sample(rng):
    """Partitions are sought on a sample of the rows; every row gets a cluster."""
    x, _ = clusters(rng, [6000, 3000], 2, 1e-4, 9.0)
    report = check_conditions(x, lengthscale=1.0, bound=50.0)
    assert len(report.labels) == 9000
    assert by_name(report.sufficient)["off-cluster norm"].holds


def test_report(paper_data):
    x, labels, _ = paper_data
    report = check_conditions(x, lengthscale=1.0, bound=2.0, labels=labels)
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert json.loads(text)["holds"] is True
    for word in ("printed: 3 separation", "corrected: 1 widths", "needed: in-cluster V", "2^(i/2)"):
        assert word in repr(report)
    assert repr(report).splitlines()[-1] == report.conclusion
    json.dumps(check_conditions(np.zeros((3, 1)), lengthscale=1.0, bound=1.0).to_dict(), allow_nan=False)


def test_the_printed_theorem_needs_more_of_delta():
    """``delta >= exp(b - sqrt d)``: for eight clusters in the paper's four dimensions no probability is left."""
    x = 9.0 * np.repeat(np.eye(8, 4) + np.arange(8)[:, None], 2, 0)
    report = check_conditions(x, lengthscale=1.0, bound=1.0, labels=np.repeat(np.arange(8), 2))
    assert report.least_delta == pytest.approx(math.exp(6.0))
    assert "delta >= exp(b - sqrt d) = 403.4, so it is empty" in repr(report)
    wide = check_conditions(np.eye(2, 100), lengthscale=0.1, bound=1.0, labels=[0, 1])
    assert wide.least_delta == pytest.approx(math.exp(-8.0))
    assert "empty" not in repr(wide)


def test_wrong_arguments():
    x = np.zeros((4, 2))
    with pytest.raises(DataError, match="bound=4 is not below n=4"):
        check_conditions(x, lengthscale=1.0, bound=4)
    with pytest.raises(DataError, match="lengthscale has shape"):
        check_conditions(x, lengthscale=[1.0, 1.0, 1.0], bound=1.0)
    with pytest.raises(DataError, match="n_clusters=0"):
        check_conditions(x, lengthscale=1.0, bound=1.0, n_clusters=0)
    with pytest.raises(DataError, match="labels has shape"):
        check_conditions(x, lengthscale=1.0, bound=1.0, labels=[1, 2])
    with pytest.raises(DataError, match="missing value"):
        check_conditions([[math.nan]], lengthscale=1.0, bound=0.5)

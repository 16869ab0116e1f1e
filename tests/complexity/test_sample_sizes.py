"""Sample sizes: valid over many draws, silent where an assumption fails."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import stats
from sklearn.cluster import KMeans

from prismgp import SampleSizes, sample_size
from prismgp.complexity.formulas import entry_error, expansion_error
from prismgp.core.kernels import KERNELS, get_kernel
from prismgp.exceptions import DataError
from tests.complexity.data import approximation, clusters, norm, squared_distances

DRAWS = 400
DELTA = 0.2  # large, so that a bound that is wrong by a little shows
ALLOWED = int(stats.binom(DRAWS, DELTA).ppf(0.9999))  # failures of a bound that is just valid


def dense(x: np.ndarray, name: str) -> np.ndarray:
    """The exact kernel matrix, written out."""
    s = squared_distances(x)
    degrees = get_kernel(name).degrees
    if degrees is None:
        return np.exp(-0.5 * s)
    r = np.sqrt(degrees * s)
    return {1: 1.0, 3: 1.0 + r, 5: 1.0 + r + r * r / 3.0}[degrees] * np.exp(-r)


def draw(name: str, p: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Independent frequencies of a kernel: normal for rbf, Student's t for Matern."""
    degrees, normal = get_kernel(name).degrees, rng.standard_normal((p, d))
    return normal if degrees is None else normal * np.sqrt(degrees / rng.chisquare(degrees, (p, 1)))


CONFIGURATIONS = {
    # sizes, inputs, spread, distance, bound
    "compact": ([14, 10, 6, 1], 3, 0.15, 6.0, 0.6),
    "loose": ([16, 14], 2, 0.6, 8.0, 4.0),
    "wide": ([24], 4, 1.5, 0.0, 8.0),
    "one input": ([10, 10, 10], 1, 0.3, 7.0, 2.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("configuration", list(CONFIGURATIONS))
@pytest.mark.parametrize(("name", "exact_inputs"), [("rbf", False), *((name, True) for name in KERNELS)])
def test_every_bound_holds_as_often_as_stated(configuration, name, exact_inputs):
    """With p from each bound, the share of draws with |K - K'| > bound is at most delta."""
    sizes, d, spread, apart, bound = CONFIGURATIONS[configuration]
    x, labels = clusters(np.random.default_rng(5), sizes, d, spread, apart)
    k = dense(x, name)
    inside = labels[:, None] == labels[None, :]
    found = sample_size(
        bound=bound, delta=DELTA, X=x, labels=labels, lengthscale=1.0, kernel=name, exact_inputs=exact_inputs
    )
    checked = {}
    for record in found.bounds:
        assert record.holds == (record.p is not None)
        if record.holds:
            checked.setdefault(record.estimator, set()).add(record.p)
    assert checked["masked"]
    for estimator, numbers in checked.items():
        # The smallest is at risk; thousands of frequencies are far beyond what is needed here, and slow.
        p = min(numbers)
        if p > 1000:
            continue
        rng = np.random.default_rng(p)
        failures = 0
        for _ in range(DRAWS):
            error = k - approximation(x, draw(name, p, d, rng))
            failures += norm(np.where(inside, error, k) if estimator == "masked" else error) > bound
        assert failures <= ALLOWED, (estimator, p)


def test_far_fewer_frequencies_would_not_do():
    """The test above can fail: a thirtieth of p misses the bound in most draws."""
    sizes, d, spread, apart, bound = CONFIGURATIONS["wide"]
    x, labels = clusters(np.random.default_rng(5), sizes, d, spread, apart)
    p = sample_size(bound=bound, delta=DELTA, X=x, labels=labels, lengthscale=1.0).plain.p
    rng = np.random.default_rng(0)
    k = dense(x, "rbf")
    failures = sum(norm(k - approximation(x, draw("rbf", max(1, p // 30), d, rng))) > bound for _ in range(100))
    assert failures > 50


def test_relative_error():
    x = 1.5 * np.random.default_rng(1).standard_normal((20, 2))
    found = sample_size(bound=5.0, delta=DELTA, X=x, lengthscale=1.0, noise_variance=1.0).relative
    linear = sample_size(bound=5.0, delta=DELTA, X=x, lengthscale=1.0, noise_variance=1.0, exact_inputs=False).relative
    assert found.p <= linear.p
    k = dense(x, "rbf")
    values, vectors = np.linalg.eigh(k + np.eye(20))
    root = vectors / np.sqrt(values) @ vectors.T
    rng = np.random.default_rng(2)
    failures = sum(
        norm(root @ (k - approximation(x, rng.standard_normal((found.p, 2)))) @ root) > 0.5 for _ in range(DRAWS)
    )
    assert failures <= ALLOWED
    assert "Q = K + 1 I" in found.statement


def grid_of_scales(low: float, high: float, d: int, rng: np.random.Generator) -> np.ndarray:
    """Length-scales in a box: its corners' diagonal and random ones."""
    inside = np.exp(rng.uniform(np.log(low), np.log(high), (12, d)))
    return np.concatenate([np.full((1, d), low), np.full((1, d), high), inside])


@pytest.mark.slow
def test_simultaneous_entries():
    """S15: over a grid of length-scales no entry errs by more than eps, and |E| stays below the bound."""
    rng = np.random.default_rng(3)
    x = 6.0 * rng.standard_normal((15, 2))  # many length-scales wide: a bound for single entries would fail
    bound, low = 7.0, 0.8
    found = sample_size(bound=bound, delta=DELTA, X=x, labels=np.zeros(15), lengthscale=low, lengthscale_high=4.0)
    net = next(record for record in found.simultaneous if record.name == "uniform_net" and record.estimator == "plain")
    eps = entry_error(net.p, 2, math.sqrt(squared_distances(x / low).max()), DELTA)
    assert 14 * eps <= bound
    scales = grid_of_scales(low, 40.0, 2, rng)
    kernels = [dense(x / scale, "rbf") for scale in scales]
    failures = 0
    for _ in range(DRAWS):
        omega = rng.standard_normal((net.p, 2))
        errors = [k - approximation(x / scale, omega) for k, scale in zip(kernels, scales, strict=True)]
        entry = max(np.abs(error).max() for error in errors)
        failures += entry > eps
        assert max(norm(error) for error in errors) <= 14 * entry + 1e-12
    assert failures <= ALLOWED


@pytest.mark.slow
def test_simultaneous_expansion():
    """S16: over a grid of length-scales the masked matrix stays within the bound."""
    rng = np.random.default_rng(4)
    x, labels = clusters(rng, [12, 9, 5], 2, 0.05, 9.0)
    found = sample_size(bound=0.3, delta=DELTA, X=x, labels=labels, lengthscale=1.0, lengthscale_high=2.0)
    record = next(r for r in found.simultaneous if r.name == "uniform_expansion" and r.estimator == "masked")
    net = next(r for r in found.simultaneous if r.name == "uniform_net" and r.estimator == "masked")
    assert record.holds
    assert record.p < net.p / 100
    s = squared_distances(x)
    inside = labels[:, None] == labels[None, :]
    s2, s4 = math.sqrt((s[inside] ** 2).sum()), math.sqrt((s[inside] ** 4).sum())
    scales = grid_of_scales(1.0, 2.0, 2, rng)
    kernels = [dense(x / scale, "rbf") for scale in scales]
    promised = expansion_error(record.p, 2, s2, s4, DELTA)
    assert promised <= 0.3
    failures = above = 0
    for _ in range(DRAWS):
        omega = rng.standard_normal((record.p, 2))
        errors = [np.where(inside, k - approximation(x / t, omega), k) for k, t in zip(kernels, scales, strict=True)]
        failures += max(norm(error) for error in errors) > 0.3
        # The step without probability: the expansion, with the D and m_4 of this draw.
        second = np.linalg.norm(omega.T @ omega / record.p - np.eye(2), 2)
        fourth = max(3.0, (omega**2).sum(1).max() * np.linalg.norm(omega, 2) ** 2 / record.p)
        worst = max(np.linalg.norm(error[inside]) for error in errors)
        of_this_draw = 0.5 * second * s2 + fourth * s4 / 24
        assert worst <= of_this_draw + 1e-12
        above += of_this_draw > promised
    assert failures <= ALLOWED
    assert above <= ALLOWED  # and the step with it: D and m_4 are what S16 says


def test_box_covers_every_setting_inside(rng):
    x, labels = clusters(rng, [15, 12, 9], 3, 0.2, 6.0)
    for name in KERNELS:
        box = sample_size(bound=2.0, delta=0.1, X=x, labels=labels, lengthscale=0.9, lengthscale_high=1.2, kernel=name)
        for scale in (0.9, 1.0, 1.2, np.array([0.9, 1.1, 1.2])):
            one = sample_size(bound=2.0, delta=0.1, X=x, labels=labels, lengthscale=scale, kernel=name)
            for wide, narrow in zip(box.bounds, one.bounds, strict=True):
                assert wide.name == narrow.name
                # (S5) picks among pairs, of which the second is not monotone in V; both its numbers are valid.
                if wide.p is not None and wide.name != "bern_tight":
                    assert narrow.p <= wide.p + 1
        assert "in the box" in box.corrected.parameters


@pytest.mark.parametrize("exact_inputs", [True, False])
def test_overlapping_clusters_give_no_number(exact_inputs, rng):
    x = rng.standard_normal((60, 2))
    wrong = rng.permutation(np.arange(60) % 3)
    found = sample_size(bound=5.0, delta=0.1, X=x, labels=wrong, lengthscale=1.0, exact_inputs=exact_inputs)
    assert found.corrected.p is None
    assert not found.corrected.holds
    assert "clusters overlap" in found.corrected.reason
    assert all(record.p is None for record in found.bounds if record.estimator == "masked")
    assert found.plain.holds  # the plain matrix needs no partition
    assert found.best is found.plain
    with pytest.raises(DataError, match="no guaranteed number"):
        int(found.corrected)
    assert int(found.plain) == found.plain.p


@pytest.mark.parametrize("frequencies", ["orthogonal", "sobol", "auto"])
def test_only_independent_frequencies(frequencies, rng):
    x, labels = clusters(rng, [10, 8], 2, 0.1, 6.0)
    found = sample_size(
        bound=1.0, delta=0.1, X=x, labels=labels, lengthscale=1.0, frequencies=frequencies, noise_variance=0.1
    )
    assert not found.holds
    assert all(r.p is None for r in (*found.bounds, *found.simultaneous, found.relative))
    assert frequencies in found.corrected.reason
    assert "No number of frequencies is proved" in found.why
    assert sample_size(bound=1.0, delta=0.1, n=100, frequencies=frequencies).corrected.p is None


def test_only_the_rbf_kernel_where_it_was_used(rng):
    x, labels = clusters(rng, [10, 8], 2, 0.1, 6.0)
    found = sample_size(bound=1.0, delta=0.1, X=x, labels=labels, lengthscale=1.0, kernel="matern32")
    holds = {record.name for record in found.bounds if record.holds and record.estimator == "masked"}
    assert holds == {"markov", "bern_bounded", "bennett", "matrix_bernstein"}
    assert not any(record.holds for record in found.simultaneous)
    assumed = sample_size(bound=1.0, delta=0.1, n=100, kernel="matern32")
    assert assumed.corrected.p is None  # the caps are for the rbf kernel


def test_choice_among_draws(rng):
    """A union bound over the draws: each must succeed with probability 1 - delta / n_draws."""
    x, labels = clusters(rng, [10, 8], 2, 0.1, 6.0)
    four = sample_size(bound=0.3, delta=0.1, X=x, labels=labels, lengthscale=1.0, n_draws=4)
    strict = sample_size(bound=0.3, delta=0.025, X=x, labels=labels, lengthscale=1.0)
    assert [r.p for r in four.bounds] == [r.p for r in strict.bounds]
    assert four.corrected.probability == pytest.approx(0.9)
    assert "any one of 4 draws" in four.corrected.frequencies


def test_printed_is_never_a_guarantee():
    found = sample_size(bound=5.0, delta=0.1, n=1745, n_clusters=18)
    assert found.printed.p == 424
    assert not found.printed.holds
    assert found.printed.probability == pytest.approx(0.8)  # the paper has 1 - 2 delta
    assert sample_size(bound=2000.0, delta=0.1, n=1745).printed.p is None  # undefined from n on


def test_hypotheses_of_the_printed_number(rng):
    """Its delta, and that the paper's eight clusters hold 51 rows by Condition 2 and no more."""
    assert "delta >= O(exp(b - sqrt d))" in sample_size(bound=5.0, delta=0.1, n=1745, n_clusters=18).printed.assumptions
    found = sample_size(bound=1.0, delta=0.1, X=rng.normal(size=(60, 4)), lengthscale=1.0, labels=np.arange(60) % 8)
    assert any("exp(b - sqrt d) = 403.4, so it is empty" in each for each in found.printed.assumptions)
    assert "8 clusters of Condition 2 hold 51 rows, not 60" in found.printed.reason
    few = sample_size(bound=1.0, delta=0.1, X=rng.normal(size=(51, 4)), lengthscale=1.0, labels=np.arange(51) % 8)
    assert "Condition 2 hold" not in few.printed.reason


def test_without_data_few_clusters_cannot_hold_the_rows():
    found = sample_size(bound=5.0, delta=0.1, n=1745, n_clusters=4)
    assert found.corrected.p is None
    assert "hold 10 rows, not 1745" in found.corrected.reason
    assert found.plain.holds


def test_single_rows_and_duplicates(rng):
    x = 20.0 * np.eye(5)
    found = sample_size(bound=0.5, delta=0.1, X=x, labels=np.arange(5), lengthscale=1.0)
    assert found.corrected.p == 1
    twins = np.repeat(x, 4, axis=0)
    found = sample_size(bound=0.5, delta=0.1, X=twins, labels=np.repeat(np.arange(5), 4), lengthscale=1.0)
    assert found.corrected.p == 1
    one = sample_size(bound=0.5, delta=0.1, X=[[1.0]], lengthscale=1.0)
    assert one.corrected.p == one.plain.p == 1


@pytest.mark.parametrize("exact_inputs", [True, False])
def test_extreme_inputs(exact_inputs):
    """Nothing overflows, and no number is given that nobody could use."""
    x = np.random.default_rng(0).standard_normal((20, 2))
    for scale in (1e28, 1e-100):
        found = sample_size(
            bound=0.5, delta=0.01, X=scale * x, n_clusters=2, lengthscale=1.0, exact_inputs=exact_inputs
        )
        json.dumps(found.to_dict(), allow_nan=False)
    tiny = sample_size(bound=1e-9, delta=1e-12, X=x, lengthscale=1.0, exact_inputs=exact_inputs)
    assert not tiny.holds
    assert "no usable number" in tiny.plain.reason


def test_partition_is_found_or_taken(rng):
    x, labels = clusters(rng, [40, 30, 20], 3, 0.05, 7.0)
    given = sample_size(bound=1.0, delta=0.1, X=x, labels=labels, lengthscale=1.0)
    found = sample_size(bound=1.0, delta=0.1, X=x, lengthscale=1.0)
    again = sample_size(bound=1.0, delta=0.1, X=x, lengthscale=1.0)
    assert found.corrected.p <= given.corrected.p
    np.testing.assert_array_equal(found.labels, again.labels)
    model = KMeans(3, n_init=4, random_state=0).fit(x)
    assert sample_size(bound=1.0, delta=0.1, X=x, labels=model, lengthscale=1.0).n_clusters == 3
    assert sample_size(bound=1.0, delta=0.1, X=x, n_clusters=2, lengthscale=1.0).n_clusters == 2
    names = np.array(["a", "b", "c"])[labels]
    assert sample_size(bound=1.0, delta=0.1, X=x, labels=names, lengthscale=1.0).corrected.p == given.corrected.p


def test_units(rng):
    """Inputs and length-scales in the same units: rescaling both changes nothing."""
    x, labels = clusters(rng, [20, 15], 2, 0.3, 6.0)
    scale = np.array([1000.0, 0.01])
    first = sample_size(bound=1.0, delta=0.1, X=x, labels=labels, lengthscale=1.0)
    second = sample_size(bound=1.0, delta=0.1, X=x * scale, labels=labels, lengthscale=scale)
    assert [r.p for r in first.bounds] == [r.p for r in second.bounds]


def test_reports(rng):
    x, labels = clusters(rng, [20, 15], 2, 0.3, 6.0)
    found = sample_size(
        bound=1.0, delta=0.1, X=x, labels=labels, lengthscale=1.0, lengthscale_high=1.1, noise_variance=0.1, n_draws=4
    )
    assert isinstance(found, SampleSizes)
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["corrected"]["p"] == found.corrected.p
    for word in ("markov (S2)", "relative (S9)", "printed (S1)", "the best of 4 draws"):
        assert word in repr(found)
    assert repr(found).splitlines()[-1] == found.why
    json.dumps(sample_size(bound=1.0, delta=0.1, n=50).to_dict(), allow_nan=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bound": 0.0}, "bound=0.0 must be a number above 0"),
        ({"bound": "a"}, "bound='a' must be a number above 0"),
        ({"bound": math.nan}, "bound=nan"),
        ({"delta": 1.0}, "delta=1.0 must be a number above 0 and below 1"),
        ({"n_draws": 0}, "n_draws=0 must be an integer of at least 1"),
        ({"n_draws": 1.5}, "n_draws=1.5 must be an integer"),
        ({"n_clusters": True}, "n_clusters=True must be an integer"),
        ({"lengthscale": None}, "lengthscale is required with X"),
        ({"lengthscale": [1.0, 2.0, 3.0]}, "lengthscale has shape"),
        ({"lengthscale": -1.0}, "lengthscale must be finite and above 0"),
        ({"lengthscale": "wide"}, "lengthscale='wide' must be a number"),
        ({"lengthscale": 1e-200}, "rescale X"),
        ({"lengthscale_high": 0.5}, "lengthscale_high is below lengthscale"),
        ({"labels": [0, 1]}, "labels has shape"),
        ({"labels": [0.0, math.nan] * 5}, "labels holds NaN"),
        ({"kernel": "cubic"}, "kernel='cubic' is unknown"),
        ({"frequencies": "best"}, "frequencies='best' is unknown"),
        ({"noise_variance": -1.0}, "noise_variance=-1.0"),
        ({"exact_inputs": "maybe"}, "exact_inputs='maybe'"),
        ({"n": 11}, "n=11 but X has 10 rows"),
        ({"X": [[1.0, math.inf]]}, "column 1 holds inf"),
        ({"X": None}, "pass X, or n"),
        ({"X": None, "n": 10}, "need X"),
        ({"X": None, "n": 10, "lengthscale": None, "n_clusters": 11}, "above n=10"),
    ],
)
def test_wrong_arguments(changes, message):
    x = np.random.default_rng(0).standard_normal((10, 2))
    arguments = {"X": x, "bound": 1.0, "delta": 0.1, "lengthscale": 1.0} | changes
    with pytest.raises(DataError, match=message):
        sample_size(**arguments)

"""The adapters: every library really fits, and predicts an observation with its standard deviation."""

from __future__ import annotations

import json

import numpy as np
import pytest

from experiments.comparison.data import DATASETS, load, prepare
from experiments.comparison.entries import ENTRIES
from experiments.comparison.measure import measure
from experiments.comparison.peers import explain_absence, fit_function
from experiments.comparison.peers.scikit_learn import fit_features, median_distance
from experiments.scores import score

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of other libraries are theirs
NOISE = 0.1
# What a user may expect of each on smooth data with little noise; the linear one cannot follow it.
BARS = dict.fromkeys(ENTRIES, 0.3) | {
    "linear": 1.0,
    "trees": 0.5,
    "forest": 0.5,
    "catboost": 0.5,
    "lightgbm": 0.5,
    "ngboost": 0.5,
    "xgpr-2048": 0.5,
    "gpytorch-svgp-512": 0.5,
    "gpytorch-svgp-1024": 0.5,
}
SMALL = {
    "prism": {"max_steps": 30, "n_members": 1},
    "ssgp": {"n_frequencies": 32, "max_iter": 60},
    "sklearn-gpr": {"restarts": 0},
    "nystroem": {"components": 100},
    "rff": {"components": 100},
    "gpytorch-svgp": {"inducing": 40, "ways": (("natural", 0.03),), "steps": 300, "epochs": 1},
    "xgpr": {"features": 512, "tune_features": 256, "variance_features": 256},
    "gpboost": {"neighbours": 15},
    "trees": {"rounds": 200},
    "forest": {"trees": 50},
    "ngboost": {"rounds": 100},
}
# One of each kind: the others differ in size only.
TRIED = [
    "prism-32-one",
    "ssgp-64",
    "exact",
    "sklearn-gpr",
    "nystroem-512-validated",
    "rff-512-median",
    "trees",
    "forest",
    "catboost",
    "lightgbm",
    "ngboost",
    "linear",
    "gpytorch-exact",
    "gpytorch-svgp-512",
    "gpboost-matern",
    "gpboost-gaussian",
    "xgpr-2048",
]


def rows(n, seed, d=2):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    f = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1]
    return X, (f + NOISE * rng.standard_normal(n)) / 0.9


@pytest.mark.slow
@pytest.mark.usefixtures("short_local")
@pytest.mark.parametrize("name", TRIED)
def test_fits_and_knows_how_sure_it_is(name):
    entry = ENTRIES[name]
    if (why := explain_absence(entry.library)) is not None:
        pytest.skip(why)
    settings = {**entry.settings, **next((each for key, each in SMALL.items() if name.startswith(key)), {})}
    # The structured features of xGPR have too few directions where there are less than four or so inputs.
    d = 5 if name.startswith("xgpr") else 2
    X, y = rows(300, 0, d)
    X_new, y_new = rows(400, 1, d)
    timed = {"seconds": 60.0} if entry.timed else {}
    fitted = fit_function(entry.fit)(X, y, seed=0, **settings, **timed)
    mean, std = fitted.predict(X_new)
    assert mean.shape == std.shape == (400,)
    assert (std > 0).all()
    found = score(y_new, mean, std, 1.0)
    assert found["rmse"] < BARS[name]
    json.dumps(fitted.facts, allow_nan=False)
    if hasattr(fitted, "variants"):  # as returned, its standard deviations are in other units
        mean, std = fitted.variants(mean, std)["corrected"]
        found = score(y_new, mean, std, 1.0)
    assert 0.85 < found["coverage"] <= 1.0
    # Predictions do not depend on the rows beside them.
    np.testing.assert_allclose(fitted.predict(X_new[:7])[0], fitted.predict(X_new)[0][:7], rtol=1e-4, atol=1e-4)


def test_the_length_scale_is_chosen_by_held_out_density():
    X, y = rows(400, 2)
    fitted = fit_features(X, y, seed=0, kind="nystroem", components=100, factors=(0.02, 1.0))
    assert fitted.facts["lengthscale"] == pytest.approx(median_distance(X, 0))
    nlpd = {each["factor"]: each["held_out_nlpd"] for each in fitted.facts["tried"]}
    assert nlpd[1.0] < nlpd[0.02]


def test_parameters_of_some_rows_serve_all_of_them():
    pytest.importorskip("gpboost")
    from experiments.comparison.peers.gpboost_vecchia import fit_vecchia

    X, y = rows(600, 0)
    X_new, y_new = rows(400, 1)
    some, none = fit_vecchia(X, y, seed=0, learn_rows=150), fit_vecchia(X[:150], y[:150], seed=0)
    assert some.facts["learn_rows"] == 150
    error, fewer = (score(y_new, *each.predict(X_new), 1.0)["rmse"] for each in (some, none))
    assert error < fewer  # the other rows are conditioned on


@pytest.mark.parametrize("name", ["catboost", "lightgbm", "ngboost"])
def test_time_ends_boosting(name):
    entry = ENTRIES[name]
    if (why := explain_absence(entry.library)) is not None:
        pytest.skip(why)
    X, y = rows(300, 0)
    late, whole = (fit_function(entry.fit)(X, y, seed=0, seconds=limit, rounds=40) for limit in (0.0, 600.0))
    assert (late.facts["ended_by_time"], whole.facts["ended_by_time"]) == (True, False)
    assert (late.facts["trees"], whole.facts["trees"]) == (1, 40)
    assert np.isfinite(late.predict(X)).all()


@pytest.mark.slow
def test_time_ends_training():
    pytest.importorskip("gpytorch")
    from experiments.comparison.peers.gpytorch_exact import fit_exact
    from experiments.comparison.peers.gpytorch_svgp import fit_svgp

    X, y = rows(300, 0)
    fitted = fit_svgp(
        X, y, seed=0, seconds=1.0, inducing=20, ways=(("adam", 0.03), ("natural", 0.01)), trial_steps=3, steps=10**6
    )
    assert fitted.facts["ended_by_time"]
    assert fitted.facts["steps"] < 10**6
    assert fit_exact(X, y, seed=0, seconds=0.0).facts["ended_by_time"]


# -- data and measurement ------------------------------------------------------------------------


def test_everyone_gets_the_training_rows_units():
    found = prepare(load("simulated", 0), seed=0)
    assert found.X.shape == (DATASETS["simulated"].rows, DATASETS["simulated"].inputs)
    np.testing.assert_allclose(found.X.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(found.X.std(0), 1, atol=1e-9)
    assert found.y.mean() == pytest.approx(0, abs=1e-9)
    assert found.y.std() == pytest.approx(1)
    assert abs(found.X_test.mean()) < 0.1
    assert not np.allclose(found.y_test.mean(), 0, atol=1e-12)  # not standardised by itself
    few = prepare(load("simulated", 0), seed=0, quick=True)
    assert len(few.y) == len(few.y_test) == 400


def test_sizes_of_the_real_sets(data_folder):
    for name in ("energy", "concrete", "airfoil", "abalone"):
        found = load(name, 0)
        assert len(found.y_train) == pytest.approx(DATASETS[name].rows, abs=2)
        assert found.X.shape[1] == DATASETS[name].inputs


@pytest.mark.slow
def test_a_measurement_has_all_that_the_tables_need():
    order = {"dataset": "simulated", "split": 0, "quick": True, "memory": 2**33, "limit_seconds": 60.0, "device": "cpu"}
    found = measure({**order, "entry": "ssgp-64"})
    assert {"rmse", "mae", "nlpd", "coverage", "calibration", "nlpd_own", "facts", "settings"} <= set(found)
    assert found["nlpd_own"] == pytest.approx(found["nlpd"], abs=1e-6)  # one normal density
    assert found["nlpd_shaped"] != found["nlpd_own"]  # the simulated noise is not normal
    assert (found["rows"], found["rows_used"], found["test_rows"]) == (400, 400, 400)
    assert found["fit_seconds"] > 0
    assert 0 <= found["fit_peak_bytes"] < found["peak_bytes"]
    json.dumps(found, allow_nan=False)
    # Memory for a third of the rows: the entry gets as many as fit.
    few = measure({**order, "entry": "rff-512-median", "memory": ENTRIES["rff-512-median"].memory(150, 18)})
    assert few["rows_used"] == 150

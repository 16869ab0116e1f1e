"""Networks trained on rows that stay on the workers, certificates of such rows, and lost workers."""

from __future__ import annotations

import os
import signal
import threading

import dask.array as da
import numpy as np
import pytest

from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp.data import from_parquet
from prismgp.prism.training_rows import RowsOnWorkers

INPUTS = ["a", "b", "c"]
pytestmark = pytest.mark.usefixtures("short_local", "short_race")


@pytest.fixture
def stay_on_workers(monkeypatch):
    """As with many rows: none are collected for the networks, and windows are short."""
    monkeypatch.setattr("prismgp.data.sources.KEPT_BYTES", 0)
    monkeypatch.setattr("prismgp.prism.training_rows.MOST_STEPS", 4)


@pytest.fixture
def fetches(monkeypatch):
    """Of rows from the workers: their number, and whether the training had to wait for them."""
    fetch, seen = RowsOnWorkers.fetch, []

    def watched(self, index):
        seen.append((len(index), threading.current_thread() is threading.main_thread()))
        return fetch(self, index)

    monkeypatch.setattr(RowsOnWorkers, "fetch", watched)
    return seen


def make_model(**options):
    settings = {"n_members": 2, "max_steps": 26, "hidden": 8, "latent_dim": 2, "batch_size": 32, "max_iter": 3}
    return PrismGPRegressor(4, random_state=0, lengthscale=1.0, **{**settings, **options})


def assert_same_fit(found, expected, x):
    for name in ("step", "evidence", "validation_nlpd"):
        np.testing.assert_allclose(found.history_[name], expected.history_[name], rtol=1e-6)
    for ours, theirs in zip(found.predict(x, return_std=True), expected.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert found.fit_status_["weights"] == pytest.approx(expected.fit_status_["weights"], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_batches_come_from_the_workers(weighted, frame, stay_on_workers, fetches):
    """In threads, as on a cluster; the networks are those of rows in memory."""
    x, y = frame[INPUTS].to_numpy(), frame["y"].to_numpy()
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(x)) if weighted else None
    expected = make_model().fit(x, y, weight)
    assert not fetches
    far = [None if each is None else da.from_array(each, chunks=150) for each in (x, y, weight)]
    assert_same_fit(make_model().fit(*far), expected, x)
    # Only the held-out rows are waited for: all batches, and the rows of the checks, were foreseen.
    assert [waited for _, waited in fetches] == [True] + [False] * (len(fetches) - 1)
    assert len(fetches) > 26 / 4
    # Two members, four steps and a check in a window, whose rows are at most all that are not held out.
    assert max(count for count, _ in fetches[1:-1] if count < 540) <= 4 * 2 * 32


@pytest.mark.slow
def test_a_sample_of_the_rows_stays_on_the_workers(frame, stay_on_workers, monkeypatch):
    monkeypatch.setattr("prismgp.prism.fit.TRAINING_ROWS", 200)
    x, y = frame[INPUTS].to_numpy(), frame["y"].to_numpy()
    options = {"n_members": 1, "max_steps": 6, "local": "never"}
    expected = make_model(**options).fit(x, y)
    found = make_model(**options).fit(da.from_array(x, chunks=(90, 3)), da.from_array(y, chunks=90))
    assert found.fit_status_["held_out_rows"] == expected.fit_status_["held_out_rows"] == 20
    assert_same_fit(found, expected, x)


@pytest.mark.slow
def test_a_worker_killed_while_networks_are_trained(folder, client, stay_on_workers, monkeypatch):
    """The rows that it held are loaded again, and nothing changes."""
    monkeypatch.setattr("prismgp.data.dask.SHARD_ROWS", 300)
    fetch, count, fatal = RowsOnWorkers.fetch, 0, 0

    def deadly(self, index):
        nonlocal count
        count += 1
        if count == fatal:
            os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
        return fetch(self, index)

    monkeypatch.setattr(RowsOnWorkers, "fetch", deadly)

    def results():
        nonlocal count
        count = 0
        source = from_parquet(folder, "y", client=client)
        model = make_model(max_steps=10, n_members=1, local="never", optimize=False).fit(source)
        assert count > 2
        return model.history_["validation_nlpd"], model.log_evidence_, model.predict(source)

    undisturbed = results()
    fatal = 2
    for ours, theirs in zip(results(), undisturbed, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    client.wait_for_workers(2, timeout=60)  # for other tests


def test_certificates_of_rows_on_workers(frame):
    x, y = frame[INPUTS].to_numpy()[:200], frame["y"].to_numpy()[:200]
    model = SSGPRegressor(8, random_state=0, optimize=False).fit(x, y)
    far = da.from_array(x, chunks=(60, 3)), da.from_array(y, chunks=60)
    expected, found = model.certify(x, y, x[50:80], random_state=0), model.certify(*far, far[0][50:80], random_state=0)
    assert found.holds
    assert found.rows == 200
    for name in ("mean", "variance", "kernel_error", "log_evidence"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        np.testing.assert_allclose([ours.lower, ours.upper], [theirs.lower, theirs.upper], rtol=1e-9)

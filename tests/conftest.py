"""Settings for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import prismgp
from tests import short

# A shell's background jobs ignore Ctrl-C, and what they start does too; tests of interrupts need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Test processes run side by side; the deadline would measure the machine, not the code.
settings.register_profile("prismgp", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("prismgp")

# Folders whose tests need fitted models, and do not ask how good they are.
USE_FITS = {"active", "certificates", "cli", "data", "model", "plots", "report"}

# A source checkout may have a folder shared/data beside it; the package itself knows only the variable.
_NEIGHBOUR = Path(__file__).resolve().parents[2] / "shared" / "data"
if not os.environ.get("PRISMGP_DATA") and _NEIGHBOUR.is_dir():
    os.environ["PRISMGP_DATA"] = str(_NEIGHBOUR)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests use the first seed; the others are for the night."""
    for item in items:
        seed = item.callspec.params.get("rng") if hasattr(item, "callspec") else None
        if seed in (1, 2) and item.get_closest_marker("slow"):
            item.add_marker("nightly")


@pytest.fixture(params=[0, 1, 2])
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A test with this fixture must hold for every seed."""
    return np.random.default_rng(request.param)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real data sets, or a skip that says so."""
    folder = prismgp.datasets.data_folder()
    if folder is None:
        pytest.skip("real data sets are absent: set PRISMGP_DATA to the folder that holds them")
    return folder


@pytest.fixture
def short_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding a good start takes most of the time of a fit to few rows; for tests of something else."""
    short.race(monkeypatch)


@pytest.fixture
def short_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not ask how well PrismGP's neighbours are learned."""
    short.local(monkeypatch)


@pytest.fixture(scope="module")
def short_fits() -> Iterator[None]:
    """Both of these, for all tests of a module and for the fits they share."""
    with pytest.MonkeyPatch.context() as patch:
        short.race(patch)
        short.local(patch)
        yield


@pytest.fixture(scope="module", autouse=True)
def short_fits_by_folder(request: pytest.FixtureRequest) -> None:
    if USE_FITS & set(request.path.parts):
        request.getfixturevalue("short_fits")


@pytest.fixture
def small_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short fits of estimators that are constructed without arguments."""
    short.defaults(monkeypatch)

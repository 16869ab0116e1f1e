"""Nothing in these tests reaches another machine, or the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.datasets.server import Site, serving


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and no way out."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("PRISMGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("prismgp.datasets.cache.RETRIES", 1)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between attempts
    return tmp_path / "cache"


@pytest.fixture
def own_folder(tmp_path, monkeypatch) -> Path:
    """An empty data folder of the user's own."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("PRISMGP_DATA", str(folder))
    return folder


@pytest.fixture
def real(data_folder, monkeypatch) -> Path:
    """The real files."""
    monkeypatch.setenv("PRISMGP_DATA", str(data_folder))
    return data_folder


@pytest.fixture
def site():
    """A running server with 100,000 bytes."""
    with serving(Site(content=bytes(range(250)) * 400)) as site:
        yield site

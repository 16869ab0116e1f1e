"""Links to the documentation in scikit-learn's HTML view."""

from __future__ import annotations

import pytest

from prismgp import Reconfigurer, SpectralFeatures, SSGPRegressor
from prismgp.estimators import documented


class Metadata:
    def __init__(self, links):
        self.links = links

    def get_all(self, name):
        assert name == "Project-URL"
        return self.links


@pytest.fixture
def installed(monkeypatch):
    def install(*links):
        documented._documentation_url.cache_clear()
        monkeypatch.setattr(documented.metadata, "metadata", lambda _: Metadata(list(links) or None))

    yield install
    documented._documentation_url.cache_clear()


@pytest.mark.parametrize("estimator", [SSGPRegressor(), Reconfigurer(), SpectralFeatures()], ids=repr)
def test_links(installed, estimator):
    installed("Source, https://example.org/code", "Documentation, https://example.org/docs/")
    link = f"https://example.org/docs/api/prismgp.{type(estimator).__name__}.html"
    assert estimator._get_doc_link() == link
    view = estimator._repr_html_()
    assert f'href="{link}"' in view
    assert f"Documentation for {type(estimator).__name__}" in view


def test_without_an_address_there_is_no_link(installed):
    installed("Source, https://example.org/code")
    assert SSGPRegressor()._get_doc_link() == ""
    installed()
    assert "Documentation for SSGPRegressor" not in SSGPRegressor()._repr_html_()


def test_not_installed(installed, monkeypatch):
    installed()

    def missing(_):
        raise documented.metadata.PackageNotFoundError

    monkeypatch.setattr(documented.metadata, "metadata", missing)
    assert SSGPRegressor()._get_doc_link() == ""

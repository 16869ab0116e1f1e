"""Fits that many tests look at."""

from __future__ import annotations

import pytest

from tests.prism.small import data, has_members, model


@pytest.fixture(scope="session")
def fitted():
    """A joint fit whose mixture holds members, the plain SSGP, and that with learned noise; not to be changed."""
    x, y = data()
    fit = model().fit(x, y)
    assert len(fit._mixture.experts) == 4
    return fit, x, y


@pytest.fixture(scope="session")
def fitted_two():
    """The same with two outputs."""
    x, y = data(q=2)
    fit = model().fit(x, y)
    assert has_members(fit)
    return fit, x, y

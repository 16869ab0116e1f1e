"""The sample page, made once."""

from __future__ import annotations

import pytest

from experiments.page import to_html

from . import sample


@pytest.fixture(scope="session")
def html() -> str:
    return to_html(sample.page())

"""What pages are made of: tables, best cells, certificates in words."""

from __future__ import annotations

import json

import numpy as np
import pytest

from prismgp.certificates import Certificate, certificate_lines
from prismgp.exceptions import DataError
from prismgp.report import Table, certificate_section
from prismgp.report.content import paragraphs

from . import sample


@pytest.mark.parametrize(
    "cells",
    [
        ["1", "-2.5", "+3", "\u22124"],
        ["1,234.5", "1.2e-05", "-"],
        ["0.412 ± 0.003", "95.1%", "n/a"],
        ["12.4 s", "3 GB", "1.7\u00d7"],
        ["< 0.01", "0.2 (best of 3)", "1 to 4"],
    ],
)
def test_numbers_are_aligned_to_the_right(cells: list[str]) -> None:
    assert Table("", ["a", "b"], [["x", cell] for cell in cells]).numeric_columns == {1}


@pytest.mark.parametrize("cells", [["1", "two"], ["3 of 4 sets"], ["-", ""], ["p = 64"], ["2026-01-01"]])
def test_words_are_not(cells: list[str]) -> None:
    assert Table("", ["a", "b"], [["x", cell] for cell in cells]).numeric_columns == set()


def test_the_first_column_is_a_name_unless_told() -> None:
    rows = [["16", "1"], ["32", "2"]]
    assert Table("", ["p", "b"], rows).numeric_columns == {1}
    assert Table("", ["p", "b"], rows, numeric=frozenset({0})).numeric_columns == {0}


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(DataError, match=r"'T': row 1 has 1 cells, but the header has 2"):
        Table("T", ["a", "b"], [["1", "2"], ["1"]])
    with pytest.raises(DataError, match="1 groups for 2 rows"):
        Table("T", ["a"], [["1"], ["2"]], groups=["x"])


def test_paragraphs() -> None:
    assert paragraphs("one\ntwo\n \n\nthree\n") == ["one two", "three"]
    assert paragraphs(" \n ") == []


# -- certificates --------------------------------------------------------------------------------


def test_a_certificate_survives_json() -> None:
    found = sample.certificate()
    assert found.mean is not None
    found.mean.upper[1] = np.inf
    again = Certificate.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.mean is not None
    assert np.isinf(again.mean.upper[1])
    assert again.to_dict() == found.to_dict()
    assert again.summary() == found.summary()
    assert repr(again) == repr(found)


def test_a_section_says_what_the_command_prints() -> None:
    found = sample.certificate()
    section = certificate_section(json.loads(json.dumps(found.to_dict())))
    assert section.notice is not None
    # A distance, not a mark: no colour praises it.
    assert section.notice.tone == "note"
    assert section.notice.title == (
        "The exact GP's mean is within 5% of the noise std of this model's at half of the 3 test points, "
        "within 10% of it at 95%."
    )
    assert "with probability 0.99" in section.notice.text
    assert found.statement in section.notice.text
    lines = certificate_lines(found)
    assert section.facts[1 : len(lines)] == lines[1:]
    assert (
        dict(lines)["Typical mean"]
        == "within 5% of the noise std at 50% and 10% of the noise std at 95% of the test points"
    )
    assert [row[0] for row in section.tables[0].rows] == ["member 0", "member 1"]
    assert section.tables[0].rows[0][1:] == ["0.02", "0.0213", "5", "0.9"]


def test_certain_intervals_need_no_probability() -> None:
    section = certificate_section(sample.certificate(probability=1.0).to_dict())
    assert section.notice is not None
    assert "without any randomness" in section.notice.text


def test_a_failed_certificate_leads_with_the_reason_and_has_no_numbers() -> None:
    section = certificate_section(sample.certificate(holds=False, reason="rounding spoils it", members=()).to_dict())
    assert section.notice is not None
    assert (section.notice.tone, section.notice.title) == ("bad", "This certificate does not hold.")
    assert section.notice.text.startswith("Rounding spoils it. Nothing is certified")
    assert [subject for subject, _ in section.facts] == ["Training rows", "Compared with", "Does not hold"]


@pytest.mark.parametrize("broken", [{}, {"name": "x"}, {"mean": 3}, {"rows": None}, {"mean": {"lower": "x"}}])
def test_what_is_no_certificate_is_refused(broken: dict) -> None:
    whole = sample.certificate().to_dict()
    with pytest.raises(DataError, match=r"not a certificate: .*; store what Certificate.to_dict\(\) gives"):
        certificate_section(broken if "rows" not in broken and "mean" not in broken else {**whole, **broken})

"""Names and cells that are formulas or HTML: reported, escaped, and never part of a page's own code."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

import prismgp
from prismgp.cli import main
from tests.cli.conftest import Run

EVIL = "<script>alert('x')</script>"
NAMES = [f"a{EVIL}", "=cmd|'/c calc'!A1", "<img src=x onerror=alert(1)>"]
CELLS = ["=1+1", "<b>bold</b>", "@SUM(1)"]


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table with names and categories of that kind, and a model of it."""
    folder, rng = tmp_path_factory.mktemp("evil"), np.random.default_rng(0)
    x, k = rng.normal(size=(60, 2)), rng.choice(CELLS, 60)
    table = pd.DataFrame({NAMES[0]: x[:, 0], NAMES[1]: x[:, 1], NAMES[2]: k, "y<i>": x[:, 0] + (k == CELLS[0])})
    table.to_csv(folder / "d.csv", index=False)
    argv = ["fit", folder / "d.csv", "-t", "y<i>", "--model", "ssgp", "-p", 4, "-q", "-o", folder / "m.prism"]
    assert main([str(each) for each in argv]) == 0
    return folder


@pytest.mark.parametrize("command", ["predict", "suggest"])
def test_formulas_are_reported_or_escaped(run: Run, evil: Path, tmp_path: Path, command: str) -> None:
    argv = [command, evil / "m.prism", evil / "d.csv", "-q", "-o", tmp_path / "o.csv"]
    found = run(*argv)
    assert found.code == 0
    assert found.err.startswith("prismgp: warning: the output holds text that spreadsheets take for formulas, in =cmd")
    assert found.err.endswith("give --escape-formulas\n")
    assert found.err.count("\n") == 1
    plain = pd.read_csv(tmp_path / "o.csv")
    assert set(NAMES) <= set(plain.columns)
    assert set(plain[NAMES[2]]) <= set(CELLS)
    found = run(*argv, "--escape-formulas")
    assert (found.code, found.err) == (0, "")
    escaped = pd.read_csv(tmp_path / "o.csv")
    assert f"'{NAMES[1]}" in escaped.columns
    assert set(escaped[NAMES[2]]) <= {"'=1+1", "<b>bold</b>", "'@SUM(1)"}
    assert not [name for name in escaped.columns if name.startswith(("=", "+", "-", "@"))]
    found = run(*argv[:-1], tmp_path / "o.parquet")  # whose cells have types
    assert (found.code, found.err) == (0, "")


class _Tags(HTMLParser):
    """The elements of a page, and the images inside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")], (tag, attrs)
        self.images += [str(value) for name, value in attrs if name == "src"]


def check_page(html: str) -> _Tags:
    page = _Tags()
    page.feed(html)
    assert "script" not in page.tags
    assert "b" not in page.tags
    for image in page.images:
        kind, _, data = image.partition(";base64,")
        assert kind == "data:image/svg+xml"
        check_svg(base64.b64decode(data))
    return page


def check_svg(data: bytes) -> None:
    for element in ET.fromstring(data).iter():
        assert not re.search(r"\}(script|img|b|foreignObject)$", str(element.tag)), element.tag
        assert not [name for name in element.attrib if name.lower().startswith("on")]


@pytest.mark.slow
def test_names_and_categories_are_text_on_a_page(evil: Path, tmp_path: Path, run: Run) -> None:
    assert (
        run("report", evil / "m.prism", evil / "d.csv", "-q", "--no-certificate", "-o", tmp_path / "r.html").code == 0
    )
    html = (tmp_path / "r.html").read_text(encoding="utf-8")
    page = check_page(html)
    assert len(page.images) > 2
    assert "&lt;script&gt;" in html


def test_certificates(evil: Path, tmp_path: Path, run: Run) -> None:
    figure = tmp_path / "c.svg"
    found = run("certify", evil / "m.prism", evil / "d.csv", "--products", 2, "--figure", figure, "-q")
    assert found.code in (0, 1)
    check_svg(figure.read_bytes())
    model = prismgp.load(evil / "m.prism")
    table = pd.read_csv(evil / "d.csv")
    certificate = model.certify(table.drop(columns="y<i>"), table["y<i>"], products=2, random_state=0)
    check_page(certificate._repr_html_())

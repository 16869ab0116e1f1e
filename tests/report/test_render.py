"""HTML: self-contained, escaped, in order, the same for the same page."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import pytest

from prismgp.report import Figure, Highlight, Notice, Page, Section, Table, render, to_html

from . import sample

EVIL = """<script>alert('1')</script>"><img src=x onerror="alert(2)"> & {{ 7 * 7 }}"""
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'


class Elements(HTMLParser):
    """Names and attributes of all elements, and the text outside of styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def named(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.all if tag in tags]


def evil_page() -> Page:
    table = Table(EVIL, [EVIL, EVIL], [[EVIL, EVIL]], note=EVIL, lost=frozenset({0}), lost_label=EVIL)
    figure = Figure(f"<svg>{EVIL}</svg>", EVIL, EVIL)
    section = Section(EVIL, EVIL, [table], [figure], Notice(EVIL, title=EVIL), [(EVIL, EVIL)])
    return Page(EVIL, EVIL, [section] * 4, {EVIL: EVIL}, [Highlight(EVIL, EVIL, EVIL)], [table], [figure], Notice(EVIL))


def test_everything_is_escaped() -> None:
    found = Elements(to_html(evil_page()))
    assert not found.named("script")
    assert len(found.named("img")) == 5
    assert all(set(each) == {"src", "alt"} and str(each["src"]).startswith("data:") for each in found.named("img"))
    assert not [name for _, attributes in found.all for name in attributes if name.startswith("on")]
    assert found.text.count("{{ 7 * 7 }}") > 40
    assert all(re.fullmatch(r"[a-z0-9-]+", each["id"] or "") for _, each in found.all if "id" in each)


def test_nothing_is_fetched_and_nothing_runs(html: str) -> None:
    found = Elements(html)
    assert not found.named("script", "link", "iframe", "object", "embed", "form", "base")
    for _, attributes in found.all:
        for name in {"src", "href", "srcset", "style", "background"} & set(attributes):
            value = attributes[name] or ""
            assert name in {"src", "href"}
            assert value.startswith(("data:image/svg+xml;base64,", "#"))
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "://" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", html)


def test_the_policy_forbids_the_rest(html: str) -> None:
    (policy,) = [each for each in Elements(html).named("meta") if each.get("http-equiv")]
    assert policy["http-equiv"] == "Content-Security-Policy"
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy["content"]).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert rules["style-src"] == "'unsafe-inline'"
    assert "script-src" not in rules
    assert html.index("Content-Security-Policy") < html.index("<style>")


def test_equal_pages_are_equal_bytes(html: str, tmp_path: Path) -> None:
    render(sample.page(), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == html
    assert len(html) < 1_000_000  # the scatter of 4,000 points is pixels


def test_landmarks_headings_and_tables(html: str) -> None:
    found = Elements(html)
    assert html.startswith("<!doctype html>")
    assert found.named("html")[0]["lang"] == "en"
    for tag in ("main", "header", "nav", "h1", "title", "footer"):
        assert len(found.named(tag)) == 1, tag
    levels = [int(tag[1]) for tag, _ in found.all if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(found.named("caption")) == len(found.named("table")) == 3
    assert all(each.get("scope") in {"col", "row"} for each in found.named("th"))
    assert all(each.get("alt") for each in found.named("img"))
    ids = [each["id"] for _, each in found.all if "id" in each]
    assert len(ids) == len(set(ids))
    assert {str(each["href"])[1:] for each in found.named("a")} <= set(ids)
    assert found.named("a")[0] == {"class": "skip", "href": "#content"}


@pytest.mark.parametrize(("sections", "there"), [(3, 0), (4, 1)])
def test_contents_for_more_than_three_sections(sections: int, there: int) -> None:
    found = Elements(to_html(Page("T", "s", [Section("Same title")] * sections)))
    assert len(found.named("nav")) == there
    assert [each["id"] for each in found.named("h2")][:2] == ["s-same-title", "s-same-title-2"]


def test_best_and_lost_are_said_in_words_too() -> None:
    table = Table("T", ["a", "b"], [["x", "1"], ["y", "2"]], best=frozenset({(0, 1)}), lost=frozenset({1}), groups="ab")
    html = to_html(Page("T", "s", tables=[table]))
    assert '<td class="number best">1<span class="hidden"> (best)</span></td>' in html
    assert '<span class="hidden"> (another library wins here)</span></th>' in html
    assert '<tr class="group lost">' in html
    assert "best of its group" in html


def test_the_drawing_arrives_unchanged() -> None:
    html = to_html(Page("T", "s", figures=[Figure(SVG, "c", "a")]))
    (source,) = re.findall(r"base64,([^\"]+)", html)
    assert base64.b64decode(source).decode() == SVG


def test_a_page_of_tables_and_figures_alone() -> None:
    """What a small script gives."""
    html = to_html(Page("T", "s", tables=[Table("C", ["a"], [["1"]])], figures=[], made_by={"command": "c"}))
    assert "<caption>C</caption>" in html
    assert "<dt>command</dt><dd>c</dd>" in html
    assert "<footer" not in to_html(Page("T", "s"))


# -- contrast ------------------------------------------------------------------------------------


def palettes() -> dict[str, dict[str, str]]:
    """The colours of the style sheet, by mode."""
    style = (files("prismgp.report") / "style.css").read_text(encoding="utf-8")
    blocks = [
        dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6,8});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.S)
    ]
    light, dark, printed = blocks
    return {"light": light, "dark": {**light, **dark}, "print": {**light, **printed}}


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, contrast ratio."""
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def test_the_formula() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("mode", ["light", "dark", "print"])
def test_text_can_be_read(mode: str) -> None:
    """At least 4.5 to 1, level AA for text of any size."""
    colours = palettes()[mode]
    on_pages = [(text, paper) for text in ("ink", "quiet", "link", "bad") for paper in ("paper", "soft")]
    own = [(name, f"{name}-paper") for name in ("best", "good", "bad", "note")]
    for text, paper in [*on_pages, *own]:
        assert contrast(colours[text], colours[paper]) >= 4.5, (mode, text, paper)

"""What a certificate says in words is what it has proved."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from prismgp.certificates import Certificate, Interval


def certificate(half, noise, **changes):
    """A certificate whose only content is a mean, known to ``half`` around the model's own."""
    half, ours = np.asarray(half, dtype=float), np.zeros(len(half))
    settings = {
        "name": "a model",
        "statement": "the exact GP",
        "rows": 10,
        "kernel_error": None,
        "kernel_error_frobenius": None,
        "log_evidence": None,
        "mean": Interval(ours - half, ours + half, 1.0, "made up", ours),
        "variance": None,
        "noise_variance": np.square(noise),
        "probability": 1.0,
        "holds": True,
        "reason": "",
        "assumptions": (),
        "spent": {"rank": 1, "products": 0, "seconds": 0.0},
    }
    return Certificate(**{**settings, **changes})


def test_the_largest_difference_is_that_of_all_points():
    """In absolute terms it is the second point's, against the noise the first one's."""
    text = dict(certificate([0.1, 0.2], [0.01, 10.0]).summary())["predicted mean"]
    assert "within 0.2 of ours, 10 times the noise std, at every one of 2 test points" in text


def test_one_point():
    text = dict(certificate([0.1], [10.0]).summary())["predicted mean"]
    assert "within 0.1 of ours, 1% of the noise std, at the test point;" in text


def test_amounts_and_ranges():
    """Large amounts have no exponent; a range whose ends print the same is one number."""
    lines = dict(certificate([54_231.2], [1e6], kernel_error=Interval(90.501, 90.502, 1.0, "made up")).summary())
    assert "within 54,231 of ours" in lines["predicted mean"]
    assert lines["kernel matrix"] == "|K - K'| is 90.5 for 10 rows"
    lines = dict(certificate([1.0], [1.0], kernel_error=Interval(90.5, 91.5, 1.0, "made up")).summary())
    assert lines["kernel matrix"] == "|K - K'| is in [90.5, 91.5] for 10 rows"


@pytest.mark.parametrize("half", [[np.inf], [0.1, np.inf]])
def test_nothing_is_said_of_what_is_not_known(half):
    text = dict(certificate(half, np.ones(len(half))).summary())["predicted mean"]
    assert text.startswith("nothing is known")


def test_what_does_not_hold_has_no_numbers():
    lines = dict(certificate([0.1], [1.0], holds=False, reason="rounding").summary())
    assert lines == {"compared with": "the exact GP", "does not hold": "rounding"}


# -- HTML --------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags that are open, all tags with their attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] != "style":
            self.words.append(data)


def test_html_is_self_contained_and_escaped():
    evil = "<script>alert('x')</script> & \"quotes\""
    member = certificate([0.1], [1.0], name=f"member, {evil}", holds=False, reason=evil)
    made = certificate([0.1], [1.0], name=evil, statement=evil, assumptions=(evil, "two"), members=(member,))
    page = Page(made._repr_html_())
    assert not page.open
    names = [tag for tag, _ in page.tags]
    assert names.count("style") == 1
    assert not {"script", "link", "img", "a", "iframe"} & set(names)
    assert names.count("details") == 2
    assert not any(name.startswith("on") or name in ("src", "href") for _, found in page.tags for name in found)
    assert "url(" not in made._repr_html_()
    assert "@import" not in made._repr_html_()
    text = "".join(page.words)
    assert text.count(evil) >= 5
    for subject, sentence in made.summary():
        assert subject in page.words
        assert sentence in page.words
    assert "holds" in page.words
    assert "does not hold" in page.words


def test_html_takes_the_colours_of_the_page():
    """No colour of its own, so that it can be read on any background; rules apply to nothing else."""
    style = certificate([0.1], [1.0])._repr_html_().split("<style>")[1].split("</style>")[0]
    rules = re.sub(r"/\*.*?\*/|@container[^{]*\{", "", style, flags=re.S)
    colours = re.findall(r"(?<![-\w])(?:color|background)\s*:\s*([^;}]+)", rules)
    assert set(colours) == {"inherit", "transparent"}
    assert not re.search(r"#[0-9a-f]{3}", rules)
    selectors = [each.strip() for rule in re.findall(r"([^{}]+)\{", rules) for each in rule.split(",")]
    assert all(each.startswith(".prismgp-certificate") for each in selectors)
    assert "@container (max-width" in style

"""The page in a real browser: nothing overflows, nothing is broken, dark and print work."""

from __future__ import annotations

import html as markup
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome is installed"),
]

WIDTHS = (360, 390, 768, 1280)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
]

# Around the unchanged page: frames of several widths, and what is found in them as text. A frame's width is what the
# page's own rules see, while the window of a browser may refuse to be narrow.
PROBE = """<!doctype html><title>probe</title>
%s
<pre id="found"></pre>
<script>
window.onload = () => {
  const found = [];
  for (const frame of document.querySelectorAll('iframe')) {
    const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
    const images = [...page.images];
    const scrolls = [...page.querySelectorAll('.scroll')];
    const within = '.scroll table, .wide .paper img, .skip, .hidden';
    const outside = [...page.querySelectorAll('body *')].filter(each => !each.closest(within)
      && each.getBoundingClientRect().right > view.innerWidth + 1).map(each => each.outerHTML.slice(0, 80));
    found.push({
      width: view.innerWidth, content: root.scrollWidth, outside,
      images: images.length, broken: images.filter(each => !each.complete || !each.naturalWidth).length,
      scrolling: scrolls.filter(each => each.scrollWidth > each.clientWidth).length,
      smallest: Math.min(...[...page.querySelectorAll('p, td, th, dt, dd, li, figcaption')]
        .map(each => parseFloat(view.getComputedStyle(each).fontSize))),
    });
  }
  document.getElementById('found').textContent = JSON.stringify(found);
};
</script>"""


def browse(folder: Path, page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Start the browser on a page, with a profile of its own."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    # Some installations write beside the profile, into the home folder.
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def console(log: str) -> list[str]:
    return [line for line in log.splitlines() if "CONSOLE" in line]


@pytest.fixture
def page(html: str, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("page_name", "images"), [("html", 6), ("model_html", 9)])
def test_no_overflow_and_no_broken_image(
    page_name: str, images: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    html: str = request.getfixturevalue(page_name)
    frames = [f'<iframe width="{width}" height="800" srcdoc="{markup.escape(html)}"></iframe>' for width in WIDTHS]
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE % "\n".join(frames), encoding="utf-8")
    done = browse(tmp_path, probe, "--virtual-time-budget=10000", "--window-size=1400,1000", "--dump-dom")
    text = re.search(r'<pre id="found">(.+?)</pre>', done.stdout)
    assert text is not None, done.stdout[-2_000:]
    results = json.loads(markup.unescape(text[1]))
    assert [each["width"] for each in results] == list(WIDTHS)
    for each in results:
        assert each["content"] <= each["width"], each
        assert each["outside"] == []
        assert (each["images"], each["broken"]) == (images, 0)
        assert each["smallest"] >= 12
    assert results[0]["scrolling"] >= 1  # the wide table is in a box of its own


def darkness(picture: Path) -> float:
    """Share of dark pixels."""
    return float((np.asarray(Image.open(picture).convert("L")) < 80).mean())


@pytest.mark.slow
@pytest.mark.parametrize("page_name", ["model_html", pytest.param("html", marks=pytest.mark.nightly)])
def test_dark_mode_and_an_empty_console(page_name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(request.getfixturevalue(page_name), encoding="utf-8")
    found = {}
    for name, scheme in (("light", 1), ("dark", 0)):
        picture = tmp_path / f"{name}.png"
        options = [
            f"--blink-settings=preferredColorScheme={scheme}",
            "--enable-logging=stderr",
            f"--screenshot={picture}",
        ]
        done = browse(tmp_path, page, *options, "--window-size=900,2500")
        assert console(done.stderr) == []
        found[name] = darkness(picture)
    assert found["light"] < 0.2
    # Figures of a model's page turn dark too.
    assert found["dark"] > (0.8 if page_name == "model_html" else 0.5)


def test_the_policy_stops_scripts_and_the_console_says_so(html: str, tmp_path: Path) -> None:
    """Also shows that the test above can fail."""
    path = tmp_path / "report.html"
    path.write_text(html.replace("</main>", "<script>document.title = 'ran'</script></main>"), encoding="utf-8")
    done = browse(tmp_path, path, "--enable-logging=stderr", "--dump-dom")
    assert "<title>ran</title>" not in done.stdout
    assert any("Content Security Policy" in line for line in console(done.stderr)), done.stderr


def test_prints(page: Path, tmp_path: Path) -> None:
    printed = tmp_path / "report.pdf"
    browse(tmp_path, page, f"--print-to-pdf={printed}")
    content = printed.read_bytes()
    assert content.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", content)) >= 3

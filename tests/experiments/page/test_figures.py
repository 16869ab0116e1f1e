"""Drawings: deterministic, in one style, and what they show."""

from __future__ import annotations

from itertools import combinations

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.page import (
    MODEL_STYLES,
    draw_calibration,
    draw_curves,
    draw_embedding,
    draw_pareto,
    draw_svg,
    drawing_style,
    model_styles,
    save_png,
)


def axes_of(size: tuple[float, float] = (6.0, 4.0)):
    return Figure(figsize=size, layout="constrained").subplots()


def test_the_same_drawing_is_the_same_text_and_has_no_date() -> None:
    rng = np.random.default_rng(0)
    xy, labels = rng.standard_normal((2_500, 2)), rng.integers(0, 3, 2_500)
    first, second = (draw_svg(lambda axes: draw_embedding(axes, xy, labels), (4, 3)) for _ in range(2))
    assert first == second
    assert "date" not in first


def test_settings_are_undone() -> None:
    before = mpl.rcParams["axes.spines.top"]
    with drawing_style():
        assert not mpl.rcParams["axes.spines.top"]
    assert mpl.rcParams["axes.spines.top"] == before


def test_every_model_keeps_its_colour() -> None:
    names = {
        "full GP": "exact",
        "Exact GP": "exact",
        "SSGP, p = 32": "ssgp",
        "the paper's recipe": "paper",
        "revised, the two stages as printed": "paper",
        "revised, as released, p = 16": "released",
        "SSGP, as released": "released_ssgp",
        "PrismGP": "prism",
    }
    found = model_styles([*names, "GPyTorch SVGP", "scikit-learn"])
    for label, model in names.items():
        assert found[label]["color"] == MODEL_STYLES[model]["color"]
    own = {style["color"] for style in MODEL_STYLES.values()}
    peers = [found[label] for label in ("GPyTorch SVGP", "scikit-learn")]
    assert not own & {style["color"] for style in peers}
    assert len({(style["color"], style["marker"]) for style in peers}) == 2


def test_variants_and_many_peers_can_be_told_apart() -> None:
    variants = model_styles(["SSGP, p = 16", "SSGP, p = 32", "SSGP, p = 64"])
    assert len({str(style["linestyle"]) for style in variants.values()}) == 3
    peers = model_styles([f"library {k}" for k in range(12)])
    assert len({(style["color"], style["marker"], str(style["linestyle"])) for style in peers.values()}) == 12


def test_calibration_shows_what_it_is_given() -> None:
    axes = axes_of()
    draw_calibration(axes, [0.1, 0.9], {"PrismGP": [0.2, 0.8]}, title="T")
    diagonal, curve = axes.get_lines()
    np.testing.assert_array_equal(diagonal.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(curve.get_xydata(), [[0.1, 0.2], [0.9, 0.8]])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["perfect", "PrismGP"]


def test_curves_with_and_without_bands() -> None:
    axes = axes_of()
    curves = {"PrismGP": ([1, 10], [2, 1], [1.5, 0.5], [3, 1.5]), "SSGP": ([1, 10], [3, 2])}
    draw_curves(axes, curves, log_x=True, log_y=True, xlabel="s")
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_xlabel()) == ("log", "log", "s")
    assert len(axes.get_lines()) == 2
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y1 == 3
    draw_curves(axes_of(), {}, log_x=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_labels_do_not_overlap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = {f"model {k}": (10 ** rng.uniform(0, 3), rng.uniform(0.2, 0.4)) for k in range(8)}
    points |= {"PrismGP": points["model 0"], "PrismGP, fast": (points["model 1"][0] * 1.02, points["model 1"][1])}
    with drawing_style():
        axes = axes_of((7.5, 4.0))
        draw_pareto(axes, points, ours={"PrismGP"})
        axes.figure.draw_without_rendering()
    texts = [text for text in axes.texts if text.get_text()]
    assert sorted(text.get_text() for text in texts) == sorted(points)
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert {text.get_text() for text in texts if text.get_fontweight() == "bold"} == {"PrismGP"}


def test_points_that_are_not_known_are_left_out() -> None:
    axes = axes_of()
    draw_pareto(axes, {"a": (1.0, 2.0), "b": (np.nan, 1.0), "c": (1.0, np.inf)})
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["a"]
    draw_pareto(axes_of(), {"b": (np.nan, 1.0)})
    draw_svg(lambda panel: draw_pareto(panel, {"a": (1.0, -2.0), "b": (2.0, -3.0)}, log_y=False))


@pytest.mark.parametrize(("n", "pixels"), [(2_000, False), (2_001, True)])
def test_many_points_become_pixels(n: int, pixels: bool) -> None:
    rng = np.random.default_rng(0)
    svg = draw_svg(lambda axes: draw_embedding(axes, rng.standard_normal((n, 2)), rng.integers(0, 3, n)), (4, 3))
    assert ("data:image/png" in svg) == pixels


def test_clusters_of_any_name_and_number() -> None:
    rng = np.random.default_rng(0)
    axes = axes_of()
    draw_embedding(axes, rng.standard_normal((9, 2)), ["b"] * 5 + ["a"] * 4)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["cluster a (4)", "cluster b (5)"]
    axes = axes_of()
    draw_embedding(axes, rng.standard_normal((40, 2)), np.arange(40) % 20)
    assert axes.get_legend() is None
    assert len({tuple(each.get_facecolor()[0]) for each in axes.collections}) == 20


def test_a_png_has_a_palette_and_is_the_same_again(tmp_path) -> None:
    def make(name: str) -> bytes:
        with drawing_style():
            figure = Figure(figsize=(3, 2))
            figure.subplots().plot([0, 1], [1, 0])
        save_png(figure, tmp_path / name)
        return (tmp_path / name).read_bytes()

    first = make("a.png")
    assert first == make("b.png")
    assert b"PLTE" in first

"""What a certificate says in words is what it has proved."""

from __future__ import annotations

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


@pytest.mark.parametrize("half", [[np.inf], [0.1, np.inf]])
def test_nothing_is_said_of_what_is_not_known(half):
    text = dict(certificate(half, np.ones(len(half))).summary())["predicted mean"]
    assert text.startswith("nothing is known")


def test_what_does_not_hold_has_no_numbers():
    lines = dict(certificate([0.1], [1.0], holds=False, reason="rounding").summary())
    assert lines == {"compared with": "the exact GP", "does not hold": "rounding"}

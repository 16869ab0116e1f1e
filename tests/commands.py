"""Run command lines in this process, and say what was printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def make_run(main: Callable[[Sequence[str]], int], capfd: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command; capfd, because predictions go to stdout as bytes."""

    def call(*argv: object) -> Outcome:
        capfd.readouterr()
        code = main([str(each) for each in argv])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call


def assert_refused(outcome: Outcome, *parts: str, program: str = "prismgp") -> str:
    """Check that a command has failed as bad input does: code 2 and one line, with these parts; returns the line."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith(f"{program}: error: "), outcome.err
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.endswith("\n")
    for part in parts:
        assert part in outcome.err, (part, outcome.err)
    return outcome.err

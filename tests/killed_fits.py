"""Fits that are killed and begun again, each in a process of its own: ``python -m tests.killed_fits FOLDER``."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from prismgp import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from tests import short

Model = ExactGPRegressor | SSGPRegressor | PrismGPRegressor

MODELS: dict[str, Callable[[Path | None], Model]] = {
    "exact": lambda path: ExactGPRegressor(random_state=0, checkpoint=path),
    "ssgp": lambda path: SSGPRegressor(8, random_state=0, checkpoint=path),
    "hard": lambda path: SSGPRegressor(6, gating="hard", n_components=3, random_state=0, checkpoint=path),
    "learned": lambda path: SSGPRegressor(4, learn_frequencies=True, max_iter=40, random_state=0, checkpoint=path),
    "joint": lambda path: PrismGPRegressor(4, n_members=2, hidden=(16,), max_steps=30, random_state=0, checkpoint=path),
    "paper": lambda path: PrismGPRegressor(
        4, recipe="paper", n_components=2, hidden=8, max_steps=30, random_state=0, checkpoint=path
    ),
}
KILLS = {"exact": 3, "ssgp": 6, "hard": 3, "learned": 3, "joint": 5, "paper": 3}
ROWS = 250  # enough for neighbours


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, 3))
    return x, np.sin(2 * x[:, 0]) * x[:, 1] + 0.1 * rng.standard_normal(ROWS)


def fit_in_child(model: Model, output: Path, seconds: float | None = None) -> tuple[int, float]:
    """Fit in a child and save the model there; its status, and the processor seconds it took.

    With ``seconds``, the child is killed after that much of its own processor time, which no other process can change.
    """
    pid = os.fork()
    if not pid:
        if seconds is not None:
            signal.signal(signal.SIGPROF, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_PROF, seconds)
        model.fit(*data()).save(output)
        os._exit(0)
    _, status, used = os.wait4(pid, 0)
    return status, used.ru_utime + used.ru_stime


def main(folder: Path) -> None:
    """Write a model of an undisturbed fit and one of a killed fit of each kind; print how often each was killed."""
    # Only the children fit; here, they import what fits import once.
    import sklearn.cluster  # noqa: F401
    import torch._dynamo  # noqa: F401

    patch = pytest.MonkeyPatch()
    short.race(patch)
    short.local(patch)
    patch.setattr("prismgp.checkpoint.WRITE_SECONDS", 0.01)
    random.seed(0)
    killed = {}
    for kind, make in MODELS.items():
        output, checkpoint = folder / f"{kind}.prism", folder / f"{kind}.checkpoint"
        status, seconds = fit_in_child(make(None), folder / f"{kind}-undisturbed.prism")
        assert status == 0
        shares = [random.uniform(0.1, 2.0) * seconds / KILLS[kind] for _ in range(KILLS[kind])]
        ended = [fit_in_child(make(checkpoint), output, share)[0] for share in shares]
        assert fit_in_child(make(checkpoint), output)[0] == 0
        killed[kind] = sum(os.WIFSIGNALED(each) for each in ended)
    sys.stdout.write(json.dumps(killed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

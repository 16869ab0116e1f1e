"""What comes back from a task does not grow with its rows."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch

from prismgp import SSGPRegressor
from prismgp.core.evidence import ProjectionGradient
from prismgp.core.statistics import SpectralStatistics
from prismgp.data import Chunks, fit_standardiser, from_parquet
from prismgp.data.chunks import run_pass
from prismgp.data.cluster import Cluster, Packed, run_shard

P, OVERHEAD = 4, 3_000  # bytes of names and classes in a pickle


@pytest.mark.parametrize("kind", ["statistics", "gradient"])
def test_a_pass_returns_one_small_matrix(kind, folder):
    source = from_parquet(folder, "y", missing="error", client=object.__new__(_Nobody))
    w = torch.ones(3, P, dtype=torch.float64)
    size = 2 * P + 2
    work = SpectralStatistics(w) if kind == "statistics" else ProjectionGradient(w, torch.ones(size, 2 * P).double())
    standardiser = fit_standardiser(from_parquet(folder, "y"), normalize=True)
    one = partial(run_pass, work=work, standardiser=standardiser, rows=256, **_PLACE)
    shard = source._shards[1]
    outcome = run_shard(Packed((one, work.merge)), shard.loader, shard.n_rows)
    assert outcome.error is None
    returned = len(pickle.dumps(outcome))
    assert returned < 8 * size**2 + OVERHEAD < 8 * 4 * shard.n_rows
    here = Chunks(from_parquet(folder / "part-1.parquet", "y"), standardiser, rows=256, **_PLACE).reduce(work)
    both = (outcome.value[0], here[0]) if kind == "gradient" else (outcome.value.moments, here.moments)
    np.testing.assert_allclose(*both, rtol=1e-12)


@pytest.mark.slow
def test_a_fit_moves_no_rows_but_the_sample(folder, client, monkeypatch):
    came: list[int] = []
    gather = Cluster.gather

    def watched(self, tasks):
        back = gather(self, tasks)
        came.append(len(pickle.dumps(back)))
        return back

    monkeypatch.setattr(Cluster, "gather", watched)
    SSGPRegressor(P, random_state=0, optimize=False).fit(from_parquet(folder, "y", client=client))
    # Counts, moments and statistics; and two samples of at most some thousand rows, for medians and unknown cells.
    assert len(came) == 5
    assert sorted(came)[2] < 3 * OVERHEAD < 600 * 4 * 8


def test_the_work_is_not_unpacked_on_its_way():
    packed = Packed(lambda: 1 / 0)
    assert len(pickle.dumps(packed)) < 2 * OVERHEAD
    assert callable(pickle.loads(pickle.dumps(packed)).content())


_PLACE = {"dtype": torch.float64, "device": torch.device("cpu")}


class _Nobody:
    """A client that is never asked."""

    asynchronous = False

    def compute(self, *_args, **_kwargs):
        raise AssertionError

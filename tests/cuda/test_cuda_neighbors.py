"""The same neighbours on a GPU; skipped, saying so, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp.exceptions import DataError
from prismgp.neighbors import NeighborSearch
from prismgp.neighbors.engines import ScaledPoints

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def points(kind, dtype):
    rng = np.random.default_rng(0)
    grid = torch.cartesian_prod(*[torch.arange(8.0)] * 4)
    normal = torch.as_tensor(rng.normal(size=(6000, 12)))
    return {
        "normal": normal,
        "offset": 1e6 + normal,
        "clusters": 1e4 * normal[:6].repeat(1000, 1) + 1e-4 * normal,
        "grid": grid,
        "repeated": normal[:3].repeat(4000, 1),
        "wide": torch.as_tensor(rng.normal(size=(800, 500))),
    }[kind].to(dtype)


@pytest.mark.parametrize("kind", ["normal", "offset", "clusters", "grid", "repeated", "wide"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tf32", [False, True])
def test_neighbors_agree_with_the_cpu(kind, dtype, tf32, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", tf32)
    p = points(kind, dtype)
    x = torch.cat([p[:100], p[:100] + 0.01])
    scale = 1.0 / torch.arange(1, p.shape[1] + 1, dtype=torch.float64).sqrt()
    groups = torch.arange(len(p))
    own = torch.cat([groups[:100], torch.full((100,), -1)])
    cpu = NeighborSearch(p, scale, engine="brute").query(x, 33, groups=groups, own=own)
    gpu = NeighborSearch(p.cuda(), scale)
    assert gpu.engine == "brute"
    found = gpu.query(x, 33, groups=groups, own=own)
    assert found.is_cuda
    assert torch.equal(found.cpu(), cpu)


def test_distances_have_the_same_bits():
    p = points("normal", torch.float32)
    scale = 1.0 / torch.arange(1, 13, dtype=torch.float64)
    rows = torch.arange(6000).expand(20, -1)
    found = []
    for device in ("cpu", "cuda"):
        space = ScaledPoints(p.to(device), scale)
        found.append(space.distances(space.queries(p[:20].to(device)), rows.to(device)).cpu())
    assert torch.equal(*found)


def test_engines_of_the_cpu_are_refused():
    for engine in ("tree", "approximate"):
        with pytest.raises(DataError, match="CPU only"):
            NeighborSearch(torch.zeros(3, 2, device="cuda"), torch.ones(2, dtype=torch.float64), engine=engine)

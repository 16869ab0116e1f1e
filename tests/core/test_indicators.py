"""Groups of indicator columns share a length-scale while a start is looked for."""

from __future__ import annotations

import numpy as np
import torch

from prismgp.core.exact import ExactEvidence, Groups, TiedEvidence
from prismgp.core.kernels import default_start, get_kernel, squared_distance


def table(rng, n=60):
    """Two numbers, a category of four levels of which the last is absent, a flag, and a category of two levels."""
    first, second = rng.integers(3, size=n), rng.integers(2, size=n)
    columns = [*rng.normal(size=(2, n)), *(first == k for k in range(4)), rng.random(n) < 0.5]
    x = np.column_stack([*columns, second == 0, second == 1]).astype(float)
    scale = np.where(x.std(0) > 0, x.std(0), 1.0)
    return torch.as_tensor((x - x.mean(0)) / scale), scale


def test_levels_of_a_category_are_found(rng):
    x, _ = table(rng)
    assert Groups.find(x).index.tolist() == [0, 1, 2, 2, 2, 2, 3, 4, 4]
    assert Groups.find(x[:, :1]).index.tolist() == [0]
    numbers = torch.as_tensor(rng.normal(size=(20, 5)))
    groups = Groups.find(numbers)
    assert groups.count == 5
    assert not groups.log_factor.any()
    assert Groups.find(x[:10]).count == 9  # too few rows to tell


def test_levels_are_equally_far_apart(rng):
    x, _ = table(rng)
    groups = Groups.find(x)
    params = groups.untie(groups.tie(default_start(9, 1)))
    scaled = x[:, 2:5] / torch.as_tensor(params.lengthscale[2:5])
    levels = torch.unique(scaled, dim=0)
    apart = squared_distance(levels)[~torch.eye(3, dtype=torch.bool)]
    assert torch.allclose(apart, apart[0])
    np.testing.assert_allclose(params.log_lengthscale[:2], default_start(9, 1).log_lengthscale[:2])


def test_tied_gradient(rng):
    x, _ = table(rng)
    y = torch.as_tensor(rng.normal(size=(len(x), 1)))
    groups = Groups.find(x)
    objective = TiedEvidence(ExactEvidence(x, y, get_kernel("rbf")), groups)
    params = groups.tie(default_start(9, 1))
    value, gradient = objective.value_and_gradient(params)
    np.testing.assert_allclose(value, objective.value(params), rtol=1e-12)
    vector = params.pack()
    for j in range(len(vector)):
        step = 1e-5 * np.eye(len(vector))[j]
        up, down = (objective.value(params.unpack(vector + each)) for each in (step, -step))
        np.testing.assert_allclose(gradient.pack()[j], (up - down) / 2e-5, rtol=1e-5, atol=1e-6)

"""Distances of rows, also of near ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from prismgp.core.kernels import squared_distance


def directly(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.square(a[..., :, None, :] - b[..., None, :, :]).sum(-1)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_distances_are_those_of_differences(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(*shape, 30, 4)), rng.normal(size=(*shape, 20, 4))
    found = squared_distance(torch.as_tensor(a), torch.as_tensor(b)).numpy()
    np.testing.assert_allclose(found, directly(a, b), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(squared_distance(torch.as_tensor(a)).numpy(), directly(a, a), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_near_rows_keep_their_digits(shape: tuple[int, ...]) -> None:
    """Rows of size 1,000 at a distance of 1e-4: products alone have an error of some per cent."""
    rng = np.random.default_rng(1)
    a = 1e3 * rng.normal(size=(*shape, 30, 4))
    b = a[..., :20, :] + 1e-4 * rng.normal(size=(*shape, 20, 4))
    found = squared_distance(torch.as_tensor(a), torch.as_tensor(b)).numpy()
    np.testing.assert_allclose(found, directly(a, b), rtol=1e-6)
    both = np.concatenate([a, b], axis=-2)
    np.testing.assert_allclose(squared_distance(torch.as_tensor(both)).numpy(), directly(both, both), rtol=1e-6)


def test_more_near_rows_than_are_taken_at_a_time() -> None:
    x = 1e3 + 1e-4 * np.random.default_rng(3).normal(size=(1_100, 2))
    x[0] = -1e6  # which puts the centre far from the others
    np.testing.assert_allclose(squared_distance(torch.as_tensor(x)).numpy(), directly(x, x), rtol=1e-4, atol=1e-18)


def test_equal_rows_have_no_distance_whatever_is_beside_them() -> None:
    x = torch.as_tensor(1e6 * np.random.default_rng(2).normal(size=(200, 9)))
    for rows in (1, 7, 64, 200):
        assert (squared_distance(x, x[:rows]).diagonal() == 0.0).all()


def test_rows_without_any_spread_need_no_pairs() -> None:
    assert (squared_distance(torch.full((50, 3), 0.1, dtype=torch.float64)) == 0.0).all()

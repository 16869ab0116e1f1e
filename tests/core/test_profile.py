"""The best variances and mean at given length-scales, against a search with the evidence itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from prismgp.core.evidence import BlockEvidence, ProfiledEvidence, profile
from prismgp.core.features import Gating
from prismgp.core.kernels import Parameters, bounds, default_start, draw_frequencies, get_kernel
from prismgp.core.models import spectral_objective
from prismgp.core.statistics import Statistics, noise_log_evidence, solve_outputs
from prismgp.data import ArraySource, StandardisedRows, fit_standardiser


def make_rows(rng, n=150, d=3, q=1):
    x = rng.normal(size=(n, d))
    y = np.stack([np.sin(2 * x[:, 0]) + (0.2 + k) * rng.normal(size=n) for k in range(q)], 1)
    source = ArraySource(x, y)
    return StandardisedRows(source, fit_standardiser(source, normalize=True))


def objective_on(rows, rng, kind=ProfiledEvidence, p=6):
    base = draw_frequencies(get_kernel("rbf"), p, rows.n_inputs, "auto", rng)
    return spectral_objective(rows, base, Gating(), kind)


def search(blocks: tuple[Statistics, ...], params: Parameters) -> float:
    """The largest evidence over variances and mean of one output, by SciPy from many points."""

    def negated(vector):
        at = replace(params, log_signal=vector[:1], log_noise=vector[1:2], mean=vector[2:])
        return -sum(out.log_evidence for block in blocks for out in solve_outputs(block, at))

    boxes = bounds(params, dtype="float64")[len(params.log_lengthscale) :]
    starts = [[signal, noise, 0.0] for signal in (-4.0, 1.0) for noise in (-4.0, 0.0)]
    return max(-minimize(negated, start, method="L-BFGS-B", bounds=boxes).fun for start in starts)


def test_variances_and_mean_are_the_best_ones(rng):
    rows = make_rows(rng, q=2)
    objective = objective_on(rows, rng)
    for scale in (0.5, 20.0):
        params = default_start(3, 2)
        params = replace(params, log_lengthscale=params.log_lengthscale + np.log(scale))
        best = objective.complete(params)
        blocks = objective.statistics(params)
        for k in range(2):
            moments = blocks[0].moments
            keep = [*range(moments.shape[0] - 2), moments.shape[0] - 2 + k]
            alone = (Statistics(rows.n_rows, 1, moments[keep][:, keep]),)
            of_output = (each[k : k + 1] for each in (best.log_signal, best.log_noise, best.mean))
            own = Parameters(params.log_lengthscale, *of_output)
            found = sum(out.log_evidence for out in solve_outputs(alone[0], own))
            assert found >= search(alone, own) - 1e-5
        assert objective.value(params) == pytest.approx(super(ProfiledEvidence, objective).value(best), abs=1e-9)


def test_gradient_is_that_of_the_best_evidence(rng):
    objective = objective_on(make_rows(rng), rng)
    params = default_start(3, 1)
    _, gradient = objective.value_and_gradient(params)
    assert not np.any(gradient.pack()[3:])
    for j in range(3):
        step = 1e-4 * np.eye(3)[j]
        up, down = (replace(params, log_lengthscale=params.log_lengthscale + each) for each in (step, -step))
        numeric = (objective.value(up) - objective.value(down)) / 2e-4
        assert gradient.log_lengthscale[j] == pytest.approx(numeric, rel=1e-4, abs=1e-4)


def test_rounding_of_the_moments_stays_rounding(rng):
    """Sums in another order give moments that differ in the last digits; the parameters must too."""
    objective = objective_on(make_rows(rng), rng)
    params = default_start(3, 1)
    (block,) = objective.statistics(params)
    noise = 1.0 + 1e-15 * torch.as_tensor(rng.normal(size=block.moments.shape))
    moved = replace(block, moments=block.moments * 0.5 * (noise + noise.T))
    best, again = (profile([each], params, "float64").pack() for each in (block, moved))
    np.testing.assert_allclose(again, best, rtol=1e-9, atol=1e-9)


def test_blocks_share_variances_and_mean(rng):
    """Statistics of two halves as independent blocks: the search has the same optimum."""
    first, second = make_rows(rng, n=80), make_rows(rng, n=120)
    params = default_start(3, 1)
    base = draw_frequencies(get_kernel("rbf"), 5, 3, "auto", rng)
    blocks = tuple(spectral_objective(each, base, Gating()).statistics(params)[0] for each in (first, second))
    best = profile(blocks, params, "float64")
    found = sum(out.log_evidence for block in blocks for out in solve_outputs(block, best))
    assert found >= search(blocks, params) - 1e-5


def test_bounds_hold(rng):
    """Targets without noise and targets that are noise alone."""
    x = rng.normal(size=(200, 2))
    base = draw_frequencies(get_kernel("rbf"), 4, 2, "auto", rng)
    features = np.cos(x @ (base / np.exp(default_start(2, 1).log_lengthscale)).T)
    for y in (features.sum(1), rng.normal(size=200)):
        source = ArraySource(x, y[:, None])
        identity = replace(fit_standardiser(source, normalize=True), x_shift=np.zeros(2), x_scale=np.ones(2))
        objective = spectral_objective(StandardisedRows(source, identity), base, Gating(), ProfiledEvidence)
        best = objective.complete(default_start(2, 1))
        low, high = np.array(bounds(best, dtype="float64")).T
        assert np.all(best.pack() >= low - 1e-9)
        assert np.all(best.pack() <= high + 1e-9)
    assert best.signal[0] < 0.2
    assert objective.value(best) >= noise_log_evidence(objective.statistics(best)) - 1e-3


def test_float32_features_get_float64_moments_where_the_noise_is_small(rng):
    x = rng.normal(size=(2000, 2))
    base = draw_frequencies(get_kernel("rbf"), 8, 2, "auto", rng)
    y = np.cos(x @ base.T).sum(1)[:, None]
    source = ArraySource(x, y + 1e-2 * rng.normal(size=y.shape))
    standardiser = replace(fit_standardiser(source, normalize=True), x_shift=np.zeros(2), x_scale=np.ones(2))
    params = replace(default_start(2, 1), log_lengthscale=np.zeros(2))
    found = {}
    for dtype in (torch.float32, torch.float64):
        objective = spectral_objective(StandardisedRows(source, standardiser, dtype), base, Gating(), ProfiledEvidence)
        found[dtype] = objective.value(params)
    assert found[torch.float32] == pytest.approx(found[torch.float64], rel=1e-2)


def test_noise_alone_is_the_density_of_a_normal_sample(rng):
    rows = make_rows(rng, q=2)
    blocks = objective_on(rows, rng, BlockEvidence).statistics(default_start(3, 2))
    y = rows.tensors()[1].numpy()
    expected = sum(-0.5 * len(y) * (np.log(2 * np.pi * column.var()) + 1) for column in y.T)
    assert noise_log_evidence(blocks) == pytest.approx(expected)
    constant = ArraySource(np.zeros((5, 1)), np.ones((5, 1)))
    still = StandardisedRows(constant, fit_standardiser(constant, normalize=True))
    assert noise_log_evidence(objective_on(still, rng).statistics(default_start(1, 1))) == -np.inf


@pytest.mark.parametrize("kind", [BlockEvidence, ProfiledEvidence])
def test_features_that_are_stored_between_passes_change_nothing(rng, kind):
    rows = replace(make_rows(rng), chunk_rows=64)  # three chunks, the last one smaller
    objective = objective_on(rows, rng, kind)
    other = objective.with_frequencies(objective.frequencies[::-1].copy())
    plain = objective.with_frequencies(objective.frequencies)
    assert objective.parts[0].store is not None
    plain.parts[0].store = None
    for scale in (1.0, 3.0):
        params = replace(default_start(3, 1), log_lengthscale=np.log(scale * np.arange(1.0, 4.0)))
        expected, gradient = plain.value_and_gradient(params)
        found, own = objective.value_and_gradient(params)
        assert found == expected
        np.testing.assert_array_equal(own.pack(), gradient.pack())
        # The moments are still known, the features no longer.
        other.value(params)
        np.testing.assert_array_equal(objective.value_and_gradient(params)[1].pack(), gradient.pack())

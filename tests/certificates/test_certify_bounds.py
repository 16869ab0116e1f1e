"""Every bound of a certificate contains the exact value, in every case; the exact GP is in extended precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prismgp.certificates import _kernel_error, _lowrank, _matrix, _member, _nystrom, _prediction_bounds, _reference
from prismgp.certificates._effort import Effort
from prismgp.certificates._member import certify_problem
from tests.certificates.exact import (
    KERNELS,
    LONG,
    Case,
    Truth,
    random_case,
    spectral_features,
    truth,
    unit_gates,
)

BATCHES, BATCH = 20, 100  # 2,000 random cases, each with two efforts
NAMES = ("spectral", "frobenius", "log_evidence", "mean", "variance")


def effort(
    case: Case, rank: int, products: int, *, delta: float = 0.0, tolerance: float = 0.0, seed: int = 0
) -> Effort:
    return Effort(
        rank=max(1, min(rank, len(case.x))),
        products=products,
        seconds=None,
        delta=delta,
        tolerance=tolerance,
        seed=seed,
    )


def check(case: Case, exact: Truth, spent: Effort, *, random: bool = True) -> bool:
    """Whether there is a certificate; all of its intervals contain the exact values then."""
    found = certify_problem(case.problem(), spent)
    if found.reason:
        assert not any(getattr(found, name).finite for name in NAMES if np.size(getattr(exact, name)))
        return False
    for name in NAMES:
        interval, value = getattr(found, name), getattr(exact, name)
        for each in (interval, interval.certain):
            if each is None or (each.probability < 1.0 and not random):
                continue
            assert each.ordered
            worst = np.max(np.maximum(each.lower - value, value - each.upper), initial=-np.inf)
            assert worst <= 0.0, f"{name} is outside by {worst:.2e}: {each.method}, {case.kernel}, {spent}"
    return True


def some_case(seed: int) -> Case:
    """Kernels, dimensions, noise, sizes, weights, gates and outputs in all combinations."""
    rng = np.random.default_rng([17, seed])
    n = int(rng.integers(20, 32)) if seed % 20 else int(rng.integers(40, 150))
    if seed % 700 == 0:
        n = int(rng.integers(300, 501))
    q = 2 if seed % 7 == 0 else 1
    noise = 10.0 ** rng.uniform(-4, 0)
    case = random_case(rng, n=n, d=int(rng.integers(1, 19)), kernel=KERNELS[seed % 4], noise=noise, q=q, m=4)
    kind = (seed // 4) % 6
    if kind == 1:  # the masked kernel against the full one
        return replace(case, model_gates=unit_gates(rng, n, 3, hard=True))
    if kind == 2:  # soft gates in both
        gates = unit_gates(rng, n, 3, hard=False)
        return replace(case, model_gates=gates, gates=gates, test_gates=unit_gates(rng, 4, 3, hard=False))
    if kind == 3:  # noise of its own for every row
        return replace(case, weight=np.exp(rng.normal(size=n)))
    if kind == 4:  # all at once
        gates = unit_gates(rng, n, 2, hard=True)
        weighted = replace(case, weight=np.exp(2 * rng.normal(size=n)))
        return replace(weighted, model_gates=gates, gates=gates, test_gates=unit_gates(rng, 4, 2, hard=False))
    return case


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_bound_contains_the_exact_value(batch):
    held = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        case = some_case(seed)
        exact, n = truth(case), len(case.x)
        # A deterministic certificate, of ranks from 1 to n; and one of products, every fifth with random bounds,
        # at a probability of failure that 2,000 cases will not see.
        rank = (1, 5, n // 3, n)[(seed // 2) % 4]
        held += check(case, exact, effort(case, rank, 0))
        products = (1, 2, 3, 6)[seed % 4]
        delta = 1e-9 if seed % 5 == 0 else 0.0
        tolerance = 0.01 if seed % 2 else 0.0
        held += check(
            case, exact, effort(case, (4, n // 4, n // 3)[seed % 3], products, delta=delta, tolerance=tolerance)
        )
    assert held == 2 * BATCH


def with_rows(case: Case, x: np.ndarray, seed: int, **others) -> Case:
    frequencies = np.random.default_rng(seed).normal(size=(6, x.shape[1]))
    return replace(case, x=x, phi=spectral_features(x, frequencies), **others)


def far_out(case: Case, distance: float, apart: float, seed: int) -> Case:
    """Three rows far from the others and near each other; two of the test points are among them."""
    x = case.x.copy()
    x[:3] = x[0] * distance + apart * np.random.default_rng(seed).normal(size=(3, x.shape[1]))
    return with_rows(case, x, seed, x_test=np.concatenate([x[1:3], case.x_test[2:]]))


def first_rows(case: Case, n: int) -> Case:
    return replace(case, x=case.x[:n], phi=case.phi[:n], y=case.y[:n])


def the_kernel_itself(case: Case) -> Case:
    """A model without error: features that span what the pivots span."""
    s = ((case.x[:, None] - case.x[None]) ** 2).sum(-1)
    k = np.exp(-s / 2) if case.kernel == "rbf" else np.exp(-np.sqrt(s))
    values, vectors = np.linalg.eigh(k)
    return replace(case, phi=vectors * np.sqrt(np.maximum(values, 0.0)))


HOSTILE = {
    "duplicated rows": lambda c, s: with_rows(c, np.repeat(c.x[:10], 3, 0), s),
    "all rows identical": lambda c, s: with_rows(c, np.repeat(c.x[:1], 30, 0), s),
    "identical, and the test points": lambda c, s: with_rows(
        c, np.repeat(c.x[:1], 30, 0), s, x_test=np.repeat(c.x[:1], 4, 0)
    ),
    "outliers": lambda c, s: far_out(c, 1e6, 1e6, s),
    "outliers, twice": lambda c, s: far_out(c, 1e6, 0.0, s),
    "outliers near each other": lambda c, s: far_out(c, 1e6, 0.3, s),
    "outliers within reach": lambda c, s: far_out(c, 300.0, 0.3, s),
    "tiny length-scales": lambda c, s: with_rows(c, 1e8 * c.x, s, x_test=1e8 * c.x_test),
    "huge length-scales": lambda c, s: with_rows(c, 1e-8 * c.x, s, x_test=1e-8 * c.x_test),
    "test points far away": lambda c, _: replace(c, x_test=1e9 * c.x_test),
    "little noise": lambda c, _: replace(c, noise=np.full_like(c.noise, 1e-6)),
    "less noise": lambda c, _: replace(c, noise=np.full_like(c.noise, 1e-8)),
    "duplicated rows, less noise": lambda c, s: with_rows(
        c, np.repeat(c.x[:10], 3, 0), s, noise=np.full_like(c.noise, 1e-8)
    ),
    "much noise": lambda c, _: replace(c, noise=np.full_like(c.noise, 100.0)),
    "one row": lambda c, _: first_rows(c, 1),
    "two rows": lambda c, _: first_rows(c, 2),
    "constant targets": lambda c, _: replace(c, y=np.zeros_like(c.y) + c.mean),
    "no test points": lambda c, _: replace(c, x_test=c.x_test[:0]),
    "wild weights": lambda c, s: replace(c, weight=np.exp(4 * np.random.default_rng(s).normal(size=len(c.x)))),
    "a model without error": lambda c, _: the_kernel_itself(c),
    "three outputs": lambda c, _: replace(
        c, y=np.repeat(c.y, 3, 1), noise=c.noise[0] * np.array([1.0, 10.0, 0.1]), signal=np.ones(3), mean=np.zeros(3)
    ),
}
MAY_FAIL = {"less noise", "duplicated rows, less noise"}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cases(name):
    held = total = 0
    for seed in range(4):
        rng = np.random.default_rng([3, seed])
        kernel = KERNELS[seed % 4]
        if name == "a model without error":
            kernel = ("rbf", "matern12")[seed % 2]
        case = HOSTILE[name](random_case(rng, n=30, d=1 + seed % 3, kernel=kernel, noise=1e-2, m=4), seed)
        exact, n = truth(case), len(case.x)
        for rank, products, delta in ((1, 0, 0.0), (n, 1, 0.0), (n // 3, 2, 1e-9), (n // 2, 25, 1e-9), (n, 0, 0.0)):
            held += check(case, exact, effort(case, rank, products, delta=delta, seed=seed))
            total += 1
    assert total == 20
    if name not in MAY_FAIL:
        assert held == total


def test_sums_of_a_million_equal_entries():
    """A single binary input: errors of the entries take three values, and rounding of their sum has one direction."""
    x = np.repeat([[0.0], [1.0]], [900, 600], 0)
    case = with_rows(random_case(np.random.default_rng(0), n=1500, d=1, kernel="rbf", noise=0.1), x, 1)
    k = np.exp(LONG(-0.5) * (x - x.T).astype(LONG) ** 2)
    phi = case.phi.astype(LONG)
    error = {(i, j): k[i, j] - (phi[i] * phi[j]).sum() for i in (0, -1) for j in (0, -1)}
    squares = 900**2 * error[0, 0] ** 2 + 2 * 900 * 600 * error[0, -1] ** 2 + 600**2 * error[-1, -1] ** 2
    found = _kernel_error.frobenius_exact(case.problem())
    assert found.lower <= np.sqrt(squares) <= found.upper
    assert found.width < 1e-9 * found.upper


def test_noise_below_rounding_is_refused():
    case = random_case(np.random.default_rng(0), n=60, d=2, kernel="rbf", noise=1e-2)
    exact = truth(replace(case, noise=np.array([1e-3])))
    found = certify_problem(replace(case, noise=np.array([1e-14])).problem(), effort(case, 60, 5))
    assert "rounding" in found.reason
    assert not any(getattr(found, name).finite for name in NAMES)
    assert check(replace(case, noise=np.array([1e-3])), exact, effort(case, 60, 5))


@pytest.mark.parametrize("limit", [0.0, np.inf], ids=["never", "always"])
@pytest.mark.parametrize("name", HOSTILE)
def test_short_cuts_are_never_wrong(name, limit, monkeypatch):
    """The ways that are taken where rounding is harmless hold where it is not, with wider bounds, and the others do."""
    monkeypatch.setattr(_prediction_bounds, "_HARMLESS", limit)  # (E12b) without features
    monkeypatch.setattr(_kernel_error, "_BESIDE", limit)  # (F1b)
    monkeypatch.setattr(_kernel_error, "_OF_NORM", limit)
    monkeypatch.setattr(_matrix, "_HELD_BYTES", limit)
    test_hostile_cases(name)


@pytest.mark.parametrize("seed", range(12))
def test_short_cuts_cost_little(seed, monkeypatch):
    case = some_case(seed)
    widths = []
    for limit in (0.0, np.inf):
        monkeypatch.setattr(_prediction_bounds, "_HARMLESS", limit)
        monkeypatch.setattr(_kernel_error, "_BESIDE", limit)
        monkeypatch.setattr(_kernel_error, "_OF_NORM", limit)
        spent = effort(case, len(case.x) // 3, 0)
        assert check(case, truth(case), spent)
        found = certify_problem(case.problem(), spent)
        widths.append((found.spectral.width, found.variance.width))
    for careful, short in zip(*widths, strict=True):
        np.testing.assert_allclose(short, careful, rtol=1e-2, atol=1e-5 * float(case.noise.min()))


@pytest.mark.parametrize("seed", range(5))
def test_what_many_rows_would_take(seed, monkeypatch):
    """Small tiles and chunks, features made again for every use, pivots from a part of the rows, sampled entries."""
    case = some_case(5 * seed + 1)
    exact, spent = truth(case), effort(case, 12, 5, delta=1e-9)
    whole = certify_problem(case.problem(), spent)
    monkeypatch.setattr(_matrix, "_TILE", {"cpu": (7, 11)})
    monkeypatch.setattr(_matrix, "_HELD_BYTES", 0)
    monkeypatch.setattr(_reference, "_CROSS_BYTES", {"cpu": 0})
    monkeypatch.setattr(_reference, "_CROSS_COLUMNS", 3)
    monkeypatch.setattr(_lowrank, "_KEPT_BYTES", 0)
    monkeypatch.setattr(_nystrom.NystromMap, "chunks", lambda _, n: [slice(i, min(i + 9, n)) for i in range(0, n, 9)])
    pieces = certify_problem(case.problem(), spent)
    for name in NAMES:
        for side in ("lower", "upper"):
            a, b = getattr(getattr(whole, name), side), getattr(getattr(pieces, name), side)
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(_nystrom, "_CANDIDATES", 15)
    monkeypatch.setattr(_member, "_EVERY_ENTRY", 5)
    monkeypatch.setattr(_member, "_FEW", 5)
    monkeypatch.setattr(_member, "_PAIRS", 3000)
    monkeypatch.setattr(_kernel_error, "_NUMBERS", 5000)
    for products, delta in ((5, 1e-9), (0, 1e-9), (0, 0.0)):
        assert check(case, exact, effort(case, 12, products, delta=delta))
    monkeypatch.setattr(_kernel_error, "_WIDEST", 1)
    assert check(case, exact, effort(case, 12, 5, delta=1e-9))

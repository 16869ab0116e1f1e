"""Random statements over many seeds: problems to try them on, and the test for their failures.

Each statement is tried over a thousand seeds or more, with delta far larger than anybody would use. The number of
failures is compared with delta by a binomial test: a statement that is true fails it once in 10^4 tries at most.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from prismgp.certificates.kernel_matrix import KernelMatrix
from prismgp.certificates.krylov import Budget, Lanczos, run_together
from prismgp.certificates.lowrank import LowRank, NystromMap, select_pivots
from tests.certificates.exact import KERNELS, random_case, unit_gates

SEEDS = 2_000
FEWER_SEEDS = 1_000  # where each takes a pass of its own


def rarely(failures: int, trials: int, delta: float) -> bool:
    """Whether a probability of failure of delta explains so many of them."""
    return stats.binom.sf(failures - 1, trials, delta) > 1e-4


def cases():
    """Four problems of different kinds."""
    for k, kernel in enumerate(KERNELS):
        case = random_case(np.random.default_rng([5, k]), n=60, d=1 + 2 * k, kernel=kernel, noise=0.1)
        if k == 2:
            case = replace(case, weight=np.exp(np.random.default_rng(k).normal(size=60)))
        if k == 3:
            case = replace(case, model_gates=unit_gates(np.random.default_rng(k), 60, 2, hard=True))
        yield case


def low_rank(problem, rank):
    pivots, _ = select_pivots(problem.rows, rank, weight=problem.weight, generator=torch.Generator())
    return LowRank.of(NystromMap.of(problem.rows.rows(pivots), jitter=1e-4), problem.rows, problem.weight)


def run(problem, task, steps):
    return run_together(KernelMatrix(problem.rows).product, [task], Budget(steps))[0]


def start(seed):
    return torch.Generator().manual_seed(seed)


def apart(found, starts):
    """Independent runs of so many starts each: the columns of a run in step never meet."""
    for k in range(0, found.starts, starts):
        own = slice(k, k + starts)
        yield Lanczos(found.diagonal[:, own], found.beside[:, own], found.size[own])

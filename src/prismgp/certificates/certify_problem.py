"""All bounds for one problem, in the units of a kernel of variance one.

The order of the work: a pivoted Cholesky factor; all linear systems and Lanczos runs together, on the same products
with the kernel; linear systems of single test points; one more product for residuals that can be trusted; the bounds.
"""

from __future__ import annotations

import math
import time
from functools import cached_property
from typing import Any

import numpy as np
import torch

from prismgp._types import Array, Tensor
from prismgp.certificates import evidence, kernel_error, krylov, predictions
from prismgp.certificates.certificate import Interval
from prismgp.certificates.evidence import Solution
from prismgp.certificates.kernel_matrix import KernelMatrix
from prismgp.certificates.krylov import Budget, Lanczos, Task, ritz_shortfall
from prismgp.certificates.lowrank import LowRank, Solved
from prismgp.certificates.problem import Effort, Findings, Problem

_PROBES = 8  # random starts of every Lanczos run
_FEWER = 2  # starts of a run for a norm: more improve the bound little, and each is a column of all products
_STEPS = 12  # of Lanczos, at least, if there are enough products
_RESERVE = 8  # products for the systems of single test points, which are chosen after the others are done
_SOLVED, _SOLVED_LEAST = 256, 16  # test points, the least well known ones, that get a linear system of their own
_COLUMN_WORK = 2e10  # multiply-adds that their columns may add to a product
_SOLVED_SHARE = 256  # rows for each of them and each product where a sketch covers all points: few remain unclear
# Random vectors of the sketch, for the variances: at most so many, so many for each product, and so many numbers; with
# fewer than the least, Student's factor is too large.
_VECTORS, _VECTORS_EACH, _VECTORS_NUMBERS, _VECTORS_LEAST = 256, 8, 2**25, 24
_MOST_SLACK = 0.25  # share of the noise that rounding may take


def certify_problem(problem: Problem, effort: Effort) -> Findings:
    """All bounds that the effort allows."""
    clock = time.monotonic()
    generator = torch.Generator().manual_seed(effort.seed)
    least = float(problem.ratio.min())
    size: dict[str, Any] = {"rank": effort.rank, "least_rank": effort.least_rank, "enough": effort.enough}
    low = LowRank.by_pivots(problem.rows, problem.weight, noise=least, generator=generator, **size)

    def count_effort(products: int) -> dict[str, Any]:
        return {"rank": low.rank, "products": products, "seconds": time.monotonic() - clock}

    if not low.slack <= _MOST_SLACK * least:
        reason = (
            f"rounding: errors of {low.slack:.1e} are not small against the noise, {least:.1e} of the signal variance; "
            "the model explains the targets to the last digits"
        )
        return Findings.nothing(problem, effort, count_effort(0), reason)
    # Random statements: a log determinant per output; the spectral norm, and the Frobenius norm where it is sampled;
    # for the variances, the norm of K - L L', and all of them by the sketch.
    statements = len(problem.ratio) * ("evidence" in effort.parts) + 2 * ("kernel" in effort.parts)
    statements += 2 * (problem.test is not None)
    run = Run(problem, low, effort, generator, effort.delta / statements)
    seconds = None if effort.seconds is None else max(effort.seconds - (time.monotonic() - clock), 0.0)
    budget = Budget(max(effort.products - 1, 0), seconds)  # the last product is for the residuals
    run.work(budget)
    spectral, frobenius = run.bound_kernel_error() if "kernel" in effort.parts else (None, None)
    log_evidence = run.bound_evidence() if "evidence" in effort.parts else None
    mean, variance = (run.bound_mean(), run.bound_variance()) if problem.test is not None else (None, None)
    products = budget.used + (run.solution is not None)
    intervals = [each for each in (spectral, frobenius, log_evidence, mean, variance) if each is not None]
    if not all(each.ordered for each in intervals):
        reason = "the bounds contradict each other: try another random_state; if that fails too, rounding dominates"
        return Findings.nothing(problem, effort, count_effort(products), reason)
    quadratics = float(run.quadratics[1].sum()) if "kernel" in effort.parts else math.inf
    return Findings(spectral, frobenius, log_evidence, mean, variance, low.norm, quadratics, count_effort(products), "")


class Run:
    """The pieces of one certificate that share a problem and its low rank."""

    def __init__(
        self, problem: Problem, low: LowRank, effort: Effort, generator: torch.Generator, delta: float
    ) -> None:
        self.problem, self.low, self.effort, self.generator = problem, low, effort, generator
        self.delta = delta  # of each random statement
        self.matrix, self.limits = KernelMatrix(problem.rows), problem.rows.limits
        self.noise = torch.as_tensor(problem.ratio).to(problem.target)
        self.q = len(self.noise)
        # Right-hand sides of the linear systems: the targets, then kernels of test points.
        self.b = problem.whiten(problem.target) / torch.as_tensor(problem.signal).to(problem.target).sqrt()
        self.levels = self.noise
        self.column_error = torch.zeros_like(self.noise)
        self.chosen = torch.empty(0, dtype=torch.long, device=self.b.device)
        self.solution: Solution | None = None
        self.entries: kernel_error.FrobeniusSum | None = None
        self.found: dict[str, Any] = {}

    def work(self, budget: Budget) -> None:
        """Everything that needs products with the kernel."""
        problem = self.problem
        if not self.effort.products or budget.out_of_time:
            return
        # Some products are for single test points; the mean gets all where there are few.
        reserve = 0 if problem.test is None or budget.products < _RESERVE else min(_RESERVE, budget.products // 4)
        tasks = self._tasks(budget.products - reserve)
        riders = [k for k, name in enumerate(tasks) if name == "rest"]
        done = krylov.run_together(self.matrix.product, list(tasks.values()), budget, reserve=reserve, riders=riders)
        self.found = dict(zip(tasks, done, strict=True))
        a = self.found["solve"]
        few = problem.n <= self.limits.every_entry_rows and not budget.out_of_time
        if "kernel" in self.effort.parts and few:
            self.entries = kernel_error.FrobeniusSum(problem)
        if problem.test is not None:
            self._choose_points()
        if len(self.chosen):
            levels = self.levels[self.q :]
            # A variance is wanted to a share of the noise variance, which is the square of that of a mean.
            points = self._solve(self.b[:, self.q :], levels, 0.5 * (self.effort.tolerance * levels).sqrt())
            a = torch.cat([a, *krylov.run_together(self.matrix.product, [points], budget)], 1)
        visit = None if self.entries is None else self.entries.add
        # |K| without weights, from above: no row sum is above n.
        weights, norm = 1.0, min(float(problem.n), self.low.norm)
        if self.low.root_weight is not None:
            weights, norm = float(self.low.root_weight.max()), float(problem.n)
        product, error = self.matrix.bounded_product(problem.whiten(a), closely=self.q, norm=norm, visit=visit)
        self.solution = Solution.of_product(self.b, a, self.levels, problem.whiten(product), weights * error)

    def _choose_points(self) -> None:
        """Choose the test points of which least is known; each gets a linear system of its own, per output."""
        assert self.problem.test is not None
        lower, upper, _ = self._closer_bounds
        # Half of the width, as a standard deviation with noise, in units of the noise: there is nothing to gain below
        # the tolerance.
        unclear = ((upper - lower) / (4.0 * (self.noise * (self.noise + lower)).sqrt())).amax(1)
        n, products = self.problem.n, self.effort.products
        most = min(_SOLVED, int(_COLUMN_WORK / n**2))
        if self._points[0].sketched is not None:
            most = min(most, n * products // _SOLVED_SHARE)
        count = min(max(_SOLVED_LEAST, most) // self.q, int((unclear > self.effort.tolerance).sum()))
        self.chosen = unclear.topk(count).indices
        rows, test = self.problem.rows, self.problem.test.rows.rows(self.chosen)
        block = rows.block(test)
        off = self.problem.whiten((rows.row_error[:, None] + test.row_error) * block).square().sum(0).sqrt()
        self.b = torch.cat([self.b, self.problem.whiten(block).repeat(1, self.q)], 1)
        self.levels = torch.cat([self.noise, self.noise.repeat_interleave(count)])
        self.column_error = torch.cat([self.column_error, off.repeat(self.q)])

    def _solve(self, b: Tensor, noise: Tensor, enough: Tensor) -> Task:
        """Conjugate gradients for right-hand sides b, (n, k), which are targets or kernels of test points."""
        return krylov.conjugate_gradients(
            b,
            solve=lambda v: self.low.solve(noise, v),
            before=self.problem.whiten,
            after=lambda v, product: self.problem.whiten(product) + noise * v,
            noise=noise,
            enough=enough,
        )

    def _tasks(self, available: int) -> dict[str, Task]:
        problem, low, products = self.problem, self.low, self.effort.products
        steps = min(available, max(_STEPS, products // 3))
        tasks = {"solve": self._solve(self.b, self.noise, self.effort.tolerance * self.noise.sqrt())}
        if not self.effort.random:
            return tasks
        common: dict[str, Any] = {"steps": steps, "starts": _PROBES, "generator": self.generator}
        if "evidence" in self.effort.parts:
            for k in range(self.q):
                tasks[f"logdet {k}"] = evidence.logdet_task(low, float(self.noise[k]), delta=self.delta, **common)
        if "kernel" in self.effort.parts:
            # Half of the steps count. Where they prove no upper bound, one start is as good for the lower one.
            proved = ritz_shortfall(problem.n, steps // 2, _PROBES, self.delta) < 1.0
            tasks["spectral"] = kernel_error.spectral_task(problem, **{**common, "starts": _PROBES if proved else 1})
        count = min(_VECTORS, _VECTORS_EACH * products, _VECTORS_NUMBERS // problem.n)
        if self.effort.enough and count > _VECTORS_LEAST:
            # Widths grow with what is left, and fall with the root of the vectors; few have a larger Student's factor.
            share = float(low.left.mean()) / (self.effort.enough * float(self.noise.min()))
            count = max(_VECTORS_LEAST, math.ceil(count * min(share, 1.0)))
        if problem.test is not None and count >= _VECTORS_LEAST:
            tasks["sketch"] = predictions.sketch_task(problem, low, count=count, generator=self.generator)
        # Where so few steps prove nothing about the norm, the trace is used instead. No product is made for the norm
        # alone, as the sketch knows more of most points.
        if problem.test is not None and ritz_shortfall(problem.n, steps, _FEWER, self.delta) < 1.0:
            # For the t of (E12): the norm of K - L L'.
            tasks["rest"] = krylov.lanczos(
                krylov.random_starts(problem.n, _FEWER, self.generator, like=self.b),
                before=problem.whiten,
                after=lambda v, product: low.rest(v, problem.whiten(product)),
                steps=steps,
            )
        return tasks

    @cached_property
    def _points(self) -> tuple[predictions.VarianceByRank, predictions.CrossProducts]:
        """One pass over the kernel between test points and rows, once sketch and solution are known."""
        problem, test = self.problem, self.problem.test
        assert test is not None
        by_rank = predictions.VarianceByRank(problem, self.low, test.rows, self.found.pop("sketch", None))
        solved = [self.found["solve"]] if self.found else []
        crossed = predictions.CrossProducts(problem, test.rows, torch.cat([self._middle[0], *solved], 1))
        for j, block in problem.rows.cross(test.rows):
            crossed.add(j, block)
            by_rank.add(j, block)  # may overwrite the block
        return by_rank, crossed

    @cached_property
    def targets(self) -> Solution | None:
        """The linear systems of the targets."""
        return None if self.solution is None else self.solution.columns(slice(0, self.q))

    def bound_kernel_error(self) -> tuple[Interval, Interval]:
        """Spectral and Frobenius norm of ``K - K'``."""
        problem = self.problem
        spectral = kernel_error.spectral_by_rank(problem, self.low)
        better = kernel_error.spectral_by_lanczos(self.found.get("spectral"), problem, delta=self.delta)
        if better is not None:
            spectral = better.within(spectral, method=f"{better.method}; {spectral.method}")
        if self.entries is not None:
            return spectral, self.entries.interval()
        if problem.n <= self.limits.few_rows:
            return spectral, kernel_error.frobenius_exact(problem)
        if self.effort.delta:
            count, seed = self.limits.pairs, self.effort.seed
            return spectral, kernel_error.frobenius_by_pairs(problem, pairs=count, delta=self.delta, seed=seed)
        upper = math.sqrt(problem.n) * spectral.upper
        return spectral, Interval(spectral.lower, upper, 1.0, "from the spectral norm")

    @cached_property
    def _ends(self) -> tuple[Solved, Solved]:
        """The targets solved with P and with ``P + t I``, between which Q lies."""
        b, low = self.b[:, : self.q], self.low
        return low.checked_solve(self.noise - low.slack, b), low.checked_solve(self.noise + low.excess, b)

    @property
    def _forms(self) -> tuple[Tensor, Tensor]:
        """``y'Q^-1 y`` from the rank alone: ``(P + t I)^-1 <= Q^-1 <= P^-1``, (E8b)."""
        first, second = self._ends
        return second.form[0], first.form[1]

    @cached_property
    def quadratics(self) -> tuple[Array, Array]:
        """Bounds on ``y'Q^-1 y`` by output, once the work is done."""
        lower, upper = self._forms
        if self.targets is not None:
            closer = evidence.quadratic(self.targets, self.low)
            lower, upper = torch.maximum(lower, closer[0]), torch.minimum(upper, closer[1])
        return _to_array(lower), _to_array(upper)

    def bound_evidence(self) -> Interval:
        """Log evidence of all outputs together, in the model's units."""
        problem, low = self.problem, self.low
        quad_low, quad_high = self.quadratics
        log_noise = 0.0 if problem.weight is None else -float(problem.weight.log().sum())
        constants = [problem.n * math.log(2.0 * math.pi * float(signal)) + log_noise for signal in problem.signal]

        def total(logdets: list[Interval], certain: Interval | None = None) -> Interval:
            lower = sum(-0.5 * (constants[k] + each.upper + quad_high[k]) for k, each in enumerate(logdets))
            upper = sum(-0.5 * (constants[k] + each.lower + quad_low[k]) for k, each in enumerate(logdets))
            probability = 1.0 - sum(1.0 - each.probability for each in logdets)
            return Interval(lower, upper, probability, logdets[0].method, problem.log_evidence, certain)

        sure, best = [], []
        for k, noise in enumerate(self.noise.tolist()):
            sure.append(evidence.logdet_by_rank(low, noise))
            probes = evidence.logdet_by_probes(self.found.get(f"logdet {k}"), low, noise, delta=self.delta)
            best.append(sure[k] if probes is None else probes.within(sure[k], method=probes.method))
        certain = total(sure)
        return certain if all(each.probability == 1.0 for each in best) else total(best, certain)

    def bound_mean(self) -> Interval:
        """Mean of the function at the test points, in the model's units, (m, q)."""
        problem, low, q, targets = self.problem, self.low, self.q, self.targets
        assert problem.test is not None
        _, wrong = self._middle
        by_rank, crossed = self._points
        products, errors = crossed.products, crossed.errors
        quad_low, quad_high = self._forms
        explained = by_rank.most_explained.clamp_min(0.0)
        spread = (explained - by_rank.least_explained).clamp_min(0.0)
        half = 0.5 * (spread * (quad_high - quad_low).clamp_min(0.0)).sqrt() + explained.sqrt() * wrong + errors[:, :q]
        # (E11) with a = 0: the exact mean cannot be further than this from the constant.
        furthest = torch.minimum(self.b[:, :q].square().sum(0).sqrt() / (2.0 * self.noise.sqrt()), quad_high.sqrt())
        left = torch.maximum(products[:, :q] - half, -furthest)
        right = torch.minimum(products[:, :q] + half, furthest)
        method = f"rank {low.rank}"
        if targets is not None:
            half = predictions.mean_half_width(targets, low) + errors[:, q:]
            left = torch.maximum(left, products[:, q:] - half)
            right = torch.minimum(right, products[:, q:] + half)
            method = f"conjugate gradients, rank {low.rank}"
        root, shift = np.sqrt(problem.signal), problem.mean
        return Interval(_to_array(left) * root + shift, _to_array(right) * root + shift, 1.0, method, problem.test.mean)

    @cached_property
    def _middle(self) -> tuple[Tensor, Tensor]:
        """Half way between the solutions with P and with ``P + t I``, between which Q lies.

        ``|k'(Q^-1 - M) y| <= sqrt(k'D k  y'D y)`` for the middle M of the two inverses and half their difference D:
        Cauchy and Schwarz, as ``-D <= Q^-1 - M <= D``. A solution that leaves ``o = y - P z`` is wrong at k by  (E15)
        ``|k'P^-1 o| <= sqrt(k'P^-1 k) |o| / s``, the second number in units of the root.
        """
        first, second = self._ends
        return 0.5 * (first.z + second.z), 0.5 * (first.off / first.level.sqrt() + second.off / second.level.sqrt())

    def bound_variance(self) -> Interval:
        """Variance of the function at the test points, in the model's units, (m, q)."""
        problem, low, chosen = self.problem, self.low, self.chosen
        assert problem.test is not None
        ours, method = problem.test.variance, f"rank {low.rank}"
        solved: tuple[Tensor, Tensor] | None = None
        if self.solution is not None and len(chosen):
            points = self.solution.columns(slice(self.q, None))
            below, above = predictions.variance_by_solution(points, low, self.column_error[self.q :])
            solved = below.view(self.q, -1).T, above.view(self.q, -1).T
            method += f", {len(chosen)} points solved"

        def interval(least: Tensor, most: Tensor, probability: float, how: str, certain: Interval | None) -> Interval:
            least, most = least.clone(), most.clone()
            if solved is not None:
                least[chosen] = torch.maximum(least[chosen], solved[0])
                most[chosen] = torch.minimum(most[chosen], solved[1])
            lower, upper = (_to_array(each) * problem.signal for each in (least, most))
            return Interval(lower, upper, probability, how, ours, certain)

        by_rank, _ = self._points
        sure = interval(by_rank.lower, by_rank.most, 1.0, method, None)
        lower, upper, how = self._closer_bounds
        if not how or len(chosen) == problem.test.rows.n:
            return sure
        closer = interval(lower, upper, 1.0 - len(how) * self.delta, f"{method}, {', '.join(how)}", sure)
        # Random bounds that contradict certain ones have failed; that is what their probability is for.
        return closer if closer.ordered else sure

    @cached_property
    def _closer_bounds(self) -> tuple[Tensor, Tensor, list[str]]:
        """The best bounds on the variance without systems of single points, and the random methods among them."""
        by_rank, _ = self._points
        lower, upper, used = by_rank.lower, by_rank.most, []
        norm = self.norm_left()
        if norm is not None:
            upper = torch.minimum(upper, by_rank.upper(norm))
            used.append("norm of the rest by Lanczos")
        sketched = by_rank.by_sketch(self.delta)
        if sketched is not None:
            lower, upper = torch.maximum(lower, sketched[0]), torch.minimum(upper, sketched[1])
            used.append("rest seen by random vectors")
        return lower, upper, used

    def norm_left(self) -> float | None:
        """``|K - L L'|`` from above with probability ``1 - delta``, where that is better than the trace.       (K2)"""
        found: Lanczos | None = self.found.get("rest")
        if found is None:
            return None
        shortfall = ritz_shortfall(self.problem.n, found.steps, found.starts, self.delta)
        if shortfall >= 1.0:
            return None
        wrong = self.low.slack + self.low.rest_error
        norm = (found.extremes()[1] + wrong) / (1.0 - shortfall) + wrong
        return norm if norm < self.low.excess else None


def _to_array(values: Tensor) -> Array:
    return np.asarray(values.cpu().numpy())

"""One pass over the kernel serves everybody: algorithms that need products ``K v`` ask for them together.

An algorithm is a generator that yields a block of vectors, (n, k), and is sent its product with K; when the
budget is spent it is sent None instead, and returns what it has. The cost of a pass is that of making the
entries of K; more columns cost little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prismgp._types import Tensor

__all__ = ["Budget", "Task", "run_together"]

Task = Generator[Tensor, Tensor | None, Any]
_ENTRIES = 32  # columns that take as long as making the entries of K, roughly


@dataclass
class Budget:
    """What may still be spent on products: their number, and a moment on the clock."""

    products: int
    deadline: float | None = None
    used: int = 0
    pace: float = 0.0  # seconds of the last one for each of its columns, the entries of K counted as some more

    @classmethod
    def of(cls, products: int, seconds: float | None) -> Budget:
        return cls(products, None if seconds is None else time.monotonic() + seconds)

    def allows(self, columns: int, keep: int = 0) -> bool:
        """Whether another product may be made, ``keep`` being for later, with time for the one that checks the rest."""
        if self.used + keep >= self.products:
            return False
        expected = 2.0 * self.pace * (columns + _ENTRIES)
        return self.deadline is None or time.monotonic() + expected < self.deadline

    @property
    def over(self) -> bool:
        """Whether the time is."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def spend(self, product: Callable[[Tensor], Any], v: Tensor) -> Any:
        """Make a product and take note."""
        start = time.monotonic()
        done = product(v)
        if v.device.type == "cuda":
            torch.cuda.synchronize(v.device)
        self.pace = (time.monotonic() - start) / (v.shape[1] + _ENTRIES)
        self.used += 1
        return done


def run_together(
    product: Callable[[Tensor], Tensor], tasks: list[Task], budget: Budget, *, keep: int = 0, riders: Sequence[int] = ()
) -> list[Any]:
    """Run all tasks to their end or to the end of the budget, less ``keep`` products; their results, in order.

    ``riders`` take part in the products that others ask for, and end with the others.
    """
    results: list[Any] = [None] * len(tasks)
    waiting: dict[int, Tensor] = {}

    def advance(k: int, answer: Tensor | None) -> None:
        try:
            waiting[k] = tasks[k].send(answer)
        except StopIteration as end:
            waiting.pop(k, None)
            results[k] = end.value

    for k in range(len(tasks)):  # a generator is begun by being sent None
        advance(k, None)
    while waiting:
        order = list(waiting)
        sizes = [waiting[k].shape[1] for k in order]
        if all(k in riders for k in order) or not budget.allows(sum(sizes), keep):
            for k in order:
                advance(k, None)
            break
        answers = budget.spend(product, torch.cat([waiting[k] for k in order], 1))
        for k, answer in zip(order, answers.split(sizes, 1), strict=True):
            advance(k, answer)
    return results

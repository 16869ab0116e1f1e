"""Training of networks: rows in batches, a loop with checks on held-out rows, and its state in a checkpoint.

:func:`run_training` is the loop of all networks. A :class:`Training` says what a step is, which checks are due after
it, and which networks are still in training; the loop counts the steps, calls back, ends early, and saves and restores
the state. A :class:`TrainingTask` is the training of one network, checked every few steps: the mixture VAE, and the
model of the authors' released code (``prism/released.py``). The members of a PrismGP are trained together
(``prism/train.py``). All random numbers are drawn on the CPU, so a seed means the same batches, noise and initial
values on every device.

The metric of a neighbour GP is no network: it has an analytic gradient and is learned like other kernel parameters
(``neighbors/fit.py``).
"""

from __future__ import annotations

import copy
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from prismgp._system import Streams, available_bytes
from prismgp._types import AnyArray, Array, Indices, Saved, Tensor
from prismgp.checkpoint import Checkpoint
from prismgp.core.models import standardise
from prismgp.core.rows import Ending
from prismgp.exceptions import NumericalError

_LARGEST_VALUE = 1e4  # standard deviations; beyond, squares of what networks compute overflow in float32
STATE_NAME = "training"  # of the state of a training in a checkpoint
_DIVERGED = "the objective left the range of floating-point numbers"


# -- rows --------------------------------------------------------------------------------------------


class BatchRows:
    """Raw rows x, (n, d), standardised by index, without a standardised copy of all of them in main memory.

    On a GPU the copy is made, there, when it fills less than half of the free memory.
    """

    def __init__(self, x: AnyArray, shift: Array, scale: Array, *, dtype: torch.dtype, device: torch.device) -> None:
        self.x, self.shift, self.scale = x, shift, scale
        self.dtype, self.device = dtype, device
        self._copy: Tensor | None = None
        if device.type == "cuda" and x.size * dtype.itemsize < available_bytes(device) // 2:
            blocks = [self._standardise(x[start : start + 65_536]) for start in range(0, len(x), 65_536)]
            self._copy = torch.cat(blocks)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Indices | slice) -> Tensor:
        if self._copy is None:
            return self._standardise(self.x[index])
        return self._copy[index if isinstance(index, slice) else torch.as_tensor(index, device=self.device)]

    def take(self, index: Indices, there: Tensor) -> Tensor:
        """The rows of an index, which is given in main memory and on the device."""
        return self[index] if self._copy is None else self._copy[there]

    def _standardise(self, block: AnyArray) -> Tensor:
        rows = standardise(block, self.shift, self.scale, dtype=torch.float64, device=self.device)
        return rows.clamp_(-_LARGEST_VALUE, _LARGEST_VALUE).to(self.dtype)


def draw_rows(
    n: int, held_out: Indices, count: int, rng: np.random.Generator, weight: AnyArray | None = None
) -> Indices:
    """Draw distinct rows of n in random order, none of them among ``held_out``, which is sorted; all if fewer.

    With weights, (n,), rows are drawn in proportion to them, with replacement.
    """
    free = n - len(held_out)
    if weight is None:
        drawn = rng.choice(free, min(count, free), replace=False)
    else:
        others = np.delete(weight, held_out)
        drawn = rng.choice(free, min(count, free), p=others / others.sum())
    # Position among the rows that are not held out, to position among all: skip the held-out rows before it.
    return drawn + np.searchsorted(held_out - np.arange(len(held_out)), drawn, side="right")


def torch_generator(streams: Streams, name: str) -> torch.Generator:
    """Make a torch generator of a named stream."""
    return torch.Generator().manual_seed(int(streams.generator(name).integers(2**63 - 1)))


# -- what a training consists of -----------------------------------------------------------------------


@dataclass(frozen=True)
class TrainingState:
    """Everything the next step depends on."""

    modules: dict[str, torch.nn.Module]
    optimiser: torch.optim.Optimizer
    draws: dict[str, np.random.Generator]
    generators: dict[str, torch.Generator]

    def tensors(self) -> dict[str, Tensor]:
        """Copy all tensors, by name."""
        found: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            found |= {f"{name}.{key}": value.clone() for key, value in module.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            found |= {f"optimiser.{index}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
        for name, generator in self.generators.items():
            found[f"generator.{name}"] = generator.get_state()
        return found

    def info(self) -> dict[str, Any]:
        """Return what is not a tensor, as JSON can hold it."""
        # Their integers are longer than JSON readers promise to keep, so they are stored as text.
        return {"draws": {name: json.dumps(draw.bit_generator.state) for name, draw in self.draws.items()}}

    def restore(self, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
        """Set everything to what :meth:`tensors` and :meth:`info` returned."""
        for name, module in self.modules.items():
            module.load_state_dict(select_tensors(tensors, name))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in select_tensors(tensors, "optimiser").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        for name, generator in self.generators.items():
            generator.set_state(tensors[f"generator.{name}"])
        for name, draw in self.draws.items():
            draw.bit_generator.state = json.loads(info["draws"][name])


class Training(ABC):
    """A training of one network or several, as :func:`run_training` sees it."""

    steps = 0  # taken

    @property
    @abstractmethod
    def results(self) -> list[TrainingResult]:
        """What the networks have reached."""

    @property
    @abstractmethod
    def running(self) -> list[TrainingResult]:
        """The results of the networks that are still in training."""

    @property
    def resumable(self) -> bool:
        """Whether the state may be saved."""
        return True

    def begin(self) -> list[float]:
        """Make the checks before the first step of all; their values."""
        return []

    @abstractmethod
    def step(self, number: int) -> None:
        """Update the networks once; ``number`` is one for the first step."""

    @abstractmethod
    def make_checks(self, *, last: bool = False) -> list[float]:
        """Make the checks that are due, and end what they say is over; their values.

        ``last``: the time is over, and networks that have changed since their last check are checked once more.
        """

    @abstractmethod
    def save(self) -> Saved:
        """Everything the next step depends on, and what was reached."""

    @abstractmethod
    def restore(self, saved: Saved) -> None:
        """Set everything to what :meth:`save` returned."""

    @abstractmethod
    def end(self, message: str) -> None:
        """End the training of all networks, and say why."""

    def advance(self) -> list[float]:
        """Take a step, and make the checks that are due after it; their values."""
        number = self.steps + 1
        self.step(number)
        self.steps = number
        for result in self.running:
            result.steps = number
        return self.make_checks()


class TrainingTask(Training):
    """The training of one network."""

    model: torch.nn.Module  # the network of which the best state is kept
    held_out: Indices  # rows that no step sees
    max_steps: int
    patience: int | None  # steps without a better check after which to stop; None: never
    check_every: int  # steps between checks; there is always one after the last step
    check_start: bool = False  # whether there is a check before the first step, too
    criterion: str  # what a check measures, for messages

    @abstractmethod
    def check(self) -> tuple[float, dict[str, Any]]:
        """Measure the network on held-out rows: the value, larger is better, and further entries for the history."""

    @abstractmethod
    def state(self) -> TrainingState:
        """Return the objects that hold the state of the training."""

    @cached_property
    def result(self) -> TrainingResult:
        """What the training has reached; it has a message when it is over."""
        return TrainingResult(held_out_rows=len(self.held_out), early=True)

    @property
    def results(self) -> list[TrainingResult]:
        return [self.result]

    @property
    def running(self) -> list[TrainingResult]:
        return [] if self.result.message else [self.result]

    def begin(self) -> list[float]:
        return [self._check()] if self.check_start else []

    def make_checks(self, *, last: bool = False) -> list[float]:
        step = self.steps
        if last:
            return [self._check()] if step % self.check_every else []
        values = [self._check()] if step % self.check_every == 0 or step >= self.max_steps else []
        if values and not math.isfinite(values[0]):
            self.end(f"{_DIVERGED} at step {step}")
            return []
        if self.patience is not None and step - self.result.best_step >= self.patience:
            self.end(f"no better {self.criterion} for {self.patience} steps")
        elif step >= self.max_steps:
            self.end(f"all {step} steps taken")
        return values

    def _check(self) -> float:
        """Make a check, record it, and keep the network if it is the best so far."""
        value, entries = self.check()
        self.result.record_check(value, entries, self.model, higher_is_better=True)
        return value

    def end(self, message: str) -> None:
        self.result.message, self.result.early = message, False

    def save(self) -> Saved:
        state, best = self.state(), {} if self.result.best is None else self.result.best.state_dict()
        tensors = {**state.tensors(), **{f"best.{name}": value.clone() for name, value in best.items()}}
        return tensors, {"seconds": self.result.seconds, "result": self.result.summary(), **state.info()}

    def restore(self, saved: Saved) -> None:
        tensors, info = saved
        self.state().restore(tensors, info)
        self.result.load(info["result"], self.model, select_tensors(tensors, "best"))
        self.result.early = not self.result.message
        self.result.began -= float(info["seconds"])
        self.steps = self.result.steps


@dataclass
class TrainingResult:
    """What a training reached."""

    best: Any = None  # a copy of the network at its best check; None without a check of finite value
    score: float = math.nan  # the value of that check
    best_step: int = 0  # the step of that check
    steps: int = 0  # steps taken
    message: str = ""  # why the training ended
    early: bool = False  # ended by the time limit or an interrupt
    held_out_rows: int = 0  # 0 when there were too few rows to hold any out: then training rows are checked
    records: list[dict[str, Any]] = field(default_factory=list)  # an entry for each check
    began: float = field(default_factory=time.perf_counter)  # less the time of a training that is continued

    @property
    def seconds(self) -> float:
        """Time since the training began."""
        return time.perf_counter() - self.began

    def record_check(
        self,
        value: float,
        entries: dict[str, Any],
        model: torch.nn.Module,
        *,
        higher_is_better: bool = False,
        changes: bool = True,
    ) -> None:
        """Record a check of a network, and keep it if it is the best so far; a copy of one that changes later."""
        record = {"step": self.steps, "seconds": self.seconds, **entries}
        if math.isfinite(value) and np.isfinite(np.hstack(list(record.values()))).all():  # the history is for numbers
            self.records.append(record)
        better = value > self.score if higher_is_better else value < self.score
        if math.isfinite(value) and (self.best is None or better):
            # A new object, so that an interrupt finds either the old network or the new one, never a blend.
            best = copy.deepcopy(model) if changes else model
            self.best, self.score, self.best_step = best, value, self.steps

    @property
    def history(self) -> dict[str, list[Any]]:
        """The records by column."""
        return {name: [record[name] for record in self.records] for name in (self.records[0] if self.records else ())}

    def summary(self) -> dict[str, Any]:
        """All but the network, as JSON can hold it."""
        names = ("best_step", "steps", "message", "held_out_rows", "records")
        score = self.score if math.isfinite(self.score) else None
        return {**{name: getattr(self, name) for name in names}, "score": score}

    @classmethod
    def restore(cls, summary: dict[str, Any], like: torch.nn.Module, best: dict[str, Tensor]) -> TrainingResult:
        """A new one, by :meth:`load`."""
        result = cls()
        result.load(summary, like, best)
        return result

    def load(self, summary: dict[str, Any], like: torch.nn.Module, best: dict[str, Tensor]) -> None:
        """Set everything to a :meth:`summary` and the state of the best network; ``like`` is a network of its kind."""
        for name, value in summary.items():
            setattr(self, name, value)
        if summary["score"] is None:
            self.score = math.nan
        if best:
            self.best = copy.deepcopy(like)
            self.best.load_state_dict(best)


# -- the loop ------------------------------------------------------------------------------------------


def run_training(
    task: Training,
    *,
    monitor: Callable[[Sequence[float]], None] | None = None,
    observe: Callable[[Sequence[TrainingResult]], None] | None = None,
    checkpoint: Checkpoint | None = None,
    ending: Ending | None = None,
) -> list[TrainingResult]:
    """Take steps until the training of every network is done, stops improving, diverges or is ended.

    ``ending`` ends it early, anywhere in a step or in a callback, and the best networks so far are kept; at a time
    limit the networks are checked once more. ``monitor`` is called after every step with the values of the checks that
    followed it; ``observe`` after checks with the results so far. The state is saved to ``checkpoint`` after checks; a
    state found there at the start is continued.
    """
    ending = ending or Ending()
    if checkpoint is not None:
        checkpoint.recall(STATE_NAME, task.restore)
    with ending.catch_end():
        if not task.steps:
            _attempt(task, task.begin)
        while task.running:
            ending.check()
            values = _attempt(task, task.advance)
            if monitor is not None:
                monitor(values)
            if values and observe is not None:
                observe(task.results)
            if values and checkpoint is not None and task.resumable:
                checkpoint.put(STATE_NAME, task.save, now=not task.running)
    if task.running and task.steps and not ending.interrupted:
        with ending.catch_end():
            _attempt(task, partial(task.make_checks, last=True))
    for result in task.running:
        after = f"after {result.steps} steps" if result.steps else "before the first step"
        result.message = f"{ending.reason} {after}"
    return task.results


def _attempt(task: Training, part: Callable[[], list[float]]) -> list[float]:
    """Do a part of a training; a NumericalError ends the training."""
    try:
        return part()
    except NumericalError:
        task.end(f"{_DIVERGED} after step {task.steps}")
        return []


def select_tensors(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``name.``, without it."""
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")}

"""Interfaces of the mathematics: rows, wherever they are, and their noise; time limits; and callbacks.

The package ``data`` implements the protocols of rows for arrays, files and clusters; ``context`` the callback.

Rows may differ in their noise, by weights and known error variances. A row of weight w is the average of w
observations, each with noise ``s2 + v``, v its known variance. So its noise is

- (W1) ``D_i = (s2 + v_i) / w_i = s2 V_i``, with ``V_i = e_i / w_i`` and ``e_i = 1 + v_i / s2``.

At given parameters the posterior is that of the row repeated w times. The evidence differs from that of repeated rows
by a function of s2 alone: repeated rows also say that w observations were equal to the last digit, from which one would
learn that there is no noise. With ``Q`` the covariance of the targets, r their residuals and ``alpha = Q^-1 r``,

- (W2) ``d log evidence / d log s2 = 1/2 sum_i (alpha_i^2 - (Q^-1)_ii) D_i / e_i``.

A fit may end before it is done: at a time limit, or by an interrupt after which the best state so far is kept. A stage
runs inside :meth:`Ending.catch_end` and calls :meth:`Ending.check` before everything that takes time. When the end has
come, the check leaves the block, and the stage continues with the best state it has reached. What every model needs,
such as the last pass over the rows, is done in :meth:`Ending.compute_anyway`, whatever the clock says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar, get_args

import numpy as np
import torch

from prismgp._types import AnyArray, Array, OnInterrupt, Saved, Tensor

T = TypeVar("T")

ON_INTERRUPT = get_args(OnInterrupt)


class Work(Protocol[T]):
    """What one pass over the rows does; results of parts of the rows add up to that of all.

    It can be pickled, because other processes may do it.
    """

    def over(self, chunks: Iterable[tuple[Tensor, Tensor]], *, rows: int, q: int) -> T:
        """The result for standardised chunks ``(X, Y)`` of at most ``rows`` rows and q outputs.

        Behind the outputs, Y may have the columns that :meth:`RowNoise.split` takes off.
        """

    def merge(self, first: T, second: T) -> T:
        """The result for both sets of rows together."""


class Chunked(Protocol):
    """Rows in chunks of a fixed size, passed over as often as asked."""

    n_rows: int
    known_noise: bool  # whether some noise variances of rows are known
    limits: Tensor | None  # of the inputs, see :mod:`prismgp.core.features`
    n_outputs: int

    @property
    def stays(self) -> bool:
        """Whether every pass has the same chunks, in this process."""

    dtype: torch.dtype
    device: torch.device

    def reduce(self, work: Work[T]) -> T:
        """Do the work on all chunks."""


class Rows(Protocol):
    """Standardised training rows."""

    @property
    def n_rows(self) -> int: ...

    @property
    def n_inputs(self) -> int: ...

    @property
    def n_outputs(self) -> int: ...

    @property
    def device(self) -> torch.device:
        """Where chunks are."""

    @property
    def labels(self) -> AnyArray | None:
        """The clusters of the rows, (n,), if they were given."""

    def chunks(self, p: int) -> Chunked:
        """The rows in chunks that suit p frequencies."""

    def limit(self, limits: Tensor | None) -> Rows:
        """The rows with inputs within limits, (2, d), instead of those they have."""

    def subsamples(self, sizes: list[int], rng: np.random.Generator) -> Sequence[Rows]:
        """Nested random subsamples of about these increasing sizes."""

    def split(self, labels: AnyArray, n_clusters: int) -> Sequence[Rows]:
        """The rows of each cluster."""

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All rows as float64 tensors; for small sets."""

    def noise(self) -> RowNoise | None:
        """How noisy each row is, where they differ; for small sets."""


# -- how noisy each row is -------------------------------------------------------------------------


def effective_rows(weights: Array) -> float:
    """The number of equal weights that says as much as unequal ones, (n,), do (Kish)."""
    return float(weights.sum() ** 2 / np.square(weights).sum())


@dataclass(frozen=True)
class RowNoise:
    """Weights and known noise variances of rows (W1), in the model's units, float64."""

    weight: Tensor  # (n,), positive
    variance: Tensor | None = None  # (n,); known variances are for models of one output

    @classmethod
    def split(cls, y: Tensor, q: int) -> tuple[Tensor, RowNoise | None]:
        """Targets, (n, q), and the noise of the rows, None if they do not differ, from targets with noise columns."""
        if y.shape[1] == q:
            return y, None
        weight, *variance = (column.double().contiguous() for column in y[:, q:].unbind(1))
        return y[:, :q].contiguous(), cls(weight, variance[0] if variance else None)

    @classmethod
    def join(cls, parts: Sequence[tuple[RowNoise | None, int]], device: torch.device) -> RowNoise | None:
        """The noise of several sets of rows, each with the number of its rows; None where no row differs."""
        if all(noise is None for noise, _ in parts):
            return None
        known = any(noise is not None and noise.variance is not None for noise, _ in parts)
        weights, variances = [], []
        for noise, n in parts:
            plain = torch.ones(n, dtype=torch.float64, device=device)
            weights.append(plain if noise is None else noise.weight.to(device))
            variance = None if noise is None else noise.variance
            variances.append(torch.zeros_like(plain) if variance is None else variance.to(device))
        return cls(torch.cat(weights), torch.cat(variances) if known else None)

    @property
    def columns(self) -> Tensor:
        """The noise columns, (n, 1) or (n, 2)."""
        parts = [self.weight] if self.variance is None else [self.weight, self.variance]
        return torch.stack(parts, 1)

    def take(self, index: Tensor | slice) -> RowNoise:
        return RowNoise(self.weight[index], None if self.variance is None else self.variance[index])

    def to(self, device: torch.device) -> RowNoise:
        return RowNoise(self.weight.to(device), None if self.variance is None else self.variance.to(device))

    def log_level(self, noise: float | Tensor, log_noise: Tensor | None = None) -> Tensor:
        """``log e_i``, (n,), of one observation of each row; ``log_noise`` is added to the noise s2 of each row."""
        if self.variance is None:
            return torch.zeros_like(self.weight) if log_noise is None else log_noise.double()
        known = self.variance / noise
        return torch.log1p(known) if log_noise is None else torch.log(log_noise.double().exp() + known)

    def log_relative(self, noise: float | Tensor, log_noise: Tensor | None = None) -> Tensor:
        """``log V_i``, (n,)."""
        return self.log_level(noise, log_noise) - self.weight.log()


# -- when a fit ends, and what it calls ------------------------------------------------------------


class FitEndedError(Exception):
    """The fit is to end with the best state so far; :meth:`Ending.catch_end` catches it."""


def time_twice(work: Callable[[], object]) -> float:
    """Seconds that some work takes; the second time, because the first prepares things."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@dataclass
class _Record:
    """What happened to a fit; its parts share it."""

    timed_out: bool = False
    interrupted: bool = False


class Ending:
    """Time limit of a fit, and what an interrupt (Ctrl-C) does.

    ``max_seconds``: None for no limit, counted from ``began``, a value of ``time.perf_counter`` (None: now). ``keep``:
    an interrupt ends the fit with the best state so far, instead of being raised; a second one is raised.
    """

    def __init__(self, max_seconds: float | None = None, *, keep: bool = False, began: float | None = None) -> None:
        self.began = time.perf_counter() if began is None else began
        self.keep = keep
        self._deadline = math.inf if max_seconds is None else self.began + max_seconds
        self._record = _Record()
        self._over = False

    def part(self, share: float = 1.0) -> Ending:
        """The ending of a stage that gets a share of the time left; an interrupt ends the whole fit."""
        now = time.perf_counter()
        inner = Ending(keep=self.keep, began=now)
        inner._record = self._record
        if self.limited:
            inner._deadline = now + share * max(0.0, self._deadline - now)
        return inner

    def reserve(self, seconds: float) -> None:
        """Keep time for what has to be done afterwards."""
        self._deadline -= seconds

    def shorten(self, share: float) -> None:
        """Take a share of the time instead of all of it."""
        if self.limited:
            self._deadline = self.began + share * (self._deadline - self.began)

    @property
    def limited(self) -> bool:
        """Whether there is a time limit."""
        return math.isfinite(self._deadline)

    @property
    def left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return self._deadline - time.perf_counter()

    @property
    def share(self) -> float:
        """The part of the time that has passed, at most 1; 0 without a limit."""
        whole = self._deadline - self.began
        return 0.0 if not self.limited else min(1.0, 1.0 - self.left / whole) if whole > 0.0 else 1.0

    @property
    def over(self) -> bool:
        """Whether this stage has been ended."""
        return self._over or self._record.interrupted

    @property
    def timed_out(self) -> bool:
        """Whether the time limit has ended a stage of the fit."""
        return self._record.timed_out

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt has ended the fit."""
        return self._record.interrupted

    @property
    def early(self) -> bool:
        """Whether a stage of the fit ended before it was done, so that its result is no longer reproducible."""
        return self.timed_out or self.interrupted

    @property
    def reason(self) -> str:
        """Why the fit ended early, for messages."""
        return "interrupted" if self.interrupted else "stopped by the time limit"

    def status(self) -> dict[str, Any]:
        """The entries of ``fit_status_`` about the end of the fit."""
        status: dict[str, Any] = {"interrupted": self.interrupted, "timed_out": self.timed_out}
        return status | ({"seconds": time.perf_counter() - self.began} if self.limited else {})

    def check(self, seconds: float = 0.0) -> None:
        """End the stage if something that takes this many seconds would end after the time limit."""
        if time.perf_counter() + seconds > self._deadline:
            self._over = self._record.timed_out = True
        if self.over:
            raise FitEndedError

    def catch_end(self) -> _Block:
        """Return a context manager that catches the end of the stage and a kept interrupt; the code after it runs."""
        return _Block(self)

    def compute_anyway(self, compute: Callable[[], T]) -> T:
        """Compute a result that the model needs; if an interrupt is to keep the model, compute it again."""
        try:
            return compute()
        except KeyboardInterrupt:
            if not self.keeps_interrupt():
                raise
        return compute()

    def keeps_interrupt(self) -> bool:
        """Whether an interrupt that was caught ends the fit with the best state so far; only the first one does."""
        kept = self.keep and not self._record.interrupted
        self._record.interrupted |= kept
        return kept


class _Block:
    """What :meth:`Ending.catch_end` returns; a class, so that type checkers know that it stops exceptions."""

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, KeyboardInterrupt):
            return self._ending.keeps_interrupt()
        return isinstance(error, FitEndedError)


@dataclass(frozen=True)
class Codec(Generic[T]):
    """How a result is stored, as numbers and JSON, and made again of these."""

    write: Callable[[T], Saved]
    read: Callable[[Saved], T]


class Callback:
    """What a fit calls on its way. This one does nothing; subclasses show progress or keep results.

    ``ending`` says when the fit ends before it is done; None: never, and interrupts are raised.
    """

    def __init__(self, ending: Ending | None = None) -> None:
        self.ending = ending or Ending()

    def evaluate(
        self,
        rows: int,  # noqa: ARG002
        vector: Array,  # noqa: ARG002
        compute: Callable[[], tuple[float, Array]],
    ) -> tuple[float, Array]:
        """Called instead of ``compute``, which evaluates the log evidence of some rows at a packed vector."""
        return compute()

    def recall(self, name: str, compute: Callable[[], T], codec: Codec[T]) -> T:  # noqa: ARG002
        """Called instead of ``compute``, which takes long; the codec says how its result can be stored."""
        return compute()

    def report(self, stage: str, rows: int, model: Callable[[], Any], log_evidence: float | None = None) -> None:
        """Called after every iteration; ``model`` makes the model at its parameters."""

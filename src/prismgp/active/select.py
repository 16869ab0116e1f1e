"""`prismgp.active.select`: which rows of a pool to measure next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from prismgp._system import Streams, available_bytes
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import check_choice, check_number
from prismgp.active.greedy import Criterion, Entropy, MutualInformation, Pool, VarianceReduction, choose_rows
from prismgp.active.space import Space, space_of
from prismgp.core.models import Predictor
from prismgp.data import Source, prefetch
from prismgp.exceptions import DataError
from prismgp.model import FittedModel

CRITERIA = ("entropy", "mutual_information", "alc")
_REFERENCE_ROWS = 2_000  # of the pool, if no reference is given
_CANDIDATES = 8_192  # held in memory, at least
_CANDIDATES_PER_ROW = 16
_CHUNK_BYTES = 2**26  # of the features of one chunk
_MEMORY_SHARE = 0.25  # of what is available, for the features of the whole pool


class Selector(Protocol):
    """What a selection needs of a fitted estimator."""

    def read_pool(self, X: Any) -> Source:
        """Inputs as the model takes them."""

    def current_model(self) -> FittedModel:
        """The fitted model where the estimator computes."""


class Selected(NamedTuple):
    """Rows of a pool, best first."""

    rows: AnyArray  # (n,), int64
    scores: Array  # (n,)


def select(
    model: Selector,
    pool: Any,
    n: int,
    criterion: str = "entropy",
    *,
    reference: Any = None,
    exclude: Any = (),
    return_scores: bool = False,
    random_state: RandomState = 0,
) -> AnyArray | tuple[AnyArray, Array]:
    """Select the rows of a pool whose measurement would tell the model the most.

    Rows are chosen one by one, each given those chosen before it, so that a batch does not hold the same information
    twice. The targets of the pool are not needed. The choice depends on the model's parameters: choose, measure, and
    fit again.

    Parameters
    ----------
    model : ExactGPRegressor, SSGPRegressor or PrismGPRegressor
        Fitted. Of a PrismGPRegressor with neighbours, the mixture of its experts selects, without these.
    pool : array-like, (m, d), frame, Dask collection or source
        The rows that could be measured. A source (:func:`prismgp.data.from_parquet`) may be larger than memory.
    n : int
        How many rows to select.
    criterion : {"entropy", "mutual_information", "alc"}, default "entropy"
        "entropy": the rows whose observation lowers the entropy of the function most, which with constant noise are
        those of the largest predictive variance. "mutual_information": the rows that tell most about the rest of the
        pool. "alc": the rows that lower the mean predictive variance at the reference most.
    reference : array-like, (r, d), frame or source, optional
        The rows at which predictions are to be good. They are held in memory. None: for "alc" a random sample of
        2,000 rows of the pool, or all rows of a smaller one; for "mutual_information" the rows of the pool that are not
        selected. "entropy" takes none.
    exclude : array-like of int, optional
        Numbers of rows that are left out, as if the pool did not have them; for instance those already measured.
    return_scores : bool, default False
        Also return the scores.
    random_state : int, RandomState or None, default 0
        Draws the reference of "alc", if it is a sample.

    Returns
    -------
    rows : ndarray of int, (n,)
        Row numbers in the pool, counting from 0, best first. Of rows with equal scores, up to a relative 1e-9, the one
        with the lowest number is chosen.
    scores : ndarray, (n,)
        If asked for: the score of each row when it was chosen; summed over outputs. In nats for the first two criteria.
        For "alc" by how much the mean variance falls, in units of the variance of the training targets (with
        ``normalize=False`` in the target's own units).

    Notes
    -----
    All criteria are functions of the joint posterior covariance of the function at the rows, as returned by
    ``predict(..., return_cov=True, include_noise=False)``, and of the noise variance, at the present parameters. For
    SSGPRegressor and ExactGPRegressor that is the posterior itself; for PrismGPRegressor the first two moments of the
    mixture. Nothing else is approximated, except that "alc" averages over the sample if no reference is given.

    With D features of the model (2p, times the number of gates), a selection takes one pass over the pool in O(D^2) for
    each row, and O(D) for each row and choice. For "entropy" and "mutual_information" most choices need no further
    pass: scores fall as rows are chosen, so only rows that were among the best are looked at again. "alc", and
    "mutual_information" with a reference, hold the features of the pool in memory, or else take a pass for each choice.
    An exact GP has as many features as training rows; with it, "mutual_information" factorises a matrix of the size of
    the pool.

    References
    ----------
    A. Krause, A. Singh and C. Guestrin, Near-optimal sensor placements in Gaussian processes, JMLR 9 (2008).
    D. A. Cohn, Neural network exploration using optimal experiment design, Neural Networks 9 (1996).

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SSGPRegressor
    >>> from prismgp.active import select
    >>> X = np.linspace(0, 4, 30)[:, None]
    >>> model = SSGPRegressor(16, random_state=0).fit(X, np.sin(2 * X[:, 0]))
    >>> pool = np.linspace(0, 6, 61)[:, None]
    >>> rows = select(model, pool, 2)
    >>> bool((pool[rows] > 4).all())
    True
    """
    if isinstance(model, type) or not hasattr(model, "current_model"):
        raise DataError(f"select needs a fitted model of this library, not {type(model).__name__}")
    fitted = model.current_model()
    rows = model.read_pool(pool)
    near = None if reference is None else model.read_pool(reference)
    found = select_rows(fitted, rows, n, criterion, reference=near, exclude=exclude, random_state=random_state)
    return (found.rows, found.scores) if return_scores else found.rows


def select_rows(
    model: FittedModel,
    pool: Source,
    n: int,
    criterion: str = "entropy",
    *,
    reference: Source | None = None,
    exclude: Any = (),
    random_state: RandomState = 0,
    candidates: int | None = None,
) -> Selected:
    """As :func:`select`, for a model and rows that are encoded as it takes them.

    ``candidates`` is how many rows are held in memory with their features; the result does not depend on it.
    """
    check_number("select", "n", n, low=1, integer=True)
    check_choice("select", "criterion", criterion, CRITERIA)
    if criterion == "entropy" and reference is not None:
        raise DataError('select: criterion="entropy" takes no reference; use "alc" or "mutual_information"')
    kept = _kept_rows(pool.n_rows, exclude)
    left = pool.n_rows if kept is None else len(kept)
    if n > left:
        raise DataError(f"select: n={n:,} rows were asked for, but the pool has {left:,} to choose from")
    space, predictor = space_of(model.predictor)
    rows = _SourcePool(model, pool if kept is None else pool.select(kept), space.size)

    def moments(x: Tensor) -> tuple[Tensor, Tensor]:
        _, variance, noise = predictor.predict(x, variance=True)
        assert variance is not None
        return variance, noise

    made = _make_criterion(criterion, model, space, predictor, rows, reference, random_state)
    if candidates is None:
        candidates = _count_candidates(made, left, n, model.device)
    found, scores = choose_rows(made, rows, n, moments, candidates=candidates)
    index = np.array(found, dtype=np.int64)
    return Selected(index if kept is None else kept[index], np.array(scores))


class _SourcePool(Pool):
    """The rows of a source; few of them are loaded once, others are read again on every pass."""

    def __init__(self, model: FittedModel, source: Source, size: int) -> None:
        self.model, self.n_rows = model, source.n_rows
        self.source = source.load() if source.small and not source.in_memory else source
        self.chunk = min(model.prediction_rows, max(1, _CHUNK_BYTES // (8 * size)))

    def chunks(self) -> Iterator[Tensor]:
        blocks = self.source.blocks(self.chunk)
        for x, _ in blocks if self.source.in_memory else prefetch(blocks):
            yield self.model.to_model(self.model.complete(x))

    def take(self, index: Tensor) -> Tensor:
        return self.model.to_model(self.model.complete(self.source.take(index.cpu().numpy()).x))


def _make_criterion(
    name: str,
    model: FittedModel,
    space: Space,
    predictor: Predictor,
    pool: _SourcePool,
    reference: Source | None,
    random_state: RandomState,
) -> Criterion:
    if name == "entropy":
        return Entropy(space)
    if name == "mutual_information":
        rows = pool if reference is None else _SourcePool(model, reference, space.size)
        chunks = ((x, predictor.predict(x, variance=False)[2]) for x in rows.chunks())
        return MutualInformation(space, space.condition(chunks), reference=reference is not None)
    if reference is not None:
        return VarianceReduction(space, model.to_model(model.complete(reference.load().x)))
    index = np.arange(pool.n_rows)
    if pool.n_rows > _REFERENCE_ROWS:
        rng = Streams(random_state).generator("reference")
        index = np.sort(rng.choice(pool.n_rows, _REFERENCE_ROWS, replace=False))
    return VarianceReduction(space, pool.take(torch.as_tensor(index)))


def _count_candidates(criterion: Criterion, rows: int, n: int, device: torch.device) -> int:
    if criterion.shrinking:
        return max(_CANDIDATES, _CANDIDATES_PER_ROW * n)
    # Without a bound on the other rows, it is all of them or the best one.
    width = sum(posterior.space.size for posterior in criterion.posteriors) + 2 * n
    return rows if 8 * width * rows <= _MEMORY_SHARE * available_bytes(device) else 1


def _kept_rows(rows: int, exclude: Any) -> AnyArray | None:
    """Numbers of the rows to choose from; None: all."""
    numbers = np.asarray(exclude)
    if not numbers.size:
        return None
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise DataError(f"select: exclude={exclude!r:.80} must be a sequence of row numbers")
    if numbers.min() < 0 or numbers.max() >= rows:
        bad = numbers[(numbers < 0) | (numbers >= rows)][0]
        raise DataError(f"select: exclude has row {bad}, but the rows of the pool are 0 to {rows - 1:,}")
    kept = np.ones(rows, dtype=bool)
    kept[numbers] = False
    return np.flatnonzero(kept)

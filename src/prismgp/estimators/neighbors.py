"""NeighborGPRegressor: a GP on nearest neighbours."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch

from prismgp._system import Streams, limit_blas_threads
from prismgp._types import Device, DtypeName, KernelName, Missing, OnInterrupt, RandomState
from prismgp._validate import check_number
from prismgp.core.exact import check_memory
from prismgp.core.kernels import get_kernel
from prismgp.data import Source
from prismgp.estimators.base import UpdatableRegressor
from prismgp.neighbors.fit_model import MOST_ROWS, NeighborSettings, fit_neighbors


class NeighborGPRegressor(UpdatableRegressor):
    """Gaussian process regression by nearest neighbours.

    Every prediction is that of an exact GP on the ``n_neighbors`` training rows that are nearest to the point, in units
    of learned length-scales. Suited to functions with fine detail and rows that are close together.
    The rows stay in memory, and in model files. A prediction takes one search and O(k^3) for k neighbours. With
    ``n_neighbors`` at least the number of rows it is the exact GP.

    Parameters
    ----------
    n_neighbors : int, default 32
        Rows that each prediction is made from.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "matern32"
    lengthscale, signal_variance, noise_variance, mean : float, array or None, default None
        Starting values in the data's units (fixed values when ``optimize=False``); None: from the data.
        A length-scale per input; the others per output.
    optimize : bool, default True
        Learn the kernel parameters: they maximise the log density of at most 10,000 random rows, each given its
        neighbours among the others. With at most ``n_neighbors`` rows they maximise the evidence.
    max_iter : int, default 400
        Steps of Adam on batches of 512 of these rows; with at most ``n_neighbors`` rows, limit of the iterations of
        L-BFGS. The exact GP on a subsample, where the learning starts, has a limit of its own.
    n_restarts : int, default 0
        Additional random starting points, which compete before the first step.
    normalize : bool, default True
        Used only with ``optimize=False`` and ``mean=None``: the constant mean is the average of the targets if True,
        zero if False. Inputs and targets are always standardised internally; parameters and predictions are in the
        units of the data.
    chunk_size : int or "auto", default "auto"
        Rows read, or predicted, at a time.
    missing : {"impute", "drop", "error"}, default "impute"
        What to do with missing inputs. "impute": numbers and times get the median of the training rows and an
        indicator, missing categories are a category; "drop": rows that have any are left out of the fit; "error": they
        are an error. A prediction averages over what a missing cell may be. A source has an argument of its own.
    device : {"cpu", "cuda", "auto"} or a numbered GPU such as "cuda:1", default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Precision of the rows in memory; kernel matrices are in float64 either way.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the log density.
    checkpoint : path or None, default None
        File for the progress of the fit. If the fit is killed, the same call continues from there and gives the same
        model. The file stays after the fit; remove it when the model is saved.
    local_rows : int or None, default None
        Maximum number of rows that are kept as neighbours, chosen at random. None: 4,000,000.
    max_seconds, on_interrupt
        As in :class:`SSGPRegressor`.

    Attributes
    ----------
    lengthscale_ : ndarray, (d,)
    signal_variance_, noise_variance_, mean_ : float, or ndarray (q,) for a two-dimensional y
    log_evidence_ : float
        Number of rows kept, times the mean log density of a row's targets given its neighbours among the other rows,
        summed over outputs. The mean is over all rows, or over 10,000 of them if there are more. With at most
        ``n_neighbors`` rows it is the evidence of the exact GP. The two cannot be compared: the densities of the rows,
        each given the others, do not multiply to the joint density.
    n_iter_ : int
        Steps of Adam and iterations of the optimiser, all stages together.
    history_ : dict of lists
        "rows", "log_evidence" (the sum of their log densities) and "seconds" of every evaluation.
    fit_status_ : dict
        What was done: stages, iterations; "rows" kept; "neighbors" of each prediction; "ignored_inputs" never varied,
        or in very few rows.

    Notes
    -----
    ``predict(X, return_cov=True)`` conditions all rows of X on the union of their neighbours, so its variances may be
    smaller than those of ``return_std=True``, which know the neighbours of each row alone.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import NeighborGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (500, 1))
    >>> y = np.sin(8 * X[:, 0]) + 0.1 * rng.standard_normal(500)
    >>> model = NeighborGPRegressor(max_iter=100, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> bool(np.all(np.abs(mean - y[:3]) < 4 * std))
    True
    """

    _kind = "neighbors"
    _structure = ("kernel", "n_neighbors")

    def __init__(
        self,
        n_neighbors: int = 32,
        *,
        kernel: KernelName = "matern32",
        lengthscale: Any = None,
        signal_variance: Any = None,
        noise_variance: Any = None,
        mean: Any = None,
        optimize: bool = True,
        max_iter: int = 400,
        n_restarts: int = 0,
        normalize: bool = True,
        chunk_size: int | Literal["auto"] = "auto",
        missing: Missing = "impute",
        device: Device = "cpu",
        dtype: DtypeName = "float64",
        random_state: RandomState = None,
        verbose: int = 0,
        checkpoint: Any = None,
        local_rows: int | None = None,
        max_seconds: float | None = None,
        on_interrupt: OnInterrupt = "raise",
    ) -> None:
        self.n_neighbors = n_neighbors
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.noise_variance = noise_variance
        self.mean = mean
        self.optimize = optimize
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.chunk_size = chunk_size
        self.missing = missing
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.local_rows = local_rows
        self.max_seconds = max_seconds
        self.on_interrupt = on_interrupt

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Learn the parameters and keep the rows.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
            A source, such as :func:`prismgp.data.from_parquet` makes, holds the targets too.
        y : array-like, (n,) or (n, q), or Dask array, series or frame
            Several outputs share length-scales and neighbours; each has its own variances and mean.
        sample_weight : array-like, (n,), or Dask array, optional
            A row of weight w is the average of w observations: its noise variance is divided by w. Zero leaves the row
            out.
            Unlike copies, it takes the place of one neighbour.
        noise_variance : array-like, (n,), or Dask array, optional
            Known variance of the error of each target, in the target's units squared, which adds to the learned noise
            in the fit; predictions have the learned noise alone. For one target.

        Raises
        ------
        TooLargeError
            When all rows are neighbours of every point, and the kernel matrix would not fit into memory.
        """
        rows = self._training_rows(X, y, sample_weight, noise_variance)
        context = self._context(rows, "eval")
        settings = NeighborSettings(
            kernel=get_kernel(self.kernel),
            n_neighbors=self.n_neighbors,
            find_start=self.lengthscale is None,
            optimize=self.optimize,
            max_iter=self.max_iter,
            n_restarts=self.n_restarts,
            most_rows=self._most_rows(),
        )
        with limit_blas_threads(), context:
            start = rows.start(learn=self.optimize, **self._start_values())
            predictor, stages = fit_neighbors(rows, start, settings, Streams(self.random_state), context)
        return self._conclude(context, predictor, rows, stages)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Add rows, at fixed parameters.

        Exact: the model is that of all rows with these parameters. ``local_rows`` limits the rows of a ``fit`` only.
        The first call on an unfitted estimator is a ``fit``.
        """
        return super().partial_fit(X, y, sample_weight, noise_variance)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        check_number(name, "n_neighbors", self.n_neighbors, low=1, integer=True)
        check_number(name, "local_rows", self.local_rows, low=1, integer=True, optional=True)

    def _most_rows(self) -> int:
        return MOST_ROWS if self.local_rows is None else self.local_rows

    def _check_size(self, source: Source, device: torch.device) -> None:
        n = min(source.n_rows, self._most_rows())
        if n <= self.n_neighbors:
            check_memory(n, source.n_outputs, device)

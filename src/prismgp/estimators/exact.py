"""ExactGPRegressor: the full GP."""

from __future__ import annotations

from typing import Any, Self

import torch

from prismgp._system import Streams, limit_blas_threads
from prismgp._types import Device, DtypeName, KernelName, Missing, OnInterrupt, RandomState
from prismgp.core.exact import check_memory
from prismgp.core.fit import fit_exact
from prismgp.core.kernels import get_kernel
from prismgp.data import Source
from prismgp.estimators.base import GPRegressor


class ExactGPRegressor(GPRegressor):
    """Gaussian process regression without approximation.

    Cholesky in float64; O(n^3) time and O(n^2) memory. The gold standard up to about 10,000 rows. If memory does not
    suffice, it says so, and how much it would need, before it allocates any.

    Parameters
    ----------
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
    lengthscale, signal_variance, noise_variance, mean : float, array or None, default None
        Starting values in the data's units (fixed values when ``optimize=False``); None: from the data.
    optimize : bool, default True
        Learn the kernel parameters by maximising the evidence.
    max_iter : int, default 200
        Limit of optimiser iterations on the large subsample and on all rows. The short run that
        chooses the starting point has a limit of its own.
    n_restarts : int, default 0
        Additional random starting points.
    normalize : bool, default True
        Used only with ``optimize=False`` and ``mean=None``: the constant mean is the average of the targets if True,
        zero if False. Inputs and targets are always standardised internally; parameters and predictions are in the
        units of the data.
    missing : {"impute", "drop", "error"}, default "impute"
        What to do with missing inputs. "impute": numbers and times get the median of the training rows and an
        indicator, missing categories are a category; "drop": rows that have any are left out of the fit; "error": they
        are an error. A prediction averages over what a missing cell may be. A source has an argument of its own.
    device : {"cpu", "cuda", "auto"} or a numbered GPU such as "cuda:1", default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Accepted for uniformity with the other regressors; the computation is in float64.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the evidence.
    checkpoint : path or None, default None
        File for the progress of the fit. If the fit is killed, the same call continues from there and gives the same
        model. A fit of some seconds may end without a file; else it stays after
        the fit: remove it when the model is saved.
    max_seconds, on_interrupt
        As in :class:`SSGPRegressor`.

    Attributes
    ----------
    lengthscale_ : ndarray, (d,)
    signal_variance_, noise_variance_, mean_ : float, or ndarray (q,) for a two-dimensional y
    log_evidence_ : float
    n_iter_ : int
        Optimiser iterations, all stages together.
    history_ : dict of lists
    fit_status_ : dict

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import ExactGPRegressor
    >>> X = np.linspace(0, 6, 40)[:, None]
    >>> model = ExactGPRegressor().fit(X, np.sin(X[:, 0]))
    >>> round(float(model.predict([[1.5]])[0]), 3)
    0.998
    """

    _kind = "exact"

    def __init__(
        self,
        *,
        kernel: KernelName = "rbf",
        lengthscale: Any = None,
        signal_variance: Any = None,
        noise_variance: Any = None,
        mean: Any = None,
        optimize: bool = True,
        max_iter: int = 200,
        n_restarts: int = 0,
        normalize: bool = True,
        missing: Missing = "impute",
        device: Device = "cpu",
        dtype: DtypeName = "float64",
        random_state: RandomState = None,
        verbose: int = 0,
        checkpoint: Any = None,
        max_seconds: float | None = None,
        on_interrupt: OnInterrupt = "raise",
    ) -> None:
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.noise_variance = noise_variance
        self.mean = mean
        self.optimize = optimize
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.missing = missing
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.max_seconds = max_seconds
        self.on_interrupt = on_interrupt

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Learn the parameters by the evidence and factor the kernel matrix.

        Parameters
        ----------
        X : array-like, (n, d), or source
        y : array-like, (n,) or (n, q)
            Several outputs share length-scales; each has its own variances and mean.
        sample_weight : array-like, (n,), optional
            A row of weight w is the average of w observations: its noise variance is divided by w. Zero leaves the row
            out.
        noise_variance : array-like, (n,), optional
            Known variance of the error of each target, in the target's units squared, which adds to the learned noise
            in the fit; predictions have the learned noise alone. For one target.

        Raises
        ------
        TooLargeError
            Before allocating, when the kernel matrices would not fit into memory.
        """
        rows = self._training_rows(X, y, sample_weight, noise_variance)
        context = self._context(rows, "eval")
        with limit_blas_threads(), context:
            predictor, stages = fit_exact(
                rows,
                rows.start(learn=self.optimize, **self._start_values()),
                get_kernel(self.kernel),
                Streams(self.random_state),
                optimize=self.optimize,
                max_iter=self.max_iter,
                n_restarts=self.n_restarts,
                callback=context,
            )
        return self._conclude(context, predictor, rows, stages)

    def _compute(self) -> tuple[torch.dtype, torch.device]:
        return torch.float64, super()._compute()[1]

    def _check_size(self, source: Source, device: torch.device) -> None:
        check_memory(source.n_rows, source.n_outputs, device)

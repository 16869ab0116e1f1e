"""SSGPRegressor: the sparse spectrum GP."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

from sklearn.utils.validation import check_is_fitted

from prismgp._system import Streams, limit_blas_threads
from prismgp._types import Device, DtypeName, GatingKind, KernelName, Missing, OnInterrupt, RandomState
from prismgp._validate import check_choice, check_number
from prismgp.core.features import GATINGS
from prismgp.core.fit import SSGPSettings, fit_ssgp
from prismgp.core.kernels import FREQUENCY_KINDS, get_kernel
from prismgp.core.models import Predictor
from prismgp.data import Source, StandardisedRows
from prismgp.estimators.base import UpdatableRegressor
from prismgp.estimators.gating import fit_gate, number_labels
from prismgp.estimators.sources import Labels, no_labels
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.model import FittedModel


class SSGPRegressor(UpdatableRegressor):
    """Sparse spectrum Gaussian process regression.

    The kernel is replaced by ``k_p(x, x') = S/p sum_t cos(e_t'(x - x') / lengthscale)`` with p
    spectral frequencies e_t, that is by 2p trigonometric features. Evidence, gradient and
    prediction are exact for that kernel, cost O(n p^2), and need the memory of one chunk of rows.

    Parameters
    ----------
    n_frequencies : int, default 64
        The number of spectral frequencies, p in the formulas. Accuracy grows with it; cost grows with its square.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
    lengthscale, signal_variance, noise_variance, mean : float, array or None, default None
        Starting values in the data's units (fixed values when ``optimize=False``); None: from the data.
        A length-scale per input; the others per output.
    frequencies : {"auto", "iid", "orthogonal", "sobol"} or array, (n_frequencies, d), default "auto"
        How the frequencies are drawn; "auto" is "sobol" up to 4 inputs, "orthogonal" above. With
        ``optimize=True`` several draws compete by their evidence, on a hundred to a few thousand rows. An array,
        such as the ``frequencies_`` of another model, is used as it is.
    learn_frequencies : bool, default False
        Let the frequencies join the optimiser. More flexible, and prone to over-fit.
    optimize : bool, default True
        Learn the kernel parameters by maximising the evidence.
    max_iter : int, default 200
        Limit of optimiser iterations on the large subsample and on all rows. The short runs that
        choose the starting point have limits of their own.
    n_restarts : int, default 0
        Additional random starting points, each with frequencies of its own, in the race that
        precedes the optimisation.
    normalize : bool, default True
        Used only with ``optimize=False`` and ``mean=None``: the constant mean is the average of the targets if True,
        zero if False. Inputs and targets are always standardised internally; parameters and predictions are in the
        units of the data.
    chunk_size : int or "auto", default "auto"
        Rows processed at a time.
    missing : {"impute", "drop", "error"}, default "impute"
        What to do with missing inputs. "impute": numbers and times get the median of the training rows and an
        indicator, missing categories are a category; "drop": rows that have any are left out of the fit; "error": they
        are an error. A prediction averages over what a missing cell may be. A source has an argument of its own.
    device : {"cpu", "cuda", "auto"} or a numbered GPU such as "cuda:1", default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Precision of the features; statistics are accumulated in float64 either way.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the evidence.
    gating : {"none", "hard", "soft"}, default "none"
        Multiply the kernel by ``sum_c r_c(x) r_c(x')``, with gates r over clusters of rows. "hard": every
        row belongs to one cluster, and clusters are independent but for their common parameters. "soft":
        the gates are square roots of responsibilities; there are 2p features for each cluster.
    partition : None, array of int (n,), or fitted clusterer, default None
        The clusters. None: found by k-means, with distances in the length-scales the learning starts from.
        Labels of the training rows: hard gates use them as they are; other rows go to the cluster of the
        nearest mean. A fitted clusterer, such as KMeans, GaussianMixture or :class:`Reconfigurer`: its ``predict``, or
        for soft gates its probabilities. Only models with KMeans, MiniBatchKMeans or a GaussianMixture of diagonal or
        spherical covariances can be saved.
    n_components : int, default 8
        Clusters to be found; fewer where there are fewer distinct rows.
    checkpoint : path or None, default None
        File for the progress of the fit. If the fit is killed, the same call continues from there and gives the same
        model. The file stays after the fit; remove it when the model is saved.
    max_seconds : float or None, default None
        End the fit after about this many seconds, with the best model so far. The steps of the optimiser and of the
        training fit into that time; then follows the last pass over the rows, for which time is kept. Such a fit
        cannot be reproduced.
    on_interrupt : {"raise", "keep"}, default "raise"
        What an interrupt (Ctrl-C) does. Raise: KeyboardInterrupt, and the estimator is not fitted, so that a
        cross-validation stops too. Keep: the fit ends with the best state so far, and a warning; a second interrupt is
        raised.

    Attributes
    ----------
    lengthscale_ : ndarray, (d,)
    signal_variance_, noise_variance_, mean_ : float, or ndarray (q,) for a two-dimensional y
    frequencies_ : ndarray, (n_frequencies, d)
        Base frequencies, before division by the length-scales.
    log_evidence_ : float
        Log density of the targets under the model, summed over outputs.
    n_iter_ : int
        Optimiser iterations, all stages together.
    history_ : dict of lists
        "rows", "log_evidence" and "seconds" of every evaluation.
    fit_status_ : dict
        What was done: starting point, stages, iterations, the optimiser's message, jitter used; "ignored_inputs" never
        varied, or in very few rows; "limited_inputs" have long tails and are clipped at a limit, because that
        raises the evidence; "gating" says how many clusters there are, with how many rows, and how many rows
        lie nearer to another one; "interrupted" and "timed_out" whether an interrupt or the time limit ended the fit;
        with ``max_seconds``, the "seconds" it took.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SSGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (500, 1))
    >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(500)
    >>> model = SSGPRegressor(n_frequencies=16, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X[:3], return_std=True)
    >>> bool(np.all(np.abs(mean - y[:3]) < 4 * std))
    True
    """

    _kind = "ssgp"
    _structure = (*UpdatableRegressor._structure, "partition")

    def __init__(
        self,
        n_frequencies: int = 64,
        *,
        kernel: KernelName = "rbf",
        lengthscale: Any = None,
        signal_variance: Any = None,
        noise_variance: Any = None,
        mean: Any = None,
        frequencies: Any = "auto",
        learn_frequencies: bool = False,
        optimize: bool = True,
        max_iter: int = 200,
        n_restarts: int = 0,
        normalize: bool = True,
        chunk_size: int | Literal["auto"] = "auto",
        missing: Missing = "impute",
        device: Device = "cpu",
        dtype: DtypeName = "float64",
        random_state: RandomState = None,
        verbose: int = 0,
        gating: GatingKind = "none",
        partition: Any = None,
        n_components: int = 8,
        checkpoint: Any = None,
        max_seconds: float | None = None,
        on_interrupt: OnInterrupt = "raise",
    ) -> None:
        self.n_frequencies = n_frequencies
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.noise_variance = noise_variance
        self.mean = mean
        self.frequencies = frequencies
        self.learn_frequencies = learn_frequencies
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
        self.gating = gating
        self.partition = partition
        self.n_components = n_components
        self.checkpoint = checkpoint
        self.max_seconds = max_seconds
        self.on_interrupt = on_interrupt

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Learn the parameters by the evidence and compute the posterior.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
            A source, such as :func:`prismgp.data.from_parquet` makes, holds the targets too.
        y : array-like, (n,) or (n, q), or Dask array, series or frame
            Several outputs share frequencies and length-scales; each has its own signal variance,
            noise variance and mean.
        sample_weight : array-like, (n,), or Dask array, optional
            The noise variance of a row is divided by its weight, as if its target were the average of that many
            observations. Rows of weight zero are left out.
        noise_variance : array-like, (n,), or Dask array, optional
            Known variance of the error of each target, in the target's units squared, which adds to the learned noise
            in the fit; predictions have the learned noise alone. For one target.
        """
        rows = self._training_rows(X, y, sample_weight, noise_variance, _labels_of(self.partition))
        context = self._context(rows, "eval")
        streams = Streams(self.random_state)
        settings = SSGPSettings(
            kernel=get_kernel(self.kernel),
            n_frequencies=self.n_frequencies,
            frequencies=self.frequencies,
            learn_frequencies=self.learn_frequencies,
            find_start=self.lengthscale is None,
            optimize=self.optimize,
            max_iter=self.max_iter,
            n_restarts=self.n_restarts,
            dtype=self.dtype,
        )
        gates: dict[str, Any] = {}
        if self.gating != "none":
            clusters, rng = (self.gating, self.partition, self.n_components), streams.generator("partition")
            gates["gate"] = partial(fit_gate, *clusters, rows, self.n_frequencies, rng)
        with limit_blas_threads(), context:
            start = rows.start(learn=self.optimize, **self._start_values())
            fit = fit_ssgp(rows, start, settings, streams, callback=context, **gates)
        if self.optimize and fit.no_better_than_noise:
            warnings.warn(
                "the fit explains no more than noise would: its log evidence is higher than that of noise around a "
                f"constant by {max(fit.gain, 0.0):.1f} only; the inputs may say nothing about the target, or "
                f"n_frequencies={self.n_frequencies} may be too few",
                PrismGPWarning,
                stacklevel=2,
            )
        return self._conclude(context, fit.model, rows, fit.stages)

    def read_training_rows(self, X: Any, y: Any, sample_weight: Any = None, noise_variance: Any = None) -> Source:
        check_is_fitted(self)
        # Soft gates go by the rule, for training rows too.
        partition = self.partition if self.model_.arguments["gating"] == "hard" else None
        return self.read_rows(X, y, sample_weight, noise_variance, training=True, labels=_labels_of(partition))

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        check_number(name, "n_frequencies", self.n_frequencies, low=1, integer=True)
        check_choice(name, "gating", self.gating, GATINGS)
        check_number(name, "n_components", self.n_components, low=1, integer=True)
        if self.partition is not None and self.gating == "none":
            raise DataError(
                f'{name}: partition is given, but gating="none" makes no use of it; '
                'set gating="hard" or gating="soft", or leave partition out'
            )
        if isinstance(self.frequencies, str):
            check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)

    def _as_model(self, predictor: Predictor, rows: StandardisedRows, *args: Any, **record: Any) -> FittedModel:
        model = super()._as_model(predictor, rows, *args, **record)
        # The gate is in the file; labels of training rows, or a clusterer, are not.
        return replace(model, arguments={**model.arguments, "partition": None})


def _labels_of(partition: Any) -> Labels:
    """Return the function that checks and numbers the labels of a partition."""
    return no_labels if partition is None else partial(number_labels, partition)

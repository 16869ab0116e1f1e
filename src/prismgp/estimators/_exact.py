"""ExactGPRegressor: the full GP."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch

from prismgp._random import Streams
from prismgp._system import limit_blas_threads
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import compute_device
from prismgp.core.exact import ExactEvidence, ExactPosterior, check_memory
from prismgp.core.kernels import get_kernel
from prismgp.core.linalg import factor
from prismgp.core.optimise import maximise, race
from prismgp.core.parameters import Parameters, bounds
from prismgp.data import Source, Standardiser
from prismgp.estimators._base import GPRegressor
from prismgp.estimators._watched import exact_at
from prismgp.model.fitted import ExactModel
from prismgp.model.observe import Watch
from prismgp.model.progress import Progress
from prismgp.model.start import perturbed, to_tensors
from prismgp.model.state import exact_from_tensors

__all__ = ["ExactGPRegressor"]

_RACE_ROWS = 1_000  # rows of the race between starting points
_RACE_ROUNDS = (60,)  # iterations
_MAIN_ROWS = 3_000  # rows of the stage before the finish on all rows
_NOTICEABLY = 1.5


class ExactGPRegressor(GPRegressor):
    """Gaussian process regression without approximation.

    Cholesky in float64; O(n^3) time and O(n^2) memory. The gold standard up to some ten thousand
    rows. Beyond what memory holds it refuses before allocating, and says what it would need.

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
        What the constant mean is when it is neither learned (``optimize=False``) nor given: the
        targets' average, or zero for False. Inputs and targets are standardised internally in any
        case, which changes nothing but the arithmetic. Everything is reported in the data's units.
    device : {"cpu", "cuda", "auto"}, default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Accepted for uniformity with the other regressors; the computation is in float64.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the evidence.

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
    0.997
    """

    _kind = "exact"

    _posterior: ExactPosterior

    def __init__(
        self,
        *,
        kernel: str = "rbf",
        lengthscale: Any = None,
        signal_variance: Any = None,
        noise_variance: Any = None,
        mean: Any = None,
        optimize: bool = True,
        max_iter: int = 200,
        n_restarts: int = 0,
        normalize: bool = True,
        device: str = "cpu",
        dtype: str = "float64",
        random_state: RandomState = None,
        verbose: int = 0,
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
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the parameters by the evidence and factor the kernel matrix.

        Parameters
        ----------
        X : array-like, (n, d), or source
        y : array-like, (n,) or (n, q)
            Several outputs share length-scales; each has its own variances and mean.

        Raises
        ------
        TooLargeError
            Before allocating, when the kernel matrices would not fit into memory.
        """
        watch = Watch(self._observer)
        self._check_parameters()
        source = self._training_source(X, y)
        device = compute_device(self.device)
        check_memory(source.n_rows, source.n_outputs, device)
        self._standardiser = Standardiser.fit(source, normalize=self.normalize, learned=self.optimize)
        kernel = get_kernel(self.kernel)
        objective = ExactEvidence(*to_tensors(source, self._standardiser, device), kernel)
        with (
            limit_blas_threads(),
            self._progress(watch.listener(lambda event: exact_at(self, event, objective))) as progress,
        ):
            params, stages = self._learn(source, objective, progress)
            self._posterior, log_evidence, factors = objective.posterior(params)
        self._params, self._fitted_kernel = params, self.kernel
        self._publish(log_evidence, source.n_rows, factors)
        self._record(stages, progress.history)
        watch("final", source.n_rows, lambda: self)
        return self

    def sample_y(self, X: Any, n_samples: int = 1, random_state: RandomState = None) -> AnyArray:
        """Draw functions from the posterior, jointly at the rows of X.

        Returns
        -------
        ndarray, (n, n_samples), or (n, q, n_samples) for a two-dimensional y
        """

        def draw(rows: AnyArray, count: int, rng: np.random.Generator) -> Array:
            x = self._to_model(rows)
            fitted = self._fitted()
            mean, _, _ = fitted.predict(x, variance=False)
            covariance = fitted.covariance(x)
            sampled = np.empty((*mean.shape, count))
            for k in range(mean.shape[1]):
                # Scaled so that the smallest resolvable eigenvalue is one, as `factor` expects.
                floor = float(self._params.signal[k]) * 1e-10
                root = factor(covariance[:, :, k] / floor + torch.eye(len(x)).to(covariance)).lower * floor**0.5
                normal = torch.as_tensor(rng.standard_normal((len(x), count))).to(root)
                sampled[:, k] = (mean[:, k : k + 1] + root @ normal).cpu().numpy()
            return sampled

        return self._sampled(X, n_samples, random_state, draw)

    # -- internals -------------------------------------------------------------------------------

    def _learn(
        self, source: Source, objective: ExactEvidence, progress: Progress
    ) -> tuple[Parameters, list[dict[str, Any]]]:
        start = self._user_start(source)
        progress({"method": "start", "rows": source.n_rows, "params": start})
        if not self.optimize:
            return start, []
        streams = Streams(self.random_state)
        device, n = objective.x.device, source.n_rows
        sizes = [min(_RACE_ROWS, n), *([_MAIN_ROWS] if n > _MAIN_ROWS * _NOTICEABLY else [])]
        trial, *parts = (
            ExactEvidence(*to_tensors(part, self._standardiser, device), objective.kernel)
            for part in source.subsamples(sizes, streams.generator("subsamples"))
        )
        boxes = bounds(start, dtype="float64")
        rng = streams.generator("restarts")
        starts = [start, *(perturbed(start, rng) for _ in range(self.n_restarts))]
        _, params, tried = race([(trial, each) for each in starts], boxes, rounds=_RACE_ROUNDS, monitor=progress)
        params, done = maximise(
            [*parts, objective], params, boxes, max_iter=self.max_iter, finish=bool(parts), monitor=progress
        )
        return params, [*tried, *done]

    def _compute(self) -> tuple[torch.dtype, torch.device]:
        return torch.float64, compute_device(self.device)

    def _fitted(self) -> ExactModel:
        return ExactModel(self._posterior)

    def _state_tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self._posterior, name) for name in ("x", "lower", "alpha")}

    def _restore(self, tensors: dict[str, Tensor], params: Parameters, n: int, config: dict[str, Any]) -> None:
        self._params, self._fitted_kernel = params, self.kernel
        posterior = exact_from_tensors(tensors, params, kernel=self.kernel, n=n, d=self.n_features_in_)
        self._posterior = posterior.to(self._compute()[1])

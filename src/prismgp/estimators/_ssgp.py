"""SSGPRegressor: the sparse spectrum GP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from prismgp._progress import Progress
from prismgp._random import Streams
from prismgp._tensors import take
from prismgp._threads import quiet_blas
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import check_choice, check_number
from prismgp.data import ArraySource, Chunks, Standardiser, auto_chunk_rows
from prismgp.estimators._base import GPRegressor
from prismgp.evidence import SpectralEvidence, solve_outputs
from prismgp.features import projection, spectral_features
from prismgp.frequencies import FREQUENCY_KINDS, draw_frequencies, given_frequencies
from prismgp.kernels import get_kernel
from prismgp.optimise import maximise, race
from prismgp.parameters import Parameters, bounds, default_start
from prismgp.posterior import WeightPosterior
from prismgp.start import exact_rows, exact_start, perturbed
from prismgp.statistics import Statistics

__all__ = ["SSGPRegressor"]

_RACE_ROWS = 8_192  # rows of the race between starting points
_RACE_ROUNDS = (10, 30)  # iterations
_RACE_DRAWS = 4  # draws of the frequencies that take part
_RACE_SCALES = (1.0, 2.0)  # multiples of the exact GP's length-scales: few frequencies favour smoother functions
_MAIN_ROWS = 65_536  # rows of the stage before the finish on all rows
_NOTICEABLY = 1.5  # a stage is worth it only if the next one is larger by this factor


class SSGPRegressor(GPRegressor):
    """Sparse spectrum Gaussian process regression.

    The kernel is replaced by ``k_p(x, x') = S/p sum_t cos(e_t'(x - x') / lengthscale)`` with p
    spectral frequencies e_t, that is by 2p trigonometric features. Evidence, gradient and
    prediction are exact for that kernel, cost O(n p^2), and need the memory of one chunk of rows.

    Parameters
    ----------
    n_frequencies : int, default 64
        The paper's p. Accuracy grows with it; cost grows with its square.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
    lengthscale, signal_variance, noise_variance, mean : float, array or None, default None
        Starting values in the data's units (fixed values when ``optimize=False``); None: from the data.
        A length-scale per input; the others per output.
    frequencies : {"auto", "iid", "orthogonal", "sobol"} or array, (n_frequencies, d), default "auto"
        How the frequencies are drawn; "auto" is "sobol" up to 4 inputs, "orthogonal" above. With
        ``optimize=True`` several draws compete by their evidence on a few thousand rows. An array,
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
        What the constant mean is when it is neither learned (``optimize=False``) nor given: the
        targets' average, or zero for False. Inputs and targets are standardised internally in any
        case, which changes nothing but the arithmetic. Everything is reported in the data's units.
    chunk_size : int or "auto", default "auto"
        Rows processed at a time.
    device : {"cpu", "cuda", "auto"}, default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Precision of the features; statistics are accumulated in float64 either way.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the evidence.

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
        What was done: starting point, stages, iterations, the optimiser's message, jitter used.

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

    frequencies_: Array
    _posterior: WeightPosterior
    _statistics: Statistics
    _start: Parameters  # where the race began: the user's values, or those of a small exact GP

    def __init__(
        self,
        n_frequencies: int = 64,
        *,
        kernel: str = "rbf",
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
        chunk_size: int | str = "auto",
        device: str = "cpu",
        dtype: str = "float64",
        random_state: RandomState = None,
        verbose: int = 0,
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
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Learn the parameters by the evidence and compute the posterior.

        Parameters
        ----------
        X : array-like, (n, d)
        y : array-like, (n,) or (n, q)
            Several outputs share frequencies and length-scales; each has its own signal variance,
            noise variance and mean.
        """
        self._check_parameters()
        source = self._training_source(X, y)
        return self._fit_source(source, Standardiser.fit(source, normalize=self.normalize))

    def _fit_source(self, source: ArraySource, standardiser: Standardiser) -> Self:
        """The fit of checked rows."""
        streams = Streams(self.random_state)
        self._standardiser = standardiser
        self._fitted_kernel = self.kernel
        self.frequencies_ = self._draw(source.n_inputs, streams.generator("frequencies"))
        with quiet_blas(), self._progress() as progress:
            params, objective, stages = self._learn(source, streams, progress)
            self._set_posterior(objective.statistics(params), params)
        self._record(stages, progress.history)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Add rows to the posterior, at fixed parameters.

        Exact: the result is that of a fit on all rows at these parameters. The first call on an
        unfitted estimator is a ``fit``.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        source = self._training_source(X, y, reset=False)
        objective = SpectralEvidence(self._chunks(source), self.frequencies_)
        stages = self.fit_status_["stages"]
        self._set_posterior(self._statistics.merge(objective.statistics(self._params)), self._params)
        self._record(stages, self.history_)
        return self

    def sample_y(self, X: Any, n_samples: int = 1, random_state: RandomState = None) -> AnyArray:
        """Draw functions from the posterior and evaluate them at X.

        The same ``random_state`` gives the same functions in every call, at whatever X.

        Returns
        -------
        ndarray, (n, n_samples), or (n, q, n_samples) for a two-dimensional y
        """

        def draw(x: AnyArray, count: int, rng: np.random.Generator) -> Array:
            weights = self._posterior.draw_weights(count, rng)
            parts = []
            for chunk in self._model_chunks(x):
                phi = spectral_features(chunk, self._projection()).double().cpu().numpy()
                parts.append(np.tensordot(phi, weights, axes=1) + self._params.mean[:, None])
            return np.concatenate(parts)

        return self._sampled(X, n_samples, random_state, draw)

    # -- internals -------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        check_number(name, "n_frequencies", self.n_frequencies, low=1, integer=True)
        if isinstance(self.frequencies, str):
            check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)
        if self.chunk_size != "auto":
            check_number(name, "chunk_size", self.chunk_size, low=1, integer=True)

    def _learn(
        self, source: ArraySource, streams: Streams, progress: Progress
    ) -> tuple[Parameters, SpectralEvidence, list[dict[str, Any]]]:
        """Parameters, the evidence on all rows, and what each stage did."""
        n, d = source.n_rows, source.n_inputs
        objective = SpectralEvidence(self._chunks(source), self.frequencies_)
        self._start = start = self._user_start(source)
        if not self.optimize:
            return start, objective, []
        race_rows, main_rows = min(_RACE_ROWS, n), min(_MAIN_ROWS, n)
        sizes = [exact_rows(n, d), race_rows, *([main_rows] if main_rows * _NOTICEABLY < n else [])]
        small, trial, *parts = source.subsamples(sizes, streams.generator("subsamples"))
        report = []
        if self.lengthscale is None:
            start, stage = exact_start(
                small, self._standardiser, get_kernel(self.kernel), start, device=self._compute()[1], monitor=progress
            )
            report.append(stage)
            self._start = start
        runners = self._runners(trial, start, streams)
        boxes = bounds(runners[0][1], dtype=self.dtype)
        winner, params, tried = race(runners, boxes, rounds=_RACE_ROUNDS, monitor=progress)
        objective.frequencies = self.frequencies_ = runners[winner][0].frequencies
        del runners  # and the statistics they keep
        stages = [SpectralEvidence(self._chunks(part), self.frequencies_) for part in parts]
        params, done = maximise(
            [*stages, objective], params, boxes, max_iter=self.max_iter, finish=bool(parts), monitor=progress
        )
        report += [*tried, *done]
        if params.frequencies is not None:
            self.frequencies_ = objective.frequencies = params.frequencies
            params = replace(params, frequencies=None)
        return params, objective, report

    def _runners(
        self, trial: ArraySource, start: Parameters, streams: Streams
    ) -> list[tuple[SpectralEvidence, Parameters]]:
        """Starting points of the race: several length-scales, and several draws of the frequencies."""
        chunks = self._chunks(trial)
        d = trial.n_inputs
        default = default_start(d, trial.n_outputs).log_lengthscale
        scaled = [start.log_lengthscale + np.log(scale) for scale in _RACE_SCALES]
        first = SpectralEvidence(chunks, self.frequencies_)
        runners = [(first, replace(start, log_lengthscale=each)) for each in (*scaled, default)]
        rng = streams.generator("restarts")
        draws = _RACE_DRAWS if isinstance(self.frequencies, str) else 1
        for index in range(draws - 1 + self.n_restarts):
            begin = start if index < draws - 1 else perturbed(start, rng)
            runners.append((SpectralEvidence(chunks, self._draw(d, rng)), begin))
        if self.learn_frequencies:
            runners = [(runner, replace(each, frequencies=runner.frequencies)) for runner, each in runners]
        return runners

    def _draw(self, d: int, rng: np.random.Generator) -> Array:
        given = given_frequencies(self.frequencies, self.n_frequencies, d)
        if given is not None:
            return given
        return draw_frequencies(get_kernel(self.kernel), self.n_frequencies, d, self.frequencies, rng)

    def _chunks(self, source: ArraySource) -> Chunks:
        dtype, device = self._compute()
        rows = self.chunk_size
        if rows == "auto":
            rows = auto_chunk_rows(self.n_frequencies, source.n_inputs, source.n_outputs, dtype=dtype, device=device)
        return Chunks(source, self._standardiser, rows=int(rows), dtype=dtype, device=device)

    def _set_posterior(self, stats: Statistics, params: Parameters) -> None:
        solved = solve_outputs(stats, params)
        self._statistics = stats
        self._params = params
        self._posterior = WeightPosterior.from_evidence(solved, device=self._compute()[1])
        self._publish(sum(out.log_evidence for out in solved), stats.n, [out.factor for out in solved])

    def _projection(self) -> Tensor:
        dtype, device = self._compute()
        return projection(self.frequencies_, self._params.lengthscale, dtype=dtype, device=device)

    def _prediction_rows(self) -> int:
        self._check_parameters()
        return int(self.chunk_size) if self.chunk_size != "auto" else 16_384

    def _predict_chunk(self, x: Tensor, *, variance: bool) -> tuple[Tensor, Tensor | None, Tensor]:
        phi = spectral_features(x, self._projection())
        mean, spread = self._posterior.to(x.device).predict(phi, variance=variance)
        return mean, spread, self._constant_noise(mean)

    def _covariance(self, x: Tensor) -> Tensor:
        return self._posterior.to(x.device).covariance(spectral_features(x, self._projection()))

    def _state_tensors(self) -> dict[str, Tensor]:
        return {
            "frequencies": torch.as_tensor(self.frequencies_),
            "moments": self._statistics.moments,
            "weight_mean": self._posterior.weight_mean,
            "inverse_root": self._posterior.inverse_root,
        }

    def _restore(self, tensors: dict[str, Tensor], params: Parameters, n: int, config: dict[str, Any]) -> None:
        p, d, q = self.n_frequencies, self.n_features_in_, len(params.mean)
        self._fitted_kernel = self.kernel
        frequencies, moments, weight_mean, inverse_root = take(
            tensors,
            frequencies=(p, d),
            moments=(2 * p + 1 + q, 2 * p + 1 + q),
            weight_mean=(2 * p, q),
            inverse_root=(q, 2 * p, 2 * p),
        )
        self.frequencies_ = frequencies.numpy()
        self._params = params
        self._statistics = Statistics(n, q, moments)
        posterior = WeightPosterior(
            weight_mean, inverse_root, torch.as_tensor(params.signal), torch.as_tensor(params.mean)
        )
        self._posterior = posterior.to(self._compute()[1])

"""SSGPRegressor: the sparse spectrum GP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np

from prismgp._random import Streams
from prismgp._threads import quiet_blas
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import check_choice, check_number
from prismgp.core.evidence import BlockEvidence, solve_outputs
from prismgp.core.features import Gating, projection
from prismgp.core.frequencies import FREQUENCY_KINDS, draw_frequencies, given_frequencies
from prismgp.core.kernels import get_kernel
from prismgp.core.optimise import maximise, race
from prismgp.core.parameters import Parameters, bounds, default_start
from prismgp.core.posterior import BlockPosterior, WeightPosterior
from prismgp.core.statistics import Statistics, remembered
from prismgp.data import ArraySource, Chunks, Source, Standardiser, auto_chunk_rows
from prismgp.estimators._base import GPRegressor
from prismgp.estimators._checkpoints import open_checkpoint
from prismgp.estimators._gating import (
    check_gating,
    check_memory,
    connected_parts,
    fit_gate,
    gating_status,
    given_labels,
)
from prismgp.estimators._watched import ssgp_at
from prismgp.model.checkpoint import Checkpoint, Journal
from prismgp.model.fitted import SpectralModel
from prismgp.model.observe import Watch
from prismgp.model.progress import Progress
from prismgp.model.start import exact_rows, exact_start, perturbed
from prismgp.model.state import spectral_config, spectral_from_tensors, spectral_tensors

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
    gating : {"none", "hard", "soft"}, default "none"
        Multiply the kernel by ``sum_c r_c(x) r_c(x')``, with gates r over clusters of rows. "hard": every
        row belongs to one cluster, and clusters are independent but for their common parameters. "soft":
        the gates are square roots of responsibilities; there are 2p features for each cluster.
    partition : None, array of int (n,), or fitted clusterer, default None
        The clusters. None: found by k-means, with distances in the length-scales the learning starts from.
        Labels of the training rows: hard gates use them as they are; other rows go to the cluster of the
        nearest mean. A clusterer, such as KMeans, GaussianMixture or :class:`Reconfigurer`: its ``predict``,
        or for soft gates its probabilities; files can hold KMeans and mixtures of diagonal covariances.
    n_components : int, default 8
        Clusters to be found; fewer where there are fewer distinct rows.
    checkpoint : path or None, default None
        File that remembers how far the fit has come: the same fit, begun again after it was killed, goes on from
        there, with the same result. It stays after the fit; remove it when the model is saved.

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
        varied, or in very few rows; "gating" says how many clusters there are, with how many rows, and how many rows
        lie nearer to another one.

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
    _posterior: BlockPosterior
    _statistics: tuple[Statistics, ...]  # of each independent block of rows: of each cluster under hard gates
    _gating: Gating
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
        gating: str = "none",
        partition: Any = None,
        n_components: int = 8,
        checkpoint: Any = None,
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
        self.gating = gating
        self.partition = partition
        self.n_components = n_components
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the parameters by the evidence and compute the posterior.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
            A source, such as :func:`prismgp.data.from_parquet` makes, holds the targets too.
        y : array-like, (n,) or (n, q), or Dask array, series or frame
            Several outputs share frequencies and length-scales; each has its own signal variance,
            noise variance and mean.
        """
        watch = Watch(self._observer)
        self._check_parameters()
        source = self._training_source(X, y)
        checkpoint = open_checkpoint(self, source)
        standardiser = Standardiser.fit(source, normalize=self.normalize, learned=self.optimize)
        return self._fit_source(source, standardiser, watch, checkpoint)

    def _fit_source(self, source: Source, standardiser: Standardiser, watch: Watch, checkpoint: Checkpoint) -> Self:
        """The fit of checked rows."""
        streams = Streams(self.random_state)
        self._standardiser = standardiser
        self._fitted_kernel = self.kernel
        if self.partition is not None:
            labels = given_labels(self.partition, source.n_rows, source.n_inputs)
            source = source.with_labels(labels)
        self.frequencies_ = self._draw(source.n_inputs, streams.generator("frequencies"))
        listener = watch.listener(lambda event: ssgp_at(self, event, source))
        with quiet_blas(), self._progress(listener, Journal(checkpoint)) as progress:
            params, objective, stages = self._learn(source, streams, progress)
            stats = remembered(checkpoint, "statistics", lambda: objective.statistics(params))
            self._set_posterior(stats, params)
        self._record(stages, progress.history)
        watch("final", source.n_rows, lambda: self)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add rows to the posterior, at fixed parameters.

        Exact: the result is that of a fit on all rows at these parameters and with this gate, which assigns
        the new rows to clusters. The first call on an unfitted estimator is a ``fit``.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        source = self._training_source(X, y, reset=False)
        more = self._objective(source).statistics(self._params)
        stages = self.fit_status_["stages"]
        both = tuple(old.merge(new) for old, new in zip(self._statistics, more, strict=True))
        self._set_posterior(both, self._params)
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
                parts.append(self._posterior.functions(*self._fitted().features(chunk), weights))
            return np.concatenate(parts)

        return self._sampled(X, n_samples, random_state, draw)

    # -- internals -------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        check_number(name, "n_frequencies", self.n_frequencies, low=1, integer=True)
        check_gating(name, self.gating, self.partition, self.n_components)
        if isinstance(self.frequencies, str):
            check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)
        if self.chunk_size != "auto":
            check_number(name, "chunk_size", self.chunk_size, low=1, integer=True)

    def _learn(
        self, source: Source, streams: Streams, progress: Progress
    ) -> tuple[Parameters, BlockEvidence, list[dict[str, Any]]]:
        """Parameters, the evidence on all rows, and what each stage did."""
        n, d = source.n_rows, source.n_inputs
        self._start = start = self._user_start(source)
        progress({"method": "start", "rows": n, "params": start})
        if not self.optimize:
            self._set_gating(source, start, streams)
            return start, self._objective(source), []
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
        self._set_gating(source, start, streams)
        objective = self._objective(source)
        runners = self._runners(trial, start, streams)
        boxes = bounds(runners[0][1], dtype=self.dtype)
        winner, params, tried = race(runners, boxes, rounds=_RACE_ROUNDS, monitor=progress)
        objective.frequencies = self.frequencies_ = runners[winner][0].frequencies
        del runners  # and the statistics they keep
        stages = [self._objective(part) for part in parts]
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
    ) -> list[tuple[BlockEvidence, Parameters]]:
        """Starting points of the race: several length-scales, and several draws of the frequencies."""
        blocks, gate = self._blocks(trial), self._gating.soft
        d = trial.n_inputs
        default = default_start(d, trial.n_outputs).log_lengthscale
        scaled = [start.log_lengthscale + np.log(scale) for scale in _RACE_SCALES]
        first = BlockEvidence(blocks, self.frequencies_, gate)
        runners = [(first, replace(start, log_lengthscale=each)) for each in (*scaled, default)]
        rng = streams.generator("restarts")
        draws = _RACE_DRAWS if isinstance(self.frequencies, str) else 1
        for index in range(draws - 1 + self.n_restarts):
            begin = start if index < draws - 1 else perturbed(start, rng)
            runners.append((BlockEvidence(blocks, self._draw(d, rng), gate), begin))
        if self.learn_frequencies:
            runners = [(runner, replace(each, frequencies=runner.frequencies)) for runner, each in runners]
        return runners

    def _draw(self, d: int, rng: np.random.Generator) -> Array:
        given = given_frequencies(self.frequencies, self.n_frequencies, d)
        if given is not None:
            return given
        return draw_frequencies(get_kernel(self.kernel), self.n_frequencies, d, self.frequencies, rng)

    def _set_gating(self, source: Source, start: Parameters, streams: Streams) -> None:
        """Fix the clusters, by distances in the length-scales the learning starts from."""
        # Of an input that says nothing, one that was given in its units would undo the scale that silences it.
        lengthscale = np.where(self._standardiser.constant_inputs, start.lengthscale.max(), start.lengthscale)
        self._gating = fit_gate(
            self.gating,
            self.partition,
            self.n_components,
            source,
            self._standardiser,
            lengthscale,
            dtype=self._compute()[0],
            rng=streams.generator("partition"),
        )
        check_memory(self._gating, self.n_frequencies, source.n_outputs)

    def _gates(self, x: Tensor) -> Tensor | None:
        """Gates of rows in the model's units, (n, b), float64; None without gating."""
        gate = self._gating.gate
        return None if gate is None else gate.gates(x)

    def _objective(self, source: Source) -> BlockEvidence:
        return BlockEvidence(self._blocks(source), self.frequencies_, self._gating.soft)

    def _blocks(self, source: Source) -> list[Chunks]:
        """Rows that the kernel connects, block by block."""
        return [self._chunks(part) for part in connected_parts(self._gating, source, self._chunks)]

    def _chunks(self, source: Source) -> Chunks:
        dtype, device = self._compute()
        rows = self.chunk_size
        if rows == "auto":
            p = self._gating.widening * self.n_frequencies
            rows = auto_chunk_rows(p, source.n_inputs, source.n_outputs, dtype=dtype, device=device)
        return Chunks(source, self._standardiser, rows=int(rows), dtype=dtype, device=device)

    def _set_posterior(self, stats: tuple[Statistics, ...], params: Parameters) -> None:
        solved = [solve_outputs(block, params) for block in stats]
        self._statistics = stats
        self._params = params
        device = self._compute()[1]
        self._posterior = BlockPosterior(tuple(WeightPosterior.from_evidence(each, device=device) for each in solved))
        outputs = [out for block in solved for out in block]
        evidence = sum(out.log_evidence for out in outputs)
        self._publish(evidence, sum(block.n for block in stats), [out.factor for out in outputs])
        self.fit_status_ |= gating_status(self._gating, stats)

    def _projection(self) -> Tensor:
        dtype, device = self._compute()
        return projection(self.frequencies_, self._params.lengthscale, dtype=dtype, device=device)

    def _fitted(self) -> SpectralModel:
        return SpectralModel(self.frequencies_, self._params, self._gating, self._posterior)

    def _prediction_rows(self) -> int:
        self._check_parameters()
        return int(self.chunk_size) if self.chunk_size != "auto" else super()._prediction_rows()

    def _fitted_arguments(self) -> dict[str, Any]:
        # The gate is in the file; labels of training rows, or a clusterer, are not.
        return {**super()._fitted_arguments(), "gating": self._gating.kind, "partition": None}

    def _state_tensors(self) -> dict[str, Tensor]:
        return spectral_tensors(self._statistics, self._fitted())

    def _state_config(self) -> dict[str, Any]:
        return spectral_config(self._statistics, self._gating)

    def _restore(self, tensors: dict[str, Tensor], params: Parameters, n: int, config: dict[str, Any]) -> None:
        self._fitted_kernel = self.kernel
        model, self._statistics = spectral_from_tensors(
            tensors, config, params, gating=self.gating, n=n, p=self.n_frequencies, d=self.n_features_in_
        )
        self.frequencies_, self._params, self._gating = model.frequencies, params, model.gating
        self._posterior = model.posterior.to(self._compute()[1])

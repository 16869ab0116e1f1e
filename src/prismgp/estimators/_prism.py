"""PrismGPRegressor: re-configuration and sparse spectrum GP, the revised SSGP."""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from prismgp._tensors import take
from prismgp._system import limit_blas_threads
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import check_choice, check_number
from prismgp.core.frequencies import FREQUENCY_KINDS
from prismgp.core.parameters import Parameters
from prismgp.data import Chunks, Standardiser
from prismgp.estimators._base import GPRegressor
from prismgp.estimators._checkpoints import open_checkpoint
from prismgp.estimators._recipes import RECIPES, fit_joint, fit_paper, setting
from prismgp.exceptions import DataError, ModelFileError, PrismGPWarning
from prismgp.model.observe import Watch
from prismgp.prism import (
    Expert,
    InformedMap,
    MapStatistics,
    Mixture,
    PlainMap,
    ReconfiguredMap,
)
from prismgp.prism._state import mixture_config, mixture_from_tensors, mixture_tensors

__all__ = ["PrismGPRegressor"]

_ENCODED_ROWS = 2_048  # at a time, before there is a mixture
# What a model file must agree with.
_STRUCTURE = ("recipe", "hidden", "latent_dim", "n_components", "gating", "output", "dtype")


class PrismGPRegressor(GPRegressor):
    """The revised sparse spectrum GP: inputs are re-configured so that few frequencies suffice.

    With ``recipe="joint"`` a network, the latent mixture and the sparse spectrum GP are trained together,
    on the evidence of mini-batches plus a weighted augmented ELBO; several such members are stacked with
    a plain :class:`SSGPRegressor` by the density of held-out rows, and every posterior is then exact
    on all rows. Cost is linear in the rows; memory, beside the data, that of one chunk.

    With ``recipe="paper"`` the two stages of the paper are followed: a :class:`Reconfigurer` without labels, then
    an SSGP on its output. It is there for comparison; on every data set we
    measured it is less accurate than the plain SSGP.

    Parameters
    ----------
    n_frequencies : int, default 64
        The paper's p. 32 are enough in most cases.
    recipe : {"joint", "paper"}, default "joint"
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
        On the latent inputs.
    lengthscale, signal_variance, noise_variance, mean : float, array or None, default None
        Starting values in the data's units; None: from the data. Length-scales are those of the inputs;
        they start the plain SSGP, the scale of the inputs before the network, and their share of the kernel.
        Not used by the paper's recipe, whose SSGP has other inputs.
    frequencies : {"auto", "iid", "orthogonal", "sobol"}, default "auto"
    gating : {"soft", "hard", "none"}, default "soft"
        Soft: features are multiplied by the roots of the cluster probabilities. Hard: each row uses the
        features of its most probable cluster alone; the kernel between clusters is exactly zero.
        Not used by the paper's recipe, which has no gates.
    n_components : int, default 8
        Clusters of the latent prior.
    latent_dim : int or None, default None
        Latent columns; None: 8, or 4 for the paper's recipe.
    hidden : int, sequence of int, or None, default None
        Neurons of the hidden layers; None: (128, 128), or 10 for the paper's recipe.
    alpha, beta : float, default 8.0, 1.2
        Weights of the divergence of all encoded rows from the prior, and of the clusters' separation.
    elbo_weight : float, default 0.001
        Weight of the augmented ELBO beside the evidence, per row.
    n_members : int or None, default None
        Members of the ensemble; None: four, or one with more than 100,000 rows. The paper's recipe has one.
    validation_fraction : float, default 0.1
        Share of the rows held out from the training of the networks, for early stopping, noise, and
        weights of the members. At most 10,000 rows. They join the final posterior.
    batch_size, max_steps, patience : int or None, default None
        Rows per step, most steps of a member, and steps without a better held-out density after which
        it stops. None: 512, 1,000 and 300; with more than 100,000 rows 4,096, 1,500 and 450, and smaller
        batches again beyond 1,024 features; for the paper's recipe 256, 2,000 and 500.
    dropout : float or None, default None
        Share of hidden values dropped in training; None: one member in four drops 5%, the others none.
    noise_model : {"auto", "constant", "input"}, default "auto"
        Whether the noise variance may depend on the inputs; auto: one member in four has constant
        noise, the others not, and the held-out rows decide.
    output : {"reconstruction", "latent"}, default "reconstruction"
        What the SSGP of the paper's recipe sees.
    optimize : bool, default True
        False keeps the kernel parameters at their starting values; networks are trained all the same.
    max_iter, n_restarts, normalize, chunk_size
        As in :class:`SSGPRegressor`, for the plain SSGP.
    device : {"cpu", "cuda", "auto"}, default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Of the final features; networks are trained in float32.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the held-out density and the time left.
    checkpoint : path or None, default None
        As in :class:`SSGPRegressor`; networks in training are put down every few seconds.

    Attributes
    ----------
    lengthscale_, signal_variance_, noise_variance_, mean_, frequencies_, log_evidence_
        Of the expert of the largest weight. Length-scales and frequencies are those of its latent inputs;
        for a member of the joint recipe the latent columns come first, in latent units, then the inputs,
        in theirs. ``noise_variance_`` is the level of its noise, before the factor that depends on the inputs
        and the mixture's temperature; :meth:`predict` has the noise of every row. ``log_evidence_`` is at the
        parameters of the training, before the noise was estimated again.
    history_ : dict of lists
        The course of the training, an entry at every check: "member", "step", "seconds", "evidence" per row
        of the batch, the ELBO's "objective", "reconstruction", "conditional_kl", "marginal_kl" and "separation",
        "validation_nlpd" and "validation_rmse" (in units of the target's standard deviation), "radius",
        "smallest_separation", "cluster_sizes". For the paper's recipe, that of the Reconfigurer.
    fit_status_ : dict
        "weights" of the members and of the plain SSGP, "temperature", "members", "stages" of the plain SSGP,
        "held_out_rows", "held_out_nlpd" (of the whole mixture at these rows, on which its weights were chosen, so a
        little optimistic), "interrupted", "message", jitter used.
    n_iter_ : int
        Steps of all members.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import PrismGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (300, 2))
    >>> y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(300)
    >>> model = PrismGPRegressor(16, n_members=1, max_steps=50, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> bool(np.mean(np.abs(y - mean) < 3 * std) > 0.9)
    True
    """

    _kind = "prism"
    _reconfigures = True

    frequencies_: Array
    _mixture: Mixture
    _plain_lengthscale: Array | None
    _fitted_structure: dict[str, Any]

    def __init__(
        self,
        n_frequencies: int = 64,
        *,
        recipe: str = "joint",
        kernel: str = "rbf",
        lengthscale: Any = None,
        signal_variance: Any = None,
        noise_variance: Any = None,
        mean: Any = None,
        frequencies: str = "auto",
        gating: str = "soft",
        n_components: int = 8,
        latent_dim: int | None = None,
        hidden: Any = None,
        alpha: float = 8.0,
        beta: float = 1.2,
        elbo_weight: float = 1e-3,
        n_members: int | None = None,
        validation_fraction: float = 0.1,
        batch_size: int | None = None,
        max_steps: int | None = None,
        patience: int | None = None,
        dropout: float | None = None,
        noise_model: str = "auto",
        output: str = "reconstruction",
        optimize: bool = True,
        max_iter: int = 200,
        n_restarts: int = 0,
        normalize: bool = True,
        chunk_size: int | str = "auto",
        device: str = "cpu",
        dtype: str = "float64",
        random_state: RandomState = None,
        verbose: int = 0,
        checkpoint: Any = None,
    ) -> None:
        self.n_frequencies = n_frequencies
        self.recipe = recipe
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.signal_variance = signal_variance
        self.noise_variance = noise_variance
        self.mean = mean
        self.frequencies = frequencies
        self.gating = gating
        self.n_components = n_components
        self.latent_dim = latent_dim
        self.hidden = hidden
        self.alpha = alpha
        self.beta = beta
        self.elbo_weight = elbo_weight
        self.n_members = n_members
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.max_steps = max_steps
        self.patience = patience
        self.dropout = dropout
        self.noise_model = noise_model
        self.output = output
        self.optimize = optimize
        self.max_iter = max_iter
        self.n_restarts = n_restarts
        self.normalize = normalize
        self.chunk_size = chunk_size
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train, stack, and compute the posteriors on all rows.

        An interrupt (Ctrl-C) during the training of the networks ends it; the best states so far are
        used, with a warning.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
            A source, such as :func:`prismgp.data.from_parquet` makes, holds the targets too.
        y : array-like, (n,) or (n, q), or Dask array, series or frame
            Several outputs share the networks; each has its own signal variance, noise level and mean.
        """
        watch = Watch(self._observer)
        self._check_parameters()
        source = self._training_source(X, y)
        # The paper's recipe has length-scales of the network's output only, and learns nothing from such inputs.
        learned = self.optimize or self.recipe == "paper"
        self._standardiser = Standardiser.fit(source, normalize=self.normalize, learned=learned)
        self._fitted_kernel = self.kernel
        self._fitted_structure = {name: getattr(self, name) for name in _STRUCTURE}
        checkpoint = open_checkpoint(self, source)
        with limit_blas_threads(), torch.inference_mode(False), torch.enable_grad():
            fitted = (fit_paper if self.recipe == "paper" else fit_joint)(self, source, watch, checkpoint)
        self._plain_lengthscale = fitted.plain_lengthscale
        self._set_mixture(fitted.mixture)
        self.fit_status_ |= fitted.status
        self.history_, self.n_iter_ = fitted.history, max(1, fitted.steps)
        if fitted.status["interrupted"]:
            warnings.warn(f"the fit was {fitted.status['message']}", PrismGPWarning, stacklevel=2)
        watch("final", source.n_rows, lambda: self)
        return self

    def _with(self, mixture: Mixture) -> Self:
        """This model with other experts; for observers of a fit."""
        twin = copy(self)
        twin._set_mixture(mixture)
        return twin

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add rows to the posteriors, with networks, parameters and weights as they are.

        Exact: the posteriors are those of all rows. The first call on an unfitted estimator is a ``fit``.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        source = self._training_source(X, y, reset=False)
        dtype, device = self._compute()
        chunks = Chunks(source, self._standardiser, rows=self._prediction_rows(), dtype=dtype, device=device)
        mixture = self._mixture.to(device)
        experts = tuple(
            expert.with_statistics(expert.statistics.merge(chunks.reduce(MapStatistics(expert.map))))
            for expert in mixture.experts
        )
        status, history, steps = self.fit_status_, self.history_, self.n_iter_
        self._set_mixture(replace(mixture, experts=experts))
        self.fit_status_ = {**status, **self.fit_status_, "stages": status["stages"]}
        self.history_, self.n_iter_ = history, steps
        return self

    def sample_y(self, X: Any, n_samples: int = 1, random_state: RandomState = None) -> AnyArray:
        """Draw functions from the mixture of posteriors and evaluate them at X.

        The same ``random_state`` gives the same functions in every call, at whatever X.

        Returns
        -------
        ndarray, (n, n_samples), or (n, q, n_samples) for a two-dimensional y
        """

        def draw(x: AnyArray, count: int, rng: np.random.Generator) -> Array:
            return self._mixture.to(self._compute()[1]).sample(self._model_chunks(x), count, rng)

        return self._sampled(X, n_samples, random_state, draw)

    # -- internals -------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        check_choice(name, "recipe", self.recipe, tuple(RECIPES))
        check_choice(name, "gating", self.gating, ("soft", "hard", "none"))
        check_choice(name, "noise_model", self.noise_model, ("auto", "constant", "input"))
        check_choice(name, "output", self.output, ("reconstruction", "latent"))
        check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)
        for count in ("n_frequencies", "n_components"):
            check_number(name, count, getattr(self, count), low=1, integer=True)
        for count in ("n_members", "latent_dim", "batch_size", "max_steps", "patience"):
            check_number(name, count, getattr(self, count), low=1, integer=True, optional=True)
        for number in ("alpha", "beta", "elbo_weight"):
            check_number(name, number, getattr(self, number), low=0)
        check_number(name, "validation_fraction", self.validation_fraction, low=0, strict=True)
        check_number(name, "dropout", self.dropout, low=0, optional=True)
        if self.validation_fraction >= 1 or (self.dropout is not None and self.dropout >= 1):
            raise DataError(f"{name}: validation_fraction and dropout must be below 1")
        hidden = setting(self, "hidden")
        single = not isinstance(hidden, list | tuple | np.ndarray)
        for layer in [hidden] if single else hidden:
            check_number(name, "hidden", layer, low=1, integer=True)
        if self.recipe == "paper" and not single:
            raise DataError(f'{name}: hidden={hidden!r} must be an integer for recipe="paper", which has one layer')
        self._check_chunk_size()

    def _check_chunk_size(self) -> None:
        if self.chunk_size != "auto":
            check_number(type(self).__name__, "chunk_size", self.chunk_size, low=1, integer=True)

    def _set_mixture(self, mixture: Mixture) -> None:
        self._mixture = mixture
        leader = mixture.leader
        self._params = leader.params
        self._publish(
            leader.log_evidence, leader.statistics.n, [each for expert in mixture.experts for each in expert.factors]
        )
        self.fit_status_["temperature"] = mixture.temperature.tolist()

    def _publish_parameters(self) -> None:
        s, leader = self._standardiser, self._mixture.leader
        self._publish_parameters_of(leader.params, self._input_scales(leader))
        self.noise_variance_ = self._per_output(leader.params.noise * leader.noise_scale * s.y_scale**2)
        self.frequencies_ = _frequencies(leader)

    def _input_scales(self, leader: Expert) -> Array:
        """From the model's units of the leader's inputs to those reported."""
        if isinstance(leader.map, ReconfiguredMap):
            return leader.map.scale.cpu().numpy()
        latent = len(leader.params.log_lengthscale) - len(self._standardiser.x_scale)
        return np.append(np.ones(latent), self._standardiser.x_scale)

    def _prediction_rows(self) -> int:
        self._check_chunk_size()
        if self.chunk_size != "auto":
            return int(self.chunk_size)
        if not hasattr(self, "_mixture"):
            return _ENCODED_ROWS
        return self._mixture.prediction_rows(self._compute()[1])  # of the mixture where it is: nothing is moved for it

    def _fitted(self) -> Mixture:
        return self._mixture.to(self._compute()[1])

    def _log_density_chunk(self, x: Tensor, y: Tensor) -> Tensor:
        return self._mixture.to(x.device).log_density(x, y)

    def _fitted_arguments(self) -> dict[str, Any]:
        return {**super()._fitted_arguments(), **self._fitted_structure}

    def _input_lengthscale(self) -> Array | None:
        """That of the plain SSGP; a network has no length-scales of its inputs."""
        return self._plain_lengthscale

    def _state_tensors(self) -> dict[str, Tensor]:
        tensors = mixture_tensors(self._mixture)
        if self._plain_lengthscale is not None:
            tensors["plain_lengthscale"] = torch.tensor(self._plain_lengthscale)
        return tensors

    def _state_config(self) -> dict[str, Any]:
        return {"experts": mixture_config(self._mixture)}

    def _restore(self, tensors: dict[str, Tensor], params: Parameters, n: int, config: dict[str, Any]) -> None:
        dtype, device = self._compute()
        mixture = mixture_from_tensors(
            tensors, config["experts"], n=n, d=self.n_features_in_, q=len(params.mean), dtype=dtype
        )
        self._fitted_structure = {name: getattr(self, name) for name in _STRUCTURE}
        self._plain_lengthscale = None
        if "plain_lengthscale" in tensors:
            (lengthscale,) = take(tensors, plain_lengthscale=(self.n_features_in_,))
            self._plain_lengthscale = lengthscale.numpy()
            if (self._plain_lengthscale <= 0).any():
                raise ModelFileError("a length-scale is not positive")
        self._fitted_kernel = self.kernel
        self._mixture = mixture.to(device)
        self._params = self._mixture.leader.params


def _frequencies(leader: Expert) -> Array:
    """Base frequencies, before division by the length-scales."""
    feature_map = leader.map
    if isinstance(feature_map, ReconfiguredMap | InformedMap):
        feature_map = feature_map.plain
    if isinstance(feature_map, PlainMap):
        return feature_map.w.double().cpu().numpy().T * leader.params.lengthscale
    return np.asarray(feature_map.frequencies.double().cpu().numpy())  # type: ignore[attr-defined]

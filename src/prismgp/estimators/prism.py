"""PrismGPRegressor: sparse spectrum GPs on inputs that networks transform, and GPs on the nearest rows."""

from __future__ import annotations

from numbers import Integral
from typing import Any, Literal, Self, get_args

import numpy as np
import torch

from prismgp._system import Streams, limit_blas_threads
from prismgp._types import (
    Device,
    DtypeName,
    FrequencyKind,
    GatingKind,
    KernelName,
    LocalChoice,
    Missing,
    NoiseModel,
    NoiseShapeChoice,
    OnInterrupt,
    RandomState,
    Recipe,
    VAEOutput,
)
from prismgp._validate import check_choice, check_number
from prismgp.core.kernels import FREQUENCY_KINDS, get_kernel
from prismgp.estimators.base import UpdatableRegressor
from prismgp.exceptions import DataError
from prismgp.model.unknown import find_known_gaps
from prismgp.prism.fit import DEFAULTS, PrismSettings, fit_prism


class PrismGPRegressor(UpdatableRegressor):
    """Sparse spectrum GPs on inputs that networks have learned, and GPs on the nearest rows for the detail.

    The networks transform the inputs so that few frequencies suffice, after Hoang et al. (2020) [1]_. With
    ``recipe="joint"`` each network is trained together with its sparse spectrum GP, on the evidence of mini-batches
    and, with a small weight, the ELBO of an auto-encoder. Several such members and a plain :class:`SSGPRegressor` are
    averaged with weights that maximise the density of held-out rows. Each posterior is then computed exactly from all
    rows. GPs on the nearest rows can add local detail that this mixture does not describe (``local``).

    With ``recipe="paper"`` the two stages of the paper are followed: a :class:`Reconfigurer` without the target, then
    an SSGP on its output. It is there for comparison; on every data set we measured it is less accurate than the plain
    SSGP.

    With ``recipe="released"`` the model is trained as the authors' released code trains it: auto-encoder and SSGP
    together, with the target. It is a reproduction, with the flaws of that code: an objective without its
    log-determinant, frequencies that are not those of the kernel, and more (docs/prism.md, "The released recipe").

    Parameters
    ----------
    n_frequencies : int, default 32
        The number of spectral frequencies, p in the formulas.
    recipe : {"joint", "paper", "released"}, default "joint"
        How networks and SSGPs are trained; see above.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
        On the latent inputs.
    lengthscale, signal_variance, noise_variance, mean : float, array or None, default None
        Starting values in the data's units; None: from the data. Length-scales are those of the inputs;
        they start the plain SSGP, the scale of the inputs before the network, and their share of the kernel.
        Length-scales are not used with ``recipe="paper"``, whose SSGP has other inputs, and none of these with
        ``recipe="released"``.
    frequencies : {"auto", "iid", "orthogonal", "sobol"}, default "auto"
    gating : {"soft", "hard", "none"}, default "soft"
        Soft: features are multiplied by the roots of the cluster probabilities. Hard: each row uses the
        features of its most probable cluster alone; the kernel between clusters is exactly zero.
        Not used with ``recipe="paper"`` and ``"released"``, which have no gates.
    n_components : int, default 8
        Clusters of the latent prior.
    latent_dim : int or None, default None
        Latent columns; None: 8, or 4 for the paper's and the released recipe.
    hidden : int, sequence of int, or None, default None
        Neurons of the hidden layers; None: (128, 128), or 10 for the paper's and the released recipe.
    alpha, beta : float, default 8.0, 1.2
        Weights of the divergence of all encoded rows from the prior, and of the clusters' separation.
    elbo_weight : float, default 0.001
        Weight of the augmented ELBO beside the evidence, per row.
    n_members : int or None, default None
        Members of the ensemble; None: four, or one with more than 100,000 rows. One with ``recipe="paper"`` and
        ``"released"``.
    validation_fraction : float, default 0.1
        Share of the rows held out from the training of the networks, for early stopping, noise, and
        weights of the members. At most 10,000 rows. They join the final posterior.
    batch_size, max_steps, patience : int or None, default None
        Rows per step, most steps of a member, and steps without a better held-out density after which
        it stops. None: 504, 1,000 and 300; with more than 5,000 rows up to 2,000 steps, where the
        held-out density still improves much; with more than 100,000 rows 4,096, 1,500 to 3,000 and 450;
        for ``recipe="paper"`` 256, 2,000 and 500. Patience grows with the steps. The released
        recipe has batches of 200 rows, 512 with more than 100,000, 101 passes of at most 51 batches, and
        no rows held out.
    dropout : float or None, default None
        Share of hidden values dropped in training; None: one member in four drops 5%, the others none.
    noise_model : {"auto", "constant", "input"}, default "auto"
        Whether the noise variance may depend on the inputs; auto: one member in four has constant
        noise, the others not, and the held-out rows decide.
    output : {"reconstruction", "latent"}, default "reconstruction"
        What the SSGP of the paper's and of the released recipe sees.
    optimize : bool, default True
        False keeps the kernel parameters at their starting values; networks are trained all the same.
    max_iter, n_restarts, normalize, chunk_size
        As in :class:`SSGPRegressor`, for the plain SSGP.
    missing : {"impute", "drop", "error"}, default "impute"
        What to do with missing inputs. "impute": numbers and times get the median of the training rows and an
        indicator, missing categories are a category; "drop": rows that have any are left out of the fit; "error": they
        are an error. A prediction averages over what a missing cell may be, unless held-out rows show that the model
        knows rows in which the same cells are missing. A source has an argument of its own.
    device : {"cpu", "cuda", "auto"} or a numbered GPU such as "cuda:1", default "cpu"
    dtype : {"float64", "float32"}, default "float64"
        Of the final features; networks are trained in float32.
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the held-out density and the time left.
    checkpoint : path or None, default None
        As in :class:`SSGPRegressor`; networks in training are saved every few seconds.
    local : {"auto", "always", "never"}, default "auto"
        Whether GPs on the nearest rows join the mixture. "auto": they do if the density of the held-out rows rises by
        more than half a standard error. "always": they get the best weights, even if these are no better. "never": the
        mixture alone. Ignored with ``recipe="paper"`` and ``"released"``. With neighbours, the model and its file
        contain the coordinates and targets of the training rows.
    n_neighbors : int, default 32
        Nearest rows that each prediction of a neighbour GP is made from.
    local_rows : int or None, default None
        Maximum number of rows that can be neighbours, chosen at random. None: 4,000,000. With fewer than 40, neighbours
        are not used.
    noise_shape : {"auto", "normal"}, default "auto"
        Auto: heavy tails, skewness and other departures from the normal distribution are learned from the residuals of
        the held-out rows, if cross-validation confirms them, and with up to 10,000 rows also from those of the plain
        SSGP at rows that it was fitted without. They change :meth:`log_density`, :meth:`predict_interval` and
        :meth:`predict_quantiles`. The shape is normal after an interruption, and with ``recipe="paper"`` and
        ``"released"``.
    max_seconds, on_interrupt
        As in :class:`SSGPRegressor`; of the time, the plain SSGP gets at most 30%, the networks most of the rest.

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
        "smallest_separation", "cluster_sizes". For ``recipe="paper"``, that of the Reconfigurer.
    fit_status_ : dict
        "weights" of the members and of the plain SSGP, "temperature", "members", "stages" of the plain SSGP,
        "held_out_rows", "held_out_nlpd" (of the whole mixture at these rows, on which its weights were chosen, so a
        little optimistic, with normal noise), "noise_shape" (for each output the "kind" and the "gain" in log density
        over a normal distribution, per held-out row, cross-validated, or with a shape of the plain SSGP's residuals as
        it is found, so that it may be negative; under "copies" those of rows with the inputs of stored rows, where
        these differ), "local" (the "weights" of the mixture and of the neighbour GPs, the "gain" in log density per
        held-out row, how many "rows" may be neighbours, how many of them are "duplicates" of others, if any, and finite
        "degrees" of freedom), "message", jitter used; "interrupted" and "timed_out" as in :class:`SSGPRegressor`.
    n_iter_ : int
        Steps of all members.

    References
    ----------
    .. [1] Q. M. Hoang, T. N. Hoang, H. Pham, D. P. Woodruff. Revisiting the sample complexity of sparse spectrum
       approximation of Gaussian processes. NeurIPS 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import PrismGPRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (150, 2))
    >>> y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(150)
    >>> model = PrismGPRegressor(16, n_members=1, max_steps=50, random_state=0).fit(X, y)
    >>> mean, std = model.predict(X, return_std=True)
    >>> bool(np.mean(np.abs(y - mean) < 3 * std) > 0.9)
    True
    """

    _kind = "prism"
    _structure = (*UpdatableRegressor._structure, "recipe", "hidden", "latent_dim", "n_components", "output", "dtype")

    def __init__(
        self,
        n_frequencies: int = 32,
        *,
        recipe: Recipe = "joint",
        kernel: KernelName = "rbf",
        lengthscale: Any = None,
        signal_variance: Any = None,
        noise_variance: Any = None,
        mean: Any = None,
        frequencies: FrequencyKind = "auto",
        gating: GatingKind = "soft",
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
        noise_model: NoiseModel = "auto",
        output: VAEOutput = "reconstruction",
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
        checkpoint: Any = None,
        local: LocalChoice = "auto",
        n_neighbors: int = 32,
        local_rows: int | None = None,
        noise_shape: NoiseShapeChoice = "auto",
        max_seconds: float | None = None,
        on_interrupt: OnInterrupt = "raise",
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
        self.missing = missing
        self.device = device
        self.dtype = dtype
        self.random_state = random_state
        self.verbose = verbose
        self.checkpoint = checkpoint
        self.local = local
        self.n_neighbors = n_neighbors
        self.local_rows = local_rows
        self.noise_shape = noise_shape
        self.max_seconds = max_seconds
        self.on_interrupt = on_interrupt

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Train, stack, and compute the posteriors on all rows.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
            A source, such as :func:`prismgp.data.from_parquet` makes, holds the targets too.
        y : array-like, (n,) or (n, q), or Dask array, series or frame
            Several outputs share the networks; each has its own signal variance, noise level and mean.
        sample_weight : array-like, (n,), or Dask array, optional
            A row of weight w is the average of w observations: its noise variance is divided by w. Held-out rows
            count by their weights. Zero leaves the row out.
        noise_variance : array-like, (n,), or Dask array, optional
            Known variance of the error of each target, in the target's units squared, which adds to the learned noise
            in the fit; predictions have the learned noise alone. For one target.
        """
        rows = self._training_rows(X, y, sample_weight, noise_variance)
        context = self._context(rows)
        streams = Streams(self.random_state)
        own = {name: getattr(self, name) for name in PrismSettings.names() if name != "kernel"}
        settings = PrismSettings(kernel=get_kernel(self.kernel), **own)
        # The plain SSGP has the parameters of the one that a user who compares the two would fit, where the seed is a
        # number; with few rows its variances are corrected.
        seed = self.random_state if isinstance(self.random_state, Integral) else streams.seed
        with limit_blas_threads(), context, torch.inference_mode(False), torch.enable_grad():
            fit = fit_prism(rows, self._start_values(), settings, streams, context, ssgp_seed=int(seed))
        return self._conclude(
            context,
            fit.predictor,
            rows,
            fit.stages,
            fit.history,
            fit.status,
            n_iter=fit.steps,
            input_lengthscale=fit.plain_lengthscale,
            shapes=fit.shapes,
            copy_shapes=fit.copy_shapes,
            tail_share=fit.tail_share,
            known_gaps=find_known_gaps(fit.residuals, rows.standardiser, getattr(self, "table_encoder_", None)),
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        name = type(self).__name__
        check_choice(name, "recipe", self.recipe, get_args(Recipe))
        check_choice(name, "gating", self.gating, get_args(GatingKind))
        check_choice(name, "noise_model", self.noise_model, get_args(NoiseModel))
        check_choice(name, "noise_shape", self.noise_shape, get_args(NoiseShapeChoice))
        check_choice(name, "local", self.local, get_args(LocalChoice))
        check_choice(name, "output", self.output, get_args(VAEOutput))
        check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)
        for count in ("n_frequencies", "n_components", "n_neighbors"):
            check_number(name, count, getattr(self, count), low=1, integer=True)
        for count in ("n_members", "latent_dim", "batch_size", "max_steps", "patience", "local_rows"):
            check_number(name, count, getattr(self, count), low=1, integer=True, optional=True)
        for number in ("alpha", "beta", "elbo_weight"):
            check_number(name, number, getattr(self, number), low=0)
        check_number(name, "validation_fraction", self.validation_fraction, low=0, strict=True)
        check_number(name, "dropout", self.dropout, low=0, optional=True)
        if self.validation_fraction >= 1 or (self.dropout is not None and self.dropout >= 1):
            raise DataError(f"{name}: validation_fraction and dropout must be below 1")
        hidden = DEFAULTS[self.recipe]["hidden"] if self.hidden is None else self.hidden
        single = not isinstance(hidden, list | tuple | np.ndarray)
        for layer in [hidden] if single else hidden:
            check_number(name, "hidden", layer, low=1, integer=True)
        if self.recipe != "joint" and not single:
            message = f'{name}: hidden={hidden!r} must be an integer for recipe="{self.recipe}", which has one layer'
            raise DataError(message)
        if self.recipe == "released" and self.kernel != "rbf":
            raise DataError(f'{name}: kernel={self.kernel!r} must be "rbf" for recipe="released", which has no other')

    def _learns_lengthscales(self) -> bool:
        # The other recipes have length-scales of the network's output only, and learn nothing from rare inputs.
        return bool(self.optimize) or self.recipe != "joint"

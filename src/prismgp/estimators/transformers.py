"""Transformers: random Fourier features, and the mixture variational auto-encoder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, Self, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from prismgp._system import Streams, compute_device
from prismgp._types import (
    AnyArray,
    Array,
    Device,
    FrequencyKind,
    KernelName,
    OnInterrupt,
    RandomState,
    Tensor,
    VAEOutput,
)
from prismgp._validate import check_choice, check_device, check_inputs, check_number
from prismgp.context import FitContext
from prismgp.core.features import projection, spectral_features
from prismgp.core.kernels import FREQUENCY_KINDS, KERNELS, draw_frequencies, get_kernel
from prismgp.core.models import Standardiser
from prismgp.core.rows import ON_INTERRUPT, Ending
from prismgp.data import ArraySource, Source, StandardisedRows, fit_standardiser, prefetch
from prismgp.estimators.sources import (
    adopt_source,
    apply_where_rows_are,
    as_source,
    forget_fit,
    match_inputs,
    match_source,
)
from prismgp.exceptions import PrismGPWarning
from prismgp.vae import BatchRows, MixtureVAE, VAESettings, fit_vae

CHUNK_ROWS = 8_192
_OUTPUTS = get_args(VAEOutput)
_STATUS = ("held_out_rows", "steps", "best_step", "message")


class _Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A transformer that keeps the precision of floats."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class SpectralFeatures(_Transformer):
    """Random Fourier features whose inner products approximate a stationary kernel.

    ``transform(x) . transform(x')`` estimates ``k(x, x')`` without bias, every row has norm one, and
    the error shrinks like ``n_frequencies ** -0.5``.

    Parameters
    ----------
    n_frequencies : int, default 64
        The output has twice as many columns: a cosine and a sine for each frequency.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
    lengthscale : float, array or None, default None
        One for all inputs or one for each; None: ``sqrt(d)`` standard deviations of each input.
    frequencies : {"auto", "iid", "orthogonal", "sobol"}, default "auto"
        "auto" is "sobol" up to 4 inputs, "orthogonal" above.
    random_state : int, RandomState or None, default None

    Attributes
    ----------
    frequencies_ : ndarray, (n_frequencies, d)
        Base frequencies, before division by the length-scales.
    lengthscale_ : ndarray, (d,)

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SpectralFeatures
    >>> X = np.random.default_rng(0).standard_normal((5, 3))
    >>> SpectralFeatures(n_frequencies=8, random_state=0).fit_transform(X).shape
    (5, 16)
    """

    frequencies_: Array
    lengthscale_: Array
    n_features_in_: int

    def __init__(
        self,
        n_frequencies: int = 64,
        *,
        kernel: KernelName = "rbf",
        lengthscale: Any = None,
        frequencies: FrequencyKind = "auto",
        random_state: RandomState = None,
    ) -> None:
        self.n_frequencies = n_frequencies
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.frequencies = frequencies
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the frequencies for rows X, (n, d), or for those of a source; y is ignored."""
        name = type(self).__name__
        check_number(name, "n_frequencies", self.n_frequencies, low=1, integer=True)
        check_choice(name, "kernel", self.kernel, tuple(KERNELS))
        check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)
        forget_fit(self)
        if isinstance(X, Source):
            source = adopt_source(self, X, None, needs_target=False)
        else:
            x = check_inputs(self, X, reset=True)
            source = ArraySource(x, np.empty((len(x), 0)))  # no targets
        d = source.n_inputs
        standardiser = fit_standardiser(source, normalize=True, learned=False)
        start = StandardisedRows(source, standardiser).start(learn=False, lengthscale=self.lengthscale)
        self.lengthscale_ = start.lengthscale * standardiser.x_scale
        self._shift = standardiser.x_shift
        rng = Streams(self.random_state).generator("frequencies")
        self.frequencies_ = draw_frequencies(get_kernel(self.kernel), self.n_frequencies, d, self.frequencies, rng)
        self._n_features_out = 2 * self.n_frequencies
        return self

    def transform(self, X: Any) -> AnyArray:
        """Features of X, (n, 2 n_frequencies), in the precision of X; float64 for a source."""
        check_is_fitted(self)
        if isinstance(X, Source):
            return np.concatenate([self._features(x) for x, _ in match_source(self, X).blocks(CHUNK_ROWS)])
        return self._features(match_inputs(self, X))

    def _features(self, x: AnyArray) -> AnyArray:
        # Centred, so that phases stay small; a shift changes no inner product. Missing cells are replaced by the mean.
        centred = torch.from_numpy(np.where(np.isfinite(x), x - self._shift, 0.0).astype(x.dtype))
        w = projection(self.frequencies_, self.lengthscale_, dtype=centred.dtype, device=torch.device("cpu"))
        return np.asarray(spectral_features(centred, w).numpy())


class Reconfigurer(_Transformer):
    """Map the inputs to a latent space where they form compact, well separated clusters.

    A variational auto-encoder whose latent prior is a mixture of Gaussians on a sphere, fitted without
    labels (section 3.3 and appendix C of the paper). In such a space a sparse spectrum GP needs few
    frequencies to approximate its kernel. That is no promise about the target: an encoding made
    without labels may drop what predicts it, so compare with a model on the plain inputs.

    Parameters
    ----------
    n_components : int, default 8
        Clusters of the prior, and Gaussian networks in the encoder and in the decoder.
    latent_dim : int, default 4
        Columns of the latent output.
    hidden : int, default 10
        Neurons of each hidden layer.
    alpha : float, default 8.0
        Weight of the divergence between all encoded rows together and the prior.
    beta : float, default 1.2
        Weight of the separation of the prior's clusters.
    output : {"latent", "reconstruction"}, default "latent"
        What ``transform`` returns: the mean of ``q(z | x)``, or the decoder's mean at that point, in
        the units of the inputs.
    batch_size : int, default 256
        Rows per step.
    max_steps : int, default 2000
        Steps of Adam.
    patience : int or None, default 500
        Stop after this many steps without a better objective on the held-out tenth of the rows; None: do
        all steps. The best state seen is kept in any case.
    device : {"cpu", "cuda", "auto"} or a numbered GPU such as "cuda:1", default "cpu"
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the objective and the time left.
    max_seconds, on_interrupt
        As in :class:`SSGPRegressor`.

    Attributes
    ----------
    history_ : dict of lists
        The course of the training, an entry every 50 steps: "step", "seconds"; "objective" and its terms
        "reconstruction", "conditional_kl", "marginal_kl" and "separation" on the batch of that step;
        "held_out_objective"; "radius" of the prior; "smallest_separation", the distance of the two
        nearest centres in widths; "cluster_sizes", the held-out rows in each cluster.
    fit_status_ : dict
        "rows", "held_out_rows", "steps", "best_step" (the state that was kept), "message", "interrupted", "timed_out".
    n_iter_ : int
        Steps taken.
    n_features_in_ : int
    feature_names_in_ : ndarray, where the inputs had names

    Notes
    -----
    The objective is R5 in ``prismgp/vae/elbo.py``. Inputs are standardised inside; columns that never
    vary, or in at most three rows and one in three hundred, are ignored, and reconstructed as the value the others
    have. Training is in float32, ``transform`` in float64, and
    deterministic.

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import Reconfigurer
    >>> X = np.random.default_rng(0).standard_normal((200, 6))
    >>> encoder = Reconfigurer(n_components=3, latent_dim=2, max_steps=20, random_state=0).fit(X)
    >>> encoder.transform(X).shape
    (200, 2)
    >>> encoder.responsibilities(X).shape
    (200, 3)
    """

    history_: dict[str, list[Any]]
    fit_status_: dict[str, Any]
    n_iter_: int
    n_features_in_: int
    _vae: MixtureVAE
    _standardiser: Standardiser

    # Parameters that regressors have as well are repeated: scikit-learn reads them off an estimator's own constructor.
    def __init__(
        self,
        n_components: int = 8,
        latent_dim: int = 4,
        *,
        hidden: int = 10,
        alpha: float = 8.0,
        beta: float = 1.2,
        output: VAEOutput = "latent",
        batch_size: int = 256,
        max_steps: int = 2000,
        patience: int | None = 500,
        device: Device = "cpu",
        random_state: RandomState = None,
        verbose: int = 0,
        max_seconds: float | None = None,
        on_interrupt: OnInterrupt = "raise",
    ) -> None:
        self.n_components = n_components
        self.latent_dim = latent_dim
        self.hidden = hidden
        self.alpha = alpha
        self.beta = beta
        self.output = output
        self.batch_size = batch_size
        self.max_steps = max_steps
        self.patience = patience
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.max_seconds = max_seconds
        self.on_interrupt = on_interrupt

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on rows X, (n, d), or on those of a source or a Dask collection; y is ignored."""
        self._check_parameters()
        ending = Ending(self.max_seconds, keep=self.on_interrupt == "keep")
        forget_fit(self)
        X, _ = as_source(self, X, reset=True)
        if isinstance(X, Source):
            source = adopt_source(self, X, None, needs_target=False)
        else:
            x = check_inputs(self, X, reset=True)
            # There are no targets: a column of zeros, which takes no memory, stands in for them.
            source = ArraySource(x, np.broadcast_to(0.0, (len(x), 1)))
        self._standardiser = fit_standardiser(source, normalize=True)
        bar: dict[str, Any] = {"verbose": self.verbose, "unit": "step", "total": self.max_steps}
        context = FitContext(type(self).__name__, ending=ending, **bar)
        self._vae, result = fit_vae(
            StandardisedRows(source, self._standardiser, device=compute_device(self.device)),
            VAESettings(
                n_components=self.n_components,
                latent_dim=self.latent_dim,
                hidden=self.hidden,
                alpha=float(self.alpha),
                beta=float(self.beta),
                batch_size=self.batch_size,
                max_steps=self.max_steps,
                patience=self.patience,
            ),
            Streams(self.random_state),
            context,
        )
        if ending.interrupted:
            how = result.message if result.early else f"interrupted after {result.steps} steps"
            note = f"the fit was {how}; the state of step {result.best_step} is kept"
            warnings.warn(note, PrismGPWarning, stacklevel=2)
        self.history_ = result.history
        self.n_iter_ = max(1, result.steps)
        self.fit_status_ = {
            "rows": source.n_rows,
            **{name: getattr(result, name) for name in _STATUS},
            **ending.status(),
        }
        return self

    def transform(self, X: Any) -> AnyArray:
        """Encode X, in its precision: (n, latent_dim), or (n, d) for ``output="reconstruction"``."""
        check_choice(type(self).__name__, "output", self.output, _OUTPUTS)
        return self._at_latent_points("transform", X, lambda z: z if self.output == "latent" else self._reconstruct(z))

    def responsibilities(self, X: Any) -> AnyArray:
        """Probability of each cluster of the prior at the latent point of each row, (n, n_components)."""
        return self._at_latent_points("responsibilities", X, lambda z: self._vae.prior.responsibilities(z))

    def predict(self, X: Any) -> AnyArray:
        """The most probable cluster of each row, (n,), from 0; cluster sizes grow with the number."""
        return self._at_latent_points("predict", X, lambda z: self._vae.prior.log_joint(z).argmax(-1))

    def get_feature_names_out(self, input_features: Any = None) -> AnyArray:
        """Names of the columns ``transform`` returns; those of the inputs for reconstructions."""
        mixin = ClassNamePrefixFeaturesOutMixin if self.output == "latent" else OneToOneFeatureMixin
        names: AnyArray = mixin.get_feature_names_out(self, input_features)
        return names

    @property
    def _n_features_out(self) -> int:
        """Columns of the latent space; a property, so that it is never that of other parameters than the fit's."""
        return int(self._vae.prior.directions.shape[1])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_status_")  # the last thing a fit sets

    # -- internals -------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        name = type(self).__name__
        for count in ("n_components", "latent_dim", "hidden", "batch_size", "max_steps"):
            check_number(name, count, getattr(self, count), low=1, integer=True)
        check_number(name, "patience", self.patience, low=1, integer=True, optional=True)
        check_number(name, "max_seconds", self.max_seconds, low=0, strict=True, optional=True)
        check_choice(name, "on_interrupt", self.on_interrupt, ON_INTERRUPT)
        check_number(name, "alpha", self.alpha, low=0)
        check_number(name, "beta", self.beta, low=0)
        check_choice(name, "output", self.output, _OUTPUTS)
        check_device(name, self.device)
        compute_device(self.device)

    def _at_latent_points(self, method: str, X: Any, compute: Callable[[Tensor], Tensor]) -> AnyArray:
        """Apply a function to the means of ``q(z | x)``, in float64, a bounded number of rows at a time.

        The result has the precision of X, or is of integers. Rows on a cluster are passed to the method there.
        """
        check_is_fitted(self)
        X, _ = as_source(self, X)
        blocks: Iterable[AnyArray]
        if isinstance(X, Source):
            source, dtype = match_source(self, X), np.dtype(np.float64)
            if source.distributed:
                return np.asarray(apply_where_rows_are(self, source, method))
            blocks = (x for x, _ in prefetch(source.blocks(CHUNK_ROWS)))
        else:
            x = match_inputs(self, X)
            blocks, dtype = (x[start : start + CHUNK_ROWS] for start in range(0, len(x), CHUNK_ROWS)), x.dtype
        device = compute_device(self.device)
        self._vae.to(device)
        s = self._standardiser
        found = []
        for block in blocks:
            block = np.where(np.isfinite(block), block, s.x_shift).astype(block.dtype)  # missing cells: the mean
            rows = BatchRows(block, s.x_shift, s.x_scale, dtype=torch.float64, device=device)
            values = compute(self._vae.encode(rows[:])).cpu().numpy()
            found.append(values.astype(dtype, copy=False) if values.dtype.kind == "f" else values)
        return np.concatenate(found)

    def _reconstruct(self, z: Tensor) -> Tensor:
        """The decoder's mean, in the units of the inputs."""
        # A constant column has a scale that is meant to make it vanish, not to multiply by.
        s = self._standardiser
        scale = torch.as_tensor(np.where(s.constant_inputs, 0.0, s.x_scale), device=z.device)
        return self._vae.reconstruct(z) * scale + torch.as_tensor(s.x_shift, device=z.device)

"""Reconfigurer: the mixture variational auto-encoder as a transformer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from tqdm.auto import tqdm

from prismgp._random import Streams
from prismgp._threads import quiet_blas
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import DEVICES, check_choice, check_inputs, check_number, compute_device
from prismgp.data import ArraySource, Source, Standardiser, prefetch
from prismgp.estimators._sources import (
    adopt_source,
    as_source,
    encoded_frame,
    forget_source,
    matching_source,
    where_rows_are,
)
from prismgp.exceptions import ModelFileError, PrismGPWarning
from prismgp.model.checkpoint import Checkpoint
from prismgp.vae import MixtureVAE, Rows, state_tensors, torch_generator, train, vae_from_tensors

__all__ = ["TRAINING_ROWS", "Reconfigurer", "training_sample"]

_OUTPUTS = ("latent", "reconstruction")
_CHUNK_ROWS = 8_192
TRAINING_ROWS = 2**19  # rows that networks are trained on at most: more than they see in all their steps
_STATUS = ("held_out_rows", "steps", "best_step", "interrupted", "message")


class Reconfigurer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
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
        Stop after so many steps without a better objective on the held-out tenth of the rows; None: do
        all steps. The best state seen is kept in any case.
    device : {"cpu", "cuda", "auto"}, default "cpu"
    random_state : int, RandomState or None, default None
    verbose : int, default 0
        1 shows a progress bar with the objective and the time left.

    Attributes
    ----------
    history_ : dict of lists
        The course of the training, an entry every 50 steps: "step", "seconds"; "objective" and its terms
        "reconstruction", "conditional_kl", "marginal_kl" and "separation" on the batch of that step;
        "held_out_objective"; "radius" of the prior; "smallest_separation", the distance of the two
        nearest centres in widths; "cluster_sizes", the held-out rows in each cluster.
    fit_status_ : dict
        "rows", "held_out_rows", "steps", "best_step" (the state that was kept), "interrupted", "message".
    n_iter_ : int
        Steps taken.
    n_features_in_ : int
    feature_names_in_ : ndarray, where the inputs had names

    Notes
    -----
    The objective is R5 in ``prismgp/reconfigure/_elbo.py``. Inputs are standardised inside; columns that never
    vary, or in at most three rows and one in three hundred, are ignored, and reconstructed as the value the others
    have. Training is in float32, ``transform`` in float64, and
    deterministic. Stopping a fit by an interrupt keeps the best state so far, with a warning.

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
    _shift: Array
    _scale: Array
    _constant: AnyArray

    def __init__(
        self,
        n_components: int = 8,
        latent_dim: int = 4,
        *,
        hidden: int = 10,
        alpha: float = 8.0,
        beta: float = 1.2,
        output: str = "latent",
        batch_size: int = 256,
        max_steps: int = 2000,
        patience: int | None = 500,
        device: str = "cpu",
        random_state: RandomState = None,
        verbose: int = 0,
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

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on rows X, (n, d), or on those of a source or a Dask collection; y is ignored."""
        self._check_parameters()
        self._forget()
        X, _ = as_source(X)
        if isinstance(X, Source):
            return self._fit_source(adopt_source(self, X, None, needs_target=False))
        x = check_inputs(self, X, reset=True)
        # There are no targets: a column of zeros, which takes no memory, stands in for them.
        return self._fit_source(ArraySource(x, np.broadcast_to(0.0, (len(x), 1))))

    def _fit_source(self, source: Source, checkpoint: Checkpoint | None = None) -> Self:
        """The fit of checked rows."""
        self.n_features_in_ = source.n_inputs
        streams = Streams(self.random_state)
        x = training_sample(source, streams).x
        self._set_standardiser(Standardiser.fit(source, normalize=True))
        device = compute_device(self.device)
        rows = Rows(x, self._shift, self._scale, dtype=torch.float32, device=device)
        vae = MixtureVAE(
            x.shape[1],
            self.n_components,
            self.latent_dim,
            self.hidden,
            generator=torch_generator(streams, "initial networks"),
        ).to(device)
        columns = torch.as_tensor(~self._constant, dtype=torch.float32, device=device)
        bar = tqdm(desc=type(self).__name__, total=self.max_steps, unit="step", disable=not self.verbose)

        def show(objective: float | None) -> None:
            if objective is not None:
                bar.set_postfix_str(f"objective per row {objective:.3f}", refresh=False)
            bar.update()

        with quiet_blas(), torch.inference_mode(False), torch.enable_grad(), bar:
            result = train(
                vae,
                rows,
                streams,
                alpha=float(self.alpha),
                beta=float(self.beta),
                batch_size=self.batch_size,
                max_steps=self.max_steps,
                patience=self.patience,
                columns=columns,
                monitor=show,
                checkpoint=checkpoint or Checkpoint(),
            )
        if result.interrupted:
            note = f"the fit was {result.message}; the state of step {result.best_step} is kept"
            warnings.warn(note, PrismGPWarning, stacklevel=2)
        self._vae = vae.double().requires_grad_(False)
        self.history_ = result.history
        self.n_iter_ = max(1, result.steps)
        self.fit_status_ = {"rows": source.n_rows} | {name: getattr(result, name) for name in _STATUS}
        return self

    def transform(self, X: Any) -> AnyArray:
        """Encode X, in its precision: (n, latent_dim), or (n, d) for ``output="reconstruction"``."""
        check_is_fitted(self)
        check_choice(type(self).__name__, "output", self.output, _OUTPUTS)
        X, _ = as_source(X)
        if isinstance(X, Source) and X.distributed:
            return np.asarray(where_rows_are(self, matching_source(self, X), "transform"))
        latent, dtype = self._latent(X)
        if self.output == "latent":
            return _joined(latent, dtype)
        return _joined((self._in_user_units(self._vae.reconstruct(z)) for z in latent), dtype)

    def responsibilities(self, X: Any) -> AnyArray:
        """Probability of each cluster of the prior at the latent point of each row, (n, n_components)."""
        check_is_fitted(self)
        X, _ = as_source(X)
        if isinstance(X, Source) and X.distributed:
            return np.asarray(where_rows_are(self, matching_source(self, X), "responsibilities"))
        latent, dtype = self._latent(X)
        return _joined((self._vae.prior.responsibilities(z) for z in latent), dtype)

    def predict(self, X: Any) -> AnyArray:
        """The most probable cluster of each row, (n,), from 0; cluster sizes grow with the number."""
        check_is_fitted(self)
        X, _ = as_source(X)
        if isinstance(X, Source) and X.distributed:
            return np.asarray(where_rows_are(self, matching_source(self, X), "predict"))
        return _joined((self._vae.prior.log_joint(z).argmax(-1) for z in self._latent(X)[0]), np.dtype(np.int64))

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    # -- internals -------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        name = type(self).__name__
        for count in ("n_components", "latent_dim", "hidden", "batch_size", "max_steps"):
            check_number(name, count, getattr(self, count), low=1, integer=True)
        check_number(name, "patience", self.patience, low=1, integer=True, optional=True)
        check_number(name, "alpha", self.alpha, low=0)
        check_number(name, "beta", self.beta, low=0)
        check_choice(name, "output", self.output, _OUTPUTS)
        check_choice(name, "device", self.device, DEVICES)
        compute_device(self.device)

    def _forget(self) -> None:
        """Drop everything learned: a fit that fails must not leave half of an older one."""
        forget_source(self)
        for name in ("history_", "fit_status_", "n_iter_", "_vae", "_shift", "_scale", "_constant"):
            if hasattr(self, name):
                delattr(self, name)

    def _set_standardiser(self, standardiser: Standardiser) -> None:
        self._shift, self._scale = standardiser.x_shift, standardiser.x_scale
        self._constant = standardiser.constant_inputs

    def _latent(self, X: Any) -> tuple[Iterator[Tensor], np.dtype[Any]]:
        """Means of ``q(z | x)`` of checked rows, and the precision these came in."""
        if isinstance(X, Source):
            blocks = prefetch(matching_source(self, X).blocks(_CHUNK_ROWS))
            return self._latent_chunks(x for x, _ in blocks), np.dtype(np.float64)
        x = check_inputs(self, encoded_frame(self, X))
        return self._latent_chunks(x[start : start + _CHUNK_ROWS] for start in range(0, len(x), _CHUNK_ROWS)), x.dtype

    def _latent_chunks(self, blocks: Iterable[AnyArray]) -> Iterator[Tensor]:
        """Means of ``q(z | x)`` in float64, a bounded number of rows at a time."""
        device = compute_device(self.device)
        self._vae.to(device)
        for block in blocks:
            rows = Rows(block, self._shift, self._scale, dtype=torch.float64, device=device)
            yield self._vae.encode(rows[:])

    def _in_user_units(self, x: Tensor) -> Tensor:
        # A constant column has a scale that is meant to make it vanish, not to multiply by.
        scale = torch.as_tensor(np.where(self._constant, 0.0, self._scale), device=x.device)
        return x * scale + torch.as_tensor(self._shift, device=x.device)

    # -- model files -----------------------------------------------------------------------------

    def _state_tensors(self) -> dict[str, Tensor]:
        """Everything ``transform`` needs, float64 and contiguous, on the CPU."""
        return state_tensors(self._vae, self._shift, self._scale)

    @classmethod
    def _from_state(
        cls,
        arguments: dict[str, Any],
        tensors: dict[str, Tensor],
        *,
        fit_status: dict[str, Any],
        history: dict[str, list[Any]],
        feature_names: list[str] | None = None,
    ) -> Self:
        """A fitted Reconfigurer from what :meth:`_state_tensors` gave; a mismatch raises ModelFileError.

        Sizes are those of the tensors, whatever the constructor's arguments have been set to after the fit.
        """
        model = cls(**arguments)
        model._check_parameters()
        model._vae, shift, scale = vae_from_tensors(tensors)
        none = np.zeros(1)
        model._set_standardiser(Standardiser(shift, scale, none, none + 1.0, none))
        model.n_features_in_ = n_inputs = len(shift)
        if feature_names is not None:
            if len(feature_names) != n_inputs:
                raise ModelFileError(f"{len(feature_names)} feature names for {n_inputs} inputs")
            model.feature_names_in_ = np.array(feature_names, dtype=object)
        model.history_ = dict(history)
        model.n_iter_ = max(1, int(fit_status["steps"]))
        model.fit_status_ = dict(fit_status)
        return model


def training_sample(source: Source, streams: Streams) -> ArraySource:
    """The rows that networks are trained on: all of them, or a uniform random sample of a fixed size.

    Batches drawn from the sample are uniform random subsets of all rows, each by itself; together they differ from
    draws from all rows in that rows come back within the sample, once a network has seen as many as it holds.
    """
    if source.n_rows <= TRAINING_ROWS:
        return source.load()
    return source.subsamples([TRAINING_ROWS], streams.generator("training rows"))[0]


def _joined(chunks: Iterator[Tensor], dtype: np.dtype[Any]) -> AnyArray:
    return np.concatenate([chunk.cpu().numpy().astype(dtype, copy=False) for chunk in chunks])

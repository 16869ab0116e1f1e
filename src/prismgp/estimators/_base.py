"""What the regressors share: validation, units, prediction, model files."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from prismgp._random import Streams
from prismgp._types import AnyArray, Array, RandomState, Tensor
from prismgp._validate import (
    DEVICES,
    check_choice,
    check_fit_data,
    check_inputs,
    check_number,
    compute_device,
    compute_dtype,
)
from prismgp.core.kernels import KERNELS
from prismgp.core.linalg import Factor
from prismgp.core.parameters import Parameters
from prismgp.data import ArraySource, Source, Standardiser, prefetch, standardise
from prismgp.estimators._sources import (
    adopt_source,
    as_source,
    encoded_frame,
    matching_source,
    where_rows_are,
)
from prismgp.exceptions import DataError
from prismgp.model.checkpoint import Journal
from prismgp.model.fitted import FittedModel
from prismgp.model.observe import Observer
from prismgp.model.prediction import predict_chunks
from prismgp.model.progress import Progress
from prismgp.model.start import user_start

__all__ = ["GPRegressor"]

_HIDDEN = (
    "_standardiser",
    "_params",
    "_posterior",
    "_statistics",
    "_gating",
    "_start",
    "_mixture",
    "_plain_lengthscale",
    "_fitted_structure",
    "_fitted_kernel",
    "_target_ndim",
)


class GPRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Common part of the regressors. Subclasses fit and predict in the model's units."""

    _kind: ClassVar[str]
    _observer: Observer | None = None  # of the course of a fit; private, and saved nowhere
    _reconfigures: ClassVar[bool] = False  # whether the kernel acts on something else than the inputs

    # Learned by fit, in the user's units.
    lengthscale_: Array
    signal_variance_: float | Array
    noise_variance_: float | Array
    mean_: float | Array
    log_evidence_: float
    history_: dict[str, list[float]]
    fit_status_: dict[str, Any]
    n_iter_: int
    n_features_in_: int
    _standardiser: Standardiser
    _params: Parameters
    _fitted_kernel: str
    _target_ndim: int
    frequencies_: Array

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit to rows X, (n, d), and targets y, (n,) or (n, q); or to a source, which holds both."""

    @abstractmethod
    def _fitted(self) -> FittedModel:
        """What the fit has left, in the model's units."""

    def _prediction_rows(self) -> int:
        """Rows to predict at a time."""
        return self._fitted().prediction_rows(self._compute()[1])

    def _compute(self) -> tuple[torch.dtype, torch.device]:
        """Precision and device of the computation."""
        return compute_dtype(self.dtype), compute_device(self.device)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_status_")  # the last thing a fit sets

    # -- fitting ---------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Constructor arguments are checked here, not in the constructor."""
        name = type(self).__name__
        check_choice(name, "kernel", self.kernel, tuple(KERNELS))
        check_choice(name, "device", self.device, DEVICES)
        check_choice(name, "dtype", self.dtype, ("float64", "float32"))
        check_number(name, "max_iter", self.max_iter, low=1, integer=True)
        check_number(name, "n_restarts", self.n_restarts, low=0, integer=True)

    def _training_source(self, X: Any, y: Any, *, reset: bool = True) -> Source:
        compute_device(self.device)  # is it there? Saving and loading must work without
        if reset:
            self._forget()
        X, y = as_source(X, y)
        source: Source
        if isinstance(X, Source):
            source = adopt_source(self, X, y) if reset else matching_source(self, X, y, needs_target=True)
            ndim = 1 if source.n_outputs == 1 and X.single else 2
        else:
            x, target = check_fit_data(self, X if reset else self._encoded(X), y, reset=reset)
            ndim = target.ndim
            source = ArraySource(x, target.reshape(len(target), -1))
        if reset:
            self._target_ndim = ndim
        elif ndim != self._target_ndim:
            raise DataError(f"y has {ndim} dimension(s), but the model was fitted with {self._target_ndim}")
        if not reset and source.n_outputs != len(self._params.mean):
            raise DataError(f"y has {source.n_outputs} columns, but the model was fitted with {len(self._params.mean)}")
        return source

    def _forget(self) -> None:
        """Drop everything learned: a fit that fails or is interrupted must not leave half of an older one."""
        for name in list(vars(self)):
            # Learned by convention, or ours; scikit-learn keeps private attributes of its own.
            if name in _HIDDEN or (name.endswith("_") and not name.startswith("_")):
                delattr(self, name)

    def _user_start(self, source: Source) -> Parameters:
        """Starting values in the model's units, or the fixed ones."""
        return user_start(
            self._standardiser,
            source.n_inputs,
            source.n_outputs,
            learn=self.optimize,
            lengthscale=self.lengthscale,
            signal=self.signal_variance,
            noise=self.noise_variance,
            mean=self.mean,
        )

    def _progress(
        self, listen: Callable[[dict[str, Any]], None] | None = None, journal: Journal | None = None
    ) -> Progress:
        log_scale = float(np.log(self._standardiser.y_scale).sum())
        return Progress(type(self).__name__, log_scale=log_scale, verbose=self.verbose, listen=listen, journal=journal)

    def _publish(self, log_evidence: float, n: int, factors: list[Factor]) -> None:
        """Learned parameters in the user's units, and the state of the numerics."""
        self._publish_parameters()
        # Density of the targets in their own units.
        self.log_evidence_ = float(log_evidence - n * np.log(self._standardiser.y_scale).sum())
        worst = max(factors, key=lambda factor: factor.jitter)
        silent = self._standardiser.constant_inputs
        names = getattr(self, "feature_names_in_", range(len(silent)))
        self.fit_status_ = {
            "rows": n,
            "ignored_inputs": [names[j] for j in np.flatnonzero(silent)],  # that never varied, or in very few rows
            "factorisation": worst.method,
            "jitter": worst.jitter,
            "stages": [],
        }

    def _record(self, stages: list[dict[str, Any]], history: dict[str, list[float]]) -> None:
        """What the optimiser did."""
        self.history_ = history
        self.fit_status_["stages"] = stages
        # scikit-learn wants at least one iteration of whatever has a max_iter.
        self.n_iter_ = max(1, sum(stage["iterations"] for stage in stages))

    def _publish_parameters(self) -> None:
        self._publish_parameters_of(self._params, self._standardiser.x_scale)

    def _publish_parameters_of(self, params: Parameters, input_scale: Array) -> None:
        s = self._standardiser
        self.lengthscale_ = params.lengthscale * input_scale
        self.signal_variance_ = self._per_output(params.signal * s.y_scale**2)
        self.noise_variance_ = self._per_output(params.noise * s.y_scale**2)
        self.mean_ = self._per_output(params.mean * s.y_scale + s.y_shift)

    def _input_lengthscale(self) -> Array | None:
        """How quickly the function varies with each input, in the input's standard deviations, (d,)."""
        return self._params.lengthscale

    def _per_output(self, value: Array) -> float | Array:
        return float(value[0]) if self._target_ndim == 1 else value

    # -- prediction ------------------------------------------------------------------------------

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = True
    ) -> AnyArray | tuple[AnyArray, AnyArray]:
        """Predict at rows X.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
        return_std : bool, default False
            Also return the standard deviation, of the shape of the mean.
        return_cov : bool, default False
            Also return the joint covariance, (n, n), or (n, n, q) for several outputs.
        include_noise : bool, default True
            True: of a new observation. False: of the underlying function.

        Returns
        -------
        mean : ndarray, (n,) or (n, q)
        std or cov : ndarray, when asked for
        """
        check_is_fitted(self)
        if return_std and return_cov:
            raise DataError("ask for return_std or return_cov, not both")
        X, _ = as_source(X)
        if isinstance(X, Source) and X.distributed and not return_cov:
            done: AnyArray | tuple[AnyArray, AnyArray] = where_rows_are(
                self, matching_source(self, X), "predict", return_std=return_std, include_noise=include_noise
            )
            return done
        if return_cov:
            return self._joint(self._checked_inputs(X), include_noise=include_noise)
        mean, std = predict_chunks(
            self._fitted(), self._input_chunks(X), self._standardiser, std=return_std, include_noise=include_noise
        )
        mean_out = self._shape_out(mean)
        return mean_out if std is None else (mean_out, self._shape_out(std))

    def log_density(self, X: Any, y: Any = None) -> Array:
        """Log density of observations y at rows X under the predictive distribution.

        Parameters
        ----------
        X : array-like, (n, d), or source with its targets
        y : array-like, (n,) or (n, q)

        Returns
        -------
        ndarray, (n,)
            Row by row, summed over outputs; minus its average is the NLPD. In the units of y.
        """
        check_is_fitted(self)
        source = self._training_source(X, y, reset=False)
        if source.distributed:
            return np.asarray(where_rows_are(self, source, "log_density"))
        s = self._standardiser
        rows = self._prediction_rows()
        parts = []
        for x, y_block in source.blocks(rows):
            target = torch.as_tensor((y_block - s.y_shift) / s.y_scale, dtype=torch.float64)
            chunk = self._to_model(x)
            parts.append(self._log_density_chunk(chunk, target.to(chunk.device)).cpu().numpy())
        return np.asarray(np.concatenate(parts) - np.log(s.y_scale).sum())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination of the predicted means.

        Parameters
        ----------
        X : array-like, (n, d), or source with its targets
        y : array-like, (n,) or (n, q)
        sample_weight : array-like, (n,), optional

        Returns
        -------
        float
        """
        if isinstance(as_source(X)[0], Source):
            check_is_fitted(self)
            blocks = self._training_source(X, y, reset=False).blocks(self._prediction_rows())
            y = self._shape_out(np.concatenate([block for _, block in blocks]))
        return float(super().score(X, y, sample_weight))

    def certify(self, X: Any, y: Any = None, X_test: Any = None, **options: Any) -> Any:
        """Bound how far this model is from the exact GP it approximates; see :func:`prismgp.certify`.

        Parameters
        ----------
        X, y : array-like, or source
            The rows the model was fitted on.
        X_test : array-like or source, optional
            Where to certify predictions.
        **options
            Those of :func:`prismgp.certify`.

        Returns
        -------
        Certificate
        """
        from prismgp.certificates import certify

        return certify(self, X, y, X_test, **options)

    def _log_density_chunk(self, x: Tensor, y: Tensor) -> Tensor:
        """Log density in the model's units, (n,)."""
        mean, variance, noise = self._fitted().predict(x, variance=True)
        assert variance is not None
        total = variance + noise
        return -0.5 * ((y - mean).square() / total + total.log() + math.log(2.0 * math.pi)).sum(1)

    def _joint(self, x: AnyArray, *, include_noise: bool) -> tuple[AnyArray, AnyArray]:
        s = self._standardiser
        chunk = self._to_model(x)
        fitted = self._fitted()
        mean, _, noise = fitted.predict(chunk, variance=False)
        cov = fitted.covariance(chunk).cpu().numpy() * s.y_scale**2
        if include_noise:
            cov += np.eye(len(x))[:, :, None] * (noise.cpu().numpy() * s.y_scale**2)
        mean_out = mean.cpu().numpy() * s.y_scale + s.y_shift
        return self._shape_out(mean_out), cov[:, :, 0] if self._target_ndim == 1 else cov

    def _checked_inputs(self, X: Any) -> AnyArray:
        """All rows, in memory."""
        X, _ = as_source(X)
        if isinstance(X, Source):
            return matching_source(self, X).load().x
        return check_inputs(self, self._encoded(X))

    def _input_chunks(self, X: Any) -> Iterator[Tensor]:
        """Rows in the model's units, some at a time."""
        if not isinstance(X, Source):
            return self._model_chunks(self._checked_inputs(X))
        blocks = prefetch(matching_source(self, X).blocks(self._prediction_rows()))
        return (self._to_model(x) for x, _ in blocks)

    def _encoded(self, X: Any) -> Any:
        """Raw columns of a table the model has learned to encode, as its inputs; all else passes."""
        return encoded_frame(self, X)

    def _model_chunks(self, x: AnyArray) -> Iterator[Tensor]:
        rows = self._prediction_rows()
        return (self._to_model(x[start : start + rows]) for start in range(0, len(x), rows))

    def _to_model(self, x: AnyArray) -> Tensor:
        s = self._standardiser
        dtype, device = self._compute()
        return standardise(x, s.x_shift, s.x_scale, dtype=dtype, device=device)

    def _shape_out(self, values: Array) -> AnyArray:
        return values[:, 0] if self._target_ndim == 1 else values

    def _sampled(self, X: Any, n_samples: int, random_state: RandomState, draw: Callable[..., Array]) -> AnyArray:
        """Sampled functions in the user's units, (n, n_samples) or (n, q, n_samples)."""
        check_is_fitted(self)
        check_number("sample_y", "n_samples", n_samples, low=1, integer=True)
        s = self._standardiser
        x = self._checked_inputs(X)
        samples = draw(x, n_samples, Streams(random_state).generator("functions"))
        samples = samples * s.y_scale[:, None] + s.y_shift[:, None]
        return samples[:, 0, :] if self._target_ndim == 1 else samples

    # -- model files -----------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file; read it back with :func:`prismgp.load`.

        The file holds numbers and text only, never code, and appears whole or not at all.
        """
        from prismgp.model.io import save_model

        check_is_fitted(self)
        self._check_parameters()  # a file with arguments that are out of range could not be read
        save_model(self, path)

    @abstractmethod
    def _state_tensors(self) -> dict[str, Tensor]:
        """Fitted tensors beside the common ones."""

    def _fitted_arguments(self) -> dict[str, Any]:
        """Constructor arguments the posterior depends on, as they were at the fit."""
        own: dict[str, Any] = {"kernel": self._fitted_kernel}
        if hasattr(self, "checkpoint"):
            own["checkpoint"] = None  # the fit is over
        return {**own, "n_frequencies": len(self.frequencies_)} if hasattr(self, "frequencies_") else own

    def _state_config(self) -> dict[str, Any]:
        """What a file must say, beside tensors, for :meth:`_restore`; JSON."""
        return {}

    @abstractmethod
    def _restore(self, tensors: dict[str, Tensor], params: Parameters, n: int, config: dict[str, Any]) -> None:
        """Rebuild the posterior from what :meth:`_state_tensors` gave; n is the number of training rows."""

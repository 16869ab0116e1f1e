"""Methods of fitted regressors: predictions, intervals, densities, samples, certificates. No mathematics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Literal, Self, overload

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from prismgp._system import Streams, refuse_too_large
from prismgp._types import AnyArray, Array, RandomState
from prismgp._validate import check_levels, check_number, check_output
from prismgp.certificates import Certificate, certify
from prismgp.core.models import central_levels
from prismgp.data import Source
from prismgp.estimators.sources import apply_where_rows_are, as_source, input_blocks
from prismgp.exceptions import DataError
from prismgp.model import Conformal, FittedModel, PredictModule


class Predictions(ABC):
    """The methods of a regressor that holds a fitted model, ``model_``."""

    model_: FittedModel

    @abstractmethod
    def current_model(self) -> FittedModel:
        """The fitted model, computing where and in the precision that the present parameters say."""

    @abstractmethod
    def read_rows(self, X: Any, y: Any) -> Source:
        """Rows and targets as the fitted model takes them, checked."""

    @abstractmethod
    def read_training_rows(self, X: Any, y: Any, sample_weight: Any = None, noise_variance: Any = None) -> Source:
        """As :meth:`read_rows`, for the rows of the fit."""

    @abstractmethod
    def read_inputs(self, X: Any) -> AnyArray:
        """Inputs as the fitted model takes them, checked, in memory."""

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = False, return_cov: Literal[False] = False, include_noise: bool = True
    ) -> AnyArray: ...

    @overload
    def predict(
        self, X: Any, return_std: Literal[True], return_cov: Literal[False] = False, include_noise: bool = True
    ) -> tuple[AnyArray, AnyArray]: ...

    @overload
    def predict(
        self, X: Any, return_std: Literal[False], return_cov: Literal[True], include_noise: bool = True
    ) -> tuple[AnyArray, AnyArray]: ...

    @overload
    def predict(
        self, X: Any, return_std: Literal[False] = False, *, return_cov: Literal[True], include_noise: bool = True
    ) -> tuple[AnyArray, AnyArray]: ...

    @overload
    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, include_noise: bool = True
    ) -> AnyArray | tuple[AnyArray, AnyArray]: ...

    @refuse_too_large("a prediction")
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
        X, _ = as_source(self, X)
        if isinstance(X, Source) and X.distributed and not return_cov:
            done: AnyArray | tuple[AnyArray, AnyArray] = apply_where_rows_are(
                self, X, "predict", return_std=return_std, include_noise=include_noise
            )
            return done
        model = self.current_model()
        if return_cov:
            mean, cov = model.covariance(self.read_inputs(X), include_noise=include_noise)
            return self._shape_out(mean), cov[:, :, 0] if model.target_ndim == 1 else cov
        mean, std = model.predict(
            input_blocks(self, X, model.prediction_rows), std=return_std, include_noise=include_noise
        )
        return self._shape_out(mean) if std is None else (self._shape_out(mean), self._shape_out(std))

    @refuse_too_large("a prediction")
    def predict_interval(self, X: Any, coverage: float = 0.95) -> AnyArray:
        """Intervals for new observations.

        They are central intervals of the predictive distribution. After :meth:`conformalize` they are conformal.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
        coverage : float, default 0.95
            Probability of the interval, between 0 and 1. Both tails have the same probability; with conformal
            intervals, the same upper bound of it.

        Returns
        -------
        ndarray, (n, 2), or (n, q, 2) for a two-dimensional y
            Lower and upper ends.
        """
        check_is_fitted(self)
        central_levels(coverage)
        X, _ = as_source(self, X)
        if isinstance(X, Source) and X.distributed:
            return np.asarray(apply_where_rows_are(self, X, "predict_interval", coverage=coverage))
        model = self.current_model()
        return self._shape_out(model.predict_interval(input_blocks(self, X, model.prediction_rows), coverage)[2])

    @refuse_too_large("a prediction")
    def predict_quantiles(self, X: Any, q: Any) -> AnyArray:
        """Quantiles of new observations, under the predictive distribution; :meth:`conformalize` does not change them.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source
        q : sequence of float
            Probabilities between 0 and 1, in any order.

        Returns
        -------
        ndarray, (n, len(q)), or (n, outputs, len(q)) for a two-dimensional y
        """
        check_is_fitted(self)
        levels = check_levels(q)
        X, _ = as_source(self, X)
        if isinstance(X, Source) and X.distributed:
            return np.asarray(apply_where_rows_are(self, X, "predict_quantiles", q=levels))
        model = self.current_model()
        return self._shape_out(model.predict_quantiles(input_blocks(self, X, model.prediction_rows), levels)[2])

    def conformalize(self, X: Any, y: Any = None, coverage: float = 0.95) -> Self:
        """Make the intervals conformal, with rows that the model was not fitted to.

        From now on :meth:`predict_interval` returns ``mean + std s``, with two of the sorted scores
        ``s = (y - mean) / std`` of these rows (split conformal prediction; each output has its own). If these rows and
        a new one are exchangeable, its observation is in the interval with a probability of at least ``coverage`` and
        at most ``coverage + 2 / (n + 1)``, and it is above the interval, or below it, with a probability of at most
        ``(1 - coverage) / 2`` each, however wrong the model is. This is an average over rows, not a promise for every
        input.

        The scores are saved with the model. ``fit`` and ``partial_fit`` discard them, because the model has changed.
        Quantiles, densities and standard deviations stay as they are.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source with its targets
            Rows that were not in the fit, nor used to choose the model.
        y : array-like, (n,) or (n, q)
        coverage : float, default 0.95
            The highest coverage that you will need. It takes at least ``2 / (1 - coverage) - 1`` rows; with fewer,
            this method raises an error. Intervals of lower coverages are conformal too.

        Returns
        -------
        self

        Examples
        --------
        >>> import numpy as np
        >>> from prismgp import SSGPRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-3, 3, (600, 1))
        >>> y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_t(2, 600)
        >>> model = SSGPRegressor(8, random_state=0).fit(X[:300], y[:300]).conformalize(X[300:500], y[300:500])
        >>> low, high = model.predict_interval(X[500:]).T
        >>> bool(np.mean((low <= y[500:]) & (y[500:] <= high)) > 0.9)
        True
        """
        check_is_fitted(self)
        central_levels(coverage)
        X, y = as_source(self, X, y)
        if isinstance(X, Source) and X.distributed:
            scores = np.asarray(apply_where_rows_are(self, X, "_scores"))
        else:
            scores = self._scores(X, y)
        conformal = Conformal.of(scores)
        conformal.check(coverage)
        self.model_ = replace(self.model_, conformal=conformal)
        return self

    def _scores(self, X: Any, y: Any = None) -> Array:
        source, model = self.read_rows(X, y), self.current_model()
        return model.scores(source.blocks(model.prediction_rows))

    def log_density(self, X: Any, y: Any = None, *, output: int | None = None) -> Array:
        """Log density of observations y at rows X under the predictive distribution.

        Parameters
        ----------
        X : array-like, (n, d), or source with its targets
        y : array-like, (n,) or (n, q)
        output : int, optional
            Which column of y, whatever the others are; None: all together.

        Returns
        -------
        ndarray, (n,)
            Row by row, for all outputs together unless one is named; minus its average is the NLPD. In the units of y.
        """
        check_is_fitted(self)
        if output is not None:
            check_output("log_density", output, self.model_.n_outputs)
        X, y = as_source(self, X, y)
        if isinstance(X, Source) and X.distributed:
            return np.asarray(apply_where_rows_are(self, X, "log_density", output=output))
        source, model = self.read_rows(X, y), self.current_model()
        blocks = source.blocks(model.prediction_rows)
        if output is None:
            return model.log_density(blocks)
        own = [model.marginal_log_density(x, targets[:, : model.n_outputs]) for x, targets in blocks]
        return np.asarray(np.concatenate(own)[:, output])

    @refuse_too_large("the sample")
    def sample_y(self, X: Any, n_samples: int = 1, random_state: RandomState = None) -> AnyArray:
        """Draw functions from the posterior and evaluate them at X.

        The same ``random_state`` gives the same functions in every call, at whatever X; those of
        :class:`ExactGPRegressor` are drawn jointly at the rows of X, and depend on them.

        Returns
        -------
        ndarray, (n, n_samples), or (n, q, n_samples) for a two-dimensional y
        """
        model = self.current_model()
        check_number("sample_y", "n_samples", n_samples, low=1, integer=True)
        samples = model.sample(self.read_inputs(X), n_samples, Streams(random_state).generator("functions"))
        return samples[:, 0, :] if model.target_ndim == 1 else samples

    @refuse_too_large("the certificate")
    def certify(self, X: Any, y: Any = None, X_test: Any = None, **options: Any) -> Certificate:
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
        return certify(self, X, y, X_test, **options)

    def to_torch(self) -> torch.nn.Module:
        """The fitted model as a torch module, to be used without this library by ``torch.export`` or ONNX.

        Returns
        -------
        torch.nn.Module
            Takes rows, (n, d), float64, and returns mean and standard deviation of new observations, (n,) or (n, q), as
            :meth:`predict` does with ``return_std=True``. The rows are numbers in the order of
            ``feature_names_in_``; those of a table with text are encoded already. A copy: later fits do not change it.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from prismgp import SSGPRegressor
        >>> X = np.linspace(0, 6, 50)[:, None]
        >>> model = SSGPRegressor(8, random_state=0).fit(X, np.sin(X[:, 0]))
        >>> mean, std = model.to_torch()(torch.as_tensor(X))
        >>> bool(np.allclose(mean, model.predict(X)))
        True
        """
        return PredictModule(self.current_model())

    def _shape_out(self, values: Array) -> AnyArray:
        return values[:, 0] if self.model_.target_ndim == 1 else values

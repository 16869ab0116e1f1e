"""What the regressors share: validation, fitting, prediction, model files. No mathematics."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from prismgp._system import compute_device
from prismgp._types import DTYPES, AnyArray, Array
from prismgp._validate import check_choice, check_device, check_number
from prismgp.context import FitContext, FitEvent
from prismgp.core.kernels import KERNELS
from prismgp.core.models import Predictor, Standardiser
from prismgp.core.rows import ON_INTERRUPT, Ending
from prismgp.data import MISSING, ArraySource, MappedSource, Source, StandardisedRows, fit_standardiser, merge_copies
from prismgp.estimators.predictions import Predictions
from prismgp.estimators.sources import (
    Labels,
    adopt_rows,
    adopt_source,
    as_source,
    draw_background,
    forget_fit,
    match_inputs,
    match_rows,
    match_source,
    no_labels,
    open_checkpoint,
)
from prismgp.exceptions import DataError, PrismGPWarning
from prismgp.model import FittedModel, save_model

_TOO_FEW = 10  # rows


class GPRegressor(Predictions, MultiOutputMixin, RegressorMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Common part of the regressors. Subclasses fit; the fitted model, ``model_``, predicts.

    scikit-learn reads the parameters of an estimator off its own constructor, so the constructors of the subclasses
    repeat those that they share.
    """

    _kind: ClassVar[str]
    _structure: ClassVar[tuple[str, ...]] = ("kernel",)  # arguments that a model file must agree with
    _callback: Callable[[FitEvent], None] | None = None  # called with the events of a fit; not saved

    # Learned by fit, in the user's units.
    model_: FittedModel
    lengthscale_: Array
    signal_variance_: float | Array
    noise_variance_: float | Array
    mean_: float | Array
    log_evidence_: float
    frequencies_: Array
    history_: dict[str, list[Any]]
    fit_status_: dict[str, Any]
    n_iter_: int
    n_features_in_: int

    @abstractmethod
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Fit to rows X, (n, d), and targets y, (n,) or (n, q); or to a source, which holds both."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "fit_status_")  # the last attribute that a fit sets

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        return tags

    # -- fitting ---------------------------------------------------------------------------------

    def _check_parameters(self) -> None:
        """Check the constructor arguments, which the constructor only stores."""
        name = type(self).__name__
        check_choice(name, "kernel", self.kernel, tuple(KERNELS))
        check_number(name, "max_iter", self.max_iter, low=1, integer=True)
        check_number(name, "n_restarts", self.n_restarts, low=0, integer=True)
        check_number(name, "max_seconds", self.max_seconds, low=0, strict=True, optional=True)
        check_choice(name, "on_interrupt", self.on_interrupt, ON_INTERRUPT)
        self._check_computation()

    def _check_computation(self) -> None:
        """Check the arguments that are used after a fit too."""
        name = type(self).__name__
        check_choice(name, "missing", self.missing, MISSING)
        check_device(name, self.device)
        check_choice(name, "dtype", self.dtype, tuple(DTYPES))
        if getattr(self, "chunk_size", "auto") != "auto":
            check_number(name, "chunk_size", self.chunk_size, low=1, integer=True)

    def _compute(self) -> tuple[torch.dtype, torch.device]:
        """Precision and device of the computation."""
        return DTYPES[self.dtype], compute_device(self.device)

    def _chunk_rows(self) -> int | None:
        asked = getattr(self, "chunk_size", "auto")
        return None if asked == "auto" else int(asked)

    def _training_rows(
        self, X: Any, y: Any, sample_weight: Any = None, noise_variance: Any = None, labels: Labels = no_labels
    ) -> StandardisedRows:
        """Check the rows of a new fit, after dropping everything that was learned before."""
        began = time.perf_counter()
        self._check_parameters()
        _, device = self._compute()  # an absent device is an error of a fit, not of saving and loading
        forget_fit(self)
        source, self._target_ndim = self._source(X, y, (sample_weight, noise_variance), reset=True, labels=labels)
        self._weighted = source.n_noise > 0
        source = merge_copies(source)
        self._check_size(source, device)
        self._background = draw_background(source, getattr(self, "table_encoder_", None))
        read = time.perf_counter()
        standardiser = fit_standardiser(source, normalize=self.normalize, learned=self._learns_lengthscales())
        self._timing = began, time.perf_counter() - read
        self._warn_of_data(source)
        return self._rows(source, standardiser)

    def _warn_of_data(self, source: Source) -> None:
        """Warn of rows from which little can be learned."""
        if not self.optimize:  # nothing is learned
            return
        if source.n_rows < _TOO_FEW:
            rows = "1 distinct row is too few" if source.n_rows == 1 else f"{source.n_rows} distinct rows are too few"
            message = f"{rows} to learn from: length-scales and noise are mostly assumptions, intervals are wide"
        elif not (source.moments[1].std > 0).all():
            message = "the target is constant: predictions are this value, and how much it may vary is an assumption"
        else:
            return
        warnings.warn(message, PrismGPWarning, stacklevel=4)

    def _check_size(self, source: Source, device: torch.device) -> None:
        """Refuse a fit that does not fit into memory."""

    def _learns_lengthscales(self) -> bool:
        return bool(self.optimize)

    def _rows(self, source: Source, standardiser: Standardiser) -> StandardisedRows:
        return StandardisedRows(source, standardiser, *self._compute(), chunk_rows=self._chunk_rows())

    def _source(
        self,
        X: Any,
        y: Any,
        noise: tuple[Any, Any] = (None, None),
        *,
        reset: bool,
        training: bool = False,
        labels: Labels = no_labels,
    ) -> tuple[Source, int]:
        """Check and encode rows, of a fit or for a fitted model; also returns the dimension of y.

        ``noise`` are weights and known noise variances of the rows; rows of weight zero are left out. ``training``:
        the rows are those of the fit again.
        """
        X, y = as_source(self, X, y, *noise, reset=reset)
        if isinstance(X, Source):
            if reset:
                source = adopt_source(self, X, y)
            else:
                source = match_source(self, X, y, needs_target=True, training=training)
            source = source.with_labels(labels(source.n_rows, source.n_inputs))
            return source, 1 if source.n_outputs == 1 and X.single else 2
        if reset:
            return adopt_rows(self, X, y, noise, labels)
        return match_rows(self, X, y, noise, labels, training=training)

    def read_rows(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        noise_variance: Any = None,
        *,
        training: bool = False,
        labels: Labels = no_labels,
    ) -> Source:
        """Rows and targets as the fitted model takes them, checked; for code that works with ``model_``."""
        check_is_fitted(self)
        noise = sample_weight, noise_variance
        source, ndim = self._source(X, y, noise, reset=False, training=training, labels=labels)
        model = self.model_
        if ndim != model.target_ndim:
            raise DataError(
                f"y has {ndim} dimension(s), but the model was fitted with {model.target_ndim}; pass y in the shape of "
                "the fit, (n,) or (n, outputs)"
            )
        if source.n_outputs != model.n_outputs:
            raise DataError(
                f"y has {source.n_outputs} columns, but the model was fitted with {model.n_outputs}; pass the targets "
                "of the fit, in the same order"
            )
        return source

    def read_training_rows(self, X: Any, y: Any, sample_weight: Any = None, noise_variance: Any = None) -> Source:
        """As :meth:`read_rows`, for the rows of the fit, with the clusters that were given for them."""
        return self.read_rows(X, y, sample_weight, noise_variance, training=True)

    def read_inputs(self, X: Any) -> AnyArray:
        """Inputs as the fitted model takes them, checked, in memory; for code that works with ``model_``.

        They are not finite where a cell is unknown.
        """
        X, _ = as_source(self, X)
        if isinstance(X, Source):
            return match_source(self, X).load().x
        return match_inputs(self, X)

    def read_pool(self, X: Any) -> Source:
        """As :meth:`read_inputs`, but the rows of a source stay where they are, and unknown cells are typical."""
        check_is_fitted(self)
        X, _ = as_source(self, X)
        if isinstance(X, Source):
            rows = match_source(self, X)
            return MappedSource(rows, self.model_.complete, rows.n_inputs)
        x = self.model_.complete(self.read_inputs(X))
        return ArraySource(x, np.empty((len(x), 0)))

    def _start_values(self) -> dict[str, Any]:
        """Starting values, or the fixed ones, in the user's units."""
        signal, noise = self.signal_variance, self.noise_variance
        return {"lengthscale": self.lengthscale, "signal": signal, "noise": noise, "mean": self.mean}

    def _context(self, rows: StandardisedRows, unit: str = "") -> FitContext:
        """The context of a fit; with a progress bar in this unit, if the fit itself takes steps."""
        callback = self._callback
        began, pass_seconds = self._timing
        ending = Ending(self.max_seconds, keep=self.on_interrupt == "keep", began=began)
        ending.reserve(pass_seconds)  # the last pass reads all rows once more
        checkpoint = open_checkpoint(self, rows.source)

        def tell(event: FitEvent) -> None:
            assert callback is not None
            callback(replace(event, model=lambda: self._wrap(event.model(), rows)))

        return FitContext(
            type(self).__name__,
            verbose=self.verbose,
            unit=unit,
            checkpoint=checkpoint,
            callback=None if callback is None else tell,
            log_scale=float(np.log(rows.standardiser.y_scale).sum()),
            ending=ending,
        )

    def _wrap(self, found: Predictor | FittedModel, rows: StandardisedRows) -> FittedModel:
        return found if isinstance(found, FittedModel) else self._as_model(found, rows)

    def _as_model(
        self,
        predictor: Predictor,
        rows: StandardisedRows,
        stages: Iterable[dict[str, Any]] = (),
        history: dict[str, list[Any]] | None = None,
        **record: Any,
    ) -> FittedModel:
        """The fitted model around what a fit has found."""
        names, encoder = getattr(self, "feature_names_in_", None), getattr(self, "table_encoder_", None)
        if encoder is not None:
            names = encoder.feature_names
        return FittedModel.from_fit(
            self._kind,
            predictor,
            rows,
            list(stages),
            kernel=self.kernel,
            target_ndim=self._target_ndim,
            feature_names=None if names is None else [str(name) for name in names],
            encoder=encoder,
            background=self._background,
            history=history or {},
            arguments={name: getattr(self, name) for name in self._structure},
            **record | {"status": {**record.get("status", {}), **({"weighted": True} if self._weighted else {})}},
        )

    def _conclude(
        self,
        context: FitContext,
        predictor: Predictor,
        rows: StandardisedRows,
        stages: Iterable[dict[str, Any]],
        history: dict[str, list[Any]] | None = None,
        status: dict[str, Any] | None = None,
        **record: Any,
    ) -> Self:
        """Store the result of a fit, after the callback has seen it; warn if the fit ended early.

        History and length-scales of the inputs are by default those of the context and of the predictor.
        """
        status = {**(status or {}), **context.ending.status()}
        record = {"input_lengthscale": predictor.params.lengthscale, **record}
        history = context.history if history is None else history
        model = self._as_model(predictor, rows, stages, history, status=status, **record)
        context.report("final", model.n_rows, lambda: model)
        self._adopt(model)
        if status["interrupted"]:
            warnings.warn("the fit was interrupted; the best states so far are used", PrismGPWarning, stacklevel=3)
        return self

    def _adopt(self, model: FittedModel) -> None:
        """Store a fitted model, and set the attributes that it has learned."""
        self.model_ = model
        if model.encoder is not None:
            self.table_encoder_ = model.encoder  # this one has the columns that the model ignores
        self.lengthscale_ = model.lengthscale
        self.signal_variance_ = self._per_output(model.signal_variance)
        self.noise_variance_ = self._per_output(model.noise_variance)
        self.mean_ = self._per_output(model.mean)
        if model.predictor.frequencies is not None:
            self.frequencies_ = model.predictor.frequencies
        self.log_evidence_ = model.log_evidence
        self.history_ = model.history
        self.n_iter_ = model.n_iter
        self.fit_status_ = model.status

    def _per_output(self, value: Array) -> float | Array:
        return float(value[0]) if self.model_.target_ndim == 1 else value

    # -- prediction ------------------------------------------------------------------------------

    def current_model(self) -> FittedModel:
        """The fitted model, computing where and in the precision that the present parameters say."""
        check_is_fitted(self)
        self._check_computation()
        return self.model_.on(*self._compute(), self._chunk_rows())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Coefficient of determination of the predicted means.

        Parameters
        ----------
        X : array-like, (n, d), Dask array or frame, or source with its targets
        y : array-like, (n,) or (n, q)
        sample_weight : array-like, (n,), optional
            A source has the weights of its rows itself.

        Returns
        -------
        float
        """
        X, y = as_source(self, X, y, sample_weight)
        if isinstance(X, Source):
            rows, q = self.read_rows(X, y), self.model_.n_outputs
            targets = np.concatenate([block for _, block in rows.blocks(self.current_model().prediction_rows)])
            y, sample_weight = self._shape_out(targets[:, :q]), targets[:, q] if rows.n_noise else None
        return float(super().score(X, y, sample_weight))

    # -- model files -----------------------------------------------------------------------------

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted model to one file; read it back with :func:`prismgp.load`.

        The file holds numbers and text only, never code, and appears whole or not at all. A model that predicts from
        neighbours needs its training rows, so they are in the file too. All others have the inputs, without targets, of
        up to 512 training rows, from which unknown cells take their values.
        """
        check_is_fitted(self)
        self._check_parameters()  # a file with arguments that are out of range could not be read
        # Arguments on which the posterior depends are those of the fit, even if set_params has changed them.
        arguments = {**self.get_params(deep=False), **self.model_.arguments}
        arguments["checkpoint"] = None  # the fit is over
        save_model(replace(self.model_, arguments=arguments), path)

    @classmethod
    def _from_model(cls, model: FittedModel) -> Self:
        """Make an estimator of a model read from a file."""
        estimator = cls(**model.arguments)
        estimator._check_parameters()
        encoder = model.encoder
        names = model.feature_names if encoder is None else None if encoder.positional else encoder.input_names
        estimator.n_features_in_ = model.n_inputs if encoder is None else len(encoder.columns)
        if names is not None:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        estimator._adopt(replace(model, arguments={name: model.arguments[name] for name in cls._structure}))
        return estimator


class UpdatableRegressor(GPRegressor):
    """A regressor whose posterior takes more rows at fixed parameters."""

    _structure: ClassVar[tuple[str, ...]] = ("kernel", "n_frequencies", "gating")

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None, noise_variance: Any = None) -> Self:
        """Add rows to the posterior, at fixed parameters, networks, gates and weights.

        Exact: the posterior is that of all rows. The first call on an unfitted estimator is a ``fit``, whose arguments
        these are.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, sample_weight, noise_variance)
        model = self.current_model()
        source = self.read_rows(X, y, sample_weight, noise_variance)
        complete = MappedSource(source, model.complete, source.n_inputs).with_labels(source.labels)
        if model.conformal is not None:
            warnings.warn(
                "the intervals are no longer conformal: with more rows the model is another; call conformalize again",
                PrismGPWarning,
                stacklevel=2,
            )
        self._adopt(model.update(self._rows(complete, model.standardiser)))
        return self

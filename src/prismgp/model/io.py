"""Estimators to model files, and back."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np

from prismgp._types import Tensor
from prismgp.estimators import ExactGPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp.estimators._base import GPRegressor
from prismgp.exceptions import ModelFileError
from prismgp.model.file import FORMAT_VERSION, Common, count_in, read_model_file, readable, write_model_file
from prismgp.model.prediction import check_asked, device_here

__all__ = ["load", "save_model"]

_CLASSES: tuple[type[GPRegressor], ...] = (ExactGPRegressor, SSGPRegressor, PrismGPRegressor)
_ESTIMATORS = {cls._kind: cls for cls in _CLASSES}


def save_model(model: GPRegressor, path: str | PathLike[str]) -> None:
    """Write a fitted model atomically; see :meth:`GPRegressor.save`."""
    arguments = {name: _plain(value) for name, value in model.get_params(deep=False).items()}
    # What the posterior depends on is that of the fit, whatever has been set since.
    arguments |= {name: _plain(value) for name, value in model._fitted_arguments().items()}
    names = getattr(model, "feature_names_in_", None)
    common = Common(
        rows=model.fit_status_["rows"],
        inputs=model.n_features_in_,
        outputs=len(model._params.mean),
        target_ndim=model._target_ndim,
        standardiser=model._standardiser,
        params=model._params,
        feature_names=None if names is None else [str(name) for name in names],
        encoder=getattr(model, "table_encoder_", None),
    )
    config = {
        "format_version": FORMAT_VERSION,
        "estimator": model._kind,
        "arguments": arguments,
        **common.to_config(),
        "log_evidence": model.log_evidence_,
        "fit_status": model.fit_status_,
        "history": model.history_,
        "n_iter": model.n_iter_,
        "state": model._state_config(),
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in model._state_tensors().items()}
    write_model_file(path, config, {**tensors, **common.to_tensors()})


def load(path: str | PathLike[str], *, device: str | None = None) -> Any:
    """Read a model written by ``save``.

    Parameters
    ----------
    path : path
    device : {"cpu", "cuda", "auto"} or None, default None
        Where the model computes. None: where it did when it was saved, or on the CPU, with a
        warning, when there is no such device here.

    Raises
    ------
    ModelFileError
        When the file is not a model, is damaged, or is of another format version.
    """
    check_asked(device)
    with readable(path) as file:
        return _build(*read_model_file(file), device)


def _build(config: dict[str, Any], tensors: dict[str, Tensor], device: str | None) -> GPRegressor:
    """An estimator from checked bytes; a mismatch anywhere raises."""
    if config["estimator"] not in _ESTIMATORS:
        raise ModelFileError(f"estimator {config['estimator']!r} is unknown to this version")
    model = _ESTIMATORS[config["estimator"]](**config["arguments"])
    model.set_params(device=device_here(model.device, device))
    model._check_parameters()
    common = Common.of(config, tensors, reconfigures=model._reconfigures)
    if config["fit_status"]["rows"] != common.rows:
        raise ModelFileError("the status is that of another fit")
    model.n_features_in_ = common.inputs
    model._target_ndim = common.target_ndim
    model._standardiser = common.standardiser
    if common.feature_names is not None:
        model.feature_names_in_ = np.array(common.feature_names, dtype=object)
    if common.encoder is not None:
        model.table_encoder_ = common.encoder
    model._restore(tensors, common.params, common.rows, config.get("state", {}))
    model._publish_parameters()
    model.log_evidence_ = float(config["log_evidence"])
    model.fit_status_ = dict(config["fit_status"])
    model._record(list(model.fit_status_["stages"]), dict(config["history"]))
    if "n_iter" in config:
        model.n_iter_ = count_in(config, "n_iter")
    return model


def _plain(value: Any) -> Any:
    """A constructor argument as JSON; a generator object has no place in a file and becomes null."""
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else None

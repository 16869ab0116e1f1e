"""Regressors and transformers with the interface of scikit-learn: parameters and their validation."""

from os import PathLike

from prismgp._types import Device
from prismgp.estimators.base import GPRegressor
from prismgp.estimators.exact import ExactGPRegressor
from prismgp.estimators.neighbors import NeighborGPRegressor
from prismgp.estimators.prism import PrismGPRegressor
from prismgp.estimators.ssgp import SSGPRegressor
from prismgp.estimators.transformers import Reconfigurer, SpectralFeatures
from prismgp.exceptions import ModelFileError
from prismgp.model import load_model

__all__ = [
    "ExactGPRegressor",
    "GPRegressor",
    "NeighborGPRegressor",
    "PrismGPRegressor",
    "Reconfigurer",
    "SSGPRegressor",
    "SpectralFeatures",
    "load",
]

_REGRESSORS: tuple[type[GPRegressor], ...] = (ExactGPRegressor, SSGPRegressor, PrismGPRegressor, NeighborGPRegressor)
_CLASSES = {each._kind: each for each in _REGRESSORS}


def load(path: str | PathLike[str], *, device: Device | None = None) -> GPRegressor:
    """Read a model written by ``save``.

    Parameters
    ----------
    path : path
    device : {"cpu", "cuda", "auto"}, a numbered GPU such as "cuda:1", or None, default None
        Where the model computes. None: where it did when it was saved, or on the CPU, with a
        warning, when there is no such device here.

    Returns
    -------
    GPRegressor
        The fitted estimator.

    Raises
    ------
    ModelFileError
        When the file is not a model, is damaged, or is of another format version.
    """
    model = load_model(path, device=device)
    try:
        return _CLASSES[model.kind]._from_model(model)
    except (TypeError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path}: not a usable model file ({type(error).__name__}: {error})") from error

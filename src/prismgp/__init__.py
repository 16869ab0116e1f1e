"""PrismGP: Gaussian-process regression with honest uncertainty for large data."""

from prismgp import exceptions
from prismgp.estimators import ExactGPRegressor, PrismGPRegressor, Reconfigurer, SpectralFeatures, SSGPRegressor
from prismgp.io import load

__version__ = "0.1.0"

__all__ = [
    "ExactGPRegressor",
    "PrismGPRegressor",
    "Reconfigurer",
    "SSGPRegressor",
    "SpectralFeatures",
    "__version__",
    "exceptions",
    "load",
]

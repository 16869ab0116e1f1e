"""PrismGP: Gaussian-process regression with honest uncertainty for large data."""

from prismgp import exceptions
from prismgp.estimators import ExactGPRegressor, PrismGPRegressor, Reconfigurer, SpectralFeatures, SSGPRegressor
from prismgp.guarantees import ConditionReport, SampleSizes, check_conditions, sample_size
from prismgp.io import load

__version__ = "0.1.0"

__all__ = [
    "ConditionReport",
    "ExactGPRegressor",
    "PrismGPRegressor",
    "Reconfigurer",
    "SSGPRegressor",
    "SampleSizes",
    "SpectralFeatures",
    "__version__",
    "check_conditions",
    "exceptions",
    "load",
    "sample_size",
]

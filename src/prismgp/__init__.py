"""PrismGP: Gaussian-process regression with honest uncertainty for large data."""

from prismgp import exceptions
from prismgp.estimators import ExactGPRegressor, PrismGPRegressor, Reconfigurer, SpectralFeatures, SSGPRegressor
from prismgp.guarantees import Certificate, ConditionReport, SampleSizes, certify, check_conditions, sample_size
from prismgp.io import load

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "ConditionReport",
    "ExactGPRegressor",
    "PrismGPRegressor",
    "Reconfigurer",
    "SSGPRegressor",
    "SampleSizes",
    "SpectralFeatures",
    "__version__",
    "certify",
    "check_conditions",
    "exceptions",
    "load",
    "sample_size",
]

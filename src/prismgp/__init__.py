"""PrismGP: Gaussian-process regression with honest uncertainty for large data."""

from typing import TYPE_CHECKING, Any

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
    "datasets",
    "exceptions",
    "load",
    "sample_size",
]

if TYPE_CHECKING:
    from prismgp import datasets


def __getattr__(name: str) -> Any:
    if name == "datasets":  # not needed for models, so loaded when asked for
        from importlib import import_module

        return import_module("prismgp.datasets")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""PrismGP: Gaussian-process regression with honest uncertainty for large data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prismgp._version import __version__

__all__ = [
    "Certificate",
    "ConditionReport",
    "ExactGPRegressor",
    "GPRegressor",
    "NeighborGPRegressor",
    "PrismGPRegressor",
    "Reconfigurer",
    "SSGPRegressor",
    "SampleSizes",
    "SpectralFeatures",
    "__version__",
    "active",
    "certify",
    "check_conditions",
    "data",
    "datasets",
    "exceptions",
    "load",
    "metrics",
    "plots",
    "sample_size",
]

if TYPE_CHECKING:
    from prismgp import active, data, datasets, exceptions, metrics, plots
    from prismgp.certificates import Certificate, certify
    from prismgp.complexity import ConditionReport, SampleSizes, check_conditions, sample_size
    from prismgp.estimators import (
        ExactGPRegressor,
        GPRegressor,
        NeighborGPRegressor,
        PrismGPRegressor,
        Reconfigurer,
        SpectralFeatures,
        SSGPRegressor,
        load,
    )

# Loaded when asked for: a prediction on the command line takes some 100 MB less without scikit-learn.
_ESTIMATORS = (
    "ExactGPRegressor",
    "GPRegressor",
    "NeighborGPRegressor",
    "PrismGPRegressor",
    "Reconfigurer",
    "SSGPRegressor",
    "SpectralFeatures",
)
_MODULES = ("active", "data", "datasets", "exceptions", "metrics", "plots")
_HOMES = {
    **dict.fromkeys(_ESTIMATORS, "prismgp.estimators"),
    **dict.fromkeys(("Certificate", "certify"), "prismgp.certificates"),
    **dict.fromkeys(("ConditionReport", "SampleSizes", "check_conditions", "sample_size"), "prismgp.complexity"),
    "load": "prismgp.estimators",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"prismgp.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

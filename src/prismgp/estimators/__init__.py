"""scikit-learn estimators: glue between the user's data and the model; no mathematics."""

from prismgp.estimators._exact import ExactGPRegressor
from prismgp.estimators._features import SpectralFeatures
from prismgp.estimators._ssgp import SSGPRegressor

__all__ = ["ExactGPRegressor", "SSGPRegressor", "SpectralFeatures"]

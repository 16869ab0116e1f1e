"""scikit-learn estimators: glue between the user's data and the model; no mathematics."""

from prismgp.estimators._exact import ExactGPRegressor
from prismgp.estimators._features import SpectralFeatures
from prismgp.estimators._prism import PrismGPRegressor
from prismgp.estimators._reconfigurer import Reconfigurer
from prismgp.estimators._ssgp import SSGPRegressor

__all__ = ["ExactGPRegressor", "PrismGPRegressor", "Reconfigurer", "SSGPRegressor", "SpectralFeatures"]

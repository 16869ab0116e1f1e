"""One fitted model, in the user's units, and its file."""

from prismgp.model.conformal import Conformal, rows_needed
from prismgp.model.export import PredictModule
from prismgp.model.file import FORMAT_VERSION, file_bytes, load_model, save_model
from prismgp.model.fitted import FittedModel
from prismgp.model.process import FittedProcess

__all__ = [
    "FORMAT_VERSION",
    "Conformal",
    "FittedModel",
    "FittedProcess",
    "PredictModule",
    "file_bytes",
    "load_model",
    "rows_needed",
    "save_model",
]

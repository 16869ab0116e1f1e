"""One fitted model, in the user's units, and its file."""

from prismgp.model.export import PredictModule
from prismgp.model.file import FORMAT_VERSION, file_bytes, load_model, save_model
from prismgp.model.fitted import FittedModel

__all__ = ["FORMAT_VERSION", "FittedModel", "PredictModule", "file_bytes", "load_model", "save_model"]

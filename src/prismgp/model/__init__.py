"""One fitted model, in the user's units, and its file."""

from prismgp.model.file import FORMAT_VERSION, load_model, save_model
from prismgp.model.fitted import FittedModel

__all__ = ["FORMAT_VERSION", "FittedModel", "load_model", "save_model"]

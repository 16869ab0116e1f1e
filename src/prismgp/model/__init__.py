"""One fitted model, in the user's units, and its file."""

from prismgp.model.file import FORMAT_VERSION, file_bytes, load_model, save_model
from prismgp.model.fitted import FittedModel
from prismgp.model.unknown import draw_background

__all__ = ["FORMAT_VERSION", "FittedModel", "draw_background", "file_bytes", "load_model", "save_model"]

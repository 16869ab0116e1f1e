"""One fitted model, in the user's units, and its file."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = [
    "Conformal",
    "FittedModel",
    "PredictModule",
    "file_bytes",
    "load_model",
    "rows_needed",
    "save_model",
]

if TYPE_CHECKING:
    from prismgp.model.conformal import Conformal, rows_needed
    from prismgp.model.export import PredictModule
    from prismgp.model.fitted import FittedModel
    from prismgp.model.load import load_model
    from prismgp.model.save import file_bytes, save_model

# Loaded when asked for: the text of a model file is read without torch.
_HOMES = {
    **dict.fromkeys(("Conformal", "rows_needed"), "conformal"),
    "PredictModule": "export",
    "FittedModel": "fitted",
    "load_model": "load",
    **dict.fromkeys(("file_bytes", "save_model"), "save"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value

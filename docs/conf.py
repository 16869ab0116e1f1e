"""Sphinx configuration. Build with ``make docs``."""

import sys
from pathlib import Path

import numpy as np

from prismgp import __version__
from prismgp.core.kernels import bounds, default_start

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "PrismGP"
author = "The PrismGP developers"
copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "cli_help", "mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False  # docstrings name shapes such as "(n, d)" where a type would stand

html_theme = "furo"
html_title = f"PrismGP {__version__}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["custom.css"]

myst_enable_extensions = ["dollarmath", "deflist", "substitution"]
myst_heading_anchors = 3

# Equations carry the tags E1, E2, ... that the code and its tests use; see _ext/mathml.py.
math_eqref_format = "E{number}"

autosummary_generate = False  # numpydoc brings autosummary along; the API page lists its names itself
autodoc_typehints = "none"  # types and shapes are in the docstrings
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
numpydoc_show_class_members = False


def _bounds() -> dict[str, str]:
    """The optimiser's bounds for data of unit spread, as the page on numerics shows them."""
    found = {}
    for dtype, suffix in (("float64", ""), ("float32", "_float32")):
        boxes = bounds(default_start(1, 1), dtype=dtype)
        for name, box in zip(("lengthscale", "signal", "noise", "mean"), boxes, strict=True):
            for end, value in zip(("low", "high"), box, strict=True):
                found[f"{name}_{end}{suffix}"] = f"{value if name == 'mean' else np.exp(value):g}"
    return found


myst_substitutions = _bounds()

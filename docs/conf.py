"""Sphinx configuration. Build with ``make docs``."""

import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
from jupyter_cache.executors import utils as execution

from prismgp import __version__
from prismgp.core.kernels import bounds, default_start

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))


def _documented_members() -> dict[str, str]:
    """The methods and properties that the page of each class shows; the others are not for users."""
    predictions = "predict, predict_interval, predict_quantiles, conformalize, log_density, sample_y, score"
    exact = f"fit, {predictions}, to_torch, save"
    spectral = f"fit, partial_fit, {predictions}, certify, to_torch, save"
    displays = ("Calibration", "Residuals", "Relevance", "PartialDependence", "History")
    return {
        "prismgp.PrismGPRegressor": spectral,
        "prismgp.SSGPRegressor": spectral,
        "prismgp.NeighborGPRegressor": spectral,
        "prismgp.ExactGPRegressor": exact,
        "prismgp.SpectralFeatures": "fit, transform",
        "prismgp.Reconfigurer": "fit, transform, responsibilities, predict",
        "prismgp.Certificate": "std, to_dict, from_dict, summary",
        "prismgp.certificates.Interval": "width, difference, difference_at_least, finite, contains, to_dict",
        "prismgp.SampleSizes": "holds, best, why, to_dict",
        "prismgp.complexity.SampleBound": "to_dict",
        "prismgp.ConditionReport": "holds, holds_printed, conclusion, to_dict",
        "prismgp.data.FileSource": "load",
        "prismgp.datasets.Dataset": "X_train, y_train, X_test, y_test",
        "prismgp.botorch.PrismModel": "posterior, condition_on_observations, subset_output, draw_paths",
        **{f"prismgp.plots.{name}Display": "from_estimator, plot" for name in displays},
    }


project = "PrismGP"
author = "The PrismGP developers"
copyright = f"2026, {author}"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "cli_help", "mathml"]
# rst first: the parser of the pages that autosummary writes
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb"}
exclude_patterns = ["_build"]
templates_path = ["_templates"]
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

# Pages with a kernel in their front matter are notebooks. They are executed at every build, each in an empty folder,
# and a cell that fails fails the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 240  # seconds for one cell
# The output of a shell cell arrives in pieces of a hundred bytes, which would be put on lines of their own.
execution.executenb = partial(execution.executenb, coalesce_streams=True)
os.environ["PRISMGP_HOUSING"] = str(ROOT / "experiments" / "data" / "housing.csv.gz")  # copied by hidden cells
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # for prismgp in %%sh
os.environ.pop("PRISMGP_DATA", None)  # notebooks must not depend on what this machine has

# api.md lists the public names, and autosummary writes a page for each into docs/api.
autosummary_generate = True
autosummary_context = {"documented_members": _documented_members()}
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

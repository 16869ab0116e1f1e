"""Nearest neighbours in a scaled space, exact, with ties by row number; and GPs that predict from them.

``fit_model.py`` fits the regressor; predictions do not import it, because it loads SciPy's optimisers.
"""

from prismgp.neighbors.model import NeighborModel
from prismgp.neighbors.search import NeighborSearch

__all__ = ["NeighborModel", "NeighborSearch"]

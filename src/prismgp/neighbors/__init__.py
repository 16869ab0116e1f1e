"""Nearest neighbours in a scaled space, exact, with ties by row number; and GPs that predict from them."""

from prismgp.neighbors.fit_model import MOST_ROWS, NeighborSettings, fit_neighbors
from prismgp.neighbors.local import LocalGP
from prismgp.neighbors.model import NeighborModel
from prismgp.neighbors.search import NeighborSearch

__all__ = ["MOST_ROWS", "LocalGP", "NeighborModel", "NeighborSearch", "NeighborSettings", "fit_neighbors"]

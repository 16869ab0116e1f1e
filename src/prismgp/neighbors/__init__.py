"""Nearest neighbours in a scaled space: exact, the same on every device, with ties by row number."""

from prismgp.neighbors.search import NeighborSearch

__all__ = ["NeighborSearch"]

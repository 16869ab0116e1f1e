"""The libraries that are compared, one module each, behind one interface.

A module has functions ``fit_...(X, y, *, seed, **settings)``, which return a :class:`Fitted`. Inputs and target are
standardised before they come here, so what is learned and predicted is in units of standard deviations. A library is
imported by its modules only, and these only where the library is used.
"""

from experiments.lab.bench.peers._common import Fitted, Library, fit_function, library_version, missing

__all__ = ["Fitted", "Library", "fit_function", "library_version", "missing"]

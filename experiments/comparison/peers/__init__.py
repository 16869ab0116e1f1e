"""The libraries that are compared, one module each, behind one interface.

A module has functions ``fit_...(X, y, *, seed, **settings)``, which return a :class:`Fitted`. Inputs and target are
standardised before they come here, so what is learned and predicted is in units of standard deviations. A library is
imported by its modules only, and these only where the library is used.
"""

from experiments.comparison.peers.library import Fitted, Library, explain_absence, fit_function, library_version

__all__ = ["Fitted", "Library", "explain_absence", "fit_function", "library_version"]

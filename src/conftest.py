"""Which examples in docstrings are run: those of optional parts only where their libraries are installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("botorch") else ["prismgp/botorch.py"]

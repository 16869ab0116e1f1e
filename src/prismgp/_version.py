"""The version, which model files and checkpoints name."""

__version__ = "0.1.0"

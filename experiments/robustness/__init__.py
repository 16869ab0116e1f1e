"""Robustness: random problems (``soak``) and mutated files (``fuzz``), each failure stored with what repeats it."""

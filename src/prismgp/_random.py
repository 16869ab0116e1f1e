"""One seed, many independent named streams.

Data sub-sampling, frequencies and function draws must never share a stream: frequencies that
depend on the data would void every statement about them.
"""

from __future__ import annotations

import zlib

import numpy as np

from prismgp._types import RandomState


class Streams:
    """Named generators derived from one ``random_state``; an integer gives the same streams every time."""

    def __init__(self, random_state: RandomState) -> None:
        from sklearn.utils import check_random_state  # predictions draw nothing

        state = check_random_state(random_state)
        self.seed = int(state.randint(np.iinfo(np.int32).max))

    def generator(self, name: str) -> np.random.Generator:
        """A fresh generator; the same name always gives the same stream."""
        return np.random.default_rng([self.seed, zlib.crc32(name.encode())])

"""A small prior, and a checkpoint in memory."""

from __future__ import annotations

import json

import numpy as np
import torch

from prismgp.checkpoint import Checkpoint
from prismgp.vae import MixturePrior


def some_prior(b=3, latent_dim=2, seed=0):
    prior = MixturePrior(b, latent_dim, radius=1.7).double()
    with torch.no_grad():
        prior.log_widths.copy_(torch.as_tensor(np.random.default_rng(seed).normal(size=b) * 0.3))
    return prior


class MemoryStore(Checkpoint):
    """Keeps what is put there as a file would: copies, with everything else as JSON text."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = {}
        self.urgent = []

    def get(self, name):
        if name not in self.entries:
            return None
        tensors, info = self.entries[name]
        return {key: value.clone() for key, value in tensors.items()}, json.loads(info)

    def put(self, name, make, *, now=False):
        tensors, info = make()
        self.entries[name] = {key: value.detach().clone() for key, value in tensors.items()}, json.dumps(info)
        self.urgent.append(now)

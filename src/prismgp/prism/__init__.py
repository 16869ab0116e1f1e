"""The revised SSGP: a sparse spectrum GP on inputs that a network has re-configured.

The data flow of the joint recipe:

- ``_network.py``: inputs to latent inputs, gates, features and relative noise (V1 to V4);
- ``_batch.py``: log evidence of a mini-batch and its gradient;
- ``_train.py``: one member, trained on evidence plus a weighted augmented ELBO, watched on held-out rows;
- ``_experts.py``: trained features with the exact posterior of their weights on all rows; their mixture;
- ``_stack.py``: noise, weights and temperature of the mixture, by the density of the held-out rows;
- ``_fit.py``: all of it, in order.
"""

from prismgp.prism._network import NetworkSizes, RevisedMap
from prismgp.prism._stack import Stack, noise_scale, stack
from prismgp.prism.experts import (
    Expert,
    FeatureMap,
    InformedMap,
    MapStatistics,
    Mixture,
    PlainMap,
    ReconfiguredMap,
)

__all__ = [
    "Expert",
    "FeatureMap",
    "InformedMap",
    "MapStatistics",
    "Mixture",
    "NetworkSizes",
    "PlainMap",
    "ReconfiguredMap",
    "RevisedMap",
    "Stack",
    "noise_scale",
    "stack",
]

"""The revised SSGP: a sparse spectrum GP on inputs that a network has re-configured.

The data flow of the joint recipe:

- ``network.py``: inputs to latent inputs, gates, features and relative noise (V1 to V4); log evidence of a mini-batch
  (B1 to B4);
- ``train.py``: one member, trained on evidence plus a weighted augmented ELBO, checked on held-out rows (T1);
- ``experts.py``: trained features with the exact posterior of their weights on all rows; their mixture;
- ``stacking.py``: noise, weights and temperature of the mixture, by the density of the held-out rows;
- ``joint.py``: all of it, in order; ``fit.py``: the settings and recipes of the estimator;
- ``released.py``: what the authors' released code does instead (T2).
"""

from prismgp.prism.experts import Expert, FeatureMap, InformedMap, MapStatistics, Mixture, PlainMap, ReconfiguredMap
from prismgp.prism.local import LocalMixture
from prismgp.prism.network import (
    NetworkOutput,
    NetworkSizes,
    RevisedMap,
    batch_log_evidence,
    batch_predict,
    clip_inputs,
)
from prismgp.prism.stacking import HeldOut, Stack, mixture_moments, noise_scale, stack

__all__ = [
    "Expert",
    "FeatureMap",
    "HeldOut",
    "InformedMap",
    "LocalMixture",
    "MapStatistics",
    "Mixture",
    "NetworkOutput",
    "NetworkSizes",
    "PlainMap",
    "ReconfiguredMap",
    "RevisedMap",
    "Stack",
    "batch_log_evidence",
    "batch_predict",
    "clip_inputs",
    "mixture_moments",
    "noise_scale",
    "stack",
]

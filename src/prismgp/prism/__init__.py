"""The revised SSGP: a sparse spectrum GP on inputs that a network has re-configured.

The data flow of the joint recipe:

- ``maps.py``: from inputs to features and relative noise, for a network by latent inputs and gates (V1 to V4);
- ``batch.py``: log evidence of mini-batches (B1 to B4);
- ``members.py``: the members' networks and their optimiser in one tensor, and a step of all of them (T1);
- ``training_rows.py``: their batches; ``train.py``: their training, checked on held-out rows;
- ``experts.py``: features with the exact posterior of their weights, and the mixture of these;
- ``judging.py``: predictions of held-out rows by an expert, and how much each row counts in its posterior (W3);
- ``stacking.py``: noise, weights and temperature of the mixture, by the density of the held-out rows;
- ``local.py``: neighbour GPs beside the mixture (L1 to L3); ``local_fit.py``: how they are learned;
- ``shapes.py``: shapes of the noise, by the residuals at held-out rows and at copies (Z7, Z8);
- ``joint.py``: all of it, in order; ``fit.py``: the settings and recipes of the estimator;
- ``released.py``: what the authors' released code does instead (T2).
"""

from prismgp.prism.experts import Expert, Mixture, weight_noise
from prismgp.prism.local import LocalMixture
from prismgp.prism.maps import (
    FeatureMap,
    InformedMap,
    NetworkSizes,
    PlainMap,
    ReconfiguredMap,
    RevisedMap,
    clip_inputs,
)

__all__ = [
    "Expert",
    "FeatureMap",
    "InformedMap",
    "LocalMixture",
    "Mixture",
    "NetworkSizes",
    "PlainMap",
    "ReconfiguredMap",
    "RevisedMap",
    "clip_inputs",
    "weight_noise",
]

"""Names for arrays, and the legend of symbols used across the package.

====== =====================================================================
symbol meaning
====== =====================================================================
n      rows
d      inputs (columns of X)
p      spectral frequencies; there are 2p trigonometric features
q      outputs (columns of Y)
b      clusters, where there are gates
X      inputs, (n, d), standardised unless said otherwise
Y      targets, (n, q)
E      base frequencies, (p, d), independent of the kernel's parameters
W      projection, (d, p): ``W[j, t] = E[t, j] / lengthscale[j]``
Phi    features, (n, 2p): ``[cos(X W), sin(X W)] / sqrt(p)``, rows of norm 1
S      signal variance, one per output
s2     noise variance, one per output
m      constant mean, one per output
G      ``Phi' Phi``, (2p, 2p)
A      ``I + (S / s2) G``, (2p, 2p); all its eigenvalues are at least 1
====== =====================================================================

The model of one output is ``y = m + Phi w + noise`` with ``w ~ N(0, S I)`` and
``noise ~ N(0, s2 I)``, so ``y ~ N(m, Q)`` with ``Q = S Phi Phi' + s2 I``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

Array: TypeAlias = npt.NDArray[np.float64]
AnyArray: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.int64]
Tensor: TypeAlias = torch.Tensor
RandomState: TypeAlias = int | np.random.RandomState | None
Saved: TypeAlias = tuple[dict[str, Tensor], dict[str, Any]]  # a result of a fit: numbers, and what JSON can hold

# Choices of constructor arguments. Checks of the arguments take their lists from here (typing.get_args).
KernelName: TypeAlias = Literal["rbf", "matern12", "matern32", "matern52"]
FrequencyKind: TypeAlias = Literal["auto", "iid", "orthogonal", "sobol"]
GatingKind: TypeAlias = Literal["none", "hard", "soft"]
DtypeName: TypeAlias = Literal["float64", "float32"]
OnInterrupt: TypeAlias = Literal["raise", "keep"]
Missing: TypeAlias = Literal["impute", "drop", "error"]
Device: TypeAlias = Literal["cpu", "cuda", "auto"] | str  # also "cuda:1"
Recipe: TypeAlias = Literal["joint", "paper", "released"]
NoiseModel: TypeAlias = Literal["auto", "constant", "input"]
NoiseShapeChoice: TypeAlias = Literal["auto", "normal"]
LocalChoice: TypeAlias = Literal["auto", "always", "never"]
VAEOutput: TypeAlias = Literal["latent", "reconstruction"]

DTYPES = {"float64": torch.float64, "float32": torch.float32}

"""SpectralFeatures: the feature map as a transformer."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from prismgp._system import Streams
from prismgp._types import AnyArray, Array, FrequencyKind, KernelName, RandomState
from prismgp._validate import check_choice, check_inputs, check_number
from prismgp.core.features import projection, spectral_features
from prismgp.core.kernels import FREQUENCY_KINDS, KERNELS, draw_frequencies, get_kernel
from prismgp.data import ArraySource, Source, StandardisedRows, fit_standardiser
from prismgp.estimators.sources import adopt_source, forget_fit, match_inputs, match_source

CHUNK_ROWS = 8_192


class SpectralFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Random Fourier features whose inner products approximate a stationary kernel.

    ``transform(x) . transform(x')`` estimates ``k(x, x')`` without bias, every row has norm one, and
    the error shrinks like ``n_frequencies ** -0.5``.

    Parameters
    ----------
    n_frequencies : int, default 64
        The output has twice as many columns: a cosine and a sine for each frequency.
    kernel : {"rbf", "matern12", "matern32", "matern52"}, default "rbf"
    lengthscale : float, array or None, default None
        One for all inputs or one for each; None: ``sqrt(d)`` standard deviations of each input.
    frequencies : {"auto", "iid", "orthogonal", "sobol"}, default "auto"
        "auto" is "sobol" up to 4 inputs, "orthogonal" above.
    random_state : int, RandomState or None, default None

    Attributes
    ----------
    frequencies_ : ndarray, (n_frequencies, d)
        Base frequencies, before division by the length-scales.
    lengthscale_ : ndarray, (d,)

    Examples
    --------
    >>> import numpy as np
    >>> from prismgp import SpectralFeatures
    >>> X = np.random.default_rng(0).standard_normal((5, 3))
    >>> SpectralFeatures(n_frequencies=8, random_state=0).fit_transform(X).shape
    (5, 16)
    """

    frequencies_: Array
    lengthscale_: Array
    n_features_in_: int

    def __init__(
        self,
        n_frequencies: int = 64,
        *,
        kernel: KernelName = "rbf",
        lengthscale: Any = None,
        frequencies: FrequencyKind = "auto",
        random_state: RandomState = None,
    ) -> None:
        self.n_frequencies = n_frequencies
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.frequencies = frequencies
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the frequencies for rows X, (n, d), or for those of a source; y is ignored."""
        name = type(self).__name__
        check_number(name, "n_frequencies", self.n_frequencies, low=1, integer=True)
        check_choice(name, "kernel", self.kernel, tuple(KERNELS))
        check_choice(name, "frequencies", self.frequencies, FREQUENCY_KINDS)
        forget_fit(self)
        if isinstance(X, Source):
            source = adopt_source(self, X, None, needs_target=False)
        else:
            x = check_inputs(self, X, reset=True)
            source = ArraySource(x, np.empty((len(x), 0)))  # no targets
        d = source.n_inputs
        standardiser = fit_standardiser(source, normalize=True, learned=False)
        start = StandardisedRows(source, standardiser).start(learn=False, lengthscale=self.lengthscale)
        self.lengthscale_ = start.lengthscale * standardiser.x_scale
        self._shift = standardiser.x_shift
        rng = Streams(self.random_state).generator("frequencies")
        self.frequencies_ = draw_frequencies(get_kernel(self.kernel), self.n_frequencies, d, self.frequencies, rng)
        self._n_features_out = 2 * self.n_frequencies
        return self

    def transform(self, X: Any) -> AnyArray:
        """Features of X, (n, 2 n_frequencies), in the precision of X; float64 for a source."""
        check_is_fitted(self)
        if isinstance(X, Source):
            return np.concatenate([self._features(x) for x, _ in match_source(self, X).blocks(CHUNK_ROWS)])
        return self._features(match_inputs(self, X))

    def _features(self, x: AnyArray) -> AnyArray:
        # Centred, so that phases stay small; a shift changes no inner product.
        centred = torch.from_numpy(
            np.where(np.isfinite(x), x - self._shift, 0.0).astype(x.dtype)
        )  # unknown cells are typical
        w = projection(self.frequencies_, self.lengthscale_, dtype=centred.dtype, device=torch.device("cpu"))
        return np.asarray(spectral_features(centred, w).numpy())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

"""Types that users see. ``make lint`` runs mypy on this file too, which checks every ``assert_type``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, assert_type, get_args

import numpy as np

import prismgp
from prismgp import GPRegressor, PrismGPRegressor, SSGPRegressor
from prismgp._types import DTYPES, AnyArray, DtypeName, KernelName, Recipe
from prismgp.core.kernels import KERNELS
from prismgp.prism.fit import DEFAULTS

if TYPE_CHECKING:
    SSGPRegressor(kernel="linear")  # type: ignore[arg-type]
    SSGPRegressor(gating="fuzzy")  # type: ignore[arg-type]
    PrismGPRegressor(local="sometimes")  # type: ignore[arg-type]
    SSGPRegressor(device="cuda:1", kernel="matern32", chunk_size="auto")


def test_predict_and_load(tmp_path: Path) -> None:
    x = np.linspace(0.0, 1.0, 30)[:, None]
    model = assert_type(SSGPRegressor(2, max_iter=2, random_state=0).fit(x, x[:, 0]), SSGPRegressor)
    model.save(tmp_path / "m")
    loaded = assert_type(prismgp.load(tmp_path / "m"), GPRegressor)
    assert isinstance(loaded, GPRegressor)
    mean = assert_type(loaded.predict(x), AnyArray)
    pair = assert_type(loaded.predict(x, return_std=True), tuple[AnyArray, AnyArray])
    assert_type(loaded.predict(x, return_cov=True), tuple[AnyArray, AnyArray])
    assert_type(loaded.predict(x, False, True), tuple[AnyArray, AnyArray])
    either = bool(len(x))
    assert_type(loaded.predict(x, either), AnyArray | tuple[AnyArray, AnyArray])
    np.testing.assert_array_equal(mean, pair[0])


def test_choices_are_those_that_exist() -> None:
    assert set(get_args(KernelName)) == set(KERNELS)
    assert set(get_args(DtypeName)) == set(DTYPES)
    assert set(get_args(Recipe)) == set(DEFAULTS)

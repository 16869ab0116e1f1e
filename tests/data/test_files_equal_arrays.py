"""A model fitted to files is the one fitted to the same rows in arrays."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import prismgp.core.fit as fit_module
from prismgp import ExactGPRegressor, PrismGPRegressor, Reconfigurer, SpectralFeatures, SSGPRegressor, certify, load
from prismgp.data import ArraySource, Source, TableReader, from_csv, from_parquet
from prismgp.exceptions import DataError, PrismGPWarning

from .conftest import FORMS, as_source, table

INPUTS = ["a", "b", "c"]
PRISM = {
    "n_members": 2,
    "max_steps": 12,
    "hidden": 8,
    "latent_dim": 2,
    "n_components": 2,
    "max_iter": 5,
    "local": "never",
}


@pytest.fixture(autouse=True)
def short_race(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which start wins is not the point here."""
    monkeypatch.setattr(fit_module, "SSGP_STAGES", replace(fit_module.SSGP_STAGES, race_rounds=(2,)))


def arrays(frame: pd.DataFrame) -> tuple[Any, Any]:
    return frame[INPUTS], frame["y"].to_numpy()


def assert_same(model: Any, other: Any, x: Any, source: Source) -> None:
    """To the last bit: blocks are the same, whatever the rows came from."""
    assert model.log_evidence_ == other.log_evidence_
    np.testing.assert_array_equal(model.lengthscale_, other.lengthscale_)
    mean, std = model.predict(x, return_std=True)
    for rows in (x, source):
        again, spread = other.predict(rows, return_std=True)
        np.testing.assert_array_equal(again, mean)
        np.testing.assert_array_equal(spread, std)


@pytest.mark.slow
@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize(
    ("form", "dtype"), [*((form, "float64") for form in FORMS), ("parquet", "float32"), ("parquet parts", "float32")]
)
def test_ssgp(form: str, dtype: str, tmp_path: Path) -> None:
    frame = table(dtype)
    x, y = arrays(frame)
    # Small chunks, so that there are several, and files end within them.
    model = SSGPRegressor(8, max_iter=4, chunk_size=128, random_state=0)
    source = as_source(form, frame, tmp_path)
    assert not source.small
    fitted = SSGPRegressor(**model.get_params()).fit(source)
    assert_same(model.fit(x, y), fitted, x, source)
    assert list(fitted.feature_names_in_) == INPUTS
    np.testing.assert_array_equal(fitted.log_density(source), model.log_density(x, y))
    assert fitted.score(source) == model.score(x, y)
    fitted.partial_fit(source)
    assert fitted.log_evidence_ == model.partial_fit(x, y).log_evidence_


@pytest.mark.parametrize("form", FORMS)
def test_small_sources_are_kept(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = table()
    source = as_source(form, frame, tmp_path)
    passes = count_passes(monkeypatch)
    fitted = SSGPRegressor(8, optimize=False, random_state=0).fit(source)
    assert len(passes) == 1
    expected = SSGPRegressor(8, optimize=False, random_state=0).fit(*arrays(frame))
    assert fitted.log_evidence_ == expected.log_evidence_


def count_passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passes: list[int] = []
    blocks = TableReader.blocks

    def counted(self: TableReader, rows: int) -> Any:
        passes.append(rows)
        return blocks(self, rows)

    monkeypatch.setattr(TableReader, "blocks", counted)
    return passes


@pytest.mark.slow
@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("gating", ["hard", "soft"])
@pytest.mark.parametrize("labelled", [False, True])
def test_gated(gating: str, labelled: bool, tmp_path: Path) -> None:
    frame = table()
    x, y = arrays(frame)
    partition = (frame["a"] > 0).to_numpy().astype(int) if labelled else None
    options = {"gating": gating, "partition": partition, "n_components": 3, "max_iter": 4, "chunk_size": 128}
    source = as_source("parquet parts", frame, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrismGPWarning)  # rows nearer to the other mean
        model = SSGPRegressor(4, random_state=0, **options).fit(x, y)
        fitted = SSGPRegressor(4, random_state=0, **options).fit(source)
    assert_same(model, fitted, x, source)
    # A hard partition cannot add the same rows twice without the labels; new rows go where the rule says.
    model.partial_fit(x, y)
    assert fitted.partial_fit(source).log_evidence_ == model.log_evidence_


@pytest.mark.usefixtures("streaming")
def test_many_rows_are_subsampled_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(fit_module.SSGP_STAGES, race_rows=50, main_rows=60)
    monkeypatch.setattr(fit_module, "SSGP_STAGES", small)
    monkeypatch.setattr("prismgp.estimators.gating.CLUSTERING_ROWS", 100)
    frame = table()
    x, y = arrays(frame)
    source = as_source("csv parts", frame, tmp_path)
    options = {"gating": "soft", "n_components": 2, "max_iter": 4, "random_state": 3}
    assert_same(SSGPRegressor(4, **options).fit(x, y), SSGPRegressor(4, **options).fit(source), x, source)


@pytest.mark.slow
@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("recipe", ["joint", "paper"])
@pytest.mark.parametrize("limit", [2**19, 100])
def test_prism(recipe: str, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("vae.vae", "prism.fit"):
        monkeypatch.setattr(f"prismgp.{module}.TRAINING_ROWS", limit)
    frame = table()
    x, y = arrays(frame)
    # The noise is far too low for the data, which only the members can correct, so that the mixture keeps them.
    options = {"recipe": recipe, **PRISM, "optimize": False, "noise_variance": 2e-4, "random_state": 0}
    source = as_source("parquet parts", frame, tmp_path)
    model = PrismGPRegressor(4, **options).fit(x, y)
    assert len(model.model_.predictor.experts) > 1 or recipe == "paper"
    fitted = PrismGPRegressor(4, **options).fit(source)
    assert_same(model, fitted, x, source)
    np.testing.assert_array_equal(fitted.log_density(source), model.log_density(x, y))
    assert fitted.fit_status_["rows"] == len(frame)
    assert fitted.partial_fit(source).log_evidence_ == model.partial_fit(x, y).log_evidence_
    if recipe == "joint" and limit == 100:  # held-out rows are among those sampled
        assert fitted.fit_status_["held_out_rows"] == 10


@pytest.mark.usefixtures("streaming")
def test_exact(tmp_path: Path) -> None:
    frame = table(n=120)
    x, y = arrays(frame)
    source = as_source("csv", frame, tmp_path)
    assert_same(ExactGPRegressor(max_iter=4).fit(x, y), ExactGPRegressor(max_iter=4).fit(source), x, source)


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("limit", [2**19, 100])
def test_reconfigurer(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismgp.vae.vae.TRAINING_ROWS", limit)
    monkeypatch.setattr("prismgp.estimators.transformers.CHUNK_ROWS", 64)
    frame = table()
    x, _ = arrays(frame)
    source = as_source("parquet parts", frame, tmp_path)
    model = Reconfigurer(2, 2, max_steps=10, random_state=0).fit(x)
    fitted = Reconfigurer(2, 2, max_steps=10, random_state=0).fit(source)
    for method in ("transform", "responsibilities", "predict"):
        expected = getattr(model, method)(x)
        np.testing.assert_array_equal(getattr(fitted, method)(x), expected)
        np.testing.assert_array_equal(getattr(fitted, method)(source), expected)
    without = as_source("parquet", frame[INPUTS], tmp_path, None)
    np.testing.assert_array_equal(fitted.transform(without), model.transform(x))


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("target", ["y", None])
def test_spectral_features(target: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prismgp.estimators.transformers.CHUNK_ROWS", 64)
    frame = table()
    x, _ = arrays(frame)
    source = as_source("csv parts", frame if target else frame[INPUTS], tmp_path, target)
    model, fitted = SpectralFeatures(5, random_state=0).fit(x), SpectralFeatures(5, random_state=0).fit(source)
    np.testing.assert_array_equal(fitted.lengthscale_, model.lengthscale_)
    np.testing.assert_allclose(fitted.transform(source), model.transform(x), rtol=0, atol=1e-14)
    np.testing.assert_array_equal(fitted.transform(x), model.transform(x))


@pytest.mark.parametrize("make", [lambda: Reconfigurer(2, 2, max_steps=3), lambda: SpectralFeatures(3)])
def test_transformers_forget_categories(make: Any, tmp_path: Path) -> None:
    frame = table().assign(kind=np.where(np.arange(300) % 3, "u", "v"))
    source = as_source("parquet", frame, tmp_path)
    model = make().fit(source)
    assert list(model.feature_names_in_) == [*INPUTS, "kind"]
    assert model.table_encoder_.feature_names == [*INPUTS, "kind=u", "kind=v"]
    np.testing.assert_allclose(model.transform(frame), model.transform(source), rtol=0, atol=1e-14)
    model.fit(frame[INPUTS])
    assert not hasattr(model, "table_encoder_")
    assert model.transform(as_source("csv", frame[INPUTS], tmp_path, None)).shape[0] == 300


@pytest.mark.usefixtures("streaming")
def test_certify(tmp_path: Path) -> None:
    frame = table(n=150)
    x, y = arrays(frame)
    source = as_source("parquet parts", frame, tmp_path)
    model = SSGPRegressor(8, optimize=False, random_state=0).fit(source)
    expected = certify(model, x, y, x[:7], random_state=0)
    head = as_source("csv", frame[:7], tmp_path, None, columns=INPUTS)
    for found in (certify(model, source, X_test=head, random_state=0), model.certify(source, X_test=head)):
        assert found.holds
        np.testing.assert_allclose(found.mean.upper, expected.mean.upper, rtol=1e-6)
    with pytest.raises(DataError, match="leave y out"):
        certify(model, source, y)


# -- the interface ---------------------------------------------------------------------------------


def test_y_beside_a_source(tmp_path: Path) -> None:
    frame = table()
    source = as_source("parquet", frame, tmp_path)
    with pytest.raises(DataError, match="leave y out"):
        SSGPRegressor(4).fit(source, frame["y"])
    model = SSGPRegressor(4, optimize=False).fit(source)
    with pytest.raises(DataError, match="leave y out"):
        model.log_density(source, frame["y"])
    with pytest.raises(DataError, match="leave y out"):
        model.partial_fit(source, frame["y"])


def test_a_source_without_a_target(tmp_path: Path) -> None:
    frame = table()
    source = as_source("parquet", frame[INPUTS], tmp_path, None)
    with pytest.raises(DataError, match=r"FileSource\(300 rows, 3 inputs\) has no target; name it"):
        SSGPRegressor(4).fit(source)
    model = SSGPRegressor(4, optimize=False).fit(*arrays(frame))
    np.testing.assert_array_equal(model.predict(source), model.predict(frame[INPUTS]))
    with pytest.raises(DataError, match="has no target; name it"):
        model.log_density(source)


def test_other_inputs(tmp_path: Path) -> None:
    frame = table()
    model = SSGPRegressor(4, optimize=False).fit(as_source("parquet", frame, tmp_path))
    with pytest.raises(DataError, match="input column 'c' missing"):
        model.predict(as_source("csv", frame[["a", "b"]], tmp_path, None))
    # By name: order does not matter, and other columns do not either.
    mixed = frame.assign(z=1.0)[["z", "c", "y", "a", "b"]]
    np.testing.assert_array_equal(model.predict(as_source("csv", mixed, tmp_path, None)), model.predict(frame[INPUTS]))
    named = SSGPRegressor(4, optimize=False).fit(*arrays(frame))
    with pytest.raises(DataError, match="in that order"):
        named.predict(as_source("csv", frame[["b", "a", "c"]], tmp_path, None))
    plain = SSGPRegressor(4, optimize=False).fit(frame[INPUTS].to_numpy(), frame["y"])
    with pytest.raises(DataError, match="has 2 inputs, but SSGPRegressor is expecting 3"):
        plain.predict(as_source("csv", frame[["b", "a"]], tmp_path, None))
    with pytest.raises(DataError, match="expecting 3"):
        plain.predict(ArraySource(np.zeros((4, 2)), np.zeros((4, 0))))


def test_several_targets(tmp_path: Path) -> None:
    frame = table().assign(z=lambda f: f["c"] * f["a"])
    x, both = frame[INPUTS], frame[["y", "z"]].to_numpy()
    source = as_source("parquet", frame, tmp_path, ["y", "z"])
    assert source.feature_names == INPUTS
    model = SSGPRegressor(4, optimize=False, random_state=0).fit(x, both)
    fitted = SSGPRegressor(4, optimize=False, random_state=0).fit(source)
    assert_same(model, fitted, x, source)
    np.testing.assert_array_equal(fitted.log_density(source), model.log_density(x, both))
    with pytest.raises(DataError, match="dimension"):
        fitted.partial_fit(as_source("csv", frame, tmp_path, "y", exclude=["z"]))
    single = SSGPRegressor(4, optimize=False).fit(as_source("csv", frame, tmp_path, ["y"], exclude="z"))
    assert single.predict(x).shape == (300, 1)


def test_saved_with_categories(tmp_path: Path) -> None:
    frame = table().assign(kind=np.tile(["u", "v"], 150), flag=np.arange(300) % 4 == 0, code=np.arange(300) % 3)
    source = as_source("parquet", frame, tmp_path, categorical="code")
    assert source.feature_names == [*INPUTS, "kind", "flag", "code"]
    model = SSGPRegressor(8, optimize=False, random_state=0).fit(source)
    assert model.table_encoder_.feature_names[3:] == ["kind=u", "kind=v", "flag", "code=0", "code=1", "code=2"]
    model.save(tmp_path / "model.prism")
    again = load(tmp_path / "model.prism")
    expected = model.predict(source)
    for rows in (frame, frame.drop(columns="y"), source, from_parquet(tmp_path / "table.parquet")):
        np.testing.assert_array_equal(again.predict(rows), expected)
    frame.to_csv(tmp_path / "table.csv", index=False)
    np.testing.assert_array_equal(again.predict(from_csv(tmp_path / "table.csv", "y")), expected)


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_unseen_categories(form: str, tmp_path: Path) -> None:
    frame = table().assign(kind=np.tile(["u", "v"], 150))
    model = SSGPRegressor(8, optimize=False, random_state=0).fit(as_source(form, frame, tmp_path))
    frame.loc[[3, 260], "kind"] = "w"
    strange = as_source(form, frame, tmp_path)
    with pytest.warns(PrismGPWarning, match=r"column 'kind': 2 value\(s\) unseen") as caught:
        found = model.predict(strange)
    assert len(caught) == 1  # rows are read once
    with pytest.warns(PrismGPWarning, match="unseen"):
        np.testing.assert_array_equal(found, model.predict(frame))


def test_numbers_that_became_text(tmp_path: Path) -> None:
    frame = table()
    model = SSGPRegressor(4, optimize=False).fit(as_source("csv", frame, tmp_path))
    broken = frame.astype({"a": object})
    broken["a"] = [f"v{index % 5}" for index in range(300)]
    for form in ("csv", "parquet"):
        with pytest.raises(DataError, match=r"column 'a' holds .*; the model learned it as numbers"):
            model.predict(as_source(form, broken, tmp_path))

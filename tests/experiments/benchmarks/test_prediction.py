"""The benchmark of predictions, on few rows: the bare products have the sizes of the model's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from experiments.benchmarks import prediction
from experiments.internals import list_products
from experiments.results import Study
from prismgp import NeighborGPRegressor, PrismGPRegressor, SSGPRegressor
from tests.experiments.benchmarks.about import ABOUT

D, P, WIDTH = 3, 4, 16  # inputs, frequencies, and gated features of two clusters


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, D))
    return x, np.sin(x[:, 0]) + 0.1 * rng.standard_normal(len(x))


def test_the_sizes_of_spectra_and_neighbours(rows):
    spectral = list_products(SSGPRegressor(P, max_iter=2, random_state=0).fit(*rows))
    assert spectral.spectral == [[(D, P, torch.float64, True), (2 * P, 2 * P + 1, torch.float64, False)]]
    assert (spectral.chunk_rows, spectral.near) == (2_048, [])
    near = list_products(NeighborGPRegressor(n_neighbors=7, max_iter=2, random_state=0).fit(*rows))
    assert (near.spectral, near.near) == ([], [(200, D, 7)])


@pytest.mark.slow
@pytest.mark.usefixtures("short_race", "short_local")
def test_the_sizes_of_networks(rows):
    options = {"n_members": 1, "n_components": 2, "hidden": (5,), "latent_dim": 2, "max_steps": 5, "max_iter": 2}
    model = PrismGPRegressor(P, local="always", random_state=0, **options).fit(*rows)
    found = list_products(model)
    single, double = torch.float32, torch.float64
    network = [(D, 5, single, False), (5, 2, single, False), (2 + D, P, single, True)]
    plain = [(D, P, single, True)]
    posteriors = {2 * P: plain, WIDTH: network}
    assert found.near
    for sizes in found.spectral:
        *products, (width, columns, dtype, _) = sizes
        assert (columns, dtype) == (width + 1, double)
        expected = posteriors[width]
        assert [each[:2] for each in products[: len(expected)]] == [each[:2] for each in expected]
    prediction.make_bare(found, model.model_.to_model(rows[0]))()


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_a_run_has_what_the_table_needs(data_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("PRISMGP_DATA", str(data_folder))
    monkeypatch.setattr(prediction, "DATASET", "energy")
    monkeypatch.setitem(prediction.ROWS, "cpu", 300)
    study = Study(tmp_path, "prediction")
    for name in ("neighbors", "ssgp"):
        order = {"model": name, "device": "cpu"}
        found = prediction.measure(order)
        assert (found["rows"], found["experts"]) == (300, int(name == "ssgp"))
        assert found["rows_per_second"] > 0.0
        assert "rows per second, " in prediction.describe(found)
        study.put(f"{name}-cpu", {**ABOUT, **order, **found})
    lines = [line for line in prediction.markdown(study).splitlines() if "1 thread(s)" in line]
    assert [line.split(" | ")[0] for line in lines] == ["| SSGP, p = 64", "| neighbour GP, k = 32"]

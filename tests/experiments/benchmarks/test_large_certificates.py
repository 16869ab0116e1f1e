"""The benchmark of certificates of many rows, on few."""

from __future__ import annotations

import pytest

from experiments.benchmarks import large_certificates
from experiments.results import Study
from tests.experiments.benchmarks.about import ABOUT


@pytest.mark.slow
@pytest.mark.usefixtures("short_race")
def test_a_run_has_what_the_table_needs(data_folder, monkeypatch, tmp_path):
    monkeypatch.setenv("PRISMGP_DATA", str(data_folder))
    monkeypatch.setitem(large_certificates.DATASETS, "energy", (300, True))
    monkeypatch.setattr(large_certificates, "P", 8)
    order = {"dataset": "energy", "device": "cpu"}
    found = large_certificates.measure(order)
    assert found["rows"] == 300
    assert found["contained"]
    assert found["holds"]
    assert "noise std, rank " in large_certificates.describe(found)
    study = Study(tmp_path, "certify-large")
    study.put("energy", {**ABOUT, **order, **found})
    assert "| energy | 1 thread(s) | 300 | " in large_certificates.markdown(study)
    assert large_certificates.complain(study) == []
    study.put("energy", {**ABOUT, **order, **found, "contained": False})
    assert large_certificates.complain(study) == ["energy: the exact GP is outside of a certified interval"]

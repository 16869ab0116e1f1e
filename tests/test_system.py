"""Names of devices, those that are there and those that are not; files, disks and memory."""

from __future__ import annotations

import errno

import numpy as np
import pytest
import torch

import prismgp
from prismgp import ExactGPRegressor, SSGPRegressor
from prismgp._system import (
    atomic_path,
    available_bytes,
    bytes_within_cgroup,
    compute_device,
    format_amount,
    is_device,
    refuse_too_large,
    reserve_memory,
)
from prismgp.exceptions import DataError, PrismGPError, PrismGPWarning, TooLargeError


@pytest.mark.parametrize("name", ["cpu", "cuda", "auto", "cuda:0", "cuda:17"])
def test_names(name):
    assert is_device(name)


@pytest.mark.parametrize(
    "name", ["gpu", "cuda:", "cuda:-1", "cuda:01", "cuda:1 ", "cpu:0", "CUDA", 1, None, "cuda:99999"]
)
def test_other_names(name):
    assert not is_device(name)
    with pytest.raises(DataError, match="is unknown; choose one of 'cpu', 'cuda', 'auto', or a numbered GPU"):
        compute_device(name)
    with pytest.raises(DataError, match="SSGPRegressor: device="):
        SSGPRegressor(2, device=name).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])


@pytest.mark.parametrize(("count", "there"), [(1, 'only "cuda:0"'), (3, 'only "cuda:0" to "cuda:2"')])
def test_numbered_gpus(monkeypatch, count, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert compute_device("cuda:0") == torch.device("cuda:0")
    assert compute_device("cuda").index is None
    with pytest.raises(PrismGPError, match=f'device="cuda:3" was asked for, but this machine has {there}'):
        compute_device("cuda:3")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_model_of_a_gpu_that_is_not_here(tmp_path):
    x = np.linspace(0, 1, 20)[:, None]
    model = SSGPRegressor(2, max_iter=2, random_state=0).fit(x, x[:, 0])
    model.set_params(device="cuda:1").save(tmp_path / "m")
    with pytest.warns(PrismGPWarning, match="saved on a GPU and there is none here: it runs on the CPU"):
        assert prismgp.load(tmp_path / "m").device == "cpu"
    with pytest.raises(PrismGPError, match="no CUDA device is available"):
        prismgp.load(tmp_path / "m", device="cuda:1")


# -- files, disks and memory -----------------------------------------------------------------------


def test_a_full_disk_is_named_with_the_bytes_needed(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("old")

    def write_until_full(file):
        file.write_text("written")
        raise OSError(errno.ENOSPC, "No space left on device")

    message = rf"at least 7 bytes are needed, [\d,]+ are free: '{path}'"
    with pytest.raises(OSError, match=message), atomic_path(path) as file:
        write_until_full(file)
    monkeypatch.setattr("prismgp._system.free_bytes", lambda _: 99)
    with pytest.raises(OSError, match=r"at least 1,000 bytes are needed, 99 are free"), atomic_path(path, 1000):
        pytest.fail("nothing must be begun")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_errors_name_the_output_and_not_the_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "out"
    with pytest.raises(OSError, match=f"Input/output error: '{path}'"), atomic_path(path):
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="of an input: 'in'"), atomic_path(path):
        raise OSError(errno.EIO, "of an input", "in")
    monkeypatch.setattr(
        "tempfile.mkstemp", lambda **_: (_ for _ in ()).throw(OSError(errno.EROFS, "Read-only", "x.part"))
    )
    with pytest.raises(OSError, match=f"Read-only: '{path}'"), atomic_path(path):
        pytest.fail("there is no temporary file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("group", ["/", "/a/b"])
def test_the_limit_of_a_container(tmp_path, version, group):
    """By the files of both versions; a limit of an outer group counts too, and "max" is none."""
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text(f"0::{group}\n" if version == 2 else f"9:cpu:/\n4:memory:{group}\n0::/\n")
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    assert bytes_within_cgroup(root, own) is None

    def limit(folder, most, used, cached):
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in zip((*names, "memory.stat"), (most, used, f"anon 1\n{cached}"), strict=True):
            (folder / name).write_text(f"{value}\n")

    top = root if version == 2 else root / "memory"
    stat = "inactive_file 50" if version == 2 else "total_inactive_file 50"
    limit(top / group.lstrip("/"), 1000, 400, stat)
    assert bytes_within_cgroup(root, own) == 650
    if group != "/":
        limit(top / "a", 700, 400, stat)
        assert bytes_within_cgroup(root, own) == 350
        limit(top / "a", "max", 400, stat)
        assert bytes_within_cgroup(root, own) == 650


def test_the_limit_of_the_process(monkeypatch):
    resource = pytest.importorskip("resource")
    used = 3 * 2**30
    monkeypatch.setattr("prismgp._system.read_proc_bytes", lambda _, name: used if name == "VmSize" else None)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 * 2**30, resource.RLIM_INFINITY))
    assert available_bytes(torch.device("cpu")) <= 2**30
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2**30, resource.RLIM_INFINITY))
    with pytest.raises(TooLargeError, match="an exact GP on 100 rows needs about"):
        ExactGPRegressor().fit(np.arange(100.0)[:, None], np.arange(100.0))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 800 bytes. Error code 12"),
        MemoryError("Unable to allocate 800 bytes for an array"),
    ],
)
def test_failed_allocations_become_one_error(error, monkeypatch):
    monkeypatch.setattr("prismgp.estimators.exact.fit_exact", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(TooLargeError, match=r"the fit of ExactGPRegressor needs more .* \(a piece of 800 bytes was"):
        ExactGPRegressor().fit(np.arange(30.0)[:, None], np.arange(30.0))
    monkeypatch.undo()
    model = ExactGPRegressor(optimize=False).fit(np.arange(30.0)[:, None], np.arange(30.0))
    monkeypatch.setattr("prismgp.model.fitted.FittedModel.predict", lambda *_, **__: (_ for _ in ()).throw(error))
    with pytest.raises(TooLargeError, match="a prediction needs more memory than there is"):
        model.predict([[1.0]])
    with pytest.raises(RuntimeError, match="a mistake"), refuse_too_large("it"):
        raise RuntimeError("a mistake")
    with pytest.raises(TooLargeError, match="says so itself"), refuse_too_large("it"):
        raise TooLargeError("says so itself")


def test_so_low_a_limit_that_libraries_hang(monkeypatch):
    monkeypatch.setattr("prismgp._system.bytes_within_limit", lambda: 5 * 2**20)
    with pytest.raises(TooLargeError, match=r"leaves 5.0 MiB of memory, and at least 256.0 MiB are needed; raise it"):
        reserve_memory()
    for enough in (2**30, None):
        monkeypatch.setattr("prismgp._system.bytes_within_limit", lambda enough=enough: enough)
        reserve_memory()


def test_amounts_as_text():
    assert [format_amount(each) for each in (12345.6, 0.012345, -5.0)] == ["12,346", "0.01235", "-5"]

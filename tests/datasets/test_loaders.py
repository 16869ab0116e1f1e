"""The loaders, on the real files where they are there and on made-up files of the same form."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import requests

import prismgp
from prismgp.datasets import (
    UCI_NAMES,
    cache_folder,
    data_folder,
    gas_sensor_files,
    load_abalone,
    load_beijing_pm25,
    load_flights,
    load_gas_sensor,
    load_uci,
)
from prismgp.datasets import gas_sensor as gas_module
from prismgp.datasets.cache import Resource, sha256_of
from prismgp.datasets.gas_sensor import GAS_FILES, GAS_INPUTS
from prismgp.datasets.loaders import (
    ABALONE,
    BEIJING,
    BEIJING_COLUMNS,
    STATIONS,
    UCI,
    WINDS,
    convert_beijing,
    convert_flights,
)
from prismgp.exceptions import DataError
from tests.datasets.test_cache import zipped

SHAPES = {
    "airfoil": (1503, 5),
    "concrete": (1030, 8),
    "elevators": (16599, 18),
    "energy": (768, 8),
    "keggdirected": (48827, 20),
    "kin40k": (40000, 8),
    "pol": (15000, 26),
    "pumadyn32nm": (8192, 32),
}


@pytest.fixture
def offline(monkeypatch):
    """Downloads fail at once, whatever the address."""

    def fail(*_, **__):
        raise requests.exceptions.ConnectionError("no network")

    monkeypatch.setattr("requests.get", fail)


def same(data, old):
    new = data.X_train, data.y_train, data.X_test, data.y_test
    for one, other in zip(new, old, strict=True):
        values = one.to_numpy()
        assert values.dtype == other.dtype
        np.testing.assert_array_equal(values, other)


# -- abalone and the common collection ---------------------------------------------------------------


def test_package_has_the_module(real):
    data = prismgp.datasets.load_abalone()
    assert repr(data) == "<Dataset abalone: 4,177 rows (1,177 held out), 10 inputs, target 'Rings'>"
    assert data.X.columns[:4].tolist() == ["Sex=F", "Sex=I", "Sex=M", "Length"]
    assert not data.simulated
    assert data.origin.startswith("https://")


@pytest.mark.parametrize("split", [0, 4])
def test_abalone_is_as_before(real, split):
    frame = pd.read_csv(real / "abalone" / "abalone.data", header=None)
    frame = pd.concat([pd.get_dummies(frame[0], dtype=float), frame.iloc[:, 1:].astype(float)], axis=1)
    table = frame.to_numpy()
    test = np.ones(len(table), dtype=bool)
    test[np.random.default_rng(split).permutation(len(table))[:3000]] = False
    same(load_abalone(split), (table[~test, :-1], table[~test, -1], table[test, :-1], table[test, -1]))


def test_abalone_fraction(real):
    data = load_abalone(1, test_fraction=0.2)
    assert data.test.sum() == 835
    assert not (data.test & ~load_abalone(1).test).any()  # the larger training set contains the smaller


@pytest.mark.parametrize("name", UCI_NAMES)
def test_uci_is_as_before(real, name):
    table = pd.read_csv(real / "uci" / name / "data.csv.gz", header=None).to_numpy(dtype=float)
    masks = pd.read_csv(real / "uci" / name / "test_mask.csv.gz", header=None).to_numpy()
    data = load_uci(name, 7)
    test = masks[:, 7].astype(bool)
    same(data, (table[~test, :-1], table[~test, -1], table[test, :-1], table[test, -1]))
    assert data.X.shape == SHAPES[name]
    assert ("duplicates" in data.note) == (name == "keggdirected")


def test_checksums_are_those_of_the_files(real):
    for resource in [ABALONE, *(resource for pair in UCI.values() for resource in pair)]:
        assert sha256_of(real / resource.path) == resource.sha256


@pytest.mark.parametrize(
    ("name", "reason"), [("bike", "determine the target"), ("wine", "alcohol"), ("gas", "gas drift"), ("x", "kin40k")]
)
def test_refused_sets(name, reason):
    with pytest.raises(DataError, match=reason):
        load_uci(name)


@pytest.mark.parametrize("split", [-1, 10, 1.0, "0"])
def test_bad_split(real, split):
    with pytest.raises(DataError, match="split must be"):
        load_uci("energy", split)


@pytest.mark.parametrize("fraction", [0, 1, 2.0, "0.2"])
def test_bad_fraction(fraction):
    with pytest.raises(DataError, match="test_fraction"):
        load_abalone(test_fraction=fraction)


# -- no network ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "load",
    [load_abalone, lambda: load_uci("pol"), load_beijing_pm25, load_flights, load_gas_sensor, gas_sensor_files],
)
def test_offline_says_what_to_do(offline, own_folder, cache, load):
    with pytest.raises(DataError) as caught:
        load()
    for words in ("https://", "by hand", str(cache), "PRISMGP_DATA"):
        assert words in str(caught.value)


def test_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.setenv("PRISMGP_DATA", str(tmp_path / "absent"))
    assert data_folder() is None
    monkeypatch.delenv("PRISMGP_DATA")
    assert data_folder() is None
    monkeypatch.delenv("PRISMGP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "prismgp"


# -- Beijing -------------------------------------------------------------------------------------------


def station_csv(station, hours, wind="SW"):
    """A file of the published form, of 1 March in a leap year."""
    names = "No,year,month,day,hour,PM2.5,PM10,SO2,NO2,CO,O3,TEMP,PRES,DEWP,RAIN,wd,WSPM,station"
    lines = [f"{h + 1},2016,3,1,{h},{10 + h},NA,4,7,300,77,-0.7,1023,-18.8,0,{wind},4.4,{station}" for h in hours]
    return "\n".join([names, *lines]) + "\n"


def beijing_zip(members):
    return zipped({"PRSA2017_Data_20130301-20170228.zip": zipped(members), "data.csv": "a\n1\n"})


def file_of(station):
    return f"PRSA_Data_20130301-20170228/PRSA_Data_{station}_20130301-20170228.csv"


def test_beijing_conversion(tmp_path):
    gap = station_csv("Aotizhongxin", range(4)).replace(",300,", ",NA,", 1)
    path = tmp_path / "raw.zip"
    path.write_bytes(
        beijing_zip(
            {
                file_of("Wanliu"): station_csv("Wanliu", range(2), wind="NNW"),
                file_of("Aotizhongxin"): gap,
            }
        )
    )
    table = convert_beijing(path)
    assert tuple(table.columns) == BEIJING_COLUMNS
    assert (table.dtypes == np.float32).all()
    assert table["station"].tolist() == [0, 0, 0, 10, 10]
    assert table["hour"].tolist() == [1, 2, 3, 0, 1]  # the incomplete hour is gone; PM10 is not used
    assert table["PM2.5"].tolist() == [11, 12, 13, 10, 11]
    assert (table["day_of_year"] == 61).all()  # 2016 has a 29 February
    half = np.sqrt(0.5)
    np.testing.assert_allclose(table.loc[0, ["wind_sin", "wind_cos"]].astype(float), [-half, -half], rtol=1e-6)
    np.testing.assert_allclose(table.loc[4, ["wind_sin", "wind_cos"]].astype(float), [-0.382683, 0.92388], rtol=1e-5)
    assert np.isclose(table.loc[0, "TEMP"], -0.7)


def test_beijing_from_archive_to_dataset(own_folder, cache, monkeypatch):
    members = {file_of(name): station_csv(name, range(10)) for name in STATIONS}
    archive = own_folder / BEIJING.path
    archive.parent.mkdir()
    archive.write_bytes(beijing_zip(members))
    published = Resource(BEIJING.path, BEIJING.addresses, sha256_of(archive))
    monkeypatch.setattr("prismgp.datasets.loaders.BEIJING", published)
    first = load_beijing_pm25(2)
    assert first.X.shape == (120, 15)
    assert first.test.sum() == 12
    assert (cache / "beijing_pm25.parquet").is_file()
    archive.unlink()
    pd.testing.assert_frame_equal(load_beijing_pm25(2).X, first.X)  # now from the cache


@pytest.mark.parametrize(
    ("old", "new", "message"), [("SW", "up", "'wd' holds 'up'"), ("Wanliu\n", "Here\n", "Here"), ("PRES", "P", "PRES")]
)
def test_beijing_strange_files(tmp_path, old, new, message):
    path = tmp_path / "raw.zip"
    path.write_bytes(beijing_zip({file_of("Wanliu"): station_csv("Wanliu", [0]).replace(old, new)}))
    with pytest.raises(DataError, match=message):
        convert_beijing(path)


def test_sixteen_winds():
    assert len(set(WINDS)) == 16


def test_beijing_real(real):
    data = load_beijing_pm25()
    assert data.X.shape == (382_350, 15)
    assert data.test.sum() == 38_235
    assert set(data.X["station"]) == set(range(12))
    winds = np.arctan2(data.X["wind_sin"], data.X["wind_cos"]) / (2 * np.pi / len(WINDS))
    assert np.abs(winds - winds.round()).max() < 1e-5


# -- flights ---------------------------------------------------------------------------------------------


def test_flights_conversion(tmp_path):
    pd.DataFrame(
        {
            "date": np.array(
                ["2001-01-01T00:01", "2001-06-30T23:59", *["2001-02-01T00:00"] * 3], dtype="datetime64[us]"
            ),
            "delay": [33, -60, 361, -61, 0],
            "distance": [2176, 215, 1, 1, 1],
            "origin": ["LAS", "ATL", "LAS", "LAS", "XXX"],
            "destination": ["ATL", "LAS", "ATL", "ATL", "LAS"],
        }
    ).to_parquet(tmp_path / "flights.parquet")
    (tmp_path / "airports.csv").write_text(
        "iata,name,city,state,country,latitude,longitude\nLAS,a,b,NV,USA,36.08,-115.15\nATL,a,b,GA,USA,33.64,-84.43\n"
    )
    table = convert_flights(tmp_path / "flights.parquet", tmp_path / "airports.csv")
    expected = [
        [1, 0, 1, 2176, 36.08, -115.15, 33.64, -84.43, 33],  # a Monday
        [181, 5, 1439, 215, 33.64, -84.43, 36.08, -115.15, -60],
    ]
    np.testing.assert_array_equal(table.to_numpy(), np.array(expected, dtype=np.float32))


def test_flights_real(real):
    data = load_flights()
    assert data.X.shape == (2_998_826, 8)
    assert data.X.columns.tolist()[:4] == ["day_of_year", "day_of_week", "minute_of_day", "distance"]
    assert data.test.sum() == 299_882
    order = np.random.default_rng(0).permutation(len(data.y))  # the rows that the benchmark holds out
    assert data.test[order[: len(data.y) // 10]].all()


def test_strange_table(own_folder):
    pd.DataFrame({"delay": [1.0]}).to_parquet(own_folder / "flights.parquet")
    with pytest.raises(DataError, match="no column day_of_year"):
        load_flights()
    (own_folder / "flights.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="cannot be read"):
        load_flights()


# -- the gas sensor array --------------------------------------------------------------------------------

HEADER = ",".join(["Time (s)", "CO (ppm)", *GAS_INPUTS])


def gas_csv(rows, first):
    """A file of the published form; the first input counts the rows of all files."""
    lines = [f"{0.3 * i:.4f},{(first + i) % 20:.4f},{first + i}" + ",0.5000" * 17 for i in range(rows)]
    return "\n".join([HEADER, *lines]) + "\n"


@pytest.fixture
def gas_files(own_folder):
    folder = own_folder / "gas_sensor"
    folder.mkdir()
    for number, name in enumerate(GAS_FILES):
        (folder / name).write_text(gas_csv(100, 100 * number))
    return folder


def test_gas_all_rows(gas_files):
    assert [path.name for path in gas_sensor_files()] == list(GAS_FILES)
    data = load_gas_sensor()
    assert data.X.shape == (1300, 18)
    assert data.X.iloc[:, 0].tolist() == list(range(1300))
    assert (data.y == np.arange(1300) % 20).all()
    assert data.test.sum() == 260


@pytest.mark.parametrize("batch", [1 << 11, 1 << 23])
def test_gas_sample(gas_files, monkeypatch, batch):
    monkeypatch.setattr(gas_module, "BATCH_BYTES", batch)
    data = load_gas_sensor(200, 1)
    rows = data.X.iloc[:, 0]
    assert rows.is_monotonic_increasing
    assert rows.nunique() == 200
    assert data.test.sum() == 40
    expected = np.sort(np.argsort(np.random.default_rng([1, 0]).random(1300))[:200])
    np.testing.assert_array_equal(rows, expected)


def test_gas_sample_is_bounded(gas_files, monkeypatch):
    largest = []
    keep = gas_module.keep_smallest

    def watched(kept, n):
        largest.append(sum(len(keys) for keys, _, _ in kept))
        return keep(kept, n)

    monkeypatch.setattr(gas_module, "keep_smallest", watched)
    monkeypatch.setattr(gas_module, "SLACK_ROWS", 50)
    monkeypatch.setattr(gas_module, "BATCH_BYTES", 1 << 11)
    rows = load_gas_sensor(20, 1).X.iloc[:, 0]
    assert max(largest) < 200
    assert len(largest) > 1
    np.testing.assert_array_equal(rows, np.sort(np.argsort(np.random.default_rng([1, 0]).random(1300))[:20]))


def test_gas_sample_is_uniform(gas_files):
    rows = np.concatenate([load_gas_sensor(130, seed).X.iloc[:, 0] for seed in range(30)])
    counts = np.bincount(rows.astype(int) // 100)
    assert np.abs(counts - 300).max() < 5 * np.sqrt(300)


def test_gas_too_many(gas_files):
    with pytest.raises(DataError, match="1,300 rows"):
        load_gas_sensor(1301)


def test_gas_incomplete_folder_is_named(gas_files, offline):
    (gas_files / GAS_FILES[4]).unlink()
    with pytest.raises(DataError, match=f"lacks {GAS_FILES[4]}"):
        gas_sensor_files()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("R7 (MOhm)", "R7", "R7"), ("0.5000\n", "what\n", "what"), (",0.5000\n", ",nan\n", "R14")],
)
def test_gas_strange_file(gas_files, old, new, message):
    path = gas_files / GAS_FILES[3]
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=f"{GAS_FILES[3]}.*{message}"):
        load_gas_sensor()


def test_gas_from_archive(own_folder, cache, site, monkeypatch):
    site.content = zipped({f"data/{name}": gas_csv(10, 10 * i) for i, name in enumerate(GAS_FILES)})
    resource = Resource("gas_sensor/gas.zip", (site.address,), None)
    monkeypatch.setattr("prismgp.datasets.gas_sensor.GAS_SENSOR", resource)
    assert load_gas_sensor().X.shape == (130, 18)
    assert (cache / "gas_sensor" / GAS_FILES[0]).is_file()
    load_gas_sensor()
    assert len(site.requests) == 1


def test_gas_archive_without_all_files(own_folder, site, monkeypatch):
    site.content = zipped({name: gas_csv(10, 0) for name in GAS_FILES[1:]})
    resource = Resource("gas_sensor/gas.zip", (site.address,), None)
    monkeypatch.setattr("prismgp.datasets.gas_sensor.GAS_SENSOR", resource)
    with pytest.raises(DataError, match=f"lacks {GAS_FILES[0]}"):
        gas_sensor_files()


def test_gas_measured_format(data_folder, own_folder):
    """The beginning of a measured file, as every one of the thirteen."""
    [fixture] = (data_folder / "gas_sensor").glob("*.csv")
    folder = own_folder / "gas_sensor"
    folder.mkdir()
    for name in GAS_FILES:
        (folder / name).symlink_to(fixture)
    data = load_gas_sensor()
    assert data.X.shape == (13 * 2956, 18)
    measured = pd.read_csv(fixture, dtype=np.float32)
    pd.testing.assert_frame_equal(data.X[:2956], measured[list(GAS_INPUTS)])
    pd.testing.assert_series_equal(data.y[:2956], measured["CO (ppm)"])
    assert load_gas_sensor(1000).X.shape == (1000, 18)

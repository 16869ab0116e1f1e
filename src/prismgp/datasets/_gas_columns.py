"""Columns and files of the gas sensor array, measured and simulated."""

from __future__ import annotations

__all__ = ["GAS_FILES", "GAS_INPUTS", "GAS_TARGET", "N_SENSORS"]

N_SENSORS = 14
GAS_TARGET = "CO (ppm)"
GAS_INPUTS = (
    "Humidity (%r.h.)",
    "Temperature (C)",
    "Flow rate (mL/min)",
    "Heater voltage (V)",
    *(f"R{number} (MOhm)" for number in range(1, N_SENSORS + 1)),
)
GAS_FILES = (  # one per day of measurements; the name is its start
    "20160930_203718.csv",
    "20161001_231809.csv",
    "20161003_085624.csv",
    "20161004_104124.csv",
    "20161005_140846.csv",
    "20161006_182224.csv",
    "20161007_210049.csv",
    "20161008_234508.csv",
    "20161010_095046.csv",
    "20161011_113032.csv",
    "20161013_143355.csv",
    "20161014_184659.csv",
    "20161016_053656.csv",
)

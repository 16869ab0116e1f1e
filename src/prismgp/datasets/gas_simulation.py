"""A simulated gas sensor array, of any length, in any pieces.

Chamber, heater and fourteen metal-oxide sensors are functions of time. Every quantity has a closed form in time, so
that any row can be computed without those before it.

==================  ==============================================================================
t                   seconds since the start of the campaign, which has days of 100 conditions
condition           15 minutes with one concentration c (ppm) and one relative humidity H (%)
chamber             follows its conditions with an exponential lag
heater              0.9 V for 5 s, then 0.2 V for 15 s and 20 s in turn
cold sensor         ln R = ln peak - g(u) (fall - w) - (1/4 + 3/4 g(u)) b ln(1 + k c): falls with the
                    seconds u since it began to cool, g(u) = u^2 / (u^2 + s^2), and by a power of the gas
hot sensor          ln R = ln hot + slow recovery + 0.3 w, hardly dependent on the gas
k, b                of each sensor; humid air weakens the gas's effect
w                   effect of humidity (a power), temperature, and drift: slow sines for every sensor
==================  ==============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd

from prismgp._types import Array
from prismgp.datasets.dataset import Dataset, check_count, held_out
from prismgp.datasets.gas_sensor import GAS_INPUTS, GAS_TARGET, N_SENSORS
from prismgp.exceptions import DataError

Order = Literal["random", "time"]
_BLOCK = 8_192  # rows that share a random stream; changing it changes the data
_NAMES = [GAS_TARGET, *GAS_INPUTS]
Rows = npt.NDArray[np.float32]

SAMPLING_SECONDS = 0.308  # between rows of the published files
CONDITION_SECONDS = 900.0
CONDITIONS_PER_DAY = 100
N_DAYS = 13
CAMPAIGN_SECONDS = N_DAYS * CONDITIONS_PER_DAY * CONDITION_SECONDS
DAY_SECONDS = 86_400.0

LEVELS = np.linspace(0.0, 20.0, 10)  # ppm
LOW_HUMIDITY, HIGH_HUMIDITY = 15.0, 75.0
CHAMBER_LAG = 45.0  # seconds
HUMIDITY_LAG = 70.0
CYCLE = 45.0
HEATS = ((0.0, 5.0), (20.0, 25.0))  # seconds of the cycle with the heater at 0.9 V
HOT_VOLTS, COLD_VOLTS = 0.9, 0.2
HEATING_SECONDS, COOLING_SECONDS = 0.12, 0.55  # of the sensors' surface
N_WAVES = 3
MODELS = (  # hot and peak in MOhm, then as in Unit; amplitude of the drift
    ((0.085, 75.0, 3.8, 9.0, 0.5, 0.55, 0.06, 0.45, 0.05, 0.35, 18.0, 0.012), 0.1),
    ((0.10, 62.0, 0.9, 16.0, 0.25, 0.28, 0.04, 0.3, 0.03, 0.02, 35.0, 0.02), 0.07),
)
Single = np.float32


def make_gas_sensor(n_rows: int, random_state: int = 0, *, order: Order = "random") -> Dataset:
    """Simulate the gas sensor array: carbon monoxide from 18 inputs, with the columns of the measured set.

    Steps of concentration and humidity in a chamber that follows with a lag; a heater that switches between two
    voltages; two models of seven sensors, with power laws, lags, drift over days and multiplicative noise.

    Parameters
    ----------
    n_rows : int
    random_state : int, default 0
        Row i depends on this, on i and on ``order`` only: a longer simulation begins with the shorter one.
    order : {"random", "time"}, default "random"
        "random": rows at random moments of the 13 days, as in a uniform sample. "time": rows every 0.308 s from the
        start, as in a file of the measured set.

    Returns
    -------
    Dataset
        float32, a random fifth held out, ``simulated`` is True.

    Raises
    ------
    DataError
        An argument is unusable.

    See Also
    --------
    load_gas_sensor : The measured set.

    Examples
    --------
    >>> from prismgp.datasets import make_gas_sensor
    >>> make_gas_sensor(1000)
    <Dataset gas_sensor_simulated: simulated, 1,000 rows (200 held out), 18 inputs, target 'CO (ppm)'>
    """
    seed = check_count("random_state", random_state, least=0)
    total = check_count("n_rows", n_rows)
    if order not in get_args(Order):
        raise DataError(f"order must be 'random' or 'time', not {order!r}")
    table = next(simulate_rows(0, total, total, seed, order))
    return Dataset(
        name="gas_sensor_simulated",
        X=pd.DataFrame(table[:, 1:], columns=list(GAS_INPUTS), copy=False),
        y=pd.Series(table[:, 0], name=GAS_TARGET),
        test=held_out(total, 0.2, [seed, 1]),
        simulated=True,
        title="Simulated gas sensor array",
        origin="",
        licence="MIT, as this library",
        note="Simulated: computed from a simple model of a chamber with fourteen heated metal-oxide sensors. "
        "Scores on it say nothing about the measured set.",
    )


def _block(number: int, seed: int, order: Order) -> Rows:
    """A block of rows, (8192, 19): the unit of randomness."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(2, number)))
    if order == "random":
        t = rng.uniform(0, CAMPAIGN_SECONDS, _BLOCK)
    else:
        t = SAMPLING_SECONDS * (number * _BLOCK + np.arange(_BLOCK) + rng.uniform(0, 0.01, _BLOCK))
    return simulate(seed, t, rng)


def simulate_rows(start: int, stop: int, size: int, seed: int, order: Order) -> Iterator[Rows]:
    """The rows from ``start`` to ``stop`` in pieces of ``size``, (size, 19); the last may have fewer."""
    number, block = -1, np.empty((0, len(_NAMES)), dtype=np.float32)
    for first in range(start, stop, size):
        last = min(first + size, stop)
        piece = np.empty((last - first, len(_NAMES)), dtype=np.float32)
        at = first
        while at < last:
            if at // _BLOCK != number:
                number = at // _BLOCK
                block = _block(number, seed, order)
            inside = at - number * _BLOCK
            count = min(_BLOCK - inside, last - at)
            piece[at - first : at - first + count] = block[inside : inside + count]
            at += count
        yield piece


# -- the model ---------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def day_conditions(random_state: int, day: int) -> tuple[Array, Array]:
    """Concentration and humidity of a day's conditions, (100,) each: every level ten times, in random order."""
    rng = np.random.default_rng(np.random.SeedSequence(random_state, spawn_key=(0, day)))
    gas = rng.permutation(np.repeat(LEVELS, CONDITIONS_PER_DAY // len(LEVELS)))
    humidity = rng.uniform(LOW_HUMIDITY + 1, HIGH_HUMIDITY - 1, CONDITIONS_PER_DAY)
    return gas, humidity


class Weather(NamedTuple):
    """The settings of the chamber, (n,) each."""

    gas: Array  # of the present condition
    humidity: Array
    gas_before: Array  # of the previous condition
    humidity_before: Array
    since: Array  # seconds since the change

    @classmethod
    def at(cls, random_state: int, t: Array) -> Weather:
        """The conditions at the times."""
        number = np.floor(t / CONDITION_SECONDS).astype(np.int64)
        first = int(number.min()) // CONDITIONS_PER_DAY - 1
        last = int(number.max()) // CONDITIONS_PER_DAY
        days = [day_conditions(random_state, max(day, 0)) for day in range(first, last + 1)]
        gas, humidity = (np.concatenate(column) for column in zip(*days, strict=True))
        place = number - first * CONDITIONS_PER_DAY
        return cls(gas[place], humidity[place], gas[place - 1], humidity[place - 1], t - number * CONDITION_SECONDS)


def heater_cycle(t: Array) -> tuple[npt.NDArray[np.bool_], Array]:
    """Whether the heater is on, and the seconds since it was switched, (n,) each."""
    u = np.mod(t, CYCLE)
    hot = np.zeros(t.shape, dtype=bool)
    since = np.empty_like(u)
    for (start, stop), following in zip(HEATS, (HEATS[1][0], CYCLE), strict=True):
        on = (u >= start) & (u < stop)
        off = (u >= stop) & (u < following)
        hot |= on
        since[on] = u[on] - start
        since[off] = u[off] - stop
    return hot, since


class Unit(NamedTuple):
    """The constants of one sensor: Python numbers, so that float32 stays float32."""

    drift: list[tuple[float, float, float]]  # amplitude, radians per day, phase
    log_hot: float
    log_peak: float
    log_fall: float
    fall_seconds: float
    sensitivity: float  # per ppm
    exponent: float
    hot_exponent: float
    wetness: float
    warmth: float  # per degree
    recovery: float
    lag: float  # seconds
    noise: float


@lru_cache(maxsize=16)
def sensor_units(random_state: int) -> tuple[Unit, ...]:
    """Seven units of each of the two models, with random differences between units."""
    rng = np.random.default_rng(np.random.SeedSequence(random_state, spawn_key=(1,)))

    def unit(values: tuple[float, ...], drift: float) -> Unit:
        hot, peak, *rest = (value * math.exp(0.2 * rng.standard_normal()) for value in values)
        amplitudes = drift * rng.uniform(0.3, 1.0, N_WAVES) / math.sqrt(N_WAVES)
        rates = 2 * np.pi / np.exp(rng.uniform(np.log(0.8), np.log(12.0), N_WAVES))
        phases = rng.uniform(0, 2 * np.pi, N_WAVES)
        waves = list(zip(amplitudes.tolist(), rates.tolist(), phases.tolist(), strict=True))
        return Unit(waves, math.log(hot), math.log(peak), *rest)

    return tuple(unit(*model) for model in MODELS for _ in range(N_SENSORS // len(MODELS)))


def simulate(random_state: int, t: Array, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Concentration, then the inputs in the order of the published files, (n, 19), at times in seconds, (n,).

    ``random_state`` decides conditions and sensors, ``rng`` the noise.
    """
    n = len(t)
    weather = Weather.at(random_state, t)
    units = sensor_units(random_state)
    since = weather.since
    columns = np.empty((5 + N_SENSORS, n), dtype=np.float32)

    step = weather.gas_before - weather.gas
    columns[0] = weather.gas + step * np.clip(1 - since / 1.2, 0, 1)  # the controllers' value: the chamber lags
    wet_step = weather.humidity_before - weather.humidity
    humidity = weather.humidity + wet_step * np.exp(-since / HUMIDITY_LAG) + 0.4 * np.sin(t * (2 * np.pi / 410.0))
    columns[1] = humidity + 0.25 * rng.standard_normal(n)
    daily = 2 * np.pi / DAY_SECONDS
    warmth = 0.45 * np.sin(daily * t + 1.0) + 0.25 * np.sin(0.23 * daily * t) + 0.08 * np.sin(11.3 * daily * t)
    columns[2] = 26.8 + warmth + 0.02 * rng.standard_normal(n)
    columns[3] = 240.0 - 2.5 * np.exp(-since / 1.5) + 0.2 * rng.standard_normal(n)

    hot, u = heater_cycle(t)
    volts = np.where(hot, HOT_VOLTS, COLD_VOLTS)
    other = np.where(hot, COLD_VOLTS, HOT_VOLTS)
    approach = np.exp(u * -9.0) + np.where(hot, 0.012, 0.016) * np.exp(u * -1.4)
    columns[4] = volts + (other - volts) * np.minimum(approach, 1) + 0.0007 * rng.standard_normal(n)

    # A cold sensor, and one that was cold until it was switched: its fall stops where the heater came on.
    rest = np.where(np.mod(t, CYCLE) < HEATS[0][1], CYCLE - HEATS[1][1], HEATS[1][0] - HEATS[0][1])
    cold_for = np.where(hot, rest, u).astype(Single)
    blend = np.where(hot, np.exp(u * (-1 / HEATING_SECONDS)), 1 - np.exp(u * (-1 / COOLING_SECONDS)))  # share of cold
    recovery = np.where(hot, 1 - np.exp(u * (-1 / 1.8)), 1.0).astype(Single)
    log_wet = np.log(np.maximum(humidity, 1.0) * (1 / 45.0)).astype(Single)
    noise = rng.standard_normal((N_SENSORS, n), dtype=Single)
    noise *= (0.35 + 0.65 * blend).astype(Single)
    share, warm, after, jump, now, days = (
        values.astype(Single) for values in (blend, warmth, since, step, weather.gas, t / DAY_SECONDS)
    )
    damped = 1 - 0.4 * log_wet  # humid air leaves fewer places for the gas
    for i, unit in enumerate(units):
        gas = now + jump * np.exp(after * Single(-1 / (CHAMBER_LAG + unit.lag)))
        reach = np.log1p(unit.sensitivity * gas) * damped
        fall = np.square(cold_for * Single(1 / unit.fall_seconds))
        fall /= 1 + fall
        common = -unit.wetness * log_wet - unit.warmth * warm
        for size, rate, phase in unit.drift:
            common += size * np.sin(rate * days + phase)
        cold = unit.log_peak - fall * (unit.log_fall - common) - (0.25 + 0.75 * fall) * (unit.exponent * reach)
        level = unit.log_hot + unit.recovery * recovery + 0.3 * common - unit.hot_exponent * reach
        level += share * (cold - level)
        level += unit.noise * noise[i]
        np.exp(level, out=columns[5 + i])
    return np.ascontiguousarray(columns.T)

"""Everything that experiments use of the library's models beside its public names, in one place.

A change inside the library changes this file and ``machine.py``, and no other one here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from prismgp import PrismGPRegressor, SSGPRegressor
from prismgp._system import DEVICES, Streams, compute_device
from prismgp._types import AnyArray, Array
from prismgp.cli.common import split_rows
from prismgp.context import FitEvent
from prismgp.core.evidence import SpectralEvidence
from prismgp.core.exact import check_memory, required_bytes
from prismgp.core.kernels import default_start, draw_frequencies, get_kernel, squared_distance
from prismgp.core.models import SpectralModel
from prismgp.core.shape_fit import fit_shape
from prismgp.data import ArraySource, Chunks, Source, StandardisedRows, auto_chunk_rows, fit_standardiser
from prismgp.data import chunks as chunks_module
from prismgp.datasets.cache import search_folders
from prismgp.datasets.dataset import check_count, held_out
from prismgp.datasets.gas_sensor import GAS_INPUTS, GAS_TARGET
from prismgp.datasets.gas_sensor import read_rows as read_gas_sensor
from prismgp.datasets.gas_simulation import CAMPAIGN_SECONDS, Order, simulate, simulate_rows
from prismgp.neighbors import NeighborModel
from prismgp.neighbors.shards import PointShards
from prismgp.plots import FAINT, INK, drawing_style
from prismgp.prism import Expert, InformedMap, Mixture, NetworkSizes, ReconfiguredMap, RevisedMap
from prismgp.prism.fit import MANY_ROWS
from prismgp.prism.local import LeaveOneOut, LocalMixture, read_coordinates
from prismgp.prism.maps import MapStatistics
from prismgp.prism.members import Member, MemberSettings
from prismgp.prism.stacking import selection_factor
from prismgp.prism.train import MemberTraining
from prismgp.prism.training_rows import hash_inputs, held_out_rows, open_rows
from prismgp.vae import torch_generator

__all__ = [
    "CAMPAIGN_SECONDS",
    "DEVICES",
    "FAINT",
    "GAS_INPUTS",
    "GAS_TARGET",
    "INK",
    "MANY_ROWS",
    "AnyArray",
    "Array",
    "ArraySource",
    "Chunks",
    "Expert",
    "LeaveOneOut",
    "MapStatistics",
    "Member",
    "MemberSettings",
    "MemberTraining",
    "Mixture",
    "NetworkSizes",
    "Order",
    "PointShards",
    "Products",
    "RevisedMap",
    "Source",
    "SpectralEvidence",
    "StandardisedRows",
    "Streams",
    "auto_chunk_rows",
    "check_count",
    "check_memory",
    "compute_device",
    "default_start",
    "draw_frequencies",
    "drawing_style",
    "evaluate_evidence",
    "find_network",
    "fit_shape",
    "fit_standardiser",
    "get_kernel",
    "hash_inputs",
    "held_out",
    "held_out_rows",
    "list_products",
    "observe_fit",
    "open_rows",
    "read_coordinates",
    "read_gas_sensor",
    "reconfigure",
    "required_bytes",
    "search_folders",
    "simulate",
    "simulate_rows",
    "split_rows",
    "squared_distance",
    "standardise",
    "time_waiting",
    "torch_generator",
    "unpack_exact",
    "watch_traffic",
    "without_neighbours",
]


def observe_fit(model: Any, callback: Callable[[Any], None] | None) -> None:
    """Have a callback called in the course of the model's next fits; None: no more.

    It is called with an event that has ``stage``, ``iteration``, ``seconds``, ``rows``, ``log_evidence``, ``final``
    and ``model()``, which gives a fitted estimator like the one that is being fitted.
    """

    def tell(event: FitEvent) -> None:
        assert callback is not None
        callback(replace(event, model=lambda: _copy_with(model, event.model())))

    model._callback = None if callback is None else tell


def _copy_with(model: Any, fitted: Any) -> Any:
    twin = copy(model)
    twin._callback = None
    twin._adopt(fitted)
    return twin


# -- fitted models ---------------------------------------------------------------------------------


def without_neighbours(model: PrismGPRegressor) -> PrismGPRegressor | None:
    """What ``local="never"`` would have found: the mixture of experts alone; None if it is used alone anyway.

    With few rows its variances may differ, as its residuals suit another shape of the noise, or (Z8) another variance.
    """
    fitted, status = model.model_, model.fit_status_
    if not isinstance(fitted.predictor, LocalMixture):
        return None
    base, m = fitted.predictor.base, status["held_out_rows"]
    factor = 1.0 if status["weights"]["ssgp"] == 1.0 else selection_factor(None, m)
    return _copy_with(model, replace(fitted, predictor=replace(base, temperature=base.temperature * factor)))


def standardise(model: Any, x: AnyArray) -> Any:
    """The rows as the model's kernel or network gets them, a tensor (n, d)."""
    return model.model_.to_model(x)


def reconfigure(model: PrismGPRegressor, x: AnyArray) -> tuple[Any, Array]:
    """Latent inputs of a two-stage model and its length-scales, in the same units."""
    leader = model.model_.predictor.leader
    assert isinstance(leader.map, ReconfiguredMap)
    latent = leader.map.reconfigure(standardise(model, x))
    return (latent - leader.map.shift) / leader.map.scale, leader.params.lengthscale


def find_network(model: PrismGPRegressor) -> tuple[RevisedMap, Array] | None:
    """The trained network and the length-scales of what its GP sees; None if the model has no network."""
    experts = sorted(model.model_.predictor.experts, key=lambda expert: isinstance(expert.map, InformedMap))
    for expert in experts:
        network = expert.map.network if isinstance(expert.map, InformedMap) else expert.map
        if isinstance(network, RevisedMap):
            return network, network.parameters_now().lengthscale
    return None


def unpack_exact(model: SSGPRegressor) -> tuple[Any, Any]:
    """Standardiser and parameters of the exact GP that the model approximates."""
    return model.model_.standardiser, model.model_.predictor.params


@dataclass(frozen=True)
class Products:
    """Sizes of the matrices that a prediction of rows must multiply or factor."""

    chunk_rows: int  # rows at a time
    # One list for each expert: rows and columns of each matrix, precision, and whether cosine and sine follow.
    spectral: list[list[tuple[int, int, torch.dtype, bool]]]
    near: list[tuple[int, int, int]]  # of each neighbour GP: rows, coordinates, neighbours


def list_products(model: Any) -> Products:
    """What the prediction of a fitted regressor must compute, whatever it is implemented by."""
    fitted, predictor = model.model_, model.model_.predictor
    spectral, near = [], []
    if isinstance(predictor, NeighborModel):
        near = [predictor.gp]
    elif isinstance(predictor, SpectralModel):
        plain = _plain_products(predictor.base.T, fitted.dtype)
        spectral = [[*plain, _posterior_product(predictor.posterior.blocks[0])]]
    else:
        mixture = predictor
        if isinstance(predictor, LocalMixture):
            mixture, near = predictor.base, [each.gp for each in predictor.near]
        spectral = [[*_map_products(each.map), _posterior_product(each.posterior)] for each in mixture.experts]
    return Products(fitted.prediction_rows, spectral, [(gp.n_rows, gp.coordinates.shape[1], gp.k) for gp in near])


def _map_products(feature_map: Any) -> Iterator[tuple[int, int, torch.dtype, bool]]:
    if isinstance(feature_map, InformedMap):
        yield from _plain_products(feature_map.plain.w, feature_map.plain.w.dtype)
    elif not isinstance(feature_map, RevisedMap):
        yield from _plain_products(feature_map.w, feature_map.w.dtype)
        return
    network = feature_map.network if isinstance(feature_map, InformedMap) else feature_map
    for layer in network.layers:
        yield layer.in_features, layer.out_features, torch.float32, False
    if network is feature_map:
        head, frequencies = network.latent_head, network.frequencies
        yield head.in_features, head.out_features, torch.float32, False
        yield frequencies.shape[1], frequencies.shape[0], torch.float32, True


def _plain_products(w: Any, dtype: torch.dtype) -> Iterator[tuple[int, int, torch.dtype, bool]]:
    yield w.shape[0], w.shape[1], dtype, True


def _posterior_product(posterior: Any) -> tuple[int, int, torch.dtype, bool]:
    """Mean and variance in one product."""
    width, q = posterior.weight_mean.shape
    return width, q * (width + 1), torch.float64, False


# -- measuring -------------------------------------------------------------------------------------


def evaluate_evidence(objective: SpectralEvidence, params: Any) -> Any:
    """Evidence and gradient, computed anew even where they are cached."""
    objective._kept.clear()
    return objective.value_and_gradient(params)


def time_waiting(timed: Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]) -> None:
    """Wrap the function that reads chunks ahead."""
    chunks_module.prefetch = timed(chunks_module.prefetch)


def watch_traffic(record: Callable[[list[Any]], None]) -> None:
    """Have a function called with everything that a Dask cluster sends back in one pass."""
    from prismgp.data.cluster import Cluster  # needs the dask extra

    gather = Cluster.gather

    def record_traffic(self: Cluster, tasks: list[Any]) -> list[Any]:
        back = gather(self, tasks)
        record(back)
        return back

    Cluster.gather = record_traffic

"""The recipes of PrismGPRegressor: from its parameters and the rows to a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm

from prismgp._random import Streams
from prismgp._types import AnyArray, Array
from prismgp.core.kernels import get_kernel
from prismgp.data import ArraySource, MappedSource, Source, Standardiser, standardise
from prismgp.estimators._reconfigurer import TRAINING_ROWS, Reconfigurer, training_sample
from prismgp.estimators._ssgp import SSGPRegressor
from prismgp.model.checkpoint import Checkpoint
from prismgp.model.observe import Watch
from prismgp.prism import (
    Expert,
    JointFit,
    JointRecipe,
    MemberSettings,
    Mixture,
    NetworkSizes,
    PlainMap,
    ReconfiguredMap,
)

if TYPE_CHECKING:
    from prismgp.estimators._prism import PrismGPRegressor

__all__ = ["MANY_ROWS", "RECIPES", "Fitted", "fit_joint", "fit_paper", "setting"]

_LEAST_ROWS = 50  # below, nothing can be held out that would tell anything
RECIPES: dict[str, dict[str, Any]] = {
    "joint": {
        "latent_dim": 8,
        "hidden": (128, 128),
        "n_members": 4,
        "batch_size": 512,
        "max_steps": 1_000,
        "patience": 300,
    },
    "paper": {
        "latent_dim": 4,
        "hidden": 10,
        "n_members": 1,
        "batch_size": 256,
        "max_steps": 2_000,
        "patience": 500,
    },
}
# What small batches cannot show, a network does not learn; and with many rows members hardly differ by chance. There,
# the time of four members is better spent on one that sees more rows (docs/what-was-tried.md).
MANY_ROWS = 100_000
_LARGEST_BATCH_WIDTH = 1_024  # features; with more of them large batches get smaller, so that a step costs no more
_WITH_MANY_ROWS = {"joint": {"n_members": 1, "batch_size": 4_096, "max_steps": 1_500, "patience": 450}, "paper": {}}


@dataclass(frozen=True)
class Fitted:
    """What a recipe hands back.

    Attributes
    ----------
    mixture : Mixture
    status : dict
        For ``fit_status_``.
    history : dict of lists
    steps : int
    plain_lengthscale : ndarray, (d,), or None
        Of the plain SSGP on the inputs, in their standard deviations, where there is one.
    """

    mixture: Mixture
    status: dict[str, Any]
    history: dict[str, list[Any]]
    steps: int
    plain_lengthscale: Array | None


def fit_joint(model: PrismGPRegressor, source: Source, watch: Watch, checkpoint: Checkpoint) -> Fitted:
    """Networks and SSGP together, stacked with the plain SSGP."""
    streams = Streams(model.random_state)
    plain, ssgp = _plain(model, source, model._standardiser, streams, watch, checkpoint, _alone)
    before = watch.iteration
    if source.n_rows < _LEAST_ROWS:
        fit = JointFit(Mixture((plain,), np.ones(1), np.ones(source.n_outputs)), weights={plain.name: 1.0})
        message = f"fewer than {_LEAST_ROWS} rows: the plain SSGP alone"
    else:
        recipe = _joint_recipe(model, source, training_sample(source, streams))
        shift = float(np.log(model._standardiser.y_scale).mean())
        steps, n_members = recipe.settings.max_steps, recipe.n_members
        bar = tqdm(desc=type(model).__name__, total=n_members * steps, unit="step", disable=not model.verbose)
        shown = {"member": 0}

        def monitor(member: int, nlpd: float | None) -> None:
            if member != shown["member"]:  # the one before may have stopped early
                shown["member"] = member
                bar.update(member * steps - bar.n)
            if nlpd is not None:
                text = f"member {member + 1} of {n_members}, held-out NLPD {nlpd + shift:.4f}"
                bar.set_postfix_str(text, refresh=False)
            bar.update()

        def observe(number: int, steps: int, mixture: Callable[[], Mixture]) -> None:
            stage = f"member {number}"
            watch(stage, source.n_rows, lambda: model._with(mixture()), iteration=before + steps)

        with bar:
            fit = recipe.fit(plain, ssgp._start, streams, monitor, observe, checkpoint)
        failed = sum(member["held_out_nlpd"] is None for member in fit.members)
        message = f"{len(fit.members) - failed} of {n_members} members trained"
        if fit.interrupted:
            message = "interrupted; the best states so far are used"
        elif fit.weights[plain.name] == 1.0:
            message += "; not convincingly better than the plain SSGP, which is used alone"
        if fit.held_out_nlpd is not None:
            fit.held_out_nlpd += float(np.log(model._standardiser.y_scale).sum())
    status = {
        "recipe": "joint",
        "message": message,
        "interrupted": fit.interrupted,
        "weights": fit.weights,
        "members": fit.members,
        "held_out_rows": fit.held_out_rows,
        "held_out_nlpd": fit.held_out_nlpd,
        "stages": ssgp.fit_status_["stages"],
    }
    return Fitted(fit.mixture, status, fit.history, fit.steps, ssgp._params.lengthscale)


def fit_paper(model: PrismGPRegressor, source: Source, watch: Watch, checkpoint: Checkpoint) -> Fitted:
    """A Reconfigurer without labels, then an SSGP on its output."""
    streams = Streams(model.random_state)
    s = model._standardiser
    reconfigurer = Reconfigurer(
        model.n_components,
        setting(model, "latent_dim"),
        hidden=setting(model, "hidden"),
        alpha=model.alpha,
        beta=model.beta,
        batch_size=setting(model, "batch_size"),
        max_steps=setting(model, "max_steps"),
        patience=setting(model, "patience"),
        device=model.device,
        random_state=int(streams.generator("reconfigurer").integers(2**31 - 1)),
        verbose=model.verbose,
    )._fit_source(source, checkpoint.scope("reconfigurer"))
    vae, device = reconfigurer._vae, model._compute()[1]
    # The decoder was never asked for columns that do not vary; what it says of them is noise.
    constant = torch.as_tensor(s.constant_inputs)
    for name in ("mean_weight", "mean_bias"):
        getattr(vae.decoder, name)[..., constant.to(device)] = 0.0
    nothing = torch.zeros(0, dtype=torch.float64)
    encoder = ReconfiguredMap(vae, model.output, nothing, nothing, PlainMap(nothing)).to(device)
    inner_source = _reconfigured(source, encoder, s, rows=model._prediction_rows(), device=device)
    inner = Standardiser.fit(inner_source, normalize=model.normalize)
    shift, scale = torch.as_tensor(inner.x_shift), torch.as_tensor(inner.x_scale)

    def finished(plain: Expert) -> Mixture:
        assert isinstance(plain.map, PlainMap)
        feature_map = ReconfiguredMap(vae, model.output, shift, scale, plain.map).to(device)
        return _alone(replace(plain, name="reconfigured", map=feature_map))

    inner = replace(inner, y_shift=s.y_shift, y_scale=s.y_scale)
    plain, ssgp = _plain(model, inner_source, inner, streams, watch, checkpoint, finished)
    mixture = finished(plain)
    done = reconfigurer.fit_status_
    status = {
        "recipe": "paper",
        "message": done["message"],
        "interrupted": done["interrupted"],
        "weights": {mixture.leader.name: 1.0},
        "stages": ssgp.fit_status_["stages"],
    }
    return Fitted(mixture, status, reconfigurer.history_, reconfigurer.n_iter_, None)


def _reconfigured(
    source: Source, encoder: ReconfiguredMap, s: Standardiser, *, rows: int, device: torch.device
) -> Source:
    """The source with the auto-encoder's output in place of its inputs; rows are encoded once and kept."""
    width = encoder.vae.prior.directions.shape[1] if encoder.output == "latent" else source.n_inputs
    mapped = MappedSource(source, _Encode(encoder, s, rows, device), int(width))
    if source.distributed:
        return mapped
    if mapped.small or source.n_rows <= TRAINING_ROWS:  # as many as are in memory for the networks
        return mapped.load()
    return mapped


@dataclass(frozen=True)
class _Encode:
    """Raw inputs to the auto-encoder's output, some rows at a time; it can be pickled."""

    encoder: ReconfiguredMap
    standardiser: Standardiser
    rows: int
    device: torch.device

    def __call__(self, x: AnyArray) -> AnyArray:
        s, parts = self.standardiser, []
        for start in range(0, len(x), self.rows):
            block = x[start : start + self.rows]
            inputs = standardise(block, s.x_shift, s.x_scale, dtype=torch.float64, device=self.device)
            parts.append(self.encoder.reconfigure(inputs).cpu().numpy())
        return np.concatenate(parts)


def _alone(expert: Expert) -> Mixture:
    return Mixture((expert,), np.ones(1), np.ones(len(expert.params.mean)))


def _plain(
    model: PrismGPRegressor,
    source: Source,
    standardiser: Standardiser,
    streams: Streams,
    watch: Watch,
    checkpoint: Checkpoint,
    mixture: Callable[[Expert], Mixture],
) -> tuple[Expert, SSGPRegressor]:
    """The sparse spectrum GP without a network, fitted to the source; ``mixture`` is for who observes the fit."""
    starts = {} if model.recipe == "paper" else {"lengthscale": model.lengthscale}
    ssgp = SSGPRegressor(
        model.n_frequencies,
        kernel=model.kernel,
        signal_variance=model.signal_variance,
        noise_variance=model.noise_variance,
        mean=model.mean,
        frequencies=model.frequencies,
        optimize=model.optimize,
        max_iter=model.max_iter,
        n_restarts=model.n_restarts,
        normalize=model.normalize,
        chunk_size=model.chunk_size,
        device=model.device,
        dtype=model.dtype,
        # The very model that a user who compares the two would fit, where the seed is a number.
        random_state=model.random_state if isinstance(model.random_state, Integral) else streams.seed,
        verbose=model.verbose,
        **starts,
    )
    ssgp._check_parameters()
    ssgp._target_ndim = model._target_ndim
    ssgp._observer = watch.inner(lambda fitted: model._with(mixture(_expert(model, fitted))))
    ssgp._fit_source(source, standardiser, Watch(ssgp._observer), checkpoint.scope("ssgp"))
    return _expert(model, ssgp), ssgp


def _expert(model: PrismGPRegressor, ssgp: SSGPRegressor) -> Expert:
    dtype, device = model._compute()
    feature_map = PlainMap.of(ssgp.frequencies_, ssgp._params, dtype=dtype)
    return Expert.of("ssgp", feature_map, ssgp._params, ssgp._statistics[0]).to(device)


def _joint_recipe(model: PrismGPRegressor, source: Source, sample: ArraySource) -> JointRecipe:
    hidden = setting(model, "hidden")
    dtype, device = model._compute()
    sizes = NetworkSizes(
        inputs=source.n_inputs,
        outputs=source.n_outputs,
        frequencies=model.n_frequencies,
        latent=setting(model, "latent_dim"),
        hidden=(hidden,) if np.ndim(hidden) == 0 else tuple(int(each) for each in hidden),
        components=model.n_components,
        gating=model.gating,
        noise="constant",
    )
    return JointRecipe(
        source=source,
        sample=sample,
        standardiser=model._standardiser,
        kernel=get_kernel(model.kernel),
        frequencies=model.frequencies,
        sizes=sizes,
        settings=MemberSettings(
            alpha=float(model.alpha),
            beta=float(model.beta),
            elbo_weight=float(model.elbo_weight),
            dropout=0.0,
            batch_size=_batch_size(model, source.n_rows, sizes.width),
            max_steps=setting(model, "max_steps", source.n_rows),
            patience=setting(model, "patience", source.n_rows),
            learn_kernel=model.optimize,
        ),
        n_members=setting(model, "n_members", source.n_rows),
        noise_model=model.noise_model,
        dropout=None if model.dropout is None else float(model.dropout),
        validation_fraction=float(model.validation_fraction),
        dtype=dtype,
        device=device,
    )


def _batch_size(model: PrismGPRegressor, rows: int, width: int) -> int:
    """Rows of a step; a default larger than usual takes account of the number of features."""
    usual, wanted = setting(model, "batch_size"), setting(model, "batch_size", rows)
    if model.batch_size is not None or width <= _LARGEST_BATCH_WIDTH:
        return int(wanted)
    return int(max(usual, wanted * _LARGEST_BATCH_WIDTH**2 // width**2))


def setting(model: PrismGPRegressor, name: str, rows: int = 0) -> Any:
    """A parameter, or what the recipe has for it with so many rows."""
    value = getattr(model, name)
    if value is not None:
        return value
    usual = RECIPES[model.recipe]
    return (usual | _WITH_MANY_ROWS[model.recipe] if rows > MANY_ROWS else usual)[name]

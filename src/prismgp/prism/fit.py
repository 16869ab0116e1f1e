"""The recipes of PrismGP: from standardised rows and settings to a mixture of experts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from prismgp._system import Streams
from prismgp._types import AnyArray, Array
from prismgp.context import FitContext
from prismgp.core.fit import SSGPFit, SSGPSettings, fit_ssgp
from prismgp.core.kernels import Kernel, Parameters
from prismgp.core.models import SpectralModel, Standardiser, standardise
from prismgp.core.rows import Callback
from prismgp.core.shape import NoiseShape
from prismgp.data import MappedSource, Source, StandardisedRows, fit_standardiser
from prismgp.prism.experts import Expert, Mixture
from prismgp.prism.joint import LOCAL_ROWS, JointFit, JointRecipe
from prismgp.prism.judging import Refit
from prismgp.prism.local import LocalMixture
from prismgp.prism.maps import NetworkSizes, PlainMap, ReconfiguredMap
from prismgp.prism.members import MemberSettings
from prismgp.prism.released import PASS_BATCHES, PASSES, ReleasedSettings, fit_released
from prismgp.prism.shapes import Copies, find_shapes
from prismgp.prism.stacking import Residuals, selection_factor, tail_share
from prismgp.vae import TRAINING_ROWS, TrainingResult, VAESettings, fit_vae

# What parameters left at None become, by recipe. Tests make them smaller.
DEFAULTS: dict[str, dict[str, Any]] = {
    "joint": {
        "latent_dim": 8,
        "hidden": (128, 128),
        "n_members": 4,
        "batch_size": 504,  # matrices of 512 rows are half as fast: their columns compete for places in the cache
        "max_steps": 1_000,
        "patience": 300,
    },
    "paper": {"latent_dim": 4, "hidden": 10, "n_members": 1, "batch_size": 256, "max_steps": 2_000, "patience": 500},
    "released": {
        "latent_dim": 4,
        "hidden": 10,
        "n_members": 1,
        "batch_size": 200,
        "max_steps": PASSES * PASS_BATCHES,  # or as many passes over fewer rows
        "patience": None,
    },
}
# With many rows, small batches limit what a network learns, and members hardly differ by chance. There, one member with
# larger batches is a better use of the time of four (docs/what-was-tried.md).
MANY_ROWS = 100_000
MANY_ROWS_DEFAULTS: dict[str, dict[str, Any]] = {
    "joint": {"n_members": 1, "batch_size": 4_096, "max_steps": 1_500, "patience": 450},
    "paper": {},
    "released": {"batch_size": 512},
}
# Few rows are learned in the steps that a member of the joint recipe is expected to take; with more rows, it may take a
# multiple of them where the held-out rows gain by it.
FEW_ROWS, MOST_STEPS = 5_000, 2
_ENCODED_ROWS = 2_048  # at a time
_SSGP_SHARE, _VAE_SHARE = 0.3, 0.5  # of the time, where that is limited, before the networks, or before the SSGP
_REFIT_SHARE = 0.04  # of the time left, where that is limited, that the plain SSGP may take to be fitted again
_LEAST_ROWS = 50  # with fewer, a held-out part is too small to decide anything
# Features of a network in training, with many rows. More would need smaller batches, for the time of a step, and these
# teach it less than more frequencies do (docs/what-was-tried.md); the posterior has them all.
TRAINED_WIDTH = 1_024


@dataclass(frozen=True)
class PrismSettings:
    """How PrismGP is fitted; the names are those of the estimator's parameters, None: by the recipe."""

    recipe: str
    kernel: Kernel
    n_frequencies: int
    frequencies: str
    gating: str
    n_components: int
    alpha: float
    beta: float
    elbo_weight: float
    validation_fraction: float
    noise_model: str
    output: str
    optimize: bool
    max_iter: int
    n_restarts: int
    normalize: bool
    dtype: str
    latent_dim: int | None = None
    hidden: Any = None
    n_members: int | None = None
    batch_size: int | None = None
    max_steps: int | None = None
    patience: int | None = None
    dropout: float | None = None
    local: str = "never"
    n_neighbors: int = 32
    local_rows: int | None = None
    noise_shape: str = "auto"

    @classmethod
    def names(cls) -> list[str]:
        return [field.name for field in fields(cls)]

    def value(self, name: str, rows: int = 0) -> Any:
        """Return a setting, or the default of the recipe for this number of rows."""
        given = getattr(self, name)
        if given is not None:
            return given
        usual = DEFAULTS[self.recipe]
        return (usual | MANY_ROWS_DEFAULTS[self.recipe] if rows > MANY_ROWS else usual)[name]

    @property
    def layers(self) -> tuple[int, ...]:
        """Units of the hidden layers."""
        hidden = self.value("hidden")
        return (int(hidden),) if np.ndim(hidden) == 0 else tuple(int(each) for each in hidden)

    def member_steps(self, rows: int) -> tuple[int, int]:
        """The steps that a member of the joint recipe takes, and those that it takes if they are worth it."""
        given, usual = self.max_steps, self.value("max_steps", rows)
        if given is None:
            return usual, usual * (MOST_STEPS if rows > FEW_ROWS else 1)
        return min(given, replace(self, max_steps=None).value("max_steps", rows)), given

    def trained_frequencies(self, rows: int, sizes: NetworkSizes) -> int:
        """How many of its frequencies a network of the joint recipe is trained with."""
        if rows <= MANY_ROWS or sizes.width <= TRAINED_WIDTH:
            return sizes.frequencies
        return max(1, TRAINED_WIDTH * sizes.frequencies // sizes.width)


@dataclass(frozen=True)
class PrismFit:
    """What a fit returns."""

    predictor: Mixture | LocalMixture
    status: dict[str, Any]  # for ``fit_status_``
    stages: list[dict[str, Any]]  # of the plain SSGP's optimisation
    history: dict[str, list[Any]]
    steps: int
    plain_lengthscale: Array | None  # (d,), of the plain SSGP on the inputs, in their standard deviations, if any
    shapes: tuple[NoiseShape, ...] | None = None  # of the noise of each output; None: normal
    copy_shapes: tuple[NoiseShape, ...] | None = None  # of rows that are copies of known ones; None: as of others
    tail_share: float = 0.0  # of the tails beside them
    residuals: Residuals | None = None  # at held-out rows


def fit_prism(
    rows: StandardisedRows,
    start: dict[str, Any],
    settings: PrismSettings,
    streams: Streams,
    context: FitContext,
    *,
    ssgp_seed: int,
) -> PrismFit:
    """Fit by the recipe of the settings.

    ``start`` has starting values in the user's units, as :meth:`StandardisedRows.start` takes them; ``ssgp_seed`` is
    that of the estimator, so that the plain SSGP is the model a user would compare with.
    """
    fit = _Fit(rows, start, settings, streams, context, ssgp_seed)
    return {"joint": fit.joint, "paper": fit.paper, "released": fit.released}[settings.recipe]()


@dataclass(frozen=True)
class _Fit:
    """The recipes, with what they share."""

    rows: StandardisedRows
    start: dict[str, Any]
    settings: PrismSettings
    streams: Streams
    context: FitContext
    ssgp_seed: int

    def joint(self) -> PrismFit:
        """Networks and SSGP trained together, stacked with the plain SSGP."""
        rows = self.rows

        def as_expert(model: Any) -> Expert:
            return Expert.plain(model, dtype=rows.dtype, device=rows.device)

        share = 1.0 if rows.n_rows < _LEAST_ROWS else _SSGP_SHARE
        began, ending = time.perf_counter(), self.context.ending
        ssgp = self._fit_plain(rows, self.start, lambda model: Mixture.from_expert(as_expert(model)), share)
        seconds = time.perf_counter() - began
        plain = as_expert(ssgp.model)
        if rows.n_rows < _LEAST_ROWS:
            alone = Mixture.from_expert(plain)
            fit = JointFit(alone, predictor=alone, weights={plain.name: 1.0})
            message, copies = f"fewer than {_LEAST_ROWS} rows: the plain SSGP alone", None
        else:
            # Known variances of rows do not grow with the others.
            refit, learns = None, self.settings.optimize and not rows.chunks(1).known_noise
            if learns and not ending.early and seconds < _REFIT_SHARE * ending.left:
                refit = partial(self._refit_plain, ssgp.model.base)
            recipe = self._make_joint_recipe(plain, ssgp.start, refit)
            fit = recipe.fit(self.streams, self.context)
            copies = self._find_copies(fit)
            message = f"{len(fit.networks)} of {recipe.n_members} members trained"
            if self.context.ending.early:
                message = f"{self.context.ending.reason}; the best states so far are used"
            elif fit.weights[plain.name] == 1.0:
                message += "; not convincingly better than the plain SSGP, which is used alone"
            if fit.held_out_nlpd is not None:
                fit.held_out_nlpd += float(np.log(rows.standardiser.y_scale).sum())
        names = ("weights", "members", "held_out_rows", "held_out_nlpd", "local")
        status = {"recipe": "joint", "message": message, **{name: getattr(fit, name) for name in names}}
        assert fit.predictor is not None
        seen = fit.residuals
        learned = None if self.context.ending.interrupted or self.settings.noise_shape == "normal" else seen
        usual = None if seen is None or fit.cross is None or not seen.chose else fit.cross.residuals
        found = find_shapes(learned, rows.n_outputs, copies, usual)
        status["noise_shape"] = found.status
        predictor, factor = fit.predictor, found.factors
        if seen is not None and seen.chose:
            factor = factor * selection_factor(seen.row_weights, len(seen.values))
        predictor = replace(predictor, temperature=predictor.temperature * factor)
        share = 0.0 if learned is None else tail_share(learned.row_weights, len(learned.values))
        lengthscale = ssgp.model.params.lengthscale
        shapes = found.shapes, found.copy_shapes
        if self.context.ending.interrupted:
            seen = None
        return PrismFit(predictor, status, ssgp.stages, fit.history, fit.steps, lengthscale, *shapes, share, seen)

    def _find_copies(self, fit: JointFit) -> Copies | None:
        ending, found = self.context.ending, None
        if self.settings.noise_shape != "normal" and not ending.over and ending.left > 0.0:
            with ending.catch_end():
                found = fit.copies()
        return found

    def paper(self) -> PrismFit:
        """The two stages of the paper: an auto-encoder without labels, then an SSGP on its output."""
        rows, settings, s, device = self.rows, self.settings, self.rows.standardiser, self.rows.device
        vae, training = fit_vae(
            # Without labels, and with the units of a Reconfigurer.
            replace(rows, standardiser=fit_standardiser(rows.source, normalize=True), dtype=torch.float64),
            VAESettings(
                n_components=settings.n_components,
                latent_dim=settings.value("latent_dim"),
                hidden=settings.value("hidden"),
                alpha=float(settings.alpha),
                beta=float(settings.beta),
                batch_size=settings.value("batch_size"),
                max_steps=settings.value("max_steps"),
                patience=settings.value("patience"),
            ),
            Streams(int(self.streams.generator("reconfigurer").integers(2**31 - 1))),
            self.context.part(
                "reconfigurer", "auto-encoder", share=_VAE_SHARE, unit="step", total=settings.value("max_steps")
            ),
        )
        # The decoder was never asked for columns that do not vary; its output there is noise.
        constant = torch.as_tensor(s.constant_inputs, device=device)
        vae.decoder.mean_weight[..., constant] = 0.0
        vae.decoder.mean_bias[..., constant] = 0.0
        nothing = torch.zeros(0, dtype=torch.float64)
        encoder = ReconfiguredMap(vae, settings.output, nothing, nothing, PlainMap(nothing)).to(device)
        source = _reconfigure(rows, encoder)
        inner = fit_standardiser(source, normalize=settings.normalize)
        shift, scale = torch.as_tensor(inner.x_shift), torch.as_tensor(inner.x_scale)

        def as_mixture(model: Any) -> Mixture:
            plain = Expert.plain(model, dtype=rows.dtype, device=device)
            assert isinstance(plain.map, PlainMap)
            feature_map = ReconfiguredMap(vae, settings.output, shift, scale, plain.map).to(device)
            return Mixture.from_expert(replace(plain, name="reconfigured", map=feature_map))

        inner_rows = replace(rows, source=source, standardiser=replace(inner, y_shift=s.y_shift, y_scale=s.y_scale))
        ssgp = self._fit_plain(inner_rows, {**self.start, "lengthscale": None}, as_mixture)
        return self._finish(as_mixture(ssgp.model), training, ssgp.stages)

    def released(self) -> PrismFit:
        """What the authors' released code does: one auto-encoder and one SSGP, trained together."""
        rows, settings = self.rows, self.settings
        batch, steps = settings.value("batch_size", rows.n_rows), settings.value("max_steps")
        if settings.max_steps is None:
            steps = min(steps, PASSES * -(-rows.n_rows // batch))
        mixture, training = fit_released(
            rows,
            ReleasedSettings(
                n_frequencies=settings.n_frequencies,
                n_components=settings.n_components,
                latent_dim=settings.value("latent_dim"),
                hidden=settings.value("hidden"),
                output=settings.output,
                batch_size=batch,
                max_steps=steps,
            ),
            self.streams,
            self.context,
        )
        return self._finish(mixture, training, [])

    def _finish(self, mixture: Mixture, training: TrainingResult, stages: list[dict[str, Any]]) -> PrismFit:
        """The result of a recipe with one auto-encoder, whose noise is normal."""
        status = {
            "recipe": self.settings.recipe,
            "message": training.message,
            "weights": {mixture.leader.name: 1.0},
            "noise_shape": find_shapes(None, self.rows.n_outputs).status,
        }
        return PrismFit(mixture, status, stages, training.history, max(1, training.steps), None)

    def _fit_plain(
        self,
        rows: StandardisedRows,
        start: dict[str, Any],
        as_mixture: Callable[[SpectralModel], Mixture],
        share: float = 1.0,
    ) -> SSGPFit:
        """The sparse spectrum GP without a network, in a share of the time; callbacks are given its mixture."""
        settings = self._plain_settings(start)
        values = rows.start(learn=settings.optimize, **start)
        with self.context.part("ssgp", "plain SSGP", model=as_mixture, share=share, unit="eval") as context:
            fit = fit_ssgp(rows, values, settings, Streams(self.ssgp_seed), callback=context)
        context.report("final", rows.n_rows, lambda: fit.model)
        return fit

    def _refit_plain(self, base: Array, rows: StandardisedRows, callback: Callback) -> Expert:
        """The same with some of the rows, at the frequencies that were drawn for all of them."""
        settings = replace(self._plain_settings(self.start), frequencies=base, n_restarts=0)
        values = rows.start(learn=True, **self.start)
        fit = fit_ssgp(rows, values, settings, Streams(self.ssgp_seed), callback=callback)
        return Expert.plain(fit.model, dtype=rows.dtype, device=rows.device)

    def _plain_settings(self, start: dict[str, Any]) -> SSGPSettings:
        return SSGPSettings(
            kernel=self.settings.kernel,
            n_frequencies=self.settings.n_frequencies,
            frequencies=self.settings.frequencies,
            find_start=start.get("lengthscale") is None,
            optimize=self.settings.optimize,
            max_iter=self.settings.max_iter,
            n_restarts=self.settings.n_restarts,
            limit_inputs=False,  # the members are given the inputs as they are
            dtype=self.settings.dtype,
        )

    def _make_joint_recipe(self, plain: Expert, start: Parameters, refit: Refit | None) -> JointRecipe:
        rows, settings = self.rows, self.settings
        first_steps, max_steps = settings.member_steps(rows.n_rows)
        sizes = NetworkSizes(
            inputs=rows.n_inputs,
            outputs=rows.n_outputs,
            frequencies=settings.n_frequencies,
            latent=settings.value("latent_dim"),
            hidden=settings.layers,
            components=settings.n_components,
            gating=settings.gating,
            noise="constant",
        )
        return JointRecipe(
            rows=rows,
            sample=rows.persist_sample(TRAINING_ROWS, self.streams.generator("training rows")),
            plain=plain,
            refit=refit,
            start=start,
            kernel=settings.kernel,
            frequencies=settings.frequencies,
            sizes=sizes,
            trained_frequencies=settings.trained_frequencies(rows.n_rows, sizes),
            settings=MemberSettings(
                alpha=float(settings.alpha),
                beta=float(settings.beta),
                elbo_weight=float(settings.elbo_weight),
                batch_size=int(settings.value("batch_size", rows.n_rows)),
                first_steps=first_steps,
                max_steps=max_steps,
                patience=settings.value("patience", rows.n_rows),
                learn_kernel=settings.optimize,
            ),
            n_members=settings.value("n_members", rows.n_rows),
            noise_model=settings.noise_model,
            dropout=None if settings.dropout is None else float(settings.dropout),
            validation_fraction=float(settings.validation_fraction),
            local=settings.local,
            n_neighbors=settings.n_neighbors,
            local_rows=LOCAL_ROWS if settings.local_rows is None else settings.local_rows,
        )


def _reconfigure(rows: StandardisedRows, encoder: ReconfiguredMap) -> Source:
    """The source with the auto-encoder's output in place of its inputs; few rows are encoded once and kept."""
    source = rows.source
    width = encoder.vae.latent_dim if encoder.output == "latent" else source.n_inputs
    chunk_rows = rows.chunk_rows or _ENCODED_ROWS
    mapped = MappedSource(source, _Encode(encoder, rows.standardiser, chunk_rows, rows.device), int(width))
    keep = not source.distributed and (mapped.small or source.n_rows <= TRAINING_ROWS)
    return mapped.load() if keep else mapped


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

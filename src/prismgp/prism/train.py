"""Training of the members together, checked on held-out rows.

A check gives the averaged network of a member the exact posterior of many training rows, and measures the negative log
predictive density (NLPD) of the held-out rows, with the noise that is best for them. The best network is kept.

The learning rate falls to zero like half a cosine over as many steps as the member is expected to take. Half way, that
number doubles if the held-out density still improves much, up to a limit; and the training ends where nothing better
follows for a while. So small data trains for some hundred steps, and other data while the held-out density improves.

All members take each step together, and each has checks, an end and a learning rate of its own.

All random numbers are drawn on the CPU, from streams of the member's own.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from prismgp._types import Indices, Saved, Tensor
from prismgp.core.parallel import Workers, send
from prismgp.core.rows import Ending
from prismgp.core.statistics import accumulate_features
from prismgp.exceptions import NumericalError
from prismgp.prism.batch import batch_predict
from prismgp.prism.experts import Expert
from prismgp.prism.judging import HeldOutRows, weight_rows
from prismgp.prism.maps import RevisedMap
from prismgp.prism.members import ELBO_EVERY, ELBO_ROWS, Member, Members, MemberSettings, StepInputs, step_numbers
from prismgp.prism.stacking import HeldOut, average
from prismgp.prism.training_rows import Batch, TrainingRows
from prismgp.vae import ElboTerms, Training, TrainingResult, select_tensors, torch_generator

_LEARNING_RATE = 1e-2
_WARM_UP = 50  # steps over which the learning rate rises
_LEAST_GAIN = 0.1  # nats of held-out density by the second quarter of these steps for which they are doubled
_AVERAGE = 0.98  # share of the past in the running average of the weights
_CONTEXT_ROWS = 4_096  # training rows behind the posterior of a check
_WIDE_CONTEXT_ROWS = 2_048  # the same for wide features
_CHUNK_ROWS = 2_048  # of them at a time, on a CPU


@dataclass(eq=False)
class _Run:
    """The state of the training of one member."""

    number: int
    dropout: float
    result: TrainingResult
    draws: dict[str, np.random.Generator]
    generators: dict[str, torch.Generator]
    end: int  # the step after which the learning rate is zero
    row_weights: Tensor  # (n,), smaller for rows with large residuals (W3)
    scores: list[tuple[int, float]] = field(default_factory=list)  # of all checks


class _Check(NamedTuple):
    """A member to check, with training rows for its posterior."""

    run: _Run
    network: RevisedMap  # with averaged weights
    rows: Indices
    batch: Batch


class MemberTraining(Training):
    """Training of members together on (T1); checks measure the NLPD of the held-out rows."""

    check_every = 25  # steps, at first; later twice and four times as many
    wide = 1_024  # features above which a check uses the kernel matrix of fewer rows instead of the features' moments

    def __init__(
        self,
        members: Sequence[Member],
        rows: TrainingRows,
        settings: MemberSettings,
        ending: Ending | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.workers = workers or Workers()
        self.rows, self.settings, self.ending = rows, settings, ending or Ending()
        self.members = Members(
            [each.network for each in members],
            [torch_generator(each.streams, "decoder") for each in members],
            settings,
            self.workers,
        )
        self.runs = [self._begin(number, member) for number, member in enumerate(members)]
        self.active = list(self.runs)  # those still in training, in the order of the members' tensors
        self.dropped: list[_Run] = []
        held = rows.read(rows.held_out)
        self.held_x = held.x
        self.examples = HeldOutRows(held.x, held.targets, members[0].network.sizes.outputs)
        self._ahead: dict[
            int, dict[str, np.random.Generator]
        ] = {}  # copies of the streams, advanced past the rows requested

    def _begin(self, number: int, member: Member) -> _Run:
        return _Run(
            number,
            member.dropout,
            TrainingResult(held_out_rows=len(self.rows.held_out), early=True),
            {name: member.streams.generator(name) for name in ("batches", "context", "dropout")},
            {"latent noise": torch_generator(member.streams, "latent noise")},
            end=self.settings.first_steps,
            row_weights=torch.ones(self.rows.n_rows, dtype=torch.float64, device=self.rows.device),
        )

    @property
    def results(self) -> list[TrainingResult]:
        """Of all members."""
        return [run.result for run in self.runs]

    @property
    def running(self) -> list[TrainingResult]:
        """Of those still in training."""
        return [run.result for run in self.active]

    @property
    def resumable(self) -> bool:
        """A checkpoint is for a fit with all members."""
        return not self.dropped

    @property
    def expected_steps(self) -> int:
        """Steps of all members until they are over, as far as that is known."""
        return sum(run.end if run in self.active else run.result.steps for run in self.runs)

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, number: int) -> None:
        """Take a step of Adam on a new batch of every member."""
        self.rows.expect(number, self._upcoming_rows)
        self.members.step(lambda members: self._draw(number, [self.active[m] for m in members]))

    def _draw(self, number: int, runs: Sequence[_Run]) -> StepInputs:
        """What a step gives to some members."""
        drawn = [self.rows.draw(self.settings.batch_size, run.draws["batches"]) for run in runs]
        index, device = np.concatenate(drawn), self.rows.device
        shape, n = (len(drawn), len(drawn[0]), -1), len(drawn[0])
        there = send(torch.as_tensor(index), device)
        batch = self.rows.read(index, there)
        x, y, noise = batch.x.reshape(shape), batch.y.reshape(shape), batch.noise
        weights = torch.cat([each.row_weights[own] for each, own in zip(runs, there.reshape(-1, n), strict=True)])
        weights = weights[:, None] if noise is None else torch.cat([weights[:, None] * noise[:, :1], noise[:, 1:]], 1)
        share = 1.0 - min(_AVERAGE, number / (9.0 + number))
        numbers = [step_numbers(number, self._learning_rate(run, number), share) for run in runs]
        return StepInputs(
            x,
            y,
            weights.reshape(shape),
            self._draw_dropout(runs, n),
            send(torch.tensor(numbers, dtype=torch.float32), device),
            # For the history also where the ELBO's weight is zero.
            self._draw_noise(runs, min(ELBO_ROWS, n)) if (number - 1) % ELBO_EVERY == 0 else None,
        )

    def _upcoming_rows(self, first: int, last: int) -> list[Indices]:
        """The rows that the batches of these steps, and the checks among them, will read."""
        found = []
        for run in self.active:
            if run.number not in self._ahead:
                self._ahead[run.number] = copy.deepcopy(run.draws)
            ahead = self._ahead[run.number]
            for step in range(first, last + 1):
                found.append(self.rows.draw(self.settings.batch_size, ahead["batches"]))
                if self.is_due(run, step):
                    found.append(self.rows.draw(self._context_rows, ahead["context"]))
        return found

    # A schedule of torch sets the rate of a whole optimiser; here each member, a row of one tensor, has its own, whose
    # end may move.
    def _learning_rate(self, run: _Run, step: int) -> float:
        """Return the learning rate of a step, counted from one; a time limit makes it fall sooner."""
        angle = math.pi * max((step - 1) / run.end, self.ending.share)
        return _LEARNING_RATE * min(1.0, step / _WARM_UP) * 0.5 * (1.0 + math.cos(angle))

    def _draw_dropout(self, runs: Sequence[_Run], n: int) -> tuple[Tensor, ...]:
        """Factors on the values of the hidden layers, (M, n, h) each; none if no member drops any."""
        if not any(run.dropout for run in runs):
            return ()
        shares = [1.0 - run.dropout for run in runs]
        divisors = send(torch.tensor(shares, dtype=torch.float32), self.rows.device)[:, None, None]
        layers = []
        for width in self.members.sizes.hidden:
            kept = np.ones((len(runs), n * width), dtype=np.bool_)
            for run, own in zip(runs, kept, strict=True):
                if run.dropout:
                    drawn = np.frombuffer(run.draws["dropout"].bytes(2 * n * width), np.uint16)
                    np.greater_equal(drawn, round(run.dropout * 2**16), out=own)
            there = send(torch.as_tensor(kept).reshape(-1, n, width), self.rows.device)
            layers.append(there / divisors)
        return tuple(layers)

    def _draw_noise(self, runs: Sequence[_Run], n: int) -> Tensor:
        shape = (n, 1, self.members.sizes.latent)
        drawn = [torch.randn(shape, generator=run.generators["latent noise"], dtype=torch.float32) for run in runs]
        return send(torch.stack(drawn), self.rows.device)

    # -- checks --------------------------------------------------------------------------------------

    def is_due(self, run: _Run, step: int) -> bool:
        """Whether a member is checked after a step."""
        rounds = step / self.check_every
        every = self.check_every * (1 if rounds <= 8 else 2 if rounds <= 32 else 4)
        # Half way it is decided whether the steps are doubled.
        return step % every == 0 or step == run.end or 2 * step == run.end < self.settings.max_steps

    @property
    def _is_wide(self) -> bool:
        return self.members.sizes.width > self.wide

    @property
    def _context_rows(self) -> int:
        return _WIDE_CONTEXT_ROWS if self._is_wide else _CONTEXT_ROWS

    def make_checks(self, *, last: bool = False) -> list[float]:
        """Check the members that are due, and decide whether they go on."""
        if last:
            return self.check([each for each in self.active if not each.scores or each.scores[-1][0] < self.steps])
        due = [run for run in self.active if self.is_due(run, self.steps)]
        values = self.check(due)
        for run in due:
            self.review(run)
        return values

    def check(self, runs: Sequence[_Run]) -> list[float]:
        """Compute the NLPD of members at the held-out rows, and keep their averaged networks where these are best."""
        draws = [self.rows.draw(self._context_rows, run.draws["context"]) for run in runs]
        networks = [self.members.network(self.active.index(run)) for run in runs]
        given = [_Check(*each, self.rows.read(each[-1])) for each in zip(runs, networks, draws, strict=True)]
        return self.workers.map(self._check_one, given)

    def _check_one(self, given: _Check) -> float:
        value, entries = self.measure(given)
        given.run.result.record_check(value, entries, given.network, changes=False)
        given.run.scores.append((self.steps, value))
        return value

    def measure(self, given: _Check) -> tuple[float, dict[str, Any]]:
        """NLPD of the held-out rows, and further entries for the history; NaN for a network that has none."""
        run, network = given.run, given.network
        if not bool(torch.cat([each.reshape(-1) for each in network.parameters()]).isfinite().all()):
            return math.nan, {}
        try:
            found = self.predict_held_out(given)
        except NumericalError:
            return math.nan, {}
        weights = self.examples.weights
        nlpd = average(self.examples.nlpd(found), weights)
        rmse = float(np.sqrt(average((self.examples.targets - found.mean) ** 2, weights)))
        clusters = network.prior.describe(network.latent(self.held_x))
        m = self.active.index(run)
        terms = {name: value[m] for name, value in self.members.terms.items()}
        elbo = ElboTerms(**terms, alpha=self.settings.alpha, beta=self.settings.beta).as_floats()
        entries = {"evidence": float(self.members.evidence[m]), **elbo}
        return nlpd, {**entries, "validation_nlpd": nlpd, "validation_rmse": rmse, **clusters}

    def predict_held_out(self, given: _Check) -> HeldOut:
        """Predict the held-out rows by a network, given many training rows, with the noise that suits them best.

        This also sets the weights of these training rows in the next steps.
        """
        run, network, index, batch = given
        params = network.parameters_now()
        if self._is_wide:
            # With so many features, the kernel matrix of fewer rows is the smaller one.
            with torch.no_grad():
                context, held = network(batch.x), network(self.held_x)
                found = HeldOut.of(*batch_predict(params, context, batch.y, held, batch.row_noise))
                return self.examples.scale(found.at_rows(self.examples.noise))[1]
        step = len(index) if batch.x.is_cuda else _CHUNK_ROWS
        chunks = [batch.take(slice(start, start + step)) for start in range(0, len(index), step)]
        pairs = [(chunk.x, chunk.targets) for chunk in chunks]
        stats = accumulate_features(
            ((*network.features(x), y) for x, y in pairs), len(params.mean), float(params.noise[0])
        )
        judged = self.examples.predict_by(Expert.of("check", network, params, stats))
        row_weights = torch.ones(len(index), dtype=torch.float64, device=run.row_weights.device)
        if self.examples.have_outliers(judged):
            weighted, weights = weight_rows(judged.expert, pairs)
            again = self.examples.predict_by(weighted)
            if self.examples.prefer(again, judged):
                judged, row_weights = again, weights
        run.row_weights[torch.as_tensor(index)] = row_weights
        return judged.found

    # -- the end -------------------------------------------------------------------------------------

    def review(self, run: _Run) -> None:
        """Decide after a check whether the training of a member goes on, and for how long."""
        step, value = run.scores[-1]
        patience = math.inf
        if self.settings.patience is not None:
            patience = self.settings.patience * run.end / self.settings.first_steps
        if not math.isfinite(value):
            self._end(run, f"the objective left the range of floating-point numbers at step {step}")
        elif step == run.end:
            self._end(run, f"all {step} steps taken")
        elif step - run.result.best_step >= patience:
            self._end(run, f"no better held-out density for {step - run.result.best_step} steps")
        elif 2 * step == run.end < self.settings.max_steps:
            before = min(score for at, score in run.scores if 2 * at <= step)
            if before - run.result.score >= _LEAST_GAIN:
                run.end = min(2 * run.end, self.settings.max_steps)

    def end(self, message: str) -> None:
        """End the training of all members."""
        for run in list(self.active):
            self._end(run, message)

    def _end(self, run: _Run, message: str) -> None:
        """End the training of a member that needs no more steps."""
        run.result.message, run.result.early = message, False
        self.leave([run])

    def drop(self, runs: Sequence[_Run]) -> None:
        """Stop training members that there is no time for."""
        self.dropped += runs
        self.leave(runs)

    def leave(self, runs: Sequence[_Run]) -> None:
        """Remove members from those that take steps."""
        if not runs:
            return
        kept = [m for m, run in enumerate(self.active) if run not in runs]
        self.active = [self.active[m] for m in kept]
        if kept:
            self.members.keep(kept)

    # -- checkpoints ---------------------------------------------------------------------------------

    def save(self) -> Saved:
        """Everything the next step depends on, and what was reached."""
        tensors = {f"members.{name}": value.clone() for name, value in self.members.tensors().items()}
        runs = []
        for run in self.runs:
            best = {} if run.result.best is None else run.result.best.state_dict()
            tensors |= {f"best {run.number}.{name}": value.clone() for name, value in best.items()}
            tensors[f"row weights {run.number}"] = run.row_weights.clone()
            for name, generator in run.generators.items():
                tensors[f"generator {run.number}.{name}"] = generator.get_state()
            runs.append(
                {
                    "active": run in self.active,
                    "early": run.result.early,
                    "seconds": run.result.seconds,
                    "result": run.result.summary(),
                    # Their integers are longer than JSON readers promise to keep, so they are stored as text.
                    "draws": {name: json.dumps(draw.bit_generator.state) for name, draw in run.draws.items()},
                    "scores": [(at, value if math.isfinite(value) else None) for at, value in run.scores],
                    "end": run.end,
                }
            )
        return tensors, {"steps": self.steps, "runs": runs}

    def restore(self, saved: Saved) -> None:
        """Set everything to what :meth:`save` returned."""
        tensors, info = saved
        networks = [self.members.network(m) for m in range(len(self.members))]
        self.leave([run for run, about in zip(self.runs, info["runs"], strict=True) if not about["active"]])
        self.steps = info["steps"]
        for run, network, about in zip(self.runs, networks, info["runs"], strict=True):
            run.result.load(about["result"], network, select_tensors(tensors, f"best {run.number}"))
            run.result.early = about["early"]
            run.result.began -= about["seconds"]
            run.scores = [(at, math.nan if value is None else value) for at, value in about["scores"]]
            run.end = about["end"]
            run.row_weights.copy_(tensors[f"row weights {run.number}"])
            for name, draw in run.draws.items():
                draw.bit_generator.state = json.loads(about["draws"][name])
            for name, state in select_tensors(tensors, f"generator {run.number}").items():
                run.generators[name].set_state(state)
        if self.active:
            self.members.load(select_tensors(tensors, "members"))

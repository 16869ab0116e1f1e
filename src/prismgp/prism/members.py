"""The members in training: their parameters in one tensor, and a step of Adam for all of them at once.

What is maximised, per row of a batch of each member,

- (T1) ``log p(Y_batch) / n + elbo_weight * (reconstruction - KL - alpha KL + beta separation)``,

the evidence (B1) of a new random batch, and the objective R5 of the re-configuration on some rows of it. The
evidence of all rows at once would be the wrong objective for a network: it rewards features that have
memorised the rows. A batch has to be explained by features made from other rows.

Row m of every tensor here is about member m, and nothing is computed across rows: the result of a member does not
depend on the other members. A GPU takes the step of all members at once; on a CPU members are computed one by one,
several of them side by side (:class:`prismgp.core.parallel.Workers`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch.func import functional_call

from prismgp._system import Streams
from prismgp._types import Array, Tensor
from prismgp.core.parallel import Replay, Workers
from prismgp.core.rows import RowNoise
from prismgp.prism.batch import batch_log_evidence
from prismgp.prism.maps import NetworkOutput, NetworkSizes, RevisedMap, clip_inputs
from prismgp.vae import ElboTerms, GaussianMixture, GaussianMixtureNet, elbo_terms

ELBO_ROWS = 128  # rows of a batch that enter the ELBO, whose weight is small
ELBO_EVERY = 8  # steps; it then counts eight times
_WEIGHT_DECAY = 0.01  # of matrices
_LONGEST_GRADIENT = 10.0
_BETAS, _EPS = (0.9, 0.999), 1e-8  # of Adam
_LOG_RANGE = (math.log(1e-6), math.log(300.0))  # of both variances, as in the core: what factorisations resolve
_DECODER_HIDDEN = 32
_START_LOG_VAR = -4.0  # of the encoder's posterior
_KERNEL = ("log_lengthscale", "log_signal", "log_noise", "mean")
_LIMITED = ("network.log_signal", "network.log_noise")


@dataclass(frozen=True)
class MemberSettings:
    """How members are trained; the names are those of the estimator's parameters."""

    alpha: float
    beta: float
    elbo_weight: float
    batch_size: int
    first_steps: int  # that a member is expected to take at first, at most max_steps
    max_steps: int
    patience: int | None  # steps without a better check after which to stop, of the first steps; None: never
    learn_kernel: bool


@dataclass(frozen=True)
class Member:
    """A member before its training."""

    network: RevisedMap
    frequencies: Array  # of its posterior, (p, L + d); the network is trained with the first of them
    dropout: float
    streams: Streams


class MemberObjective(torch.nn.Module):
    """A network with what its ELBO needs: a decoder, and the variances of ``q(z | x)``, the same for all rows."""

    def __init__(self, network: RevisedMap, generator: torch.Generator) -> None:
        super().__init__()
        sizes = network.sizes
        self.network = network
        self.decoder = GaussianMixtureNet(sizes.latent, sizes.inputs, 1, _DECODER_HIDDEN, generator=generator)
        self.log_var = torch.nn.Parameter(torch.full((sizes.latent,), _START_LOG_VAR, dtype=torch.float32))

    def forward(
        self, x: Tensor, kept: Sequence[Tensor], noise: Tensor | None, alpha: float, beta: float
    ) -> tuple[NetworkOutput, ElboTerms | None]:
        """Output of the network, and with standard normal ``noise``, (rows, 1, L), R5 on the first rows of x."""
        output: NetworkOutput = self.network(x, kept)
        if noise is None:
            return output, None
        mean = output.latent[: len(noise), None]
        posterior = GaussianMixture(mean.new_zeros(len(noise), 1), mean, self.log_var.expand_as(mean))
        inputs = clip_inputs(x[: len(noise)])
        found = elbo_terms(inputs, posterior, self.decoder, self.network.prior, noise, alpha=alpha, beta=beta)
        return output, found


class StepInputs(NamedTuple):
    """What a step is given, for each of M members."""

    x: Tensor  # (M, n, d)
    y: Tensor  # (M, n, q)
    row_noise: Tensor  # (M, n, c), noise columns: weights, and known variances where there are any
    kept: tuple[Tensor, ...]  # factors on the values of each hidden layer, (M, n, h); none without dropout
    numbers: Tensor  # (M, 4), what step_numbers returns
    noise: Tensor | None  # (M, rows, 1, L), in steps with an ELBO


def step_numbers(number: int, rate: float, share: float) -> tuple[float, ...]:
    """What Adam needs in the step of that number: learning rate, its corrections, and the new weights' share."""
    return rate, *(1.0 - beta**number for beta in _BETAS), share


@dataclass
class MemberTensors:
    """Everything that steps change, one row for each member, (M, P) and alike."""

    values: Tensor  # parameters
    average: Tensor  # a running average of them
    first: Tensor  # the moments of Adam
    second: Tensor
    trained: Tensor  # zeros for parameters that keep their values
    fixed: dict[str, Tensor] = field(default_factory=dict)  # frequencies, and the decoder's running moments

    def take(self, rows: Tensor | slice) -> MemberTensors:
        """Some members: copies, or views of a slice."""
        own = {name: value[rows] for name, value in vars(self).items() if name != "fixed"}
        return MemberTensors(**own, fixed={name: value[rows] for name, value in self.fixed.items()})

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name; not copies."""
        own = {name: value for name, value in vars(self).items() if name != "fixed"}
        return own | {f"fixed.{name}": value for name, value in self.fixed.items()}


class Members:
    """Networks of the same sizes that are trained together; some may have a head for the noise, others not."""

    def __init__(
        self,
        networks: Sequence[RevisedMap],
        generators: Sequence[torch.Generator],
        settings: MemberSettings,
        workers: Workers,
    ) -> None:
        self.settings, self._workers = settings, workers
        wholes = [
            MemberObjective(copy.deepcopy(network), own) for network, own in zip(networks, generators, strict=True)
        ]
        wholes = [whole.to(networks[0].mean.device) for whole in wholes]
        self._like = max(wholes, key=lambda whole: len(list(whole.parameters())))  # one with every head
        # On a CPU one for each member: two threads must not use a module at the same time.
        self._copies = [] if self._like.log_var.is_cuda else [copy.deepcopy(self._like) for _ in networks]
        self._sizes: list[NetworkSizes] = [network.sizes for network in networks]
        self._shapes = {name: value.shape for name, value in self._like.named_parameters()}
        self._limits = self._vector(lambda name: _LOG_RANGE if name in _LIMITED else (-math.inf, math.inf))
        self._decay = self._vector(lambda name: (_WEIGHT_DECAY if len(self._shapes[name]) > 1 else 0.0,))[0]
        values, trained = zip(*(self._pack(whole) for whole in wholes), strict=True)
        start = torch.stack(values)
        fixed = [dict(whole.named_buffers()) for whole in wholes]
        self.state = MemberTensors(
            start,
            start.clone(),  # the initial weights are the first to be averaged
            torch.zeros_like(start),
            torch.zeros_like(start),
            torch.stack(trained),
            {name: torch.stack([own[name] for own in fixed]) for name in fixed[0] if "prior" not in name},
        )
        self.evidence = start.new_zeros(len(start), dtype=torch.float64)  # of the last batch, per row
        self.terms = {name: start.new_zeros(len(start)) for name in ElboTerms.names()}  # of the last ELBO
        self._replay: Replay[StepInputs, tuple[Tensor, dict[str, Tensor]]] = Replay()

    def __len__(self) -> int:
        return len(self.state.values)

    @property
    def sizes(self) -> NetworkSizes:
        """Those of a member with all heads."""
        return self._like.network.sizes

    def keep(self, index: Sequence[int]) -> None:
        """Go on with some members."""
        rows = torch.as_tensor(list(index), dtype=torch.long, device=self.state.values.device)
        self.state = self.state.take(rows)
        self.evidence = self.evidence[rows]
        self.terms = {name: value[rows] for name, value in self.terms.items()}
        self._sizes = [self._sizes[m] for m in index]
        self._replay = Replay()  # recordings are of the tensors of before

    def tensors(self) -> dict[str, Tensor]:
        """Everything steps change and checks report, by name; not copies."""
        terms = {f"terms.{name}": value for name, value in self.terms.items()}
        return {**self.state.tensors(), **terms, "evidence": self.evidence}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Set everything to what :meth:`tensors` returned."""
        for name, own in self.tensors().items():
            own.copy_(tensors[name])

    def network(self, m: int) -> RevisedMap:
        """The network of a member, with averaged weights."""
        values = {name: value[m] for name, value in self._unpack(self.state.average).items()}
        values |= {name: value[m] for name, value in self.state.fixed.items()}
        network = copy.deepcopy(self._like.network).requires_grad_(False)
        network.sizes = self._sizes[m]
        if network.sizes.noise == "constant":
            network.noise_head = None
        own = {name: values.get(f"network.{name}", value) for name, value in network.state_dict().items()}
        network.load_state_dict(own)
        return network

    def step(self, draw: Callable[[Sequence[int]], StepInputs]) -> None:
        """Take a step of Adam; ``draw`` makes what some members are given, whose numbers it is told."""
        device, whole = self.state.values.device, range(len(self))
        if device.type == "cuda":
            parts = [self._replay(partial(self._take_step, self._like, self.state), draw(whole), device)]
        else:  # what a member is given is drawn side by side, too
            parts = self._workers.map(lambda m: self._step_alone(draw([m]), m), whole)
        self.evidence.copy_(torch.cat([part for part, _ in parts]))
        for name in parts[0][1]:
            self.terms[name].copy_(torch.cat([found[name] for _, found in parts]))

    def _step_alone(self, inputs: StepInputs, m: int) -> tuple[Tensor, dict[str, Tensor]]:
        return self._take_step(self._copies[m], self.state.take(slice(m, m + 1)), inputs)

    def _take_step(
        self, like: MemberObjective, state: MemberTensors, inputs: StepInputs
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Update a state in place; the evidence, (M,), and the terms of the ELBO, in steps that have one."""
        # A copy: a view shares its base's count of changes, and other threads change other rows of that.
        values = state.values.clone().requires_grad_()
        parameters = self._unpack(values)
        output, terms = self._evaluate(like, parameters | state.fixed, inputs)
        weight, *variance = inputs.row_noise.unbind(-1)
        row_noise = RowNoise(weight, variance[0] if variance else None)
        kernel = _KernelParameters(*(parameters[f"network.{name}"] for name in _KernelParameters._fields))
        evidence = batch_log_evidence(kernel, output, inputs.y, row_noise) / inputs.x.shape[1]
        loss = -evidence
        if terms is not None and self.settings.elbo_weight:
            loss = loss - ELBO_EVERY * self.settings.elbo_weight * terms.objective
        (gradient,) = torch.autograd.grad(loss.sum(), values)
        if gradient.is_cuda:  # a recorded step cannot try again where a factorisation fails: it is passed over
            gradient = gradient.where(gradient.isfinite().all(1, keepdim=True), 0.0)
        with torch.no_grad():
            self._adam(state, gradient * state.trained, inputs.numbers)
        found = {} if terms is None else {name: value.detach() for name, value in terms.as_tensors().items()}
        return evidence.detach(), found

    def _evaluate(
        self, like: MemberObjective, tensors: dict[str, Tensor], inputs: StepInputs
    ) -> tuple[NetworkOutput, ElboTerms | None]:
        """Output and ELBO of every member, whose tensors have a leading dimension of members."""
        alpha, beta = self.settings.alpha, self.settings.beta

        def one(
            own: dict[str, Tensor], x: Tensor, kept: tuple[Tensor, ...], noise: Tensor | None
        ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            output, found = functional_call(like, own, (x, kept, noise, alpha, beta))
            present = {name: value for name, value in output._asdict().items() if value is not None}
            return present, {} if found is None else found.as_tensors()

        noise = inputs.noise
        if len(inputs.x) == 1:  # without what vmap adds to every operation
            own = {name: value[0] for name, value in tensors.items()}
            kept = tuple(each[0] for each in inputs.kept)
            parts = one(own, inputs.x[0], kept, None if noise is None else noise[0])
            present, found = ({name: value[None] for name, value in part.items()} for part in parts)
        else:
            given = (tensors, inputs.x, inputs.kept, noise)
            present, found = torch.vmap(one, in_dims=(0, 0, 0, None if noise is None else 0))(*given)
        output = NetworkOutput(present["latent"], present["phi"], present.get("gates"), present.get("log_noise"))
        return output, ElboTerms(**found, alpha=alpha, beta=beta) if found else None

    # Neither torch's optimisers nor its AveragedModel fit here: a member is a row of one tensor and has a rate of its
    # own, and on a GPU the step is replayed as a CUDA graph, in which rates and shares must be tensors.
    def _adam(self, state: MemberTensors, gradient: Tensor, numbers: Tensor) -> None:
        """Update members by Adam with decoupled weight decay."""
        rate, bias, square_bias, share = (column[:, None] for column in numbers.unbind(1))
        longest = _LONGEST_GRADIENT / (torch.linalg.vector_norm(gradient, dim=1, keepdim=True) + 1e-6)
        gradient = gradient * longest.clamp_max(1.0)
        state.first.lerp_(gradient, 1.0 - _BETAS[0])
        state.second.lerp_(gradient.square(), 1.0 - _BETAS[1])
        spread = (state.second / square_bias).sqrt_().add_(_EPS)
        state.values.mul_(1.0 - rate * self._decay)
        state.values.addcdiv_(-rate / bias * state.first, spread).clamp_(*self._limits)
        state.average.lerp_(state.values, share)

    def _vector(self, value_of: Callable[[str], tuple[float, ...]]) -> tuple[Tensor, ...]:
        """Numbers of every parameter as vectors over all their elements."""
        rows = [value_of(name) for name in self._shapes]
        lengths = torch.as_tensor([shape.numel() for shape in self._shapes.values()])
        columns = torch.tensor(rows, dtype=torch.float32).T
        device = self._like.log_var.device
        return tuple(column.repeat_interleave(lengths).to(device) for column in columns)

    def _pack(self, whole: MemberObjective) -> tuple[Tensor, Tensor]:
        """Parameters of a member in one row, zeros where it has none, and ones for those that are trained."""
        own = dict(whole.named_parameters())
        kept = () if self.settings.learn_kernel else tuple(f"network.{name}" for name in _KERNEL)
        values, trained = [], []
        for name, shape in self._shapes.items():
            has = name in own
            values.append(own[name].detach().reshape(-1) if has else self._like.log_var.new_zeros(shape.numel()))
            trained.append(torch.full_like(values[-1], float(has and name not in kept)))
        return torch.cat(values), torch.cat(trained)

    def _unpack(self, rows: Tensor) -> dict[str, Tensor]:
        """Parameters by name, (M, ...), as views of rows, (M, P)."""
        parts = torch.split(rows, [shape.numel() for shape in self._shapes.values()], 1)
        return {
            name: part.reshape(len(rows), *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }


class _KernelParameters(NamedTuple):
    """Kernel parameters of all members, (M, q) each."""

    log_signal: Tensor
    log_noise: Tensor
    mean: Tensor

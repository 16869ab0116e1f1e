"""States of a training, to be put down and taken up again: weights, optimiser, random numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from prismgp._types import Tensor

__all__ = ["TrainingState", "part"]


@dataclass(frozen=True)
class TrainingState:
    """The moving parts of a training loop.

    Attributes
    ----------
    modules : dict of Module
    optimiser : Optimizer
    draws : dict of numpy Generator
    generators : dict of torch Generator
    """

    modules: dict[str, torch.nn.Module]
    optimiser: torch.optim.Optimizer
    draws: dict[str, np.random.Generator]
    generators: dict[str, torch.Generator]

    def tensors(self) -> dict[str, Tensor]:
        """Copies of all numbers, by name."""
        found: dict[str, Tensor] = {}
        for name, module in self.modules.items():
            found |= {f"{name}.{key}": value.clone() for key, value in module.state_dict().items()}
        for index, state in self.optimiser.state_dict()["state"].items():
            found |= {f"optimiser.{index}.{key}": torch.as_tensor(value).clone() for key, value in state.items()}
        for name, generator in self.generators.items():
            found[f"generator.{name}"] = generator.get_state()
        return found

    def info(self) -> dict[str, Any]:
        """What is not a tensor."""
        # Their integers are longer than JSON readers promise to keep, so they go as text.
        return {"draws": {name: json.dumps(draw.bit_generator.state) for name, draw in self.draws.items()}}

    def restore(self, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
        """Take up what :meth:`tensors` and :meth:`info` gave."""
        for name, module in self.modules.items():
            module.load_state_dict(part(tensors, name))
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in part(tensors, "optimiser").items():
            index, _, name = key.partition(".")
            state.setdefault(int(index), {})[name] = value
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        for name, generator in self.generators.items():
            generator.set_state(tensors[f"generator.{name}"])
        for name, draw in self.draws.items():
            draw.bit_generator.state = json.loads(info["draws"][name])


def part(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``name.``, without it."""
    return {key[len(name) + 1 :]: value for key, value in tensors.items() if key.startswith(f"{name}.")}

"""A fitted auto-encoder as named tensors, and back; the model file holds these."""

from __future__ import annotations

import torch

from prismgp._tensors import take
from prismgp._types import Array, Tensor
from prismgp.exceptions import ModelFileError
from prismgp.vae.vae import MixtureVAE

__all__ = ["state_tensors", "vae_from_tensors"]

_POSITIVE = ("x_scale", "vae.encoder.running_var", "vae.decoder.running_var")


def state_tensors(vae: MixtureVAE, shift: Array, scale: Array) -> dict[str, Tensor]:
    """Everything a transformation needs: float64, contiguous, on the CPU."""
    tensors = {"x_shift": torch.tensor(shift), "x_scale": torch.tensor(scale)}
    tensors |= {f"vae.{name}": value for name, value in vae.state_dict().items()}
    return {name: value.detach().to("cpu", torch.float64).contiguous().clone() for name, value in tensors.items()}


def vae_from_tensors(tensors: dict[str, Tensor]) -> tuple[MixtureVAE, Array, Array]:
    """The networks in float64, ready to use, with shift and scale of the inputs.

    Sizes are read off the tensors; any disagreement between them raises ModelFileError.
    """
    try:
        n_components, hidden, _ = tensors["vae.encoder.head_weight"].shape
        _, latent_dim = tensors["vae.prior.directions"].shape
        (n_inputs,) = tensors["x_shift"].shape
    except (KeyError, ValueError) as error:
        raise ModelFileError(f"the tensors are not those of a Reconfigurer ({error})") from error
    if min(n_components, hidden, latent_dim, n_inputs) < 1:
        raise ModelFileError("a layer of the networks is empty")
    # Against the numbers there are, before anything is allocated.
    columns = n_inputs + latent_dim
    needed = n_components * hidden * (columns + 2 * hidden) + n_components * (2 * columns + latent_dim)
    directions = tensors["vae.prior.directions"]
    if needed > sum(tensor.numel() for tensor in tensors.values()) or len(directions) != n_components:
        raise ModelFileError("the tensors do not make up a Reconfigurer")
    vae = MixtureVAE(
        n_inputs, n_components, latent_dim, hidden, generator=torch.Generator(), directions=directions.numpy()
    ).double()
    shapes = {f"vae.{name}": tuple(value.shape) for name, value in vae.state_dict().items()}
    shapes |= {"x_shift": (n_inputs,), "x_scale": (n_inputs,)}
    take(tensors, **shapes)
    if any(bool((tensors[name] <= 0).any()) for name in _POSITIVE):
        raise ModelFileError("a scale is not positive")
    vae.load_state_dict({name: tensors[f"vae.{name}"] for name in vae.state_dict()})
    vae.eval().requires_grad_(False)
    return vae, tensors["x_shift"].numpy().copy(), tensors["x_scale"].numpy().copy()

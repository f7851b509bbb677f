"""Clipping of gradients: all of them by one factor, or each weight by its own."""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from vitral.core.config import Config

CLIP_EPS = 1e-6  # added to the norm of the gradients, as by torch and by DINO


class PerParameterClip(Config):
    """Scale the gradient of each parameter by itself so that its norm is at most `max_norm`, as DINO does."""

    kind: Literal["per_parameter"] = "per_parameter"
    max_norm: float = Field(default=3.0, gt=0)

    def apply(self, weights: Sequence[Tensor]) -> None:
        """Scale the gradients in place."""
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        factors = gradient_norms(gradients)
        torch._foreach_add_(factors, CLIP_EPS)
        torch._foreach_reciprocal_(factors)
        torch._foreach_mul_(factors, self.max_norm)
        torch._foreach_clamp_max_(factors, 1.0)
        torch._foreach_mul_([local_part(gradient) for gradient in gradients], factors)


def gradient_norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The norm of each gradient; of those that are sharded over processes too, by one collective for all of them."""
    norms = [*torch._foreach_norm([local_part(gradient) for gradient in gradients])]
    sharded = [index for index, gradient in enumerate(gradients) if is_sharded(gradient)]
    if sharded:
        from torch.distributed import all_reduce  # imported where there are processes
        from torch.distributed.tensor import DTensor

        first = gradients[sharded[0]]
        assert isinstance(first, DTensor)
        squares = torch.stack([norms[index] for index in sharded]).square()  # (sharded,)
        all_reduce(squares, group=first.device_mesh.get_group())
        for index, norm in zip(sharded, squares.sqrt().unbind(), strict=True):
            norms[index] = norm
    return norms


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has a part of the tensor (FSDP2)."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: all of one that is not sharded."""
    take: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if take is None else take()


def apply_clip(weights: Sequence[Tensor], clip: float | PerParameterClip) -> None:
    """Clip gradients by a maximum norm of all of them, which may be infinite, or of each."""
    if isinstance(clip, PerParameterClip):
        clip.apply(weights)
    elif isfinite(clip):
        clip_gradients(weights, clip)


def clip_gradients(weights: Sequence[Tensor], max_norm: float) -> None:
    """Scale all gradients by one factor so that their norm is at most this: the values of torch's `clip_grad_norm_`.

    Where the norm is on the CPU, gradients that are short enough are left alone, not multiplied by 1.
    """
    norm = get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if not is_on_host(norm) or not norm + CLIP_EPS <= max_norm:  # not a number is not short
        clip_grads_with_norm_(weights, max_norm, norm)


def is_on_host(tensor: Tensor) -> bool:
    """Whether reading a value waits for no device and no other process."""
    return tensor.device.type == "cpu" and type(tensor) is Tensor  # a sharded tensor is of another type

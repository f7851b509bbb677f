"""Attention of every layer, whatever kernel ran: q and k are taken where they are made, the plain formula applied.

B images, L tokens, H heads, d head width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitral.errors import ConfigError
from vitral.model.attention import Heads, SelfAttention
from vitral.model.contract import Model
from vitral.model.pool import Gather
from vitral.model.shapes import Layout


class Recording(NamedTuple):
    """What one attention worked on: that of a layer, or that of a pool."""

    layer: SelfAttention | Gather
    heads: Heads
    layout: Layout
    mixed: Tensor  # (B, queries, H d), what the heads gathered side by side, before the output projection

    def weights(self) -> Tensor:
        """What each token looked at (B, H, L, L), or what the pool did (B, H, 1, L); rows sum to one."""
        return self.layer.weights(self.heads, self.layout)


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Recording]]:
    """Collects what the attention of every layer that runs inside the `with` works on, first layer first."""
    recordings: list[Recording] = []
    begun: dict[SelfAttention, tuple[Heads, Layout]] = {}

    def listen(layer: SelfAttention) -> tuple[RemovableHandle, RemovableHandle]:
        def begin(_: nn.Module, inputs: tuple[Tensor, Layout, int], heads: Heads) -> None:
            begun[layer] = heads, inputs[1]

        def end(_: nn.Module, inputs: tuple[Tensor]) -> None:
            recordings.append(Recording(layer, *begun.pop(layer), inputs[0]))

        return layer.heads.register_forward_hook(begin), layer.project.register_forward_pre_hook(end)

    hooks = [hook for part in model.modules() if isinstance(part, SelfAttention) for hook in listen(part)]
    try:
        yield recordings
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def attention_maps(model: Model, images: Tensor) -> list[Tensor]:
    """The attention (B, H, L, L) of every layer on these images, without dropout."""
    training = model.training
    with recorded(model.eval()) as recordings:
        try:
            model.features(images)
        finally:
            model.train(training)
    if not recordings:
        what, remedy = "this model has no attention", "use a model with mixer=attention"
        raise ConfigError(what, code="config.unsupported", where="model", remedy=remedy)
    return [recording.weights() for recording in recordings]

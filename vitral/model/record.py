"""Attention of every layer, whatever kernel ran: q and k are taken where they are made, the plain formula applied."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from vitral.errors import ConfigError
from vitral.model.attention import Heads, SelfAttention
from vitral.model.contract import Model
from vitral.model.shapes import Layout


class Recording(NamedTuple):
    """What one layer's attention worked on."""

    layer: SelfAttention
    heads: Heads
    layout: Layout

    def weights(self) -> Tensor:
        """What each token of this layer looked at (B, H, L, L); rows sum to one."""
        return self.layer.weights(self.heads, self.layout)


@contextmanager
def recorded(model: nn.Module) -> Iterator[list[Recording]]:
    """Collects the q, k and v of every attention that runs inside the `with`, first layer first."""
    recordings: list[Recording] = []

    def listen(layer: SelfAttention) -> RemovableHandle:
        def record(_: nn.Module, inputs: tuple[Tensor, Layout, int], heads: Heads) -> None:
            recordings.append(Recording(layer, heads, inputs[1]))

        return layer.heads.register_forward_hook(record)

    hooks = [listen(part) for part in model.modules() if isinstance(part, SelfAttention)]
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
        raise ConfigError("this model has no attention", where="model", remedy="use a model with mixer=attention")
    return [recording.weights() for recording in recordings]

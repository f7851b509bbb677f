"""What happens inside a model on one image, in few numbers: nothing is kept that is not told.

B = 1 image, C channels, N patches, L tokens, D width, H heads, K classes.

A model layer by layer: what each was given, what it looked at, what it passed on.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitral.core.errors import ConfigError
from vitral.models.base import Layout, Model
from vitral.models.hooks import AttentionRecord, record_attention
from vitral.models.attention import BaseAttention
from vitral.models.vit import VisionTransformer


class Step(NamedTuple):
    """One layer at work."""

    layer: int  # counted from 1, as the paper does
    before: Tensor  # (B, T, D), what it was given
    after: Tensor  # (B, T, D), what it passed on
    layout: Layout
    recordings: tuple[AttentionRecord, ...]  # what its attention worked on; none where it has no attention

    def attention(self) -> Tensor:
        """What each token looked at (B, H, T, T); rows sum to one; no heads where there is no attention."""
        for recording in self.recordings:
            return recording.weights()
        images, tokens, _ = self.before.shape
        return self.before.new_empty(images, 0, tokens, tokens)


def layers_of(model: Model, images: Tensor) -> Iterator[Step]:
    """Images through one layer after the other, in the mode that the model is in.

    Nothing of a layer is kept once the next is asked for, so that the memory is that of one layer.
    """
    walker = transformer(model)
    layout = walker.layout(images)
    return walk(walker, walker.embed(images, layout), layout)


def walk(model: VisionTransformer, tokens: Tensor, layout: Layout) -> Iterator[Step]:
    """The first layer's tokens (B, T, D) through one layer after the other, every token to the end."""
    for layer, block in enumerate(model.blocks):
        given = model.position(tokens, layout, layer) if layer else tokens  # (B, T, D)
        with record_attention(block) as recordings:
            tokens = block(given, layout, layout.length())  # (B, T, D)
        yield Step(layer + 1, given, tokens, layout, tuple(recordings))


def attends(model: Model) -> bool:
    """Whether its layers look at tokens: not those of a ResNet, nor of a model with another mixer."""
    return isinstance(model, VisionTransformer) and isinstance(model.config.mixer, BaseAttention)


def transformer(model: Model) -> VisionTransformer:
    """The model as one that has tokens and layers; a ResNet is refused."""
    if isinstance(model, VisionTransformer):
        return model
    message = "this model has no tokens to follow"
    raise ConfigError(message, code="config.unsupported", where="model", hint="use a Vision Transformer")


class Moved(NamedTuple):
    """What one layer did to the tokens; lengths are means over all of them."""

    before: float  # length of a token
    gathered: float  # length of what the mixer adds to it
    thought: float  # length of what the MLP adds to it
    after: float
    change: float  # how far a token moved, as a share of its length before
    read: Tensor  # (D,), the class token after it, or the mean of the patches where there is none


class Watched(NamedTuple):
    """One image on its way through a Vision Transformer."""

    layout: Layout
    patches: Tensor  # (N, D), embedded
    tokens: Tensor  # (L, D), what the first layer is given
    layers: tuple[Moved, ...]
    attention: Tensor  # (H, L, L) of the first layer; no heads where it has no attention
    last: Tensor  # (L, D), after the last layer and norm
    pooled: Tensor  # (D,), or (2 D,) of a pool that reads two things
    answer: Tensor  # (K,), the head's scores; the vector itself where there is no head


@torch.no_grad()
def watched(model: VisionTransformer, image: Tensor) -> Watched:
    """The way of one image (1, C, H, W) through a model that is in evaluation mode."""
    layout = model.layout(image)
    patches = model.stem(image)  # (1, N, D)
    tokens = model.sequence(patches, layout)  # (1, L, D)
    layers, last, attention = [], tokens, tokens
    with overheard(branches_of(model)) as added:
        for step in walk(model, tokens, layout):
            gathered, thought = (length(added.pop(0)) for _ in range(2))
            far = (step.after - step.before).norm(dim=-1) / step.before.norm(dim=-1).clamp_min(1e-12)  # (1, L)
            read = reading(step.after[0], layout)  # (D,)
            layers.append(Moved(length(step.before), gathered, thought, length(step.after), far.mean().item(), read))
            last = step.after  # (1, L, D)
            attention = step.attention()[0] if step.layer == 1 else attention  # (H, L, L)
    last = model.norm(last)
    pooled = model.pool(last, layout)  # (1, D)
    answer = model.head(pooled)  # (1, K)
    return Watched(layout, patches[0], tokens[0], tuple(layers), attention, last[0], pooled[0], answer[0])


def branches_of(model: VisionTransformer) -> list[nn.Module]:
    """Where each layer's mixer and MLP hand over what they add, first layer first."""
    return [block.get_submodule(name) for block in model.blocks for name in ("mixer_branch", "mlp_branch")]


def length(tokens: Tensor) -> float:
    """The mean length of tokens (..., D)."""
    return tokens.norm(dim=-1).mean().item()


def reading(tokens: Tensor, layout: Layout) -> Tensor:
    """What stands for all of the tokens (L, D): the class token, or the mean of the patches where there is none."""
    return tokens[0] if layout.cls else tokens[layout.prefix() :].mean(dim=0)  # (D,)


@contextmanager
def overheard(parts: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Collects what the parts pass on inside the `with`, in the order in which they run."""
    found: list[Tensor] = []

    def heard(_: nn.Module, inputs: object, output: Tensor) -> None:
        found.append(output)

    hooks = [part.register_forward_hook(heard) for part in parts]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()

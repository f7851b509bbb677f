"""A model layer by layer: what each was given, what it looked at, what it passed on.

B images, T tokens, D width, H heads.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from vitral.errors import ConfigError
from vitral.model.contract import Model
from vitral.model.mixer import AttentionKind
from vitral.model.record import Recording, recorded
from vitral.model.shapes import Layout
from vitral.model.vit import VisionTransformer


class Step(NamedTuple):
    """One layer at work."""

    layer: int  # counted from 1, as the paper does
    before: Tensor  # (B, T, D), what it was given
    after: Tensor  # (B, T, D), what it passed on
    layout: Layout
    recordings: tuple[Recording, ...]  # what its attention worked on; none where it has no attention

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
        with recorded(block) as recordings:
            tokens = block(given, layout, layout.length())  # (B, T, D)
        yield Step(layer + 1, given, tokens, layout, tuple(recordings))


def attends(model: Model) -> bool:
    """Whether its layers look at tokens: not those of a ResNet, nor of a model with another mixer."""
    return isinstance(model, VisionTransformer) and isinstance(model.config.mixer, AttentionKind)


def transformer(model: Model) -> VisionTransformer:
    """The model as one that has tokens and layers; a ResNet is refused."""
    if isinstance(model, VisionTransformer):
        return model
    what = "this model has no tokens to follow"
    raise ConfigError(what, code="config.unsupported", where="model", remedy="use a Vision Transformer")

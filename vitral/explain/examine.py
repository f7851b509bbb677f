"""Everything that one pass forward and one back tell of an image.

L layers, T tokens, D width, H heads, K classes, R x S patches, t tokens that are shown (prefix + cells).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitral.config import Size
from vitral.errors import ConfigError
from vitral.explain import rollout
from vitral.explain.asking import check_class, resting
from vitral.explain.coarse import coarse, shown_grid
from vitral.explain.distance import distances
from vitral.explain.lens import probabilities
from vitral.explain.relevance import first_tokens, reading_of, traced
from vitral.explain.walk import Step, attends, transformer, walk
from vitral.model.contract import Model
from vitral.model.head import NoHead
from vitral.model.record import Recording
from vitral.model.shapes import Grid, Layout
from vitral.model.vit import VisionTransformer


class Seen(NamedTuple):
    """What one layer did with the image."""

    layer: int  # counted from 1
    tokens: Tensor  # (T, D), what it passed on
    attention: Tensor  # (H, t, t), rows sum to one; no heads where there is no attention
    distance: Tensor  # (H,), mean attention distance in pixels
    probabilities: Tensor  # (K,), what the answer would be if this layer were the last; no classes without a head


class Examined(NamedTuple):
    """An image in a model. A map of no size stands for what the model lacks."""

    layout: Layout
    shown: Grid  # of the cells in the attention
    embedded: Tensor  # (T, D), what the first layer was given
    layers: tuple[Seen, ...]
    features: Tensor  # (T, D), after the last layer and its norm
    rollout: Tensor  # (R, S)
    relevance: Tensor  # (R, S), what speaks for the target


Target = int | Literal["answer"]  # a class, or the most probable one


def examine(model: Model, image: Tensor, target: Target = "answer") -> Examined:
    """All there is to see of one image (1, C, H, W) and of what speaks for one class."""
    follower = transformer(model)
    layout, size = follower.layout(image), Size(*image.shape[2:])
    if len(image) != 1:
        what = f"expected one image, got {len(image)}"
        raise ConfigError(what, code="config.wrong_count", where="image", remedy="give one after the other")
    if target != "answer":
        check_class(model, target)
    told = attends(model) and not isinstance(model.config.head, NoHead)  # whether there is relevance
    layers: list[Seen] = []
    recordings: list[Recording] = []
    joint = rollout.beginning(layout.length(), image)  # (1, T, T)
    with resting(model), torch.inference_mode(False), torch.set_grad_enabled(told):
        embedded = first_tokens(follower, image, layout)  # (1, T, D)
        for step in walk(follower, embedded, layout):
            with torch.no_grad():
                attention = step.attention()  # (1, H, T, T)
                layers.append(seen(follower, step, attention, size))
                joint = rollout.further(joint, attention) if attends(model) else joint
            recordings += step.recordings
        reading = reading_of(follower, step.after, layout)
        chosen = int(reading.logits.argmax()) if target == "answer" else target
        nothing = embedded.new_empty(0, 0)
        return Examined(
            layout=layout,
            shown=shown_grid(layout.grid),
            embedded=embedded[0].detach(),
            layers=tuple(layers),
            features=reading.features[0].detach(),
            rollout=rollout.patches_of(reading.shares, joint, layout)[0] if attends(model) else nothing,
            relevance=traced(recordings, reading, [chosen], layout)[0] if told else nothing,
        )


def seen(model: VisionTransformer, step: Step, attention: Tensor, image: Size) -> Seen:
    """What is kept of a layer, without its gradients."""
    layout, tokens = step.layout, step.after.detach()  # (1, T, D)
    return Seen(
        layer=step.layer,
        tokens=tokens[0],
        attention=coarse(attention, layout, shown_grid(layout.grid))[0],
        distance=distances(attention, layout, image)[0],
        probabilities=probabilities(model, tokens, layout)[0],
    )

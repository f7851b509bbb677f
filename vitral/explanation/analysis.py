"""Everything that one pass forward and one back tell of an image.

L layers, T tokens, D width, H heads, K classes, R x S patches, t tokens that are shown (prefix + cells).

Every way to tell which patches count, with words for someone who meets it for the first time.
What the model itself tells of one image, without being asked again.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.explanation import rollout
from vitral.explanation.attention_distance import among_cells, coarse, distances, shown_grid
from vitral.explanation.class_probability import check_class, resting
from vitral.explanation.explanation import Array, HeatMap, LayerView, MapKind
from vitral.explanation.logit_lens import probabilities
from vitral.explanation.relevance import first_tokens, reading_of, traced
from vitral.explanation.rollout import patches_of
from vitral.explanation.trace import Step, attends, transformer, walk
from vitral.explanation.walkthrough.steps import array
from vitral.models.base import Grid, Layout, Model
from vitral.models.head import NoHead
from vitral.models.hooks import AttentionRecord, record_attention
from vitral.models.resnet import ResidualNetwork
from vitral.models.vit import VisionTransformer


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
        message = f"expected one image, got {len(image)}"
        raise ConfigError(message, code="config.wrong_count", where="image", hint="give one after the other")
    if target != "answer":
        check_class(model, target)
    told = attends(model) and not isinstance(model.config.head, NoHead)  # whether there is relevance
    layers: list[Seen] = []
    recordings: list[AttentionRecord] = []
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


TITLES: dict[MapKind, str] = {
    "rollout": "Attention rollout",
    "relevance": "Relevance",
    "attention": "Attention of the last layer",
    "occlusion": "Occlusion",
}
ABOUT: dict[MapKind, str] = {
    "rollout": (
        "How much of each patch can reach the answer, if attention is followed back through all layers (appendix D.8 "
        "of the paper). It knows nothing of classes: it would be the same for any of them."
    ),
    "relevance": (
        "What speaks for this one class: attention counts only where more of it would raise the score of the class, "
        "layer after layer (Chefer et al., arXiv 2012.09838)."
    ),
    "attention": (
        "What is looked at in the last layer by the tokens that the answer is read from, in the mean of the heads. "
        "The simplest map, and often not the most faithful: by then tokens hold much of their neighbors."
    ),
    "occlusion": (
        "How much the probability of the class falls when a square of the picture is covered with its mean color. "
        "Nothing is assumed about the model: it is simply asked again. Below 0, covering it helps the class."
    ),
}


def heat_map(kind: MapKind, values: Array) -> HeatMap:
    """The map with its title and its words.

    Of what cannot be below 0 the least patch is taken away: where every patch is read, all have a share in common that
    would hide what differs.
    """
    return HeatMap(kind, TITLES[kind], ABOUT[kind], values if kind == "occlusion" else values - values.min())


@torch.no_grad()
def last_look(model: VisionTransformer, found: Examined) -> Tensor:
    """What the tokens that are read look at in the last layer (R, S), of a model whose layers attend."""
    layer, layout = len(model.blocks) - 1, found.layout
    tokens = (found.layers[-2].tokens if layer else found.embedded)[None]  # (1, T, D)
    given = model.position(tokens, layout, layer) if layer else tokens  # (1, T, D)
    with resting(model), record_attention(model.blocks[layer]) as recordings:
        model.blocks[layer](given, layout, layout.length())
    attention = recordings[0].weights().mean(dim=1)  # (1, T, T)
    read = model.pool.reads(found.features[None], layout)  # (1, T)
    return patches_of(read, attention, layout)[0]


class Look(NamedTuple):
    """One image in one model. Arrays and maps of no size stand for what the model lacks."""

    layout: Layout
    shown: Grid  # of the cells in attention and similarity
    patches: Tensor  # (N, D), after the last layer and its norm
    probabilities: Array  # (K,)
    layers: tuple[LayerView, ...]  # every one of them
    maps: dict[MapKind, Array]  # (R, S) each
    distances: Array  # (L, H)


@torch.no_grad()
def look_at(model: Model, image: Tensor, target: Target, names: Sequence[str]) -> Look:
    """What one image (1, C, H, W) looks like inside the model; without names, whatever head it has is not asked."""
    if isinstance(model, ResidualNetwork):
        features = model.features(image)
        chances = model.head(features.patches.mean(dim=1))[0].softmax(dim=0) if names else image.new_empty(0)  # (K,)
        layout = Layout(0, 0, features.grid)
        none = array(image.new_empty(0, 0))
        return Look(layout, shown_grid(layout.grid), features.patches[0], array(chances), (), {}, none)
    assert isinstance(model, VisionTransformer)
    found = examine(model, image, target)
    layers = tuple(
        LayerView(
            each.layer,
            array(each.attention),
            array(each.distance),
            array(each.probabilities if names else each.probabilities[:0]),
        )
        for each in found.layers
    )
    maps: dict[MapKind, Array] = {}
    if attends(model):
        maps["rollout"] = array(found.rollout)
        if names:
            maps["relevance"] = array(found.relevance)
        maps["attention"] = array(last_look(model, found))
    patches = found.features[found.layout.prefix() :]  # (N, D)
    distances = array(torch.stack([each.distance for each in found.layers]))  # (L, H)
    return Look(found.layout, found.shown, patches, layers[-1].probabilities, layers, maps, distances)


def cells_of(patches: Tensor, grid: Grid, shown: Grid) -> Tensor:
    """The mean token of each cell that is shown (cells, D), of tokens of patches (N, D)."""
    layout = Layout(0, 0, grid)
    sizes = among_cells(patches.new_ones(grid.cells()), layout, shown)  # (cells,)
    return (among_cells(patches.mT, layout, shown) / sizes).mT

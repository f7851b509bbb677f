"""Every way to tell which patches count, with words for someone who meets it for the first time.

T tokens, D width, H heads, R x S patches.
"""

import torch
from torch import Tensor

from vitral.explain.asking import resting
from vitral.explain.examine import Examined
from vitral.explain.explanation import Array, HeatMap, MapKind
from vitral.explain.rollout import patches_of
from vitral.model.record import recorded
from vitral.model.vit import VisionTransformer

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
        "The simplest map, and often not the most faithful: by then tokens hold much of their neighbours."
    ),
    "occlusion": (
        "How much the probability of the class falls when a square of the picture is covered with its mean colour. "
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
    with resting(model), recorded(model.blocks[layer]) as recordings:
        model.blocks[layer](given, layout, layout.length())
    attention = recordings[0].weights().mean(dim=1)  # (1, T, T)
    read = model.pool.reads(found.features[None], layout)  # (1, T)
    return patches_of(read, attention, layout)[0]

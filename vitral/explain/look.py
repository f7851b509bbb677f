"""What the model itself tells of one image, without being asked again.

T tokens, N = R x S patches, D width, L layers, H heads, K classes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.explain.coarse import among_cells, shown_grid
from vitral.explain.ends import array
from vitral.explain.examine import Target, examine
from vitral.explain.explanation import Array, LayerView, MapKind
from vitral.explain.maps import last_look
from vitral.explain.walk import attends
from vitral.model.bit import ResidualNetwork
from vitral.model.contract import Model
from vitral.model.shapes import Grid, Layout
from vitral.model.vit import VisionTransformer


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

"""Which places a model holds for near: similarity of position embeddings (Fig. 7, centre).

R x S patches, N = R S, D width, d head width.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.explain.explanation import Array
from vitral.explain.similarity import cosine_similarity
from vitral.model.attention import SelfAttention
from vitral.model.contract import Model
from vitral.model.place import Added, Relation
from vitral.model.position import OffsetLogits, Rotation
from vitral.model.shapes import Grid, Layout
from vitral.model.vit import VisionTransformer

CONVOLUTIONS = "A ResNet has no position embeddings to compare: its convolutions know what lies beside what."
BAG = "This model adds no positions to its patches, so there are none to compare."
OFFSETS = (
    "This model's positions are offsets that each query weighs by itself, inside attention: "
    "there is no embedding of a place to compare with another."
)


class Positions(NamedTuple):
    """How alike places are, or why nothing can be said of that."""

    values: Array  # (R, S, R, S), cosines: [r, s] is the map of how near each place is to that one; or (0, 0, 0, 0)
    lacks: str  # a sentence, where there are no values


@torch.no_grad()
def positions_of(model: Model, layout: Layout) -> Positions:
    """The cosine similarity of the positions of patches, as a model has them for images of this layout.

    The class token's row is left out. Of positions that are learnt for every layer, the first layer's are compared. Of
    rotary ones, what is compared is the turn: the mean cosine of the angles between two places, which is what the
    product of a query and a key of equal content becomes.
    """
    if not isinstance(model, VisionTransformer):
        return absent(CONVOLUTIONS)
    if isinstance(model.position, Added):
        like = torch.empty(0, model.config.width, device=next(model.parameters()).device)
        _, patches = model.position.rows(layout, 0, like)  # (N, D)
        return compared(patches, layout.grid)
    layers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    relation = layers[0].heads.relation if layers else Relation()
    if isinstance(relation, Rotation):
        return compared(turns(relation, layout.grid, layers[0].heads.head_width), layout.grid)
    return absent(OFFSETS if isinstance(relation, OffsetLogits) else BAG)


def turns(relation: Rotation, grid: Grid, head_width: int) -> Tensor:
    """Where each place turns a vector of equal parts to (N, d): the cosines of its angles, then their sines."""
    upright = torch.zeros(grid.cells(), head_width)  # (N, d)
    upright[:, : head_width // 2] = 1
    return relation.rotate(upright, Layout(0, 0, grid))


def compared(rows: Tensor, grid: Grid) -> Positions:
    return Positions(cosine_similarity(rows).reshape(*grid, *grid), "")


def absent(why: str) -> Positions:
    return Positions(np.empty((0, 0, 0, 0), dtype=np.float32), why)

"""Which patches a model holds for alike.  N = R x S patch tokens, D width.

Principal components: the directions in which rows differ most.  n rows of F numbers, m components.
Which places a model holds for near: similarity of position embeddings (Fig. 7, center).
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.explanation.explanation import Array
from vitral.models.attention import SelfAttention
from vitral.models.base import Grid, Layout, Model
from vitral.models.position import AdditivePosition, RelativePosition, AttentionPosition, RotaryPosition2d
from vitral.models.vit import VisionTransformer

NOISE = 1e-12  # of the rows' energy: a variance below it is that of rounding in float32


class Principal(NamedTuple):
    """Components, those of the greatest variance first; as many as were asked for, or as the rows have."""

    directions: Tensor  # (m, F), orthonormal, the number of greatest size in each positive
    shares: Tensor  # (m,), of the variance of all rows
    places: Tensor  # (n, m), where each row lies along each direction, counted from the mean row


@torch.no_grad()
def principal(rows: Tensor, most: int) -> Principal:
    """The first components of some rows (n, F), in float64 on the CPU. The mean row is taken away first."""
    exact = rows.to("cpu", torch.float64)
    centered = exact - exact.mean(dim=0)  # (n, F)
    wide = centered.shape[0] < centered.shape[1]
    products = (
        centered @ centered.mT if wide else centered.mT @ centered
    )  # of the shorter side: both have the same roots
    rising, vectors = torch.linalg.eigh(products)
    variances, vectors = rising.flip(0)[:most], vectors.flip(1)[:, :most]
    real = variances > NOISE * exact.square().sum()
    variances, vectors = variances[real], vectors[:, real]
    directions = (centered.mT @ vectors / variances.sqrt()).mT if wide else vectors.mT  # (m, F)
    directions = directions * signs(directions)
    return Principal(directions, variances / centered.square().sum(), centered @ directions.mT)


def signs(directions: Tensor) -> Tensor:
    """1 or -1 for each direction (m, 1): an axis has two ends, and this chooses the same one every time."""
    greatest = directions.abs().argmax(dim=1, keepdim=True)  # (m, 1)
    return directions.gather(1, greatest).sign()


COLORS = 3
DARK, LIGHT = 2.0, 98.0  # percentiles that become 0 and 1: a few strange tokens do not wash out the rest


@torch.no_grad()
def cosine_similarity(tokens: Tensor) -> Array:
    """The cosine of the angle between every two tokens (N, D), as (N, N); 0 for a token that is zero."""
    directions = F.normalize(tokens.double(), dim=1)  # (N, D)
    return (directions @ directions.mT).clamp(-1, 1).float().cpu().numpy()


def colors(tokens: Tensor, grid: Grid) -> Array:
    """Where each patch token (N, D) lies along the first three principal components, as red, green and blue (R, S, 3).

    Every color runs from 0 to 1 over the image; one that has nothing to tell is 0.5 throughout.
    """
    places = principal(tokens, COLORS).places.numpy()  # (N, at most 3)
    picture = np.full((grid.cells(), COLORS), 0.5)  # (N, 3)
    if places.size:
        low, high = np.percentile(places, (DARK, LIGHT), axis=0)  # each (at most 3,)
        told = high > low  # not so where all patches but a few are the same
        picture[:, : len(low)][:, told] = ((places - low)[:, told] / (high - low)[told]).clip(0, 1)
    return picture.astype(np.float32).reshape(*grid, COLORS)


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

    The class token's row is left out. Of positions that are learned for every layer, the first layer's are compared. Of
    rotary ones, what is compared is the turn: the mean cosine of the angles between two places, which is what the
    product of a query and a key of equal content becomes.
    """
    if not isinstance(model, VisionTransformer):
        return absent(CONVOLUTIONS)
    if isinstance(model.position, AdditivePosition):
        like = torch.empty(0, model.config.width, device=next(model.parameters()).device)
        _, patches = model.position.rows(layout, 0, like)  # (N, D)
        return compared(patches, layout.grid)
    layers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    relation = layers[0].heads.relation if layers else AttentionPosition()
    if isinstance(relation, RotaryPosition2d):
        return compared(turns(relation, layout.grid, layers[0].heads.head_width), layout.grid)
    return absent(OFFSETS if isinstance(relation, RelativePosition) else BAG)


def turns(relation: RotaryPosition2d, grid: Grid, head_width: int) -> Tensor:
    """Where each place turns a vector of equal parts to (N, d): the cosines of its angles, then their sines."""
    upright = torch.zeros(grid.cells(), head_width)  # (N, d)
    upright[:, : head_width // 2] = 1
    return relation.rotate(upright, Layout(0, 0, grid))


def compared(rows: Tensor, grid: Grid) -> Positions:
    return Positions(cosine_similarity(rows).reshape(*grid, *grid), "")


def absent(why: str) -> Positions:
    return Positions(np.empty((0, 0, 0, 0), dtype=np.float32), why)

"""Principal components and cosine similarity: of embedding filters, patch tokens and position embeddings (Fig. 7).

N = R x S patch tokens, D width; n rows of F numbers, m components; filters of h x w pixels and C channels.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.explanation.explanation import Array
from vitral.models.attention import SelfAttention
from vitral.models.base import Grid, Layout, Model
from vitral.models.embed import (
    SHIFTS,
    ConvolutionStem,
    HybridStem,
    OverlappingStem,
    PaletteStem,
    PatchStem,
    ShiftedStem,
    linear_to_kernel,
)
from vitral.models.position import (
    AdditivePosition,
    AttentionPosition,
    BaseRelative,
    BaseRelativeBias,
    RotaryPosition,
    inside_attention,
)
from vitral.models.resnet import ResidualNetwork, StdConv2d, standardize
from vitral.models.vit import VisionTransformer

MAX_FILTERS = 28  # as many as the paper shows
COLORS = 3
DARK, LIGHT = 2.0, 98.0  # percentiles that become 0 and 1, so that a few outliers do not flatten the rest
NOISE = 1e-12  # of the squared norm of the rows: a smaller variance is rounding in float32


class PrincipalComponents(NamedTuple):
    """Principal components, largest variance first; at most as many as requested."""

    directions: Tensor  # (m, F), orthonormal; the entry of largest magnitude is positive
    explained_variance: Tensor  # (m,), ratios
    coordinates: Tensor  # (n, m), of each row, relative to the mean row


@torch.no_grad()
def pca(rows: Tensor, count: int) -> PrincipalComponents:
    """The first principal components of rows (n, F), in float64 on the CPU."""
    exact = rows.to("cpu", torch.float64)
    centered = exact - exact.mean(dim=0)  # (n, F)
    wide = centered.shape[0] < centered.shape[1]
    # The smaller of the two Gram matrices: both have the same nonzero eigenvalues.
    eigenvalues, vectors = torch.linalg.eigh(centered @ centered.mT if wide else centered.mT @ centered)
    variances, vectors = eigenvalues.flip(0)[:count], vectors.flip(1)[:, :count]
    real = variances > NOISE * exact.square().sum()
    variances, vectors = variances[real], vectors[:, real]
    directions = (centered.mT @ vectors / variances.sqrt()).mT if wide else vectors.mT  # (m, F)
    greatest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))  # (m, 1)
    directions = directions * greatest.sign()  # so that the sign does not depend on the solver
    return PrincipalComponents(directions, variances / centered.square().sum(), centered @ directions.mT)


class Filters(NamedTuple):
    """Principal components of filters, largest variance first; none where all are equal, or colors are looked up."""

    components: Array  # (m, h, w, C), at most 28, each of length 1
    explained_variance: Array  # (m,), ratios


def embedding_filters(model: Model) -> Filters:
    """The components of the patch embedding, or of the first convolution of a hybrid or a ResNet."""
    if isinstance(model, VisionTransformer) and isinstance(model.stem, PaletteStem):
        return Filters(np.empty((0, 1, 1, model.config.channels), np.float32), np.empty(0, np.float32))
    pixels = first_kernel(model).detach().permute(0, 2, 3, 1)  # (D, h, w, C)
    # The mean filter is subtracted: components are what filters differ in.
    components = pca(pixels.flatten(1), MAX_FILTERS)
    images = components.directions.unflatten(1, pixels.shape[1:])  # (m, h, w, C)
    return Filters(images.float().numpy(), components.explained_variance.float().numpy())


def first_kernel(model: Model) -> Tensor:
    """The filters of the first layer, as applied to pixels (D, C, h, w)."""
    stem = model.stem if isinstance(model, VisionTransformer) else model
    if isinstance(stem, HybridStem | ResidualNetwork):
        conv = stem.body.root[0]
        assert isinstance(conv, StdConv2d)
        return standardize(conv.weight, conv.how)
    if isinstance(stem, ConvolutionStem):
        return stem.get_parameter("layers.0.conv.weight")
    if isinstance(stem, OverlappingStem):
        return stem.project.weight
    if isinstance(stem, ShiftedStem):  # the filters of the image that is not shifted
        scale = getattr(stem.before, "weight", torch.ones(()))
        return linear_to_kernel((stem.project.weight * scale).chunk(SHIFTS, dim=1)[0], stem.patch)
    assert isinstance(stem, PatchStem)
    weight = stem.project.weight  # (D, C h w)
    if isinstance(stem.before, nn.LayerNorm):
        weight = weight * stem.before.weight  # the norm scales each pixel before the filters
    return linear_to_kernel(weight, stem.patch)


@torch.no_grad()
def cosine_similarity(tokens: Tensor) -> Array:
    """The cosine of the angle between every two tokens (N, D), as (N, N); 0 for a token that is zero."""
    directions = F.normalize(tokens.double(), dim=1)  # (N, D)
    return (directions @ directions.mT).clamp(-1, 1).float().cpu().numpy()


def pca_colors(tokens: Tensor, grid: Grid) -> Array:
    """The first three principal components of patch tokens (N, D) as red, green and blue (R, S, 3), each from 0 to 1.

    A component without variance is 0.5 throughout.
    """
    coordinates = pca(tokens, COLORS).coordinates.numpy()  # (N, at most 3)
    picture = np.full((grid.cells(), COLORS), 0.5)  # (N, 3)
    if coordinates.size:
        low, high = np.percentile(coordinates, (DARK, LIGHT), axis=0)  # each (at most 3,)
        varies = high > low  # false where all patches but a few are equal
        picture[:, : len(low)][:, varies] = ((coordinates - low)[:, varies] / (high - low)[varies]).clip(0, 1)
    return picture.astype(np.float32).reshape(*grid, COLORS)


class PositionSimilarity(NamedTuple):
    """Cosine similarity of position embeddings, or the reason why there is none."""

    values: Array = np.empty((0, 0, 0, 0), np.float32)  # (R, S, R, S): [r, s] compares that position with all others
    reason: str = ""  # a sentence, where there are no values


@torch.no_grad()
def position_similarity(model: Model, layout: Layout) -> PositionSimilarity:
    """The cosine similarity of the patches' position embeddings, at this layout.

    Embeddings learned for every layer are compared in the first. Rotary embeddings are compared by the mean cosine of
    the angles between two positions, which scales the product of an equal query and key.
    """
    if not isinstance(model, VisionTransformer):
        return PositionSimilarity(reason="A ResNet has no position embeddings.")
    layers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    relation = layers[0].heads.relation if layers else AttentionPosition()
    if isinstance(model.position, AdditivePosition):
        like = torch.empty(0, model.config.width, device=next(model.parameters()).device)
        _, rows = model.position.rows(layout, 0, like)  # (N, D)
    elif isinstance(relation, RotaryPosition):
        rows = rotary_rows(relation, layout.grid, layers[0].heads.head_width)  # (N, d)
    elif isinstance(inside_attention(model.config.position), BaseRelative | BaseRelativeBias):
        reason = "This model has relative positions inside attention: there are no position embeddings to compare."
        return PositionSimilarity(reason=reason)
    else:
        return PositionSimilarity(reason="This model has no position embeddings.")
    return PositionSimilarity(cosine_similarity(rows).reshape(*layout.grid, *layout.grid))


def rotary_rows(relation: RotaryPosition, grid: Grid, head_width: int) -> Tensor:
    """The rotation of a constant vector at each position (N, d), or (N, H d) if heads differ: cosines, then sines."""
    angles = relation.angles(grid, head_width, torch.zeros(1))  # (N, d/2), or (H, N, d/2)
    rows = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return rows if rows.ndim == 2 else rows.transpose(0, 1).flatten(1)

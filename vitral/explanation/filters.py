"""Principal components of the patch embedding filters (Fig. 7, left).

D filters of h x w pixels and C channels, n components.
"""

from typing import NamedTuple

from torch import Tensor, nn

from vitral.explanation.explanation import Array
from vitral.explanation.similarity import pca
from vitral.models.base import Model
from vitral.models.embed import HybridStem, PatchStem, linear_to_kernel
from vitral.models.resnet import ResidualNetwork, ResnetBody, StdConv2d, standardize
from vitral.models.vit import VisionTransformer

MAX_FILTERS = 28  # as many as the paper shows


class Filters(NamedTuple):
    """Principal components, largest variance first; none where all filters are equal."""

    components: Array  # (n, h, w, C), at most 28, each of length 1
    explained_variance: Array  # (n,), ratios


def embedding_filters(model: Model) -> Filters:
    """The components of the patch embedding, or of the first convolution of a hybrid or a ResNet."""
    kernel = first_kernel(model).detach()  # (D, C, h, w)
    pixels = kernel.permute(0, 2, 3, 1)  # (D, h, w, C)
    # The mean filter is subtracted: components are what filters differ in.
    components = pca(pixels.flatten(1), MAX_FILTERS)
    images = components.directions.unflatten(1, pixels.shape[1:])  # (n, h, w, C)
    return Filters(images.float().numpy(), components.explained_variance.float().numpy())


def first_kernel(model: Model) -> Tensor:
    """The filters of the first layer, as applied to pixels (D, C, h, w)."""
    if isinstance(model, ResidualNetwork):
        return root_kernel(model.body)
    assert isinstance(model, VisionTransformer)
    if isinstance(model.stem, HybridStem):
        return root_kernel(model.stem.body)
    assert isinstance(model.stem, PatchStem)
    weight = model.stem.project.weight  # (D, C h w)
    if isinstance(model.stem.before, nn.LayerNorm):
        weight = weight * model.stem.before.weight  # the norm scales each pixel before the filters
    return linear_to_kernel(weight, model.stem.patch)


def root_kernel(body: ResnetBody) -> Tensor:
    conv = body.root[0]
    assert isinstance(conv, StdConv2d)
    return standardize(conv.weight, conv.how)

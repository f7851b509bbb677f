"""What the first layer looks for: principal components of its filters (Fig. 7, left).

D filters of h x w pixels and C channels, n components.
"""

from typing import NamedTuple

from torch import Tensor, nn

from vitral.explanation.explanation import Array
from vitral.explanation.similarity import principal
from vitral.models.base import Model
from vitral.models.embed import HybridStem, PatchStem, linear_to_kernel
from vitral.models.resnet import ResnetBody, ResidualNetwork, StdConv2d, standardize
from vitral.models.vit import VisionTransformer

MOST = 28  # as many as the paper shows


class Filters(NamedTuple):
    """The components, those of the greatest variance first; none where the filters are all the same."""

    components: Array  # (n, h, w, C), at most 28, each of length 1
    shares: Array  # (n,), of the variance of the filters


def filters_of(model: Model) -> Filters:
    """The components of the patch embedding's filters; of a hybrid or a ResNet, of its first convolution's."""
    kernel = first_kernel(model).detach()  # (D, C, h, w)
    pixels = kernel.permute(0, 2, 3, 1)  # (D, h, w, C)
    # The mean over filters is taken away: a component is a way in which filters differ, not what they have in common.
    found = principal(pixels.flatten(1), MOST)
    components = found.directions.unflatten(1, pixels.shape[1:])  # (n, h, w, C)
    return Filters(components.float().numpy(), found.shares.float().numpy())


def first_kernel(model: Model) -> Tensor:
    """The first layer's filters as pixels meet them (D, C, h, w)."""
    if isinstance(model, ResidualNetwork):
        return root_kernel(model.body)
    assert isinstance(model, VisionTransformer)
    if isinstance(model.stem, HybridStem):
        return root_kernel(model.stem.body)
    assert isinstance(model.stem, PatchStem)
    weight = model.stem.project.weight  # (D, C h w)
    if isinstance(model.stem.before, nn.LayerNorm):
        weight = weight * model.stem.before.weight  # the norm's gains act on a pixel just before the filters do
    return linear_to_kernel(weight, model.stem.patch)


def root_kernel(body: ResnetBody) -> Tensor:
    conv = body.root[0]
    assert isinstance(conv, StdConv2d)
    return standardize(conv.weight, conv.how)

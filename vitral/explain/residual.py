"""The walk-through of a ResNet, whether it is the whole model or the stem of a hybrid.

C channels, H x W pixels, R x S places of a map, D width, K classes.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitral.config import Size
from vitral.data.decoder.depth import Pixels
from vitral.explain.ends import answer_stages, array, shape
from vitral.explain.equations import residual_equations
from vitral.explain.explanation import Stage
from vitral.explain.strips import heat_picture, number_strips
from vitral.explain.watching import overheard
from vitral.model.bit import ResidualNetwork
from vitral.model.resnet import Body
from vitral.model.shapes import Grid


@torch.no_grad()
def residual_stages(model: ResidualNetwork, image: Tensor, names: Sequence[str]) -> list[Stage]:
    """From an image (1, C, H, W) to the answer of a ResNet."""
    units, mean, head = residual_equations(model.config.model_copy(update={"image": Size(*image.shape[2:])}))
    maps = map_stage(model.body, image, units)
    pooled = model.pooled(image)  # (1, D)
    words = "Every channel of the last map is averaged over all places: what is left is what was seen, not where."
    numbers = (("length of the vector", pooled.norm().item()),)
    pool = Stage("The map is averaged", mean, words, shape(pooled.shape[1]), numbers, (number_strips(array(pooled)),))
    return [maps, pool, *answer_stages(head, model.head(pooled)[0], names)]


@torch.no_grad()
def map_stage(body: Body, image: Tensor, equation: str = "") -> Stage:
    """From an image (1, C, H, W) to the last map of a ResNet's body."""
    with overheard([body.root, *body.stages]) as outputs:
        last = body(image)  # (1, D, R, S)
    sizes = ", ".join(shape(*output.shape[1:]) for output in outputs)
    words = (
        "They look through small windows, and from stage to stage the map gets coarser and deeper: "
        f"{sizes}. The panes show how much answers at each place after each stage."
    )
    named = [("the root", outputs[0].relu())]
    named += [(f"stage {number}", output) for number, output in enumerate(outputs[1:], start=1)]
    numbers = tuple((f"mean after {name}", output.mean().item()) for name, output in named)
    pictures = tuple(answering(output) for _, output in named)
    return Stage("Convolutions look at the picture", equation, words, shape(*last.shape[1:]), numbers, pictures)


def answering(output: Tensor) -> Pixels:
    """The mean over channels of a map (1, D, R, S) as panes of colour."""
    return heat_picture(array(output[0].mean(dim=0)).ravel(), Grid(output.shape[2], output.shape[3]))

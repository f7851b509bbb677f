"""Parameters and multiply-adds of a model, in closed form for the paper's models and counted for others.

To count all models that ship takes half a minute; the formulas are tested to give the same numbers.
"""

from typing import NamedTuple

from vitral.core.config import Size
from vitral.explanation.walkthrough.describe import multiply_adds
from vitral.models.attention import Attention
from vitral.models.embed import Hybrid, Patches, StemConfig
from vitral.models.head import LinearHead
from vitral.models.mlp import Mlp
from vitral.models.resnet import BaseResnet, Resnet
from vitral.models.vit import Vit


class ModelCost(NamedTuple):
    """The size of a model: its parameters, and the multiply-adds of all tokens of one image."""

    parameters: int
    multiply_adds: int


def model_cost(model: Vit | Resnet) -> ModelCost:
    """The cost of a model without its head's multiply-adds, which are of the pooled output alone."""
    if isinstance(model, Resnet) and isinstance(model.head, LinearHead):
        return _sum(_resnet(model, model.channels, model.image_size), _head(model.head, model.out_channels()))
    if isinstance(model, Vit) and isinstance(model.head, LinearHead) and model == _plain(model):
        stem, blocks = _stem(model), _block(model)
        rest = model.width * (1 + model.layout(model.image_size).length() + 2)  # class token, positions, last norm
        head = _head(model.head, model.width)
        whole = ModelCost(blocks.parameters * model.depth + rest, blocks.multiply_adds * model.depth)
        return _sum(stem, whole, head)
    parameters = sum(weight.numel() for weight in model.build_empty().parameters())
    return ModelCost(parameters, multiply_adds(model, in_full=True))


def _plain(model: Vit) -> Vit:
    """The paper's model of the same size: the formulas hold if it equals the model."""
    stem: StemConfig = Patches(patch=model.token_size())
    if isinstance(model.stem, Hybrid):
        stem = model.stem.model_copy(update={"project": True})
    return Vit(
        image_size=model.image_size,
        channels=model.channels,
        width=model.width,
        depth=model.depth,
        stem=stem,
        mixer=Attention(heads=model.mixer.heads if isinstance(model.mixer, Attention) else 1),
        mlp=Mlp(ratio=model.mlp.ratio) if isinstance(model.mlp, Mlp) else Mlp(),
        head=model.head,
    )


def _sum(*costs: ModelCost) -> ModelCost:
    return ModelCost(*map(sum, zip(*costs, strict=True)))


def _linear(inputs: int, outputs: int, times: int) -> ModelCost:
    """A linear layer with a bias that runs on so many vectors."""
    return ModelCost(inputs * outputs + outputs, inputs * outputs * times)


def _head(head: LinearHead, width: int) -> ModelCost:
    return _linear(width, head.num_classes, times=0)


def _block(model: Vit) -> ModelCost:
    """A layer: two norms, attention and MLP."""
    width, hidden, length = model.width, model.mlp.hidden(model.width), model.layout(model.image_size).length()
    layers = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    attention = ModelCost(0, 2 * length**2 * width)  # q k^T, and its product with v
    return _sum(ModelCost(4 * width, 0), attention, *(_linear(*layer, length) for layer in layers))


def _stem(model: Vit) -> ModelCost:
    """The patch embedding, after the ResNet of a hybrid."""
    stem, cells = model.stem, model.stem.grid(model.image_size).cells()
    if isinstance(stem, Hybrid):
        return _sum(_resnet(stem, model.channels, model.image_size), _linear(stem.pixels(), model.width, cells))
    return _linear(model.channels * stem.patch.height * stem.patch.width, model.width, cells)


def _resnet(config: BaseResnet, channels: int, image: Size) -> ModelCost:
    """The root and the stages; sizes are divided by strides and rounded up."""
    size = _halve(image)
    costs = [_convolution(channels, config.root, 7, size)]
    size, inputs = _halve(size), config.root
    for index, units in enumerate(config.layers):
        inner, before, size = config.root * 2**index, size, _halve(size) if index else size
        changes = index > 0 or inputs != 4 * inner
        costs += [_convolution(inputs, 4 * inner, 1, size)] if changes else []
        costs += _bottleneck(inputs, inner, before, size)
        inputs = 4 * inner
        costs += _bottleneck(inputs, inner, size, size) * (units - 1)
    return _sum(*costs)


def _bottleneck(inputs: int, inner: int, before: Size, after: Size) -> list[ModelCost]:
    return [
        _convolution(inputs, inner, 1, before),
        _convolution(inner, inner, 3, after),
        _convolution(inner, 4 * inner, 1, after),
    ]


def _convolution(inputs: int, outputs: int, kernel: int, size: Size) -> ModelCost:
    """A convolution without a bias, with an output of this size, and a GroupNorm."""
    weights = inputs * outputs * kernel**2
    return ModelCost(weights + 2 * outputs, weights * size.height * size.width)


def _halve(size: Size) -> Size:
    return Size(-(-size.height // 2), -(-size.width // 2))

"""The interface of models, and the types that describe their inputs and outputs.  B images, C channels, D width."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor, nn

from vitral.core.activation import Activation
from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError
from vitral.models.norm import LayerNorm, NormConfig

if TYPE_CHECKING:
    from vitral.models.resnet import Resnet
    from vitral.models.vit import Vit


MAX_SIDE = 100_000  # pixels; catches typing errors


class Grid(NamedTuple):
    """Rows and columns of patches."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    def cells(self) -> int:
        return self.rows * self.columns


class Layout(NamedTuple):
    """The tokens of a sequence, in order: class token, registers, patches row by row."""

    cls: int
    registers: int
    grid: Grid

    def prefix(self) -> int:
        return self.cls + self.registers

    def length(self) -> int:
        return self.cls + self.registers + self.grid.cells()


class BuildContext(NamedTuple):
    """What a module needs to know about the model it is built for."""

    width: int
    depth: int
    layout: Layout
    eps: float
    heads: int = 0  # of the mixer; 0 without attention
    head_width: int = 0
    norm: NormConfig = LayerNorm()

    def build_norm(self, width: int = 0) -> nn.Module:
        """A norm over this many channels, by default the width of the model."""
        return self.norm.build(width or self.width, self.eps)


class Features(NamedTuple):
    """The output tokens of a batch. Missing class tokens or registers are empty tensors, not None."""

    cls: Tensor  # (B, 0 or 1, D)
    registers: Tensor  # (B, registers, D)
    patches: Tensor  # (B, N, D)
    grid: Grid


def split_tokens(tokens: Tensor, layout: Layout) -> Features:
    """Split a sequence (B, prefix + N, D) into class token, registers and patches."""
    sizes = (layout.cls, layout.registers, layout.grid.cells())
    cls, registers, patches = tokens.split(sizes, dim=1)
    return Features(cls, registers, patches, layout.grid)


def nearest_multiple(image: Size, patch: Size) -> Size:
    """The size nearest to the image's that is a multiple of the patch on both sides."""
    return Size(*(max(1, round(side / step)) * step for side, step in zip(image, patch, strict=True)))


def patch_grid(image: Size, patch: Size, unit: str = "patches") -> Grid:
    """The grid of patches that covers the image exactly."""
    if max(image) > MAX_SIDE:
        message, hint = f"a {image} image is too large", f"use at most {MAX_SIDE} pixels a side"
        raise ConfigError(message, code="config.out_of_range", where="image_size", hint=hint)
    rows, columns = image.height // patch.height, image.width // patch.width
    if image.height % patch.height or image.width % patch.width or not rows or not columns:
        message, hint = f"a {image} image does not divide into {patch} {unit}", f"use {nearest_multiple(image, patch)}"
        raise ConfigError(message, code="config.indivisible", where="image_size", hint=hint)
    return Grid(rows, columns)


def check_heads(width: int, heads: int, where: str) -> None:
    """Raise ConfigError unless the heads divide the width."""
    if width % heads:
        hint = f"use one of {', '.join(str(count) for count in range(1, 2 * heads) if width % count == 0)}"
        message = f"width {width} does not divide among {heads} heads"
        raise ConfigError(message, code="config.indivisible", where=where, hint=hint)


class Model(nn.Module):
    """Images (B, C, H, W) to logits, pooled features or token features."""

    config: "Vit | Resnet"
    head: nn.Module
    activation: Activation = "softmax"  # what turns the logits into probabilities; set by the bundle

    def forward_features(self, images: Tensor) -> Features:
        """All tokens after the last layer and the final norm."""
        raise NotImplementedError

    def forward_pooled(self, images: Tensor) -> Tensor:
        """The pooled features (B, D), the input of the head."""
        raise NotImplementedError

    def forward_intermediates(self, images: Tensor, layers: Sequence[int]) -> list[Features]:
        """All tokens after each of these layers, in the order given, before the final norm.

        Layers count from 0; -1 is the last one. The tokens of the last layer are those of `forward_features` before its
        norm.
        """
        raise self._no_layers()

    def attention(self, images: Tensor) -> list[Tensor]:
        """The attention (B, H, L, L) of every layer, without dropout or gradients; each row sums to one."""
        raise self._no_layers()

    def _no_layers(self) -> ConfigError:
        message = f"a {type(self).__name__} has no Transformer layers"
        hint = "use forward_features, or a model such as S/16"
        return ConfigError(message, code="config.unsupported", where="model", hint=hint)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_pooled(images))  # (B, classes), or (B, D) without a head

    def empty_batch(self) -> Tensor:
        """An input without images, which passes through all layers."""
        return torch.zeros(0, self.config.channels, *self.config.image_size)  # (0, C, H, W)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy these weights into the model; WeightsError if any is missing, unexpected, misshapen or not finite.

        A model on the meta device takes the tensors themselves, without a copy.
        """
        own = self.state_dict()
        hint = "use weights of this model, or build the model of these weights"
        raise_mismatches(find_mismatches(own, weights), "weights", hint)
        faults = [
            Mismatch(f"{name} has {broken} of {tensor.numel()} values not finite", "weights.not_finite")
            for name, tensor in weights.items()
            # The sum is 10 times faster: it is not finite if any value is not, or if finite values overflow.
            if not tensor.sum().isfinite() and (broken := int((~tensor.isfinite()).sum()))
        ]
        raise_mismatches(faults, "weights", "use an earlier checkpoint: training diverged")
        self.load_state_dict(dict(weights), assign=any(weight.is_meta for weight in own.values()))


class Mismatch(str):
    """What is wrong with one tensor, and the error code for it."""

    __slots__ = ("code",)
    code: str

    def __new__(cls, text: str, code: str) -> Self:
        fault = super().__new__(cls, text)
        fault.code = code
        return fault


def find_mismatches(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """A `Mismatch` for each tensor that keeps a model with these parameters from loading the weights."""
    faults: list[str] = []
    faults += [Mismatch(f"{name} is missing", "weights.missing_tensor") for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    faults += [Mismatch(f"{name} is not in this model", "weights.unexpected_tensor") for name in unknown]
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            faults.append(Mismatch(f"{name} holds {tensor.dtype}, expected floating point", "weights.wrong_type"))
        elif name in own and tensor.shape != own[name].shape:
            message = f"{name} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}"
            faults.append(Mismatch(message, "weights.shape_mismatch"))
    return faults


def raise_mismatches(faults: Sequence[str], where: str, hint: str, code: str = "weights.mismatch") -> None:
    """Raise WeightsError if there are faults; the message lists the first five.

    The code is that of the first fault, or `code` if it has none.
    """
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        code = faults[0].code if isinstance(faults[0], Mismatch) else code
        raise WeightsError("; ".join(faults[:5]) + more, code=code, where=where, hint=hint)


def check_images(images: Tensor, channels: int) -> Size:
    """The size of a batch of images; ConfigError if it is not a batch of float images with these channels."""
    if not isinstance(images, Tensor):
        message = f"expected a tensor (B, {channels}, H, W), got {type(images).__name__}"
        raise ConfigError(message, code="config.wrong_type", where="images", hint=_tensor_hint(images))
    shape = tuple(images.shape)
    if images.ndim != 4:
        message = f"expected a batch of images (B, {channels}, H, W), got shape {shape}"
        hint = "use four dimensions"
        if images.ndim == 3:
            last = shape[0] != channels and shape[2] == channels
            message += ", which looks like (H, W, C)" if last else ""
            hint = "use images.permute(2, 0, 1)[None]" if last else "add the batch dimension with images[None]"
        raise ConfigError(message, code="config.shape_mismatch", where="images", hint=hint)
    if shape[1] != channels and shape[3] == channels:
        message = f"expected (B, {channels}, H, W), got shape {shape}, which looks like (B, H, W, C)"
        hint = "use images.permute(0, 3, 1, 2)"
        raise ConfigError(message, code="config.shape_mismatch", where="images", hint=hint)
    if images.shape[1] != channels:
        message = f"the model takes {channels} channels, got {images.shape[1]}"
        hint = f"convert the images, or build the model with channels={images.shape[1]}"
        raise ConfigError(message, code="config.channel_mismatch", where="images", hint=hint)
    if not torch.is_floating_point(images):
        message = f"expected floating point pixels, got {images.dtype}"
        hint = "normalize them first: images / 127.5 - 1, or make them with bundle.transform"
        raise ConfigError(message, code="config.wrong_type", where="images", hint=hint)
    return Size(*images.shape[2:])


def _tensor_hint(images: object) -> str:
    """How to make a batch of what was given instead."""
    if isinstance(images, list | tuple) and images and all(isinstance(each, Tensor) for each in images):
        return "use torch.stack(images)"
    if type(images).__module__ == "numpy":
        return "use torch.from_numpy(images)"
    return "make tensors with bundle.transform and batch them with torch.stack, or use vitral.Predictor"

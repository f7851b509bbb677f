"""What every model promises, whatever it is made of.  B images, C channels, D width.

The joints of the model: how an image becomes a grid, a grid a sequence, a sequence features.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor, nn

from vitral.core.activation import Activation
from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError

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
    """What stands where in a sequence: class token, registers, then the patches row by row."""

    cls: int
    registers: int
    grid: Grid

    def prefix(self) -> int:
        return self.cls + self.registers

    def length(self) -> int:
        return self.cls + self.registers + self.grid.cells()


class BuildContext(NamedTuple):
    """What a part needs to know of the model it is built into."""

    width: int
    depth: int
    layout: Layout
    eps: float
    heads: int = 0  # of the mixer, if it has any


class Features(NamedTuple):
    """What a model sees in a batch. Without a class token or registers there are zero of them, not None."""

    cls: Tensor  # (B, 0 or 1, D)
    registers: Tensor  # (B, registers, D)
    patches: Tensor  # (B, N, D)
    grid: Grid


def split_tokens(tokens: Tensor, layout: Layout) -> Features:
    """A sequence (B, prefix + N, D) taken apart into what its tokens are."""
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
    """Refuse heads that cannot share the width evenly."""
    if width % heads:
        hint = f"use one of {', '.join(str(count) for count in range(1, 2 * heads) if width % count == 0)}"
        message = f"width {width} does not divide among {heads} heads"
        raise ConfigError(message, code="config.indivisible", where=where, hint=hint)


class Model(nn.Module):
    """Images (B, C, H, W) to answers, with the vector and the features behind them to be had as well."""

    config: "Vit | Resnet"
    head: nn.Module
    activation: Activation = "softmax"  # what turns the logits into probabilities; set by the bundle

    def forward_features(self, images: Tensor) -> Features:
        """Every token after the last layer and its norm."""
        raise NotImplementedError

    def forward_pooled(self, images: Tensor) -> Tensor:
        """One vector an image (B, D), which the head turns into an answer."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.forward_pooled(images))  # (B, classes), or (B, D) without a head

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take a copy of these weights, or refuse them all and say which are wrong.

        A skeleton, which has no values yet, takes the very tensors instead: loading then costs no copy.
        """
        own = self.state_dict()
        hint = "give the weights of this very model, or build the model that these weights are of"
        raise_mismatches(find_mismatches(own, weights), "weights", hint)
        faults = []
        for name, tensor in weights.items():
            # Ten times as quick: a sum is not finite if any value is not, or if all are but large.
            if not tensor.sum().isfinite() and (broken := int((~tensor.isfinite()).sum())):
                faults.append(
                    Mismatch(f"{name} has {broken} of {tensor.numel()} values not finite", "weights.not_finite")
                )
        raise_mismatches(faults, "weights", "take an earlier checkpoint: the run that made these diverged")
        self.load_state_dict(dict(weights), assign=any(weight.is_meta for weight in own.values()))


class Mismatch(str):
    """What is wrong with one tensor, and the code of an error that begins with it."""

    __slots__ = ("code",)
    code: str

    def __new__(cls, text: str, code: str) -> Self:
        fault = super().__new__(cls, text)
        fault.code = code
        return fault


def find_mismatches(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Why a model with these tensors of its own cannot take the weights: a `Fault` for each that is wrong."""
    faults: list[str] = [
        Mismatch(f"{name} is missing", "weights.missing_tensor") for name in own if name not in weights
    ]
    unknown = [name for name in weights if name not in own]
    faults += [Mismatch(f"{name} is not a part of this model", "weights.unexpected_tensor") for name in unknown]
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            faults.append(Mismatch(f"{name} holds {tensor.dtype}, expected floating point", "weights.wrong_type"))
        elif name in own and tensor.shape != own[name].shape:
            message = f"{name} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}"
            faults.append(Mismatch(message, "weights.shape_mismatch"))
    return faults


def raise_mismatches(faults: Sequence[str], where: str, hint: str, code: str = "weights.mismatch") -> None:
    """Raise what is wrong, if anything is: the first five, and how many more.

    The code is that of the first; `code` is for faults that have none of their own.
    """
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        code = faults[0].code if isinstance(faults[0], Mismatch) else code
        raise WeightsError("; ".join(faults[:5]) + more, code=code, where=where, hint=hint)


def check_images(images: Tensor, channels: int) -> Size:
    """The size of the images, once it is sure that this is a batch of them."""
    if images.ndim != 4:
        raise ConfigError(
            f"expected a batch of images (B, {channels}, H, W), got {images.ndim} dimensions {tuple(images.shape)}",
            code="config.shape_mismatch",
            where="images",
            hint="add the batch dimension with images[None]" if images.ndim == 3 else "give four dimensions",
        )
    if images.shape[1] != channels:
        raise ConfigError(
            f"the model takes {channels} channels, got {images.shape[1]}",
            code="config.channel_mismatch",
            where="images",
            hint=f"convert the images, or build the model with channels={images.shape[1]}",
        )
    if not torch.is_floating_point(images):
        raise ConfigError(
            f"expected floating point pixels, got {images.dtype}",
            code="config.wrong_type",
            where="images",
            hint="scale them first: images / 127.5 - 1",
        )
    return Size(*images.shape[2:])

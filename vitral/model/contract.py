"""What every model promises, whatever it is made of.  B images, C channels, D width."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor, nn

from vitral.config import Size
from vitral.errors import ConfigError, WeightsError
from vitral.model.shapes import Features

if TYPE_CHECKING:  # both are built on this file
    from vitral.model.bit import Resnet
    from vitral.model.vit import Vit


class Model(nn.Module):
    """Images (B, C, H, W) to answers, with the vector and the features behind them to be had as well."""

    config: "Vit | Resnet"
    head: nn.Module

    def features(self, images: Tensor) -> Features:
        """Every token after the last layer and its norm."""
        raise NotImplementedError

    def pooled(self, images: Tensor) -> Tensor:
        """One vector an image (B, D), which the head turns into an answer."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pooled(images))  # (B, classes), or (B, D) without a head

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take a copy of these weights, or refuse them all and say which are wrong.

        A skeleton, which has no values yet, takes the very tensors instead: loading then costs no copy.
        """
        own = self.state_dict()
        remedy = "give the weights of this very model, or build the model that these weights are of"
        refuse(misfits(own, weights), "weights", remedy)
        faults = []
        for name, tensor in weights.items():
            # Ten times as quick: a sum is not finite if any value is not, or if all are but large.
            if not tensor.sum().isfinite() and (broken := int((~tensor.isfinite()).sum())):
                faults.append(Fault(f"{name} has {broken} of {tensor.numel()} values not finite", "weights.not_finite"))
        refuse(faults, "weights", "take an earlier checkpoint: the run that made these diverged")
        self.load_state_dict(dict(weights), assign=any(weight.is_meta for weight in own.values()))


class Fault(str):
    """What is wrong with one tensor, and the code of an error that begins with it."""

    __slots__ = ("code",)
    code: str

    def __new__(cls, text: str, code: str) -> Self:
        fault = super().__new__(cls, text)
        fault.code = code
        return fault


def misfits(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Why a model with these tensors of its own cannot take the weights: a `Fault` for each that is wrong."""
    faults: list[str] = [Fault(f"{name} is missing", "weights.missing_tensor") for name in own if name not in weights]
    unknown = [name for name in weights if name not in own]
    faults += [Fault(f"{name} is not a part of this model", "weights.unexpected_tensor") for name in unknown]
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            faults.append(Fault(f"{name} holds {tensor.dtype}, expected floating point", "weights.wrong_type"))
        elif name in own and tensor.shape != own[name].shape:
            what = f"{name} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}"
            faults.append(Fault(what, "weights.shape_mismatch"))
    return faults


def refuse(faults: Sequence[str], where: str, remedy: str, code: str = "weights.mismatch") -> None:
    """Raise what is wrong, if anything is: the first five, and how many more.

    The code is that of the first; `code` is for faults that have none of their own.
    """
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        code = faults[0].code if isinstance(faults[0], Fault) else code
        raise WeightsError("; ".join(faults[:5]) + more, code=code, where=where, remedy=remedy)


def check_images(images: Tensor, channels: int) -> Size:
    """The size of the images, once it is sure that this is a batch of them."""
    if images.ndim != 4:
        raise ConfigError(
            f"expected a batch of images (B, {channels}, H, W), got {images.ndim} dimensions {tuple(images.shape)}",
            code="config.shape_mismatch",
            where="images",
            remedy="add the batch dimension with images[None]" if images.ndim == 3 else "give four dimensions",
        )
    if images.shape[1] != channels:
        raise ConfigError(
            f"the model takes {channels} channels, got {images.shape[1]}",
            code="config.channel_mismatch",
            where="images",
            remedy=f"convert the images, or build the model with channels={images.shape[1]}",
        )
    if not torch.is_floating_point(images):
        raise ConfigError(
            f"expected floating point pixels, got {images.dtype}",
            code="config.wrong_type",
            where="images",
            remedy="scale them first: images / 127.5 - 1",
        )
    return Size(*images.shape[2:])

"""What every model promises, whatever it is made of.  B images, C channels, D width."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
                faults.append(f"{name} has {broken} of {tensor.numel()} values not finite")
        refuse(faults, "weights", "take an earlier checkpoint: the run that made these diverged")
        self.load_state_dict(dict(weights), assign=any(weight.is_meta for weight in own.values()))


def misfits(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> list[str]:
    """Why a model with these tensors of its own cannot take the weights: each that is wrong, with the reason."""
    faults = [f"{name} is missing" for name in own if name not in weights]
    faults += [f"{name} is not a part of this model" for name in weights if name not in own]
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            faults.append(f"{name} holds {tensor.dtype}, expected floating point")
        elif name in own and tensor.shape != own[name].shape:
            faults.append(f"{name} has shape {tuple(tensor.shape)}, expected {tuple(own[name].shape)}")
    return faults


def refuse(faults: Sequence[str], where: str, remedy: str) -> None:
    """Raise what is wrong, if anything is: the first five, and how many more."""
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise WeightsError("; ".join(faults[:5]) + more, where=where, remedy=remedy)


def check_images(images: Tensor, channels: int) -> Size:
    """The size of the images, once it is sure that this is a batch of them."""
    if images.ndim != 4:
        raise ConfigError(
            f"expected a batch of images (B, {channels}, H, W), got {images.ndim} dimensions {tuple(images.shape)}",
            where="images",
            remedy="add the batch dimension with images[None]" if images.ndim == 3 else "give four dimensions",
        )
    if images.shape[1] != channels:
        raise ConfigError(
            f"the model takes {channels} channels, got {images.shape[1]}",
            where="images",
            remedy=f"convert the images, or build the model with channels={images.shape[1]}",
        )
    if not torch.is_floating_point(images):
        raise ConfigError(
            f"expected floating point pixels, got {images.dtype}",
            where="images",
            remedy="scale them first: images / 127.5 - 1",
        )
    return Size(*images.shape[2:])

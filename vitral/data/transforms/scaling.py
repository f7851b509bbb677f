"""From bytes to the numbers a model was trained on.  B images, C channels, H rows, W columns.

To know a scaling takes no torch, only to use it: an export does that in its graph.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from vitral.config import Config

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Positive = Annotated[float, Field(gt=0)]


class Scaling(Config):
    """(x / 255 - mean) / deviation; one number for all channels or one for each. The default is the paper's [-1, 1]."""

    mean: tuple[float, ...] = (0.5,)
    deviation: tuple[Positive, ...] = (0.5,)

    @model_validator(mode="after")
    def _agree(self) -> "Scaling":
        if not self.mean or len(self.mean) != len(self.deviation):
            raise ValueError(f"expected as many means as deviations, got {len(self.mean)} and {len(self.deviation)}")
        return self

    def over(self, channels: int) -> "Scaling":
        """The same, told with a number for each of so many channels."""
        if len(self.mean) > 1:
            return self
        return Scaling(mean=self.mean * channels, deviation=self.deviation * channels)

    def apply(self, images: "Tensor") -> "Tensor":
        """uint8 images as float32, (B, C, H, W)."""
        import torch

        assert images.dtype == torch.uint8, "numbers that are scaled already would be changed in place"
        numbers = images.to(torch.float32, memory_format=torch.contiguous_format)
        mean, deviation = of_bytes(self.mean, images.device), of_bytes(self.deviation, images.device)
        return numbers.sub_(mean).div_(deviation)  # (B, C, H, W)

    def restore(self, images: "Tensor") -> "Tensor":
        """The whole numbers that `apply` made these float32 images (..., C, H, W) from, as float32."""
        mean, deviation = of_bytes(self.mean, images.device), of_bytes(self.deviation, images.device)
        return (images * deviation + mean).round()


def of_bytes(numbers: tuple[float, ...], device: "torch.device") -> "Tensor":
    """Numbers for bytes rather than for parts of 255, (C, 1, 1) or (1, 1, 1)."""
    import torch

    return torch.tensor([255 * number for number in numbers], device=device).view(-1, 1, 1)


CENTRED = Scaling()
IMAGENET = Scaling(mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225))

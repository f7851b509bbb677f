"""From bytes to the numbers a model was trained on.  B images, C channels, H rows, W columns."""

from typing import Annotated

import torch
from pydantic import Field, model_validator
from torch import Tensor

from vitral.config import Config

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

    def apply(self, images: Tensor) -> Tensor:
        """uint8 images as float32, (B, C, H, W)."""
        assert images.dtype == torch.uint8, "numbers that are scaled already would be changed in place"
        mean, deviation = self._of_bytes(images.device)
        numbers = images.to(torch.float32, memory_format=torch.contiguous_format)
        return numbers.sub_(mean).div_(deviation)  # (B, C, H, W)

    def restore(self, images: Tensor) -> Tensor:
        """The whole numbers that `apply` made these float32 images (..., C, H, W) from, as float32."""
        mean, deviation = self._of_bytes(images.device)
        return (images * deviation + mean).round()

    def _of_bytes(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and deviation of bytes rather than of parts of 255, each (C, 1, 1) or (1, 1, 1)."""
        mean, deviation = (
            (255 * torch.tensor(each, dtype=torch.float64)).float().view(-1, 1, 1).to(device)
            for each in (self.mean, self.deviation)
        )
        return mean, deviation


CENTRED = Scaling()
IMAGENET = Scaling(mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225))

"""What every task promises.  B images, C channels, H rows, W columns."""

from typing import NamedTuple

import numpy as np
from torch import Tensor, nn


class Outcome(NamedTuple):
    """What a batch cost and how well it was answered, each a scalar mean over its images."""

    loss: Tensor
    images: int
    metrics: dict[str, Tensor]  # detached


class Task(nn.Module):
    """A model and what it is for.

    In training mode a task may draw from the generator of the step; in evaluation mode it draws nothing, so that an image
    costs the same at any step. Wrap the task, not its model, to spread it over processes: a task may reach inside.
    """

    model: nn.Module

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        """The outcome for scaled images (B, C, H, W), float32, and labels (B,), int64. B may be 0."""
        raise NotImplementedError


def batch_mean(values: Tensor) -> Tensor:
    """The mean of one value for each image (B,); of no images it is 0, which still passes a gradient."""
    return values.sum() / max(len(values), 1)

"""The interface of tasks.  B images, C channels, H rows, W columns."""

from typing import NamedTuple

import numpy as np
from torch import Tensor, nn


class Outcome(NamedTuple):
    """The loss and metrics of a batch, each a scalar mean over its images."""

    loss: Tensor
    images: int
    metrics: dict[str, Tensor]  # detached


class Task(nn.Module):
    """A model and its training objective.

    In training mode a task may draw from the generator of the step. In evaluation mode it draws nothing, so that the
    loss of an image does not depend on the step. DDP and FSDP wrap the task, not its model, whose parts it may call.
    """

    model: nn.Module

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        """The outcome for normalized images (B, C, H, W), float32, and labels (B,), int64. B may be 0."""
        raise NotImplementedError


def batch_mean(values: Tensor) -> Tensor:
    """The mean of values (B,); 0 for an empty batch, with a gradient of 0."""
    return values.sum() / max(len(values), 1)

"""The interface of tasks.  B images, C channels, H rows, W columns."""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.base import Model


class Outcome(NamedTuple):
    """The loss and metrics of a batch, each a scalar mean over its images."""

    loss: Tensor
    images: int
    metrics: dict[str, Tensor]  # detached


class Reconstruction(NamedTuple):
    """What a task predicts as images (B, C, H, W), with levels from 0 to 255."""

    images: Tensor  # as they are
    inputs: Tensor  # as the model is given them: some patches masked
    targets: Tensor  # what is to be predicted; the rest as in `images`
    predictions: Tensor  # what was predicted; the rest as in `images`


class Task(nn.Module):
    """A model and its training objective.

    In training mode a task may draw from the generator of the step. In evaluation mode it draws nothing, so that the
    loss of an image does not depend on the step. DDP and FSDP wrap the task, not its model, whose parts it may call.
    """

    model: nn.Module

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        """The outcome for normalized images (B, C, H, W), float32, and labels (B,), int64. B may be 0."""
        raise NotImplementedError

    def begin_step(self, done: float) -> None:
        """Called before each training step with the fraction of the run that is done: for schedules of the task."""

    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        """The pictures of a task that predicts pixels or colors of normalized images; None for other tasks."""
        return None


class BaseTask(Config):
    """What a model is trained for, and the settings of its loss."""

    labeled: ClassVar[bool] = True  # whether the images must have labels
    best_by: ClassVar[Literal["accuracy", "loss"]] = "accuracy"  # of validations; loss where there is no accuracy
    trains: ClassVar[Literal["classify", "masked_patches", "features"]] = "classify"  # what the bundle can be used for

    def check(self, model: Config) -> None:
        """Raise ConfigError if the task cannot train a model of this config."""

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model; `class_counts` are numbers of training images."""
        raise NotImplementedError


def batch_mean(values: Tensor) -> Tensor:
    """The mean of values (B,); 0 for an empty batch, with a gradient of 0."""
    return values.sum() / max(len(values), 1)

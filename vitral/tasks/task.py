"""The interface of tasks.  B images, V views of an image, C channels, H rows, W columns."""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.data.loading.loader import BatchImages
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


class Collective:
    """The processes that share a batch: by default, a single one. All of them call its methods, in the same order.

    Gradients pass through: with the loss of each process weighted by its part of the batch, the gradients of all
    processes add up to that of the whole.
    """

    size: int = 1  # number of processes

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        return values

    def gather(self, rows: Tensor) -> Tensor:
        """The rows (B, ...) of all processes, as many of each, in the order of the batch."""
        return rows

    def places(self, rows: int) -> Tensor:
        """The places (B,) of the rows of this process among the gathered ones."""
        return torch.arange(rows)


SINGLE_PROCESS = Collective()


class Synchronized(nn.Module):
    """A module whose training depends on the batch of all processes."""

    _collective: Collective = SINGLE_PROCESS

    @property
    def collective(self) -> Collective:
        """The processes that share the batch at hand. In evaluation each has a batch of its own."""
        return self._collective if self.training else SINGLE_PROCESS

    def use_collective(self, collective: Collective) -> None:
        """Share batches with these processes, in submodules, too."""
        for module in self.modules():
            if isinstance(module, Synchronized):
                module._collective = collective


class Task(Synchronized):
    """A model and its training objective.

    In training mode a task may draw from the generator of the step. In evaluation mode it draws nothing, so that the
    loss of an image does not depend on the step. DDP and FSDP wrap the task, not its model, whose parts it may call.

    Whatever a task keeps from step to step is a parameter or a buffer, so checkpoints have it.
    """

    model: nn.Module
    bundled: str = "model"  # the submodule whose weights are saved for use
    fit_images: int = 0  # training images that `fit_buffers` needs

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        """The outcome for normalized images (B, C, H, W), float32, and labels (B,), int64. B may be 0.

        A task of several views is given a tuple of (B, V, C, H, W), one for each image size.
        """
        raise NotImplementedError

    def fit_buffers(self, images: Tensor, rng: np.random.Generator) -> None:
        """Compute buffers from random training images (n, C, H, W), normalized, before the first step of a run."""

    def begin_step(self, done: float) -> None:
        """Called before each training step with the fraction of the run that is done: for schedules of the task."""

    def filter_gradients(self) -> None:
        """Called after the backward pass of a step, before gradients are clipped: a task may drop some of them."""

    def end_step(self, done: float) -> None:
        """Called after each step of the optimizer with the fraction that `begin_step` got: for what follows it."""

    def reconstruct(self, images: Tensor) -> Reconstruction | None:
        """The pictures of a task that predicts pixels or colors of normalized images; None for other tasks."""
        return None


class CollapseSign(NamedTuple):
    """A metric that is above or below a limit once outputs no longer depend on the image, and what to do then."""

    metric: str
    side: Literal["above", "below"]
    limit: float
    hint: str

    def shows(self, value: float) -> bool:
        """Whether the metric has such a value."""
        return value > self.limit if self.side == "above" else value < self.limit


class BaseTask(Config):
    """What a model is trained for, and the settings of its loss."""

    labeled: ClassVar[bool] = True  # whether the images must have labels
    # Of validations; loss where there is no accuracy. Where neither says how good the features are, the last is best.
    best_by: ClassVar[Literal["accuracy", "loss", "last"]] = "accuracy"
    trains: ClassVar[Literal["classify", "masked_patches", "features"]] = "classify"  # what the bundle can be used for
    views: ClassVar[int] = 1  # of each image that the task compares, at least
    collapse: ClassVar[tuple[CollapseSign, ...]] = ()  # which metrics say that outputs no longer depend on the image

    def check(self, model: Config) -> None:
        """Raise ConfigError if the task cannot train a model of this config."""

    def batch_dependence(self) -> str:
        """Why the loss of a batch is not the mean over its images, and cannot be computed in parts; empty if it is."""
        return ""

    def build(self, model: Model, classes: int, class_counts: Sequence[int], normalize: Normalize) -> Task:
        """The task for a model; `class_counts` are numbers of training images."""
        raise NotImplementedError


def batch_mean(values: Tensor) -> Tensor:
    """The mean of values (B,); 0 for an empty batch, with a gradient of 0."""
    return values.sum() / max(len(values), 1)


def full_precision(values: Tensor) -> Tensor:
    """In float32 at least, for a loss: float64 stays what it is."""
    return values if values.dtype == torch.float64 else values.float()


def view_groups(images: BatchImages, views: int) -> tuple[Tensor, ...]:
    """The views of a batch, (B, V, C, H, W) for each size; a single view (B, C, H, W) is taken for all of them."""
    if isinstance(images, Tensor):
        return (images[:, None].expand(-1, views, -1, -1, -1),)
    return images

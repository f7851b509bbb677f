"""Training within the memory of the machine: the microbatches that fit into it.

B images, C channels, H rows, W columns.
"""

from math import ceil, floor, prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call

from vitral.core.errors import ConfigError
from vitral.models.hooks import FlopCounter, eval_mode
from vitral.tasks.task import Task
from vitral.training.precision import Precision

MARGIN = 1 / 3  # of the free memory: for the workspace of kernels, fragmentation, other programs
PERSISTENT_COPIES = 4  # copies of the trainable weights: gradient, two of the optimizer, average
CHECKPOINT_COPIES = 4  # on a CPU, while a checkpoint is written: weights, two of the optimizer, average
BYTES = 4  # of a float32

Shape = tuple[int, ...]  # (C, H, W)
Shapes = Shape | tuple[Shape, ...]  # or (V, C, H, W) for each size of V views


class MemoryPlan(NamedTuple):
    """The number of microbatches, and a message for the user if there are several."""

    microbatches: int
    message: str = ""


def plan_memory(task: Task, shape: Shapes, batch: int, memory: int, precision: Precision) -> MemoryPlan:
    """Split a batch into as many microbatches as `memory` free bytes require. The task is not changed."""
    inputs = batch * sum(map(prod, image_shapes(shape))) * BYTES  # of all microbatches
    fixed = persistent_bytes(task, precision.device) + inputs
    room = (1 - MARGIN) * memory - fixed
    whole = peak_bytes(task, shape, batch, precision)
    if whole <= room:
        return MemoryPlan(1)
    one = peak_bytes(task, shape, 1, precision)
    if one > room:
        message = f"a single image needs {format_bytes((fixed + one) / (1 - MARGIN))}; {format_bytes(memory)} are free"
        hint = "free memory, or use a smaller model, image size or batch, or memory=recompute"
        raise ConfigError(message, code="config.out_of_memory", where="batch_size", hint=hint)
    # Memory at each moment of a step is linear in the number of images, so the maximum over all moments is convex:
    # a straight line between two known sizes is never too low.
    most = 1 + floor((room - one) / (whole - one) * (batch - 1))
    microbatches = ceil(batch / most)
    return MemoryPlan(
        microbatches,
        f"a batch of {batch:,} needs {format_bytes((fixed + whole) / (1 - MARGIN))}, {format_bytes(memory)} are free: "
        f"splitting it into {microbatches:,} microbatches; their gradients add up to that of the batch",
    )


def image_shapes(shape: Shapes) -> tuple[Shape, ...]:
    """The shapes of the tensors that hold an image: one, or one for each size of its views."""
    return shape if isinstance(shape[0], tuple) else (shape,)


def persistent_bytes(task: Task, device: torch.device) -> int:
    """Bytes that a run holds between steps, besides the weights."""
    learning = sum(weight.numel() * weight.element_size() for weight in task.parameters() if weight.requires_grad)
    return learning * (PERSISTENT_COPIES + (CHECKPOINT_COPIES if device.type == "cpu" else 0))


def peak_bytes(task: Task, shape: Shapes, images: int, precision: Precision) -> int:
    """The most bytes that live at once in a forward and a backward pass, beside weights, gradients and images.

    It is run on tensors without values, so nothing is computed for any number of images. The task must not be
    compiled or divided among processes yet.
    """
    with eval_mode(task), FakeTensorMode(allow_non_fake_inputs=True) as blank:
        task.train()  # `eval_mode` restores the mode of every module
        state: dict[str, Tensor] = {
            name: blank.from_tensor(tensor) for name, tensor in [*task.named_parameters(), *task.named_buffers()]
        }
        for tensor in state.values():
            if tensor.requires_grad:  # counted by `persistent_bytes`, so it is dropped at once
                tensor.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
        groups = tuple(torch.empty(images, *each, device=precision.device) for each in image_shapes(shape))
        inputs = groups if isinstance(shape[0], tuple) else groups[0]  # (B, C, H, W) for one view
        labels = torch.zeros(images, dtype=torch.int64, device=precision.device)  # (B,)
        with FlopCounter([*state.values(), *groups, labels]) as ledger:
            with precision.autocast():
                outcome = functional_call(task, state, (inputs, labels, np.random.default_rng(0)))
            outcome.loss.backward()
    return ledger.peak


def format_bytes(size: float) -> str:
    """Bytes in MB or GB."""
    unit, scale = ("GB", 1e9) if size >= 0.95e9 else ("MB", 1e6)
    return f"{size / scale:,.1f} {unit}" if size < 9.95 * scale else f"{size / scale:,.0f} {unit}"

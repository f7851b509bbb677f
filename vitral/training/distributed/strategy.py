"""How a task is spread over the processes of a run: each has all of it, or each has a part.

A task that the processes of a run train together.
A task that every process has a copy of.
A task that every process has a part of.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from vitral.core.config import Config
from vitral.core.storage import Disk
from vitral.models.base import Model
from vitral.models.vit import VisionTransformer
from vitral.tasks.task import Outcome, Task
from vitral.training.checkpoints.checkpoint import DISK, Checkpoint, Found, Idle, Keeper, Loaded, Saver, newest
from vitral.training.distributed.process_group import Group


class Spread:
    """What differs for the loop. Here it is a task of one process, with nothing to spread.

    `module` is to be called in training in the place of the task. The task keeps its names, and is what is saved,
    averaged and evaluated.
    """

    module: nn.Module

    def __init__(self, task: Task, group: Group) -> None:
        self.module = self.task = task
        self.group = group

    def passing(self, last: bool) -> AbstractContextManager[None]:
        """Around the passes of a portion; with those of the last the gradients become sums over all processes."""
        return nullcontext()

    def joined(self, outcome: Outcome) -> Outcome:
        """The outcome of the whole batch, from that of this process's part of it."""
        return self.group.joined(outcome)

    def whole(self, part: nn.Module) -> dict[str, Tensor]:
        """A copy of the state of the task or of a part of it, as one process would have it; for all to call."""
        return {name: tensor.detach().clone() for name, tensor in part.state_dict().items()}


class Replicated(Spread):
    """The copies begin as that of the first process and stay alike, since they take the same steps."""

    module: DistributedDataParallel

    def __init__(self, task: Task, group: Group) -> None:
        super().__init__(task, group)
        # Buffers are tables that no step changes, so they need not be sent again.
        self.module = DistributedDataParallel(task, forward_sync_buffers=False, gradient_as_bucket_view=True)
        self.module.register_comm_hook(None, summed)
        self._settle()

    def passing(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.module.no_sync()

    def _settle(self) -> None:
        """Have torch's first pass be one over no images.

        After it the gradients are laid out anew, by when they came, and another layout is summed in another order.
        A run that resumes would round its first step unlike one that never stopped.
        """
        model = self.task.model
        assert isinstance(model, Model)
        images = torch.zeros(0, model.config.channels, *model.config.image_size, device=self.group.device)
        labels = torch.zeros(0, dtype=torch.int64, device=self.group.device)
        self.module.train()
        self.module(images, labels, np.random.default_rng(0)).loss.backward()
        self.module.zero_grad(set_to_none=True)


def summed(state: None, bucket: GradBucket) -> Future[Tensor]:
    """The sum over processes, where torch would take the mean: a portion's share is already one of the whole batch."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


class Sharded(Spread):
    """Weights are gathered block by block as a pass comes by, and put away behind it.

    The root's are put away too: an average that is laid over the weights must not be trained on.
    """

    def __init__(self, task: Task, group: Group) -> None:
        super().__init__(task, group)
        mesh = init_device_mesh(group.device.type, (group.world.size,))
        blocks = [block for part in task.modules() if isinstance(part, VisionTransformer) for block in part.blocks]
        for part in (*blocks, task):
            fully_shard(part, mesh=mesh, reshard_after_forward=True)
        for shared in sharing(task):
            # The sum over processes, not the mean: a portion's share is already one of the whole batch.
            shared.set_gradient_divide_factor(1.0)
            shared.set_force_sum_reduction_for_comms(True)  # gloo has no sum that divides

    def passing(self, last: bool) -> AbstractContextManager[None]:
        return self._passing(last)

    @contextmanager
    def _passing(self, last: bool) -> Iterator[None]:
        for part in sharing(self.task):
            part.set_requires_gradient_sync(last, recurse=False)
        yield

    def whole(self, part: nn.Module) -> dict[str, Tensor]:
        state = part.state_dict()
        return {
            name: tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach().clone()
            for name, tensor in state.items()
        }


def sharing(task: nn.Module) -> list[FSDPModule]:
    return [part for part in task.modules() if isinstance(part, FSDPModule)]


class Ddp(Config):
    """Each process has the whole model and a part of every batch; the gradients are summed."""

    kind: Literal["ddp"] = "ddp"

    def spread(self, task: Task, group: Group) -> Spread:
        """The task as the loop is to call it. Build the optimizer after that; one process has the task as it is."""
        if group.world.size == 1:
            return Spread(task, group)

        return Replicated(task, group)

    def keeper(self, folder: Path, keep: int, group: Group, disk: Disk = DISK) -> Keeper:
        """What saves the run: all processes hand over their state, and the first writes it."""
        return Saver(folder, keep, disk) if group.first else Idle()

    def load(self, checkpoint: Checkpoint, task: Task, group: Group) -> Loaded:
        """What was saved, by however many processes, for a task that was spread."""
        return checkpoint.load()


class Fsdp(Config):
    """Each process has a part of every weight, of its gradient and of what the optimizer keeps of it.

    For models that do not fit beside their optimizer on one device (FSDP2, arXiv 2304.11277).
    """

    kind: Literal["fsdp"] = "fsdp"

    def spread(self, task: Task, group: Group) -> Spread:
        """The task, its weights now divided. Build the optimizer after that; one process has the task as it is."""
        if group.world.size == 1:
            return Spread(task, group)

        return Sharded(task, group)

    def keeper(self, folder: Path, keep: int, group: Group, disk: Disk = DISK) -> Keeper:
        """What saves the run: every process writes the parts that it has."""
        if group.world.size == 1:
            return Saver(folder, keep, disk)
        from vitral.training.distributed.sharded_checkpoint import ShardSaver

        return ShardSaver(folder, keep, group, disk)

    def load(self, checkpoint: Checkpoint, task: Task, group: Group) -> Loaded:
        """What was saved, by however many processes, as much of it as a process of a spread task has."""
        if group.world.size == 1:
            return checkpoint.load()
        from vitral.training.distributed.sharded_checkpoint import load_parts

        return load_parts(checkpoint, task, group)


DistributedConfig = Annotated[Ddp | Fsdp, Field(discriminator="kind")]


def newest_for_all(folder: Path, group: Group) -> Found:
    """The newest whole checkpoint, which the first process looks for; the others believe it."""
    found = newest(folder) if group.first else Found(None, ())
    seen = found.checkpoint
    told = group.share([str(seen.path), seen.step, list(seen.stems)] if seen else None)
    if not isinstance(told, list):
        return found
    path, step, stems = told
    assert isinstance(step, int)
    assert isinstance(stems, list)
    return Found(Checkpoint(Path(str(path)), step, tuple(map(str, stems))), found.passed_over)

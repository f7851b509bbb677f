"""How the processes of a run share a task: each has a full copy (DDP), or each has a shard of every weight (FSDP)."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from vitral.core.config import Config, OpenUnion
from vitral.models.base import Model
from vitral.tasks.task import Task
from vitral.training.checkpoints import checkpoint as checkpoints
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.loop import Communicator


class Strategy(Communicator):
    """A single process, and the interface of the others.

    The loop calls `module` in place of the task. The task keeps its parameter names; it is what is saved, averaged and
    evaluated.
    """

    module: nn.Module
    sharded: ClassVar[bool] = False  # whether a process has only a part of each weight

    def __init__(self, task: Task, group: ProcessGroup) -> None:
        self.module = self.task = task
        self.group = group
        if (collective := group.collective()) is not None:
            task.use_collective(collective)

    def sum(self, values: Tensor) -> Tensor:
        return self.group.sum(values)

    def full_state_dict(self, module: nn.Module) -> dict[str, Tensor]:
        """A copy of the full state of the task or of one of its modules. A collective."""
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}

    def checkpoint_writer(self, folder: Path, keep: int) -> checkpoints.CheckpointWriter:
        """The writer of this process: the main process writes for all."""
        return checkpoints.AsyncCheckpointWriter(folder, keep) if self.group.is_main else checkpoints.CheckpointWriter()

    def load_checkpoint(self, checkpoint: checkpoints.Checkpoint) -> checkpoints.CheckpointContents:
        """The contents of a checkpoint, written by any number of processes, as this process needs them."""
        return checkpoint.load()


class DdpStrategy(Strategy):
    """Every process has a copy of the task; copies start as that of the main process and take the same steps."""

    module: DistributedDataParallel

    def __init__(self, task: Task, group: ProcessGroup) -> None:
        super().__init__(task, group)
        # Buffers are constant tables, so they need not be broadcast before each pass.
        self.module = DistributedDataParallel(task, forward_sync_buffers=False, gradient_as_bucket_view=True)
        self.module.register_comm_hook(None, sum_gradients)
        self._warm_up()

    def gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if last else self.module.no_sync()

    def _warm_up(self) -> None:
        """Run the first pass, after which DDP rebuilds its buckets, on an empty batch.

        Buckets of another layout are summed in another order: without this, the first step after a resume would be
        rounded differently from the same step of a run that never stopped.
        """
        model = self.task.model
        assert isinstance(model, Model)
        images = model.empty_batch().to(self.group.device)
        labels = torch.zeros(0, dtype=torch.int64, device=self.group.device)
        self.module.train()
        self.module(images, labels, np.random.default_rng(0)).loss.backward()
        self.module.zero_grad(set_to_none=True)


def sum_gradients(state: None, bucket: GradBucket) -> Future[Tensor]:
    """Sum over processes, not DDP's mean: the loss of a microbatch is already its share of the whole batch."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])


class Ddp(Config):
    """Each process has the whole model and a part of every batch; gradients are summed."""

    kind: Literal["ddp"] = "ddp"

    def build(self, task: Task, group: ProcessGroup) -> Strategy:
        """The strategy of this process. Build the optimizer after it."""
        return Strategy(task, group) if group.world.size == 1 else DdpStrategy(task, group)


class Fsdp(Config):
    """Each process has a shard of every weight, its gradient and its optimizer state (FSDP2, arXiv 2304.11277).

    For models that do not fit on one device together with their optimizer.
    """

    kind: Literal["fsdp"] = "fsdp"

    def build(self, task: Task, group: ProcessGroup) -> Strategy:
        """The strategy of this process, which shards the task. Build the optimizer after it."""
        if group.world.size == 1:
            return Strategy(task, group)
        from vitral.training.distributed.fsdp import FsdpStrategy  # imports much of torch.distributed

        return FsdpStrategy(task, group)


DistributedConfig = Annotated[Ddp | Fsdp, OpenUnion()]


def find_newest_for_all(folder: Path, group: ProcessGroup) -> checkpoints.NewestCheckpoint:
    """The newest complete checkpoint, which the main process finds for all. A collective."""
    newest = checkpoints.find_newest(folder) if group.is_main else checkpoints.NewestCheckpoint(None, ())
    checkpoint = newest.checkpoint
    found = group.broadcast([str(checkpoint.path), checkpoint.step, list(checkpoint.stems)] if checkpoint else None)
    if not isinstance(found, list):
        return newest
    path, step, stems = found
    assert isinstance(step, int)
    assert isinstance(stems, list)
    return newest._replace(checkpoint=checkpoints.Checkpoint(Path(str(path)), step, tuple(map(str, stems))))

"""A task that every process has a copy of."""

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from vitral.model.contract import Model
from vitral.tasks.task import Task
from vitral.train.distributed.group import Group
from vitral.train.distributed.spread import Spread


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
        images = torch.zeros(0, model.config.channels, *model.config.image, device=self.group.device)
        labels = torch.zeros(0, dtype=torch.int64, device=self.group.device)
        self.module.train()
        self.module(images, labels, np.random.default_rng(0)).loss.backward()
        self.module.zero_grad(set_to_none=True)


def summed(state: None, bucket: GradBucket) -> Future[Tensor]:
    """The sum over processes, where torch would take the mean: a portion's share is already one of the whole batch."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda done: done.value()[0])

"""Sums and rows of all processes through which gradients pass: for losses over the batch of all processes."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from vitral.data.loading.sampler import World
from vitral.tasks.task import Collective


class DistributedCollective(Collective):
    """The processes of a run. Rank r of n has the rows r, r + n, r + 2n ... of a batch."""

    def __init__(self, world: World, group: "dist.ProcessGroup") -> None:
        self.rank, self.size, self.group = world.rank, world.size, group

    def sum(self, values: Tensor) -> Tensor:
        found: Tensor = Sum.apply(values, self.group)  # type: ignore[no-untyped-call]
        return found

    def gather(self, rows: Tensor) -> Tensor:
        found: Tensor = Gather.apply(rows, self)  # type: ignore[no-untyped-call]
        return found

    def places(self, rows: int) -> Tensor:
        return torch.arange(rows) * self.size + self.rank


class Sum(torch.autograd.Function):
    """Every process has the sum, so the gradient of a part is the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: "dist.ProcessGroup") -> Tensor:
        ctx.group = group
        return _all_reduce(values, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(gradient, ctx.group), None


class Gather(torch.autograd.Function):
    """The rows of all processes, interleaved as in the batch."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, collective: DistributedCollective) -> Tensor:
        ctx.collective = collective
        parts = [torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(collective.size)]
        dist.all_gather(parts, rows.contiguous(), collective.group)
        return torch.stack(parts, dim=1).flatten(0, 1)  # (size B, ...)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        collective = ctx.collective
        whole = _all_reduce(gradient, collective.group)
        return whole[collective.rank :: collective.size], None


def _all_reduce(values: Tensor, group: "dist.ProcessGroup") -> Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total

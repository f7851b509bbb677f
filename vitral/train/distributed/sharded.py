"""A task that every process has a part of."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from vitral.model.vit import VisionTransformer
from vitral.tasks.task import Task
from vitral.train.distributed.group import Group
from vitral.train.distributed.spread import Spread


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

"""Fully sharded training (FSDP2): every process has a shard of every weight."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from vitral.models.vit import VisionTransformer
from vitral.tasks.task import Task
from vitral.training.checkpoints.checkpoint import STORAGE, Checkpoint, CheckpointContents, CheckpointWriter
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.sharded_checkpoint import ShardedCheckpointWriter
from vitral.training.distributed.strategy import Strategy


class FsdpStrategy(Strategy):
    """Weights are gathered block by block for each pass and resharded after it.

    The root is resharded too: averaged weights that are swapped in for evaluation must not stay for training.
    """

    def __init__(self, task: Task, group: ProcessGroup) -> None:
        super().__init__(task, group)
        mesh = init_device_mesh(group.device.type, (group.world.size,))
        blocks = [
            block for module in task.modules() if isinstance(module, VisionTransformer) for block in module.blocks
        ]
        for module in (*blocks, task):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        for sharded in self._sharded_modules():
            # Sum over processes, not the mean: the loss of a microbatch is already its share of the whole batch.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)  # gloo has no reduction that divides

    def _sharded_modules(self) -> list[FSDPModule]:
        return [module for module in self.task.modules() if isinstance(module, FSDPModule)]

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        for module in self._sharded_modules():
            module.set_requires_gradient_sync(last, recurse=False)
        yield

    def full_state_dict(self, module: nn.Module) -> dict[str, Tensor]:
        return {
            name: tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach().clone()
            for name, tensor in module.state_dict().items()
        }

    def checkpoint_writer(self, folder: Path, keep: int) -> CheckpointWriter:
        """The writer of this process's shards."""
        return ShardedCheckpointWriter(folder, keep, self.group, STORAGE)

    def load_checkpoint(self, checkpoint: Checkpoint) -> CheckpointContents:
        """The contents of a checkpoint, written by any number of processes: of every weight the shard of this process.

        One full tensor at a time is in memory.
        """
        weights = self.task.state_dict()
        groups: dict[str, dict[str, Tensor]] = {}
        for group, name, tensor in checkpoint.tensors():
            weight = weights.get(name.partition("/")[0])  # `optimizer` has `name/exp_avg`
            if isinstance(weight, DTensor) and weight.shape == tensor.shape:
                shard = distribute_tensor(tensor, weight.device_mesh, weight.placements, src_data_rank=None)
                tensor = shard.clone()  # noqa: PLW2901, or the shard keeps the memory of the full tensor
            groups.setdefault(group, {})[name] = tensor
        return CheckpointContents(groups, checkpoint.state())

"""Loading into a model that is divided among processes: torch plans who reads what, from any of our checkpoints."""

import os
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.distributed.tensor import DTensor
from torch.futures import Future

from vitral.tasks.task import Task
from vitral.train.checkpoint import Checkpoint, Loaded, grouped
from vitral.train.chunks import Chunk, chunks, part, shape_of
from vitral.train.distributed.group import Group
from vitral.train.distributed.team import Team


class PartReader(StorageReader):
    """Reads the parts of a checkpoint that torch asks for, named `group/name`."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.parts: dict[str, list[Chunk]] = {}
        for stem in checkpoint.stems:
            path = checkpoint.file(stem)
            for chunk in chunks(path):
                address = chunk.name if path in checkpoint.shards else f"{stem}/{chunk.name}"
                self.parts.setdefault(address, []).append(chunk)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is left from another checkpoint: each has a reader of its own."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        described = {
            address: TensorStorageMetadata(
                TensorProperties(dtype=some[0].dtype),
                torch.Size(shape_of(some)),
                [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.shape)) for chunk in some],
            )
            for address, some in self.parts.items()
        }
        return Metadata(dict(described))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Where everything is was found when the reader was made."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(part(self._chunk(item.storage_index), item.storage_offsets, item.lengths))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _chunk(self, index: MetadataIndex) -> Chunk:
        some = self.parts[index.fqn]
        return next(chunk for chunk in some if index.offset is None or chunk.offsets == tuple(index.offset))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


def load_parts(checkpoint: Checkpoint, task: Task, group: Group) -> Loaded:
    """What of a checkpoint belongs to the parts that this process has of the task."""
    assert isinstance(group, Team)
    reader = PartReader(checkpoint)
    weights = task.state_dict()
    found = {address: room(address, some, weights) for address, some in reader.parts.items()}
    load(found, storage_reader=reader, process_group=group.beside)
    return Loaded(grouped(found), checkpoint.state())


def room(address: str, parts: list[Chunk], weights: dict[str, Tensor]) -> Tensor:
    """Memory for a saved tensor: divided like the weight that it is, or that it was kept for; else whole."""
    _, name, *_ = address.split("/")  # `task/name`, `average/name` or `optimizer/name/what`
    weight = weights.get(name)
    if isinstance(weight, DTensor) and tuple(weight.shape) == shape_of(parts):
        return torch.empty_like(weight, dtype=parts[0].dtype)
    return torch.empty(shape_of(parts), dtype=parts[0].dtype)

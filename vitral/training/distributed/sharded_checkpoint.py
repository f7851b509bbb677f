"""Saving a model that is divided among processes: torch plans who writes what, and it lands in our checkpoint.

Torch's own files would begin with a pickle. Here each process writes the parts that it has into one safetensors file
of the draft, and the first process concludes it like any other checkpoint.

Loading into a model that is divided among processes: torch plans who reads what, from any of our checkpoints.
"""

import os
import shutil
from collections.abc import Mapping
from concurrent.futures import Future as Promise
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import JsonValue
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from vitral.core.errors import VitralError
from vitral.core.storage import Disk
from vitral.tasks.task import Task
from vitral.training.checkpoints.checkpoint import SUFFIX, Checkpoint, Loaded, begin, conclude, grouped, writing
from vitral.training.checkpoints.shards import Chunk, chunks, note, part, shape_of
from vitral.training.distributed.process_group import Group, Team
from vitral.weights.tensors import pieces


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


class ShardWriter(StorageWriter):
    """Writes one checkpoint. The first process begins and concludes it; a failure of any is a failure of all."""

    def __init__(self, folder: Path, step: int, state: JsonValue, keep: int, best: int | None, disk: Disk) -> None:
        self.folder, self.step, self.state = folder, step, state
        self.keep, self.best, self.disk = keep, best, disk
        self.draft = folder  # until it is begun

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing is left from another checkpoint: each has a writer of its own."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The first process learns of it when it is asked for the plan of all."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """In the first process, before any other writes."""
        with writing(self.folder):
            self.draft = begin(self.folder, self.step, self.disk)
        names = [f"shard-{number}-of-{len(plans)}{SUFFIX}" for number in range(1, len(plans) + 1)]
        return [replace(plan, storage_data=self.draft / name) for plan, name in zip(plans, names, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """In every process: its file, and what tells whether that is whole."""
        path: Path = plan.storage_data
        tensors: dict[str, Tensor] = {}
        offsets: dict[str, list[int]] = {}
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            assert item.index.fqn not in tensors, "a process has one part of a tensor"
            tensors[item.index.fqn] = tensor
            offsets[item.index.fqn] = list(item.index.offset or ())
        with writing(self.folder):
            digest = self.disk.write(path, pieces(tensors, note(offsets)))
        results = [WriteResult(item.index, digest.size, (path.name, digest)) for item in plan.items]
        written: Future[list[WriteResult]] = Future()
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """In the first process, once all have written."""
        digests = dict(result.storage_data for some in results for result in some)
        with writing(self.folder):
            conclude(self.draft, digests, self.state, self.keep, self.best, self.disk)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False


class ShardSaver:
    """Writes in a thread of each process, one checkpoint at a time, like `Saver`; for all processes to call."""

    def __init__(self, folder: Path, keep: int, group: Group, disk: Disk) -> None:
        assert isinstance(group, Team)
        self.folder, self.keep, self.group, self.disk = folder, keep, group, disk
        self._writer: ShardWriter | None = None
        self._writing: Promise[Metadata] | None = None

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Begin to write what the tensors and the state are now; if the one before is not yet written, wait for it."""
        self.wait()
        flat = {f"{stem}/{name}": tensor for stem, some in tensors.items() for name, tensor in some.items()}
        self._writer = ShardWriter(self.folder, step, deepcopy(state), self.keep, best, self.disk)
        # It speaks in a group of its own, so that training can go on speaking at the same time.
        promise = async_save(flat, storage_writer=self._writer, process_group=self.group.beside)
        assert isinstance(promise, Promise)
        self._writing = promise

    def wait(self) -> None:
        """Return once all that was handed over is on the disk."""
        if self._writing is not None:
            error = self._writing.exception()
            writer, self._writing = self._writer, None
            if error is not None:
                assert writer is not None
                if self.group.first and writer.draft != self.folder:
                    shutil.rmtree(writer.draft, ignore_errors=True)
                raise told(error)

    def close(self) -> None:
        """Finish what was begun."""
        self.wait()


def told(error: BaseException) -> BaseException:
    """What went wrong in whichever process, as it was told there."""
    if not isinstance(error, CheckpointException):
        return error
    causes = [failure for failure, _ in error.failures.values()]
    mendable = next((failure for failure in causes if isinstance(failure, VitralError)), None)
    return mendable or RuntimeError(f"a checkpoint was not saved: {causes[0]!r}")

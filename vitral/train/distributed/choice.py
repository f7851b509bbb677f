"""How a task is spread over the processes of a run: each has all of it, or each has a part."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vitral.config import Config
from vitral.tasks.task import Task
from vitral.train.checkpoint import DISK, Checkpoint, Found, Loaded, newest
from vitral.train.distributed.group import Group
from vitral.train.distributed.spread import Spread
from vitral.train.saver import Idle, Keeper, Saver
from vitral.weights.durable import Disk


class Ddp(Config):
    """Each process has the whole model and a part of every batch; the gradients are summed."""

    kind: Literal["ddp"] = "ddp"

    def spread(self, task: Task, group: Group) -> Spread:
        """The task as the loop is to call it. Build the optimiser after that; one process has the task as it is."""
        if group.world.size == 1:
            return Spread(task, group)
        from vitral.train.distributed.replicated import Replicated  # one process does not wait for its imports

        return Replicated(task, group)

    def keeper(self, folder: Path, keep: int, group: Group, disk: Disk = DISK) -> Keeper:
        """What saves the run: all processes hand over their state, and the first writes it."""
        return Saver(folder, keep, disk) if group.first else Idle()

    def load(self, checkpoint: Checkpoint, task: Task, group: Group) -> Loaded:
        """What was saved, by however many processes, for a task that was spread."""
        return checkpoint.load()


class Fsdp(Config):
    """Each process has a part of every weight, of its gradient and of what the optimiser keeps of it.

    For models that do not fit beside their optimiser on one device (FSDP2, arXiv 2304.11277).
    """

    kind: Literal["fsdp"] = "fsdp"

    def spread(self, task: Task, group: Group) -> Spread:
        """The task, its weights now divided. Build the optimiser after that; one process has the task as it is."""
        if group.world.size == 1:
            return Spread(task, group)
        from vitral.train.distributed.sharded import Sharded

        return Sharded(task, group)

    def keeper(self, folder: Path, keep: int, group: Group, disk: Disk = DISK) -> Keeper:
        """What saves the run: every process writes the parts that it has."""
        if group.world.size == 1:
            return Saver(folder, keep, disk)
        from vitral.train.distributed.shards import ShardSaver

        return ShardSaver(folder, keep, group, disk)

    def load(self, checkpoint: Checkpoint, task: Task, group: Group) -> Loaded:
        """What was saved, by however many processes, as much of it as a process of a spread task has."""
        if group.world.size == 1:
            return checkpoint.load()
        from vitral.train.distributed.reader import load_parts

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

"""Saving beside the training: the step waits for a copy in memory, not for the disk."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Protocol

import torch
from pydantic import JsonValue
from torch import Tensor

from vitral.train.checkpoint import DISK, save
from vitral.weights.durable import Disk


class Keeper(Protocol):
    """What saves a run."""

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Begin to save what the tensors and the state are now."""
        ...

    def wait(self) -> None:
        """Return once it is saved, or raise what went wrong."""
        ...

    def close(self) -> None:
        """The same, for the last time."""
        ...


class Idle:
    """For a process that leaves the saving to another."""

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        return

    def wait(self) -> None:
        return

    def close(self) -> None:
        return


class Saver:
    """Writes checkpoints in a thread, one at a time, so there is never more than one copy of the state.

    An error in writing is raised by the next call of any method.
    """

    def __init__(self, folder: Path, keep: int, disk: Disk = DISK) -> None:
        self.folder, self.keep, self.disk = folder, keep, disk
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saver")
        self._writing: Future[Path] | None = None

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: JsonValue, best: int | None) -> None:
        """Begin to write what the tensors and the state are now; if the one before is not yet written, wait for it."""
        self.wait()
        copies = {stem: {name: _copy(tensor) for name, tensor in group.items()} for stem, group in tensors.items()}
        self._writing = self._thread.submit(
            save, self.folder, step, copies, deepcopy(state), self.keep, best, disk=self.disk
        )

    def wait(self) -> None:
        """Return once all that was handed over is on the disk. Best called before processes are forked."""
        if self._writing is not None:
            error = self._writing.exception()
            self._writing = None  # not before, so that an interrupt of the wait forgets no error
            if error is not None:
                raise error

    def close(self) -> None:
        """Finish what was begun and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _copy(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)

"""Saves that are stopped after so many operations, with what may be there afterwards."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.training.states import save_step
from vitral.core.storage import STORAGE, Storage


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fill() -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def until(stop: int, trouble: Callable[[], None], work: Callable[[Storage], object]) -> None:
    """Work, with trouble at every operation once so many are done."""
    left = iter(range(stop))

    def passed(done: str) -> None:
        if next(left, None) is None:
            trouble()

    work(Storage(passed))


@dataclass(frozen=True)
class Scene:
    """One more save: where step 1 was saved before or nothing was."""

    title: str
    before: tuple[int, ...]
    step: int
    keep: int
    allowed: frozenset[int | None]

    def __str__(self) -> str:
        return self.title

    def save(self, folder: Path, disk: Storage = STORAGE) -> None:
        save_step(folder, self.step, self.keep, None, disk)

    def folders(self, root: Path) -> Iterator[tuple[int, Path]]:
        """For each operation of the save, its number and a folder as it is before the save."""
        whole, told = root / "whole", list[str]()
        for folder in (whole / "before", whole / "after"):
            folder.mkdir(parents=True)
            for step in self.before:
                save_step(folder / "c", step)
        self.save(whole / "after" / "c", Storage(told.append))
        assert len(told) > 15
        for stop in range(len(told)):
            shutil.copytree(whole / "before", root / str(stop))
            yield stop, root / str(stop) / "c"


SCENES = (
    Scene("the first", (), 2, 2, frozenset({None, 2})),
    Scene("the next", (1,), 2, 2, frozenset({1, 2})),
    Scene("one that replaces the last", (1,), 2, 1, frozenset({1, 2})),
    Scene("the same step again", (1,), 1, 1, frozenset({1})),
)

"""The processes of a run: one by itself, or those that torchrun started."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from pydantic import JsonValue
from torch import Tensor

from vitral.data.loader.plan import ALONE, World
from vitral.errors import ConfigError
from vitral.tasks.task import Outcome


class Group:
    """What the processes of a run say to each other. Here there is one; a `Team` has more.

    Each method that speaks of all processes is to be called by all of them, in the same order.
    """

    world: World = ALONE

    def __init__(self, device: torch.device) -> None:
        self.device = device  # of this process

    @property
    def first(self) -> bool:
        """Whether this process writes the run's files and talks to the user."""
        return self.world.rank == 0

    def advise(self, remedy: str) -> None:
        """Have the user told this should another process be lost."""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, those of the first process first; they may have different numbers of them."""
        return rows

    def joined(self, outcome: Outcome) -> Outcome:
        """The means over the images of all processes."""
        return outcome

    def share(self, value: JsonValue) -> JsonValue:
        """The value that the first process has."""
        return value

    def decide(self, value: Callable[[], JsonValue]) -> JsonValue:
        """What the first process finds; the others do not look."""
        return self.share(value() if self.first else None)

    def most(self, number: int) -> int:
        """The largest number that any process has."""
        return number

    def any(self, flag: bool) -> bool:
        """Whether it is so for any process."""
        return bool(self.most(int(flag)))

    def meet(self) -> None:
        """Return once all processes are here."""


@contextmanager
def group(device: torch.device) -> Iterator[Group]:
    """The processes of this run, which compute on devices of this type.

    Should one of them be lost, the others leave with a `VitralError` that names it and the cause it gave.
    """
    world = world_of(os.environ)
    if world.size == 1:
        yield Group(device)
        return
    from vitral.train.distributed.team import team  # one process does not wait for its imports

    with team(world, device) as several:
        yield several


def world_of(environment: "os._Environ[str] | dict[str, str]") -> World:
    """Which process of how many this is, as torchrun tells it."""
    numbers = {name: environment.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    for name, text in numbers.items():
        if not text.isdecimal():
            what = f"expected a whole number, got {text!r}"
            raise ConfigError(what, code="config.wrong_type", where=name, remedy="start with torchrun")
    world = World(rank=int(numbers["RANK"]), size=max(1, int(numbers["WORLD_SIZE"])))
    if world.size > 1 and "RANK" not in environment:
        what = f"says {world.size} processes, and nothing says which of them this is"
        remedy = "start with torchrun, or unset WORLD_SIZE"
        raise ConfigError(what, code="config.missing_value", where="WORLD_SIZE", remedy=remedy)
    if world.rank >= world.size:
        what = f"there is no process {world.rank} among {world.size}, counted from 0"
        remedy = "start with torchrun, or unset RANK"
        raise ConfigError(what, code="config.out_of_range", where="RANK", remedy=remedy)
    return world

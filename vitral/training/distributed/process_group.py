"""Several processes that take every step together.

The processes of a run: one by itself, or those that torchrun started.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from pydantic import JsonValue
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitral.core.errors import ConfigError, VitralError
from vitral.data.loading.sampler import ALONE, World
from vitral.tasks.task import Outcome
from vitral.training.distributed.heartbeat import Pulse


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

    def advise(self, hint: str) -> None:
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

    with team(world, device) as several:
        yield several


def world_of(environment: "os._Environ[str] | dict[str, str]") -> World:
    """Which process of how many this is, as torchrun tells it."""
    numbers = {name: environment.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    for name, text in numbers.items():
        if not text.isdecimal():
            message = f"expected a whole number, got {text!r}"
            raise ConfigError(message, code="config.wrong_type", where=name, hint="start with torchrun")
    world = World(rank=int(numbers["RANK"]), size=max(1, int(numbers["WORLD_SIZE"])))
    if world.size > 1 and "RANK" not in environment:
        message = f"says {world.size} processes, and nothing says which of them this is"
        hint = "start with torchrun, or unset WORLD_SIZE"
        raise ConfigError(message, code="config.missing_value", where="WORLD_SIZE", hint=hint)
    if world.rank >= world.size:
        message = f"there is no process {world.rank} among {world.size}, counted from 0"
        hint = "start with torchrun, or unset RANK"
        raise ConfigError(message, code="config.out_of_range", where="RANK", hint=hint)
    return world


MEETING = timedelta(minutes=10)  # in which all processes must have come
PATIENCE = timedelta(hours=2)  # with a process that lives but is slow; one that does not is found by its pulse
LETTING_GO = 5.0  # seconds after a meeting in which the threads of gloo should be done with it
MOST_WORDS = 500  # of a cause


class Team(Group):
    """What is said goes through the memory of the host, whatever the device, so it works alike for all of them."""

    def __init__(self, world: World, device: torch.device, pulse: Pulse) -> None:
        super().__init__(device)
        self.world = world
        self.beside = dist.new_group(backend="gloo", timeout=PATIENCE)  # for what is said while the model trains
        self._pulse = pulse

    def advise(self, hint: str) -> None:
        self._pulse.hint = hint

    def gather(self, rows: Tensor) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]))
        most = max(int(count) for count in counts)
        padded = torch.zeros((most, *rows.shape[1:]), dtype=rows.dtype)
        padded[: len(rows)] = rows.detach().cpu()
        size = padded.numel() * padded.element_size()
        found = [torch.empty(size, dtype=torch.uint8) for _ in range(self.world.size)]
        dist.all_gather(found, padded.flatten().view(torch.uint8))  # as bytes, since not every type can be sent
        whole = [part.view(rows.dtype).view_as(padded)[: int(count)] for part, count in zip(found, counts, strict=True)]
        return torch.cat(whole).to(rows.device)

    def joined(self, outcome: Outcome) -> Outcome:
        means = {"": outcome.loss, **outcome.metrics}
        values = [value.item() * outcome.images for value in means.values()]
        sums = torch.tensor([*values, outcome.images], dtype=torch.float64)
        dist.all_reduce(sums)
        images = int(sums[-1])
        for (name, value), total in zip(means.items(), sums[:-1], strict=True):
            means[name] = (total / max(images, 1)).to(value)
        return Outcome(means.pop(""), images, means)

    def share(self, value: JsonValue) -> JsonValue:
        letters = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(letters)])
        dist.broadcast(length, 0)
        letters = letters if self.first else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(letters, 0)
        shared: JsonValue = json.loads(letters.numpy().tobytes())
        return shared

    def most(self, number: int) -> int:
        value = torch.tensor([number])
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value)

    def meet(self) -> None:
        # A thread of gloo lets go of a tensor only after the wait for it is over, and needs the interpreter for that:
        # one that is ending by then aborts the whole process.
        word = torch.zeros(1)
        held = sys.getrefcount(word)
        dist.all_reduce(word)
        patience = time.monotonic() + LETTING_GO
        while sys.getrefcount(word) > held and time.monotonic() < patience:
            time.sleep(0.001)


@contextmanager
def team(world: World, device: torch.device) -> Iterator[Team]:
    """The processes of this run, from where they meet to where all have left."""
    backend = "gloo"
    if device.type == "cuda":
        device, backend = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    store = met(world)
    apart = store.clone()  # type: ignore[attr-defined] # the stubs lack it
    with Pulse(PrefixStore("pulse", apart), world) as pulse:
        try:
            meeting = PrefixStore("team", store)
            dist.init_process_group(backend, store=meeting, rank=world.rank, world_size=world.size, timeout=PATIENCE)
            several = Team(world, device, pulse)
            yield several
            several.meet()
        except RuntimeError as error:  # torch says only that a connection broke, so look whose
            if lost := pulse.lost():
                raise lost from error
            pulse.tell(cause(error))
            raise
        except BaseException as error:
            pulse.tell(cause(error))
            raise
        dist.destroy_process_group()  # not after an error: a device may wait for a process that is gone


def met(world: World) -> Store:
    """The store that all processes share."""
    try:
        store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=MEETING))
    except (RuntimeError, ValueError) as error:
        place = ":".join(os.environ.get(name, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        hint = "start with torchrun, and look whether every machine reaches that address"
        message = f"the {world.size} processes did not meet: {error}"
        raise VitralError(message, code="run.rendezvous_failed", where=place, hint=hint) from error
    assert isinstance(store, Store)
    return store


def cause(error: BaseException) -> str:
    """What a process says of its end to the others."""
    words = str(error) if isinstance(error, VitralError) else f"{type(error).__name__} {error}".strip()
    return f"ended: {' '.join(words.split())[:MOST_WORDS]}"

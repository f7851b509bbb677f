"""The processes of a run: a single one, or those that torchrun started, which take every step together.

Lost processes are detected by a heartbeat. Each process increments a counter in the store that all share, and watches
the counter of the next one. A process that ends with an error reports it in the store; a process whose counter stands
still was killed, or its machine was. All read the first report, so every process names the same cause, and a process
that is blocked in a collective is ended.

torchrun alone ends a job 1.5 s after a local process is killed, and names its rank. It does not notice a process that
hangs or a machine that is gone: after 60 s of a stopped process it had reported nothing, and the collective waits for
its timeout. Here the others end after `TIMEOUT + EXIT_GRACE`, and say which process, why, and how to resume.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple, NoReturn, Self

import torch
import torch.distributed as dist
from pydantic import JsonValue
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from vitral.core.errors import ConfigError, VitralError
from vitral.data.loading.sampler import SINGLE_PROCESS, World
from vitral.html.page import printable_text
from vitral.tasks.task import Collective, Outcome
from vitral.training.distributed.collective import DistributedCollective

INTERVAL = 0.5  # seconds between two beats
TIMEOUT = 15.0  # seconds without a beat after which a process counts as lost
TIMEOUT_AFTER_ERROR = 3.0  # the same once a collective has failed
EXIT_GRACE = 8.0  # seconds before a process that does not exit is killed
END_KEY = "end"


class ProcessEnd(NamedTuple):
    """Which process ended, and how."""

    rank: int
    message: str


class Heartbeat:
    """Beats and watches while the context lasts."""

    def __init__(self, store: Store, world: World) -> None:
        self.store, self.world = store, world
        self.hint = "run the same command again with --resume and the run folder"
        self._next = (world.rank + 1) % world.size
        self._timeout = TIMEOUT
        self._end: ProcessEnd | None = None
        self._found, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()

    def report_end(self, message: str) -> None:
        """Tell the others why this process ends. Only the first report of any process counts."""
        try:
            self._report(ProcessEnd(self.world.rank, message))
        except RuntimeError:  # the store is gone, and with it the process that holds it
            return

    def find_lost(self) -> VitralError | None:
        """The loss of another process, if there was one; to be called after a collective has failed."""
        self._timeout = TIMEOUT_AFTER_ERROR
        self._found.wait(TIMEOUT_AFTER_ERROR + 4 * INTERVAL)
        return self._error(self._end) if self._end else None

    def _error(self, end: ProcessEnd) -> VitralError:
        message = f"process {end.rank} of {self.world.size} {end.message}"
        where = f"process {self.world.rank}, which waited for it"
        return VitralError(message, code="run.lost_process", where=where, hint=self.hint)

    def _report(self, end: ProcessEnd) -> None:
        self.store.compare_set(END_KEY, "", json.dumps(end))

    def _beat(self) -> None:
        count, silent = -1, 0.0
        while self._end is None:
            if self._closed.wait(INTERVAL):
                return
            try:
                self.store.add(f"beat {self.world.rank}", 1)
                now = self.store.add(f"beat {self._next}", 0)
                # Silence is counted in our own beats, not by a clock, so a suspended machine or job does not look lost.
                count, silent = now, silent + INTERVAL if now == count else 0.0
                if silent > self._timeout:
                    self._report(ProcessEnd(self._next, "was killed, or its machine cannot be reached"))
                if self.store.check([END_KEY]):
                    self._end = ProcessEnd(*json.loads(self.store.get(END_KEY)))
            except RuntimeError:
                self._end = ProcessEnd(0, "was killed, or its machine, which holds the store, cannot be reached")
        self._found.set()
        if not self._closed.wait(EXIT_GRACE):  # the main thread is blocked in a collective
            error = self._error(self._end)
            lines = f"error[{error.code}]: {error.message}\nwhere: {error.where}\nhint: {error.hint}"
            print(printable_text(lines), file=sys.stderr, flush=True)
            os._exit(error.exit_code)


class ProcessGroup:
    """A single process, and the interface of `DistributedGroup`.

    Collective methods must be called by all processes, in the same order.
    """

    world: World = SINGLE_PROCESS

    def __init__(self, device: torch.device) -> None:
        self.device = device  # of this process

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files of the run and logs."""
        return self.world.rank == 0

    def set_resume_hint(self, hint: str) -> None:
        """Set the hint of the error that is raised if another process is lost."""

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes, in the order of ranks; their numbers may differ. A collective."""
        return rows

    def reduce_outcome(self, outcome: Outcome) -> Outcome:
        """The means over the images of all processes. A collective."""
        return outcome

    def sum(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all processes, on its own device. A collective."""
        return values

    def collective(self) -> Collective | None:
        """What tasks use to share a batch; None for a single process. A collective when it is first called."""
        return None

    def broadcast(self, value: JsonValue) -> JsonValue:
        """The value of the main process. A collective."""
        return value

    def run_on_main(self, value: Callable[[], JsonValue]) -> JsonValue:
        """The result of a function that only the main process calls. A collective."""
        return self.broadcast(value() if self.is_main else None)

    def max(self, number: int) -> int:
        """The largest number of any process. A collective."""
        return number

    def any(self, flag: bool) -> bool:
        """Whether the flag of any process is set. A collective."""
        return bool(self.max(int(flag)))

    def barrier(self) -> None:
        """Return once all processes have called it."""


def open_process_group(device: torch.device) -> AbstractContextManager[ProcessGroup]:
    """The processes of this run, on devices of this type.

    If one of them is lost, the others raise a `VitralError` that names it and its error.
    """
    world = read_world(os.environ)
    return nullcontext(ProcessGroup(device)) if world.size == 1 else open_distributed_group(world, device)


def read_world(environment: "os._Environ[str] | dict[str, str]") -> World:
    """The rank and the number of processes that torchrun sets."""
    numbers = {name: environment.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))}
    for name, text in numbers.items():
        if not text.isdecimal():
            message = f"expected a whole number, got {text!r}"
            raise ConfigError(message, code="config.wrong_type", where=name, hint="start with torchrun")
    world = World(rank=int(numbers["RANK"]), size=max(1, int(numbers["WORLD_SIZE"])))
    if world.size > 1 and "RANK" not in environment:
        message, hint = f"is {world.size}, but RANK is not set", "start with torchrun, or unset WORLD_SIZE"
        raise ConfigError(message, code="config.missing_value", where="WORLD_SIZE", hint=hint)
    if world.rank >= world.size:
        message = f"is {world.rank}, expected 0 to {world.size - 1}"
        raise ConfigError(message, code="config.out_of_range", where="RANK", hint="start with torchrun, or unset RANK")
    return world


RENDEZVOUS_TIMEOUT = timedelta(minutes=10)  # for all processes to start
CONNECT_TIMEOUT = timedelta(minutes=1)  # to the store of torchrun
COLLECTIVE_TIMEOUT = timedelta(hours=2)  # for a slow process; a lost one is found by its heartbeat
RELEASE_TIMEOUT = 5.0  # seconds for the threads of gloo to release a tensor
MAX_MESSAGE = 500  # characters of an error


class DistributedGroup(ProcessGroup):
    """Several processes. All collectives but `sum` run on the CPU (gloo), whatever the device."""

    def __init__(self, world: World, device: torch.device, heartbeat: Heartbeat) -> None:
        super().__init__(device)
        self.world = world
        self.checkpoint_group = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)  # to save while training
        self._heartbeat = heartbeat
        self._collective: Collective | None = None

    def set_resume_hint(self, hint: str) -> None:
        self._heartbeat.hint = hint

    def collective(self) -> Collective:
        if self._collective is None:  # a group of its own, since gradients are summed at the same time
            self._collective = DistributedCollective(self.world, new_task_group())
        return self._collective

    def gather(self, rows: Tensor) -> Tensor:
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world.size)]
        dist.all_gather(counts, torch.tensor([len(rows)]))
        longest = max(int(count) for count in counts)
        padded = torch.zeros((longest, *rows.shape[1:]), dtype=rows.dtype)
        padded[: len(rows)] = rows.detach().cpu()
        size = padded.numel() * padded.element_size()
        found = [torch.empty(size, dtype=torch.uint8) for _ in range(self.world.size)]
        dist.all_gather(found, padded.flatten().view(torch.uint8))  # as bytes, since gloo does not support every type
        whole = [part.view(rows.dtype).view_as(padded)[: int(count)] for part, count in zip(found, counts, strict=True)]
        return torch.cat(whole).to(rows.device)

    def reduce_outcome(self, outcome: Outcome) -> Outcome:
        means = torch.stack([value.double().cpu() for value in (outcome.loss, *outcome.metrics.values())])
        sums = torch.cat([means * outcome.images, torch.tensor([outcome.images], dtype=torch.float64)])
        dist.all_reduce(sums)
        images = int(sums[-1])
        loss, *metrics = (sums[:-1] / max(images, 1)).to(outcome.loss)
        return Outcome(loss, images, dict(zip(outcome.metrics, metrics, strict=True)))

    def sum(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def broadcast(self, value: JsonValue) -> JsonValue:
        encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(encoded)])
        dist.broadcast(length, 0)
        encoded = encoded if self.is_main else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(encoded, 0)
        shared: JsonValue = json.loads(encoded.numpy().tobytes())
        return shared

    def max(self, number: int) -> int:
        value = torch.tensor([number])
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return int(value)

    def barrier(self) -> None:
        # A thread of gloo releases its tensor only after the wait is over, and needs the interpreter for that: if the
        # interpreter is already shutting down, the process aborts.
        token = torch.zeros(1)
        held = sys.getrefcount(token)
        dist.all_reduce(token)
        deadline = time.monotonic() + RELEASE_TIMEOUT
        while sys.getrefcount(token) > held and time.monotonic() < deadline:
            time.sleep(0.001)


@contextmanager
def open_distributed_group(world: World, device: torch.device) -> Iterator[DistributedGroup]:
    """The processes of this run, from the rendezvous until all have ended."""
    backend = "gloo"
    if device.type == "cuda":
        device, backend = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    store = open_store(world)
    previous = _on_terminate(_raise_terminated)
    own_store = store.clone()  # type: ignore[attr-defined] # the stubs lack it
    try:
        with Heartbeat(PrefixStore("heartbeat", own_store), world) as heartbeat:
            try:
                group_store = PrefixStore("group", store)
                dist.init_process_group(
                    backend, store=group_store, rank=world.rank, world_size=world.size, timeout=COLLECTIVE_TIMEOUT
                )
                group = DistributedGroup(world, device, heartbeat)
                yield group
                group.barrier()
            except BaseException as error:
                # Of a lost process, torch reports only that a connection was closed, and torchrun sends SIGTERM to the
                # others. They say why, and how to resume, before they end.
                _on_terminate(signal.SIG_IGN)
                if isinstance(error, RuntimeError | SystemExit) and (lost := heartbeat.find_lost()):
                    raise lost from error
                heartbeat.report_end(describe_error(error))
                raise
            dist.destroy_process_group()  # not after an error: a device may wait for a lost process
    finally:
        _on_terminate(previous)


def new_task_group() -> "dist.ProcessGroup":
    """A process group for the sums that tasks compute in a step. A collective."""
    group = dist.new_group(timeout=COLLECTIVE_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _raise_terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _on_terminate(handler: Any) -> Any:
    """Set what SIGTERM does, and return what it did; outside the main thread nothing is changed."""
    if threading.current_thread() is threading.main_thread():
        return signal.signal(signal.SIGTERM, handler)
    return signal.SIG_DFL


def open_store(world: World) -> Store:
    """The store that all processes share."""
    # torchrun has the store before it starts the processes: if it cannot be reached, torchrun is gone.
    launched = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    timeout = CONNECT_TIMEOUT if launched else RENDEZVOUS_TIMEOUT
    try:
        store, _, _ = next(rendezvous("env://", world.rank, world.size, timeout=timeout))
    except (RuntimeError, ValueError) as error:
        address = ":".join(os.environ.get(name, name) for name in ("MASTER_ADDR", "MASTER_PORT"))
        hint = "start with torchrun, and check that every machine reaches this address"
        message = f"rendezvous of {world.size} processes failed: {error}"
        raise VitralError(message, code="run.rendezvous_failed", where=address, hint=hint) from error
    assert isinstance(store, Store)
    store.set_timeout(RENDEZVOUS_TIMEOUT)
    return store


def describe_error(error: BaseException) -> str:
    """The error of a process in one line, for the others."""
    text = str(error) if isinstance(error, VitralError) else f"{type(error).__name__} {error}".strip()
    return f"ended: {' '.join(text.split())[:MAX_MESSAGE]}"

"""Batches: images of many requests gather, and one batch after the other runs.  B images, H x W pixels, C channels.

An engine uses all threads, so there is one lane for all models. While a batch runs, images gather for the next. A batch
also waits, for milliseconds, for images that are being decoded, and for nothing when there are none.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from vitral.core.errors import WeightsError
from vitral.data.decoding.pixels import Pixels
from vitral.inference.engines.engine import FloatArray, PixelBatch
from vitral.serving.batching.admission import Cost
from vitral.serving.config import Batching
from vitral.serving.http.metrics import METRICS
from vitral.serving.http.problems import BusyError

T = TypeVar("T")


class Lane:
    """Runs one job at a time, in the order of arrival, in a separate thread."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # waiters are served in turn, so that no model starves another
        self._thread = ThreadPoolExecutor(1, "compute")

    async def run(self, job: Callable[[], T]) -> T:
        """Run a job now; the caller holds the lock."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    async def run_in_turn(self, job: Callable[[], T], patience: float) -> T:
        """Run a job when it is its turn; BusyError if that takes longer than `patience` seconds.

        A job whose caller is cancelled cannot be stopped, so its turn lasts until it ends.
        """
        try:
            async with asyncio.timeout(patience):
                await self.lock.acquire()
        except TimeoutError:
            raise waited_too_long(patience) from None
        running = asyncio.ensure_future(self.run(job))
        running.add_done_callback(self._end_turn)
        return await asyncio.shield(running)

    def _end_turn(self, done: "asyncio.Future[T]") -> None:
        self.lock.release()
        if not done.cancelled():
            done.exception()  # seen, where nobody waits for it any more

    def close(self) -> None:
        """End the thread after the job at hand."""
        self._thread.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, eq=False)
class Waiting:
    """An image that waits for its batch; equal to itself alone."""

    pixels: Pixels  # (H, W, C)
    answer: asyncio.Future[FloatArray]
    since: float  # by the clock of the event loop


class Batcher:
    """Gathers the images of one model, and gives each its row of the engine's output."""

    def __init__(
        self,
        lane: Lane,
        run: Callable[[PixelBatch], FloatArray],
        cost: Cost,
        config: Batching,
        threads: int,
        label: str = "",
    ) -> None:
        self.lane, self.run, self.cost, self.config, self.threads, self.label = lane, run, cost, config, threads, label
        self.decoding = 0  # images of this model that are being decoded
        self._waiting: deque[Waiting] = deque()
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def submit(self, pixels: Pixels, patience: float) -> FloatArray:
        """The output (K,) of one image; BusyError if its batch does not begin within `patience` seconds."""
        loop = asyncio.get_running_loop()
        one = Waiting(pixels, loop.create_future(), loop.time())
        self._waiting.append(one)
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        timer = loop.call_later(patience, self._expire, one, patience)
        try:
            return await one.answer
        finally:  # a client that left has cancelled its answer, and is left out of the batch
            timer.cancel()

    @property
    def limit(self) -> int:
        """How many images the next batch has at most: as many as run in `run_seconds`, evenly over the threads."""
        share = math.ceil(self.config.run_seconds / max(self.cost.seconds, 1e-6) / self.threads) * self.threads
        return max(1, min(self.config.size, share))

    def _expire(self, one: Waiting, patience: float) -> None:
        if one in self._waiting and not one.answer.done():
            one.answer.set_exception(waited_too_long(patience))

    async def _work(self) -> None:
        while self._waiting:
            async with self.lane.lock:
                await self._gather()
                batch = self._take()
                if batch:
                    await self._run(batch)

    async def _gather(self) -> None:
        """Wait for images that are being decoded, but no longer than the first may wait for them."""
        loop = asyncio.get_running_loop()
        while self._waiting and self.decoding and len(self._waiting) < self.limit:
            rest = self._waiting[0].since + self.config.wait_seconds - loop.time()
            if rest <= 0:
                return
            self._arrived.clear()
            try:
                async with asyncio.timeout(rest):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        limit = self.limit
        while self._waiting and len(batch) < limit:
            one = self._waiting.popleft()
            if not one.answer.done():
                batch.append(one)
        return batch

    async def _run(self, batch: list[Waiting]) -> None:
        loop, start = asyncio.get_running_loop(), time.perf_counter()
        now = loop.time()
        for one in batch:
            METRICS.stage("queue", self.label, now - one.since)
        pixels = np.stack([one.pixels for one in batch])  # (B, H, W, C)
        try:
            outputs = await self.lane.run(lambda: self.run(pixels))  # (B, K)
        except Exception as error:  # of the engine; it must reach every client, and end none of what comes after
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
            return
        seconds = time.perf_counter() - start
        self.cost.learn(len(batch), seconds)
        METRICS.batch(self.label, len(batch), seconds)
        for one, row in zip(batch, outputs, strict=True):
            if one.answer.done():
                continue
            if np.isfinite(row).all():
                one.answer.set_result(row)
            else:
                one.answer.set_exception(not_finite())


def waited_too_long(patience: float) -> BusyError:
    """The error of an image whose batch did not begin in time."""
    return BusyError(f"waited {patience:g} s", code="serve.queue_timeout", retry_after=patience)


def not_finite() -> WeightsError:
    """The error of an image with an output that no format can hold."""
    message = "the model's output for this image is infinite or not a number"
    return WeightsError(message, code="weights.not_finite", hint="use weights from before training diverged")

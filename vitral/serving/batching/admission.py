"""Admission: whether the server can answer a request in time, decided before it is read and again before it is decoded.

Refusing at once costs a client milliseconds; accepting what cannot be answered in time costs everyone seconds.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from vitral.serving.config import Limits
from vitral.serving.http.problems import BusyError


class Cost:
    """Seconds that one image takes, as measured on the last batches."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def learn(self, images: int, seconds: float) -> None:
        """Follow a batch that took so long; one slow batch does not decide."""
        self.seconds += 0.2 * (seconds / images - self.seconds)


class Admission:
    """Counts the images that are accepted and not answered yet, and the seconds of work that they are."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopping = False
        self._accepted: Counter[Cost] = Counter()  # images by what each costs

    @property
    def images(self) -> int:
        """The images that are accepted."""
        return self._accepted.total()

    @property
    def seconds(self) -> float:
        """The work that they are, by what images cost now."""
        return sum(images * cost.seconds for cost, images in self._accepted.items())

    def check(self) -> None:
        """Raise BusyError for a new request that could not be answered in time."""
        if self.stopping:
            message, hint = "the server is stopping", "ask another server, or try again"
            raise BusyError(message, code="serve.stopping", retry_after=self.limits.drain_seconds, hint=hint)
        self._check_queue(1)

    def _check_queue(self, images: int) -> None:
        if self.images and self.images + images > self.limits.queue:
            message = f"{self.images} images are waiting, and {self.limits.queue} may"
            raise BusyError(message, code="serve.queue_full", retry_after=self.seconds)
        if self.seconds > self.limits.queue_seconds:
            message = f"the waiting images will take {self.seconds:.0f} s"
            retry_after = self.seconds - self.limits.queue_seconds
            raise BusyError(message, code="serve.queue_timeout", retry_after=retry_after)

    @contextmanager
    def accept(self, images: int, cost: Cost) -> Iterator[None]:
        """Count images as accepted inside the `with`.

        A request that began before the server was told to stop is still accepted.
        """
        self._check_queue(images)
        self._accepted[cost] += images
        try:
            yield
        finally:
            self._accepted[cost] -= images
            if not self._accepted[cost]:
                del self._accepted[cost]  # that of a model that was replaced is freed

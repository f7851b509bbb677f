"""The events of a run, and the callbacks that get them.

    Started, then Logged, Evaluated and Saved as they happen, then Finished

Callbacks are called in the main process, after the fact: they cannot alter a step, and the bits of a run do not depend
on them. A run that is stopped or fails ends without `Finished`; when it is resumed, it begins again with `Started`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vitral.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Started:
    """A session begins after `step` of `steps` steps: 0 for a new run, more for one that is resumed."""

    path: Path  # the run folder
    recipe: Recipe
    step: int
    steps: int


@dataclass(frozen=True, slots=True)
class Logged:
    """The metrics of a training step, `loss` and `rate` (the learning rate) among them."""

    step: int
    epoch: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The weights were evaluated on a split; the best so far are in `best/` of the run folder."""

    step: int
    epoch: float
    split: str
    metrics: Mapping[str, float]
    is_best: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint is complete on disk. It is removed when newer ones are."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Finished:
    """The run is complete: its bundles and its report are written. The metrics are those of the best weights."""

    step: int
    path: Path  # the run folder
    metrics: Mapping[str, float]


RunEvent = Started | Logged | Evaluated | Saved | Finished
RunCallback = Callable[[RunEvent], None]


class Tracker(Protocol):
    """A callback that is closed at the end of a session, whether the run is complete or not."""

    def __call__(self, event: RunEvent) -> None: ...

    def close(self) -> None: ...


TrackerLike = str | Tracker | Sequence[str | Tracker]  # `tensorboard`, `wandb`, `mlflow`, or an object


class EventDispatcher:
    """Sends events to trackers and callbacks. The first error of a callback is kept until the run is saved."""

    def __init__(self, callbacks: Iterable[RunCallback] = (), trackers: Iterable[Tracker] = ()) -> None:
        self.trackers = list(trackers)
        self.callbacks: list[RunCallback] = [*self.trackers, *callbacks]
        self.error: BaseException | None = None

    def send(self, event: RunEvent) -> None:
        """Call every callback. One that raises is not called again."""
        for callback in list(self.callbacks):
            try:
                callback(event)
            except BaseException as error:  # raised by `raise_error`
                self.callbacks.remove(callback)
                self.error = self.error or error

    def raise_error(self, note: str) -> None:
        """Raise the error of a callback, if there was one, with a note that says how to go on."""
        if self.error is not None:
            self.error.add_note(note)
            raise self.error

    def close(self) -> None:
        """Close the trackers."""
        for tracker in self.trackers:
            tracker.close()

"""What came of a run."""

import shlex
import signal
from typing import NamedTuple

from vitral.data.samples import Samples
from vitral.html.text import percent
from vitral.recipes.recipe import Recipe
from vitral.runs.folder import Folder
from vitral.runs.report.story import Judgment


class Run(NamedTuple):
    """A run: where it is, what it was, how far it came, and what its weights are worth if that is known."""

    folder: Folder
    recipe: Recipe
    samples: Samples
    step: int
    steps: int
    signal: int  # that stopped it; 0 if nothing did
    judgment: Judgment | None

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}: step {self.step:,} of {self.steps:,}{self._judged(', ')})"

    def summary(self) -> list[str]:
        """What a user wants to know at the end, a line each, with what to type next."""
        if self.signal:
            name = signal.Signals(self.signal).name
            return [f"{name}: stopped and saved after step {self.step:,} of {self.steps:,}; to go on:", self.again]
        report = f"report: {self.folder.report}"
        return [line for line in (self._judged(), report, f"next, {self._next()}") if line]

    @property
    def again(self) -> str:
        """The line that goes on with it."""
        return f"vitral train --resume {shlex.quote(str(self.folder.path))}"

    def _judged(self, before: str = "") -> str:
        if self.judgment is None:
            return ""
        found, split = self.judgment.accuracy, self.judgment.split
        sure = f"95 % sure: {percent(found.interval.low)} to {percent(found.interval.high)}"
        return f"{before}accuracy {percent(found.top1)} on {found.images:,} {split} images ({sure})"

    def _next(self) -> str:
        path = shlex.quote(str(self.folder.path))
        if not self.recipe.task.labeled:
            return f"to put what it saw to use: vitral train PHOTOS/ --from {path}"
        root = f" --root {shlex.quote(self.recipe.data.root)}" if self.recipe.data.root else ""
        return f"to learn more from here: vitral train {shlex.quote(self.samples.where)}{root} --from {path}"

"""The result of a run."""

import shlex
import signal
from typing import NamedTuple

from vitral.data.samples import Samples
from vitral.html.text import percent
from vitral.recipes.recipe import Recipe
from vitral.runs.folder import RunFolder
from vitral.runs.report.report import ReportEvaluation


class Run(NamedTuple):
    """A run: its folder, recipe and data, the steps it took, and the evaluation of its best weights."""

    folder: RunFolder
    recipe: Recipe
    samples: Samples
    step: int
    steps: int
    signal: int  # number of the signal that stopped it, 0 for none
    evaluation: ReportEvaluation | None

    def __repr__(self) -> str:
        return f"Run({str(self.folder.path)!r}: step {self.step:,} of {self.steps:,}{self._format_accuracy(', ')})"

    def summary(self) -> list[str]:
        """The lines that are logged at the end: accuracy, report, next command."""
        if self.signal:
            name = signal.Signals(self.signal).name
            return [
                f"{name}: stopped and saved after step {self.step:,} of {self.steps:,}; resume with:",
                self.resume_command,
            ]
        report = f"report: {self.folder.report}"
        return [line for line in (self._format_accuracy(), report, f"next: {self._next()}") if line]

    @property
    def resume_command(self) -> str:
        """The command that resumes the run."""
        return f"vitral train --resume {shlex.quote(str(self.folder.path))}"

    def _format_accuracy(self, prefix: str = "") -> str:
        if self.evaluation is None:
            return ""
        found, split = self.evaluation.accuracy, self.evaluation.split
        interval = f"95% CI {percent(found.ci95.low)} to {percent(found.ci95.high)}"
        return f"{prefix}accuracy {percent(found.top1)} on {found.images:,} {split} images ({interval})"

    def _next(self) -> str:
        path = shlex.quote(str(self.folder.path))
        if not self.recipe.task.labeled:
            return f"vitral train PHOTOS/ --weights {path}"
        root = f" --root {shlex.quote(self.recipe.data.root)}" if self.recipe.data.root else ""
        return f"vitral train {shlex.quote(self.samples.where)}{root} --weights {path}"

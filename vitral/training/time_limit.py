"""Training within a time limit: the number of steps is planned while they are taken.

A plan is a list of changes: from step `s` on, the run has `n` steps in all. The first is made before any step is
timed, and holds for two steps, which are timed. Each later change follows when the number of steps has doubled, or
after a quarter of the steps that were left, so that the last ones come just before the end. The schedule is stretched
or compressed over what is left: its position is piecewise linear in the step, from 0 at the first to 1 at the last.

A change is written to the run (plan.jsonl) before it acts, and a resumed run follows those that are written. So the
bits depend on the plan, and not on how busy the machine is when a step is taken again.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from vitral.core.config import Config
from vitral.core.errors import ConfigError, VitralError
from vitral.core.jsonl import JsonlLog, read_jsonl
from vitral.training.loop import StepResult
from vitral.training.schedules import BaseSchedule

PLAN_FILE = "plan.jsonl"
WHERE = "time-limit"
RESERVE = 0.03  # fraction of the limit: for delays at the end of the run
FIRST_STEPS = 200  # of a run whose steps have not been timed: its first two are at the begin of any warmup
TIMED_STEPS = 2  # before the first measured plan; the first one of them, which is slow, is not timed
MAX_STEPS = 10**9
NUMBER = r"(\d+(?:\.\d+)?)"
TIME_PATTERN = re.compile(rf"(?:{NUMBER}h)?(?:{NUMBER}m)?(?:{NUMBER}s)?|{NUMBER}", re.ASCII)


def parse_seconds(text: str) -> float:
    """A time such as `90s`, `10m`, `1h30m` or `45` in seconds."""
    match = TIME_PATTERN.fullmatch(text)
    hours, minutes, seconds, bare = (float(part or 0) for part in match.groups()) if match else (0.0,) * 4
    found = 3600 * hours + 60 * minutes + seconds + bare
    if not found:
        message, hint = f"expected a time, got {text!r}", "write it as 90s, 10m, 1h30m, 2h, or 45 for seconds"
        raise ConfigError(message, code="config.wrong_type", where=WHERE, hint=hint)
    return found


def check_limit(limit: float, spent: float, needed: float) -> None:
    """Refuse a time limit that does not suffice for what comes before and after the steps, and for one step."""
    if spent + needed > (1 - RESERVE) * limit:
        message = f"{limit:g} s are too few: the start took {spent:.0f} s, the least that is left takes {needed:.2g} s"
        hint = f"allow at least {ceil((spent + needed) / (1 - RESERVE))}s, or use a smaller model or smaller images"
        raise ConfigError(message, code="config.time_limit_too_short", where=WHERE, hint=hint)


def steps_within(seconds: float, step_seconds: float, evaluation_seconds: float, every: int, done: int = 0) -> int:
    """How many more steps fit into a time after `done` steps, with an evaluation every so many and after the last."""

    def cost(more: int) -> float:
        last = done + more
        return more * step_seconds + (-(-last // every) - done // every) * evaluation_seconds

    highest = int(max(0.0, seconds) / max(step_seconds, 1e-9))
    return max(0, bisect_right(range(1, min(highest, MAX_STEPS) + 1), seconds, key=cost))


class PlanChange(Config):
    """From `step` on, the run has `steps` steps in all; decided `seconds` after its start."""

    step: int
    steps: int
    seconds: float = 0.0


class StepPlan:
    """The number of steps of a run, and where its schedule stands at each of them."""

    def __init__(self, steps: int, changes: Sequence[PlanChange] = ()) -> None:
        self.changes: list[PlanChange] = []
        self._done: list[float] = []  # the fraction of the schedule that is done at each change
        for change in (PlanChange(step=0, steps=steps), *changes):
            self.add(change)

    @property
    def steps(self) -> int:
        """The number of steps by the newest change."""
        return self.changes[-1].steps

    def add(self, change: PlanChange) -> None:
        """Change the plan from a step on; one at step 0 replaces what was planned."""
        if change.step == 0:
            self.changes, self._done = [], []
        done = self.fraction(change.step) if self.changes else 0.0
        self.changes.append(change)
        self._done.append(done)

    def steps_after(self, step: int) -> int:
        """The number of steps that was planned after `step` of them."""
        return self.changes[self._find(step)].steps

    def lr_factor(self, schedule: BaseSchedule, step: int) -> float:
        """The factor of the peak learning rate at a step, counted from 0."""
        number = self._find(step)
        if number == 0:
            return schedule.lr_factor(step, self.changes[0].steps)
        steps = self.changes[number].steps
        return schedule.lr_factor(self.fraction(step) * steps, steps)

    def next_change(self) -> int:
        """The step after which the plan is to be changed next."""
        last = self.changes[-1]
        return last.step + max(1, min(last.step, (last.steps - last.step) // 4)) if last.step else TIMED_STEPS

    def _find(self, step: int) -> int:
        return bisect_right(self.changes, step, key=lambda change: change.step) - 1

    def fraction(self, step: int) -> float:
        """The fraction of the schedule that is done before a step, counted from 0."""
        number = self._find(step)
        change, done = self.changes[number], self._done[number]
        return done + (1 - done) * (step - change.step) / max(1, change.steps - change.step)


class PlanLog:
    """The plan of a run on disk, which one process writes."""

    def __init__(self, folder: Path) -> None:
        self._log = JsonlLog(folder / PLAN_FILE)

    def add(self, change: PlanChange) -> None:
        """Write a change; it is on the disk on return."""
        self._log.append(change.model_dump())
        self._log.flush()

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def read_plan(folder: Path) -> list[PlanChange]:
    """The changes of a run so far; those of a run without a time limit are none."""
    try:
        return [PlanChange.parse(record) for record in read_jsonl(folder / PLAN_FILE)]
    except ConfigError as error:
        where, hint = folder / PLAN_FILE, "restore it, or start a new run"
        raise VitralError(error.message, code="run.bad_log", where=where, hint=hint) from None


class TimeBudget:
    """The time of a run: the limit, and the estimates from which its steps are planned."""

    def __init__(self, limit: float, spent: Callable[[], float], every: int) -> None:
        self.limit, self.spent = limit, spent  # seconds; the second since the start of the run
        self.every = every  # steps between two evaluations
        self.evaluation = 0.0  # seconds of one
        self.finish = 0.0  # seconds from the last evaluation to the end
        self._start, self._began, self._outside = 0, 0.0, 0.0

    def begin(self, step: int) -> None:
        """Time the steps from here on."""
        self._start, self._began, self._outside = step, self.spent(), 0.0

    def add_evaluation(self, seconds: float) -> None:
        """Note the time of an evaluation, which is no part of a step."""
        self.evaluation = seconds
        self._outside += seconds

    def plan(self, step: int) -> PlanChange:
        """The plan after a step, from the time of the steps since the last one."""
        now = self.spent()
        each = max(1e-6, now - self._began - self._outside) / max(1, step - self._start)
        left = (1 - RESERVE) * self.limit - now - self.finish
        self.begin(step)
        more = steps_within(left, each, self.evaluation, self.every, step)
        return PlanChange(step=step, steps=step + more, seconds=round(now, 3))


@dataclass
class TimePlanning:
    """The callback that changes the plan. It comes first, so that the others see the new one."""

    plan: StepPlan
    budget: TimeBudget
    first: int  # the step with which the session starts
    decide: Callable[[int], PlanChange]  # in the main process, for all: a collective

    def due(self, step: int, steps: int) -> bool:
        return step == self.first + 1 or (step == self.plan.next_change() and step < steps)

    def run(self, step: int, result: StepResult) -> None:
        result.read()  # the device is done with the step
        if step == self.plan.next_change():
            self.plan.add(self.decide(step))
        else:
            self.budget.begin(step)

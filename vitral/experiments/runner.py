"""Running an experiment: its runs are trials of sweeps, so that one that is stopped or killed goes on where it was."""

import logging
from collections.abc import Sequence
from functools import cache
from math import inf
from pathlib import Path

import numpy as np
import torch

from vitral import __version__
from vitral.core.errors import VitralError
from vitral.core.files import read_file
from vitral.core.machine import cpu_count, cpu_name
from vitral.core.storage import make_folders, write_file_atomically
from vitral.experiments.experiment import Cell
from vitral.experiments.folder import ExperimentFolder, Request
from vitral.experiments.measures import Measured
from vitral.experiments.plan import Plan, PlannedArm, complete_recipe
from vitral.experiments.results import (
    ArmResult,
    CellResult,
    ExperimentResult,
    Provenance,
    RateResult,
    StoredArray,
    compare,
    judge,
    pack_bits,
    spread_of,
)
from vitral.explanation.walkthrough.cost import model_cost
from vitral.runs.folder import (
    git_revision,
    read_times,
    total_cpu_seconds,
    utc_now,
)
from vitral.runs.sweeps.folder import Candidate, SweepFolder, SweepPlan, Trial, create_sweep
from vitral.runs.sweeps.results import DIVERGED, TrialResult, read_result
from vitral.runs.sweeps.sweep import run_sweep

log = logging.getLogger("vitral")
ARM, LR = "arm", "lr"  # the settings of a trial
RATE_SEED = 0  # of the runs that choose learning rates; those that are compared have the seeds after it


class Stopped(Exception):
    """A signal stopped a sweep; the runs at hand are saved."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.signal = number


class Runner:
    """The runs of a plan in a folder."""

    def __init__(self, plan: Plan, folder: ExperimentFolder, request: Request, jobs: int) -> None:
        self.plan, self.folder, self.request, self.jobs = plan, folder, request, jobs
        self.rates: list[RateResult] = []
        self.cells: list[CellResult] = []
        self.chosen: dict[str, float] = {}  # the learning rate of each arm

    def run(self) -> ExperimentResult:
        """Train and measure what is not done yet; raises Stopped after a signal."""
        if not self.plan.experiment.trained:
            turns = [(planned, turn) for turn in range(self.plan.experiment.times) for planned in self.plan.arms]
            self.cells = [self._measure_untrained(number, *each) for number, each in enumerate(turns, start=1)]
            return self.result()
        for level in range(self.plan.levels):
            arms = self.plan.level(level)
            self._choose_rates(level, arms)
            self._train_cells(level, arms)
        return self.result()

    def _choose_rates(self, level: int, arms: Sequence[PlannedArm]) -> None:
        """The learning rate of each arm that is best on the held-out images."""
        self.chosen |= {each.arm.name: each.rates[0] for each in arms}
        swept = [each for each in arms if len(each.rates) > 1]
        if not swept:
            return
        wanted = [(each, rate, RATE_SEED) for each in swept for rate in each.rates]
        folder = self._sweep(self.folder.rates(level), wanted)
        found = {each.arm.name: -inf for each in swept}
        for trial in _trials(folder):
            name, rate = _arm(trial), float(trial.recipe.optimizer.lr)
            value = _finished(trial, folder).value
            self.rates.append(
                RateResult(arm=name, rate=rate, value=value, flops=self.plan.find(name).flops, cpu_seconds=_cpu(trial))
            )
            score = -inf if value is None else -value if trial.recipe.task.best_by == "loss" else value
            if score > found[name]:
                found[name], self.chosen[name] = score, rate

    def _train_cells(self, level: int, arms: Sequence[PlannedArm]) -> None:
        """All arms with all seeds, each with its learning rate, and what is measured of them."""
        seeds = range(RATE_SEED + 1, RATE_SEED + 1 + self.plan.setup.seeds)
        wanted = [(each, self.chosen[each.arm.name], seed) for seed in seeds for each in arms]
        folder = self._sweep(self.folder.cells(level), wanted)
        left = [trial for trial in _trials(folder) if not self._measured(level, trial).is_file()]
        if left:
            log.info(f"measuring {len(left)} runs")
        for trial in _trials(folder):
            found = self._measure(level, trial, folder)
            self.cells += [found] if found else []

    def _sweep(self, folder: SweepFolder, wanted: Sequence[tuple[PlannedArm, float, int]]) -> SweepFolder:
        """Run a sweep, which is planned once: it goes on as it was planned."""
        if not folder.path.exists():
            candidates = tuple(
                Candidate(
                    number=number,
                    settings={ARM: planned.arm.name, LR: rate},
                    recipe=complete_recipe(planned, rate, seed, self.request.threads, self._weights(planned, seed)),
                )
                for number, (planned, rate, seed) in enumerate(wanted, start=1)
            )
            create_sweep(folder.path, SweepPlan(candidates=candidates))
        done = run_sweep(folder, self.jobs)
        if done.signal:
            raise Stopped(done.signal)
        return folder

    def _weights(self, planned: PlannedArm, seed: int) -> str:
        """The weights that an arm starts from: those of the same seed, or of the first to choose a learning rate."""
        if not planned.arm.start:
            return ""
        wanted = (planned.arm.start, max(seed, RATE_SEED + 1))
        level = next(
            number
            for number in range(self.plan.levels)
            if any(each.arm.name == planned.arm.start for each in self.plan.level(number))
        )
        trials = _trials(self.folder.cells(level))
        found = next(trial for trial in trials if (_arm(trial), trial.seed) == wanted)
        return str(found.folder.best.absolute())

    def _measured(self, level: int, trial: Trial) -> Path:
        return self.folder.measured(level, trial.folder.path.name)

    def _measure(self, level: int, trial: Trial, sweep: SweepFolder) -> CellResult | None:
        """What was measured of a cell; its test images are used once, and the numbers are written down."""
        path, planned = self._measured(level, trial), self.plan.find(_arm(trial))
        if path.is_file():
            return CellResult.from_json(read_file(path))
        if _finished(trial, sweep).value is None:  # it diverged
            return None
        torch.set_num_threads(self.request.threads)
        cell = Cell(planned.arm, trial.seed, trial.recipe, trial.folder)
        measured = self.plan.experiment.measure(cell) if planned.arm.compared else Measured({})
        found = CellResult(
            code=_provenance(),
            arm=planned.arm.name,
            seed=trial.seed,
            rate=float(trial.recipe.optimizer.lr),
            values=dict(measured.values),
            correct=pack_bits(measured.correct),
            arrays={name: StoredArray.of(array) for name, array in measured.arrays.items()},
            run=str(trial.folder.path.relative_to(self.folder.path)),
            steps=planned.steps,
            flops=planned.flops,
            cpu_seconds=_cpu(trial),
        )
        return _write(path, found)

    def _measure_untrained(self, number: int, planned: PlannedArm, turn: int) -> CellResult:
        """What is measured of a model that is not trained, written down as well: a time differs the next time."""
        path = self.folder.measured(0, f"{number:03}")
        if path.is_file():
            return CellResult.from_json(read_file(path))
        torch.set_num_threads(self.request.threads)
        values = dict(self.plan.experiment.measure(Cell(planned.arm, turn, planned.recipe, None)).values)
        return _write(path, CellResult(code=_provenance(), arm=planned.arm.name, seed=turn, rate=0.0, values=values))

    def result(self) -> ExperimentResult:
        """The results of the cells that are done."""
        plan, experiment = self.plan, self.plan.experiment
        arms = [each.arm for each in plan.arms]
        cells = sorted(self.cells, key=lambda cell: ([arm.name for arm in arms].index(cell.arm), cell.seed))
        checks = compare(experiment, experiment.list_checks(plan.scale), arms, cells)
        swept = experiment.trained and any(len(each.rates) > 1 for each in plan.arms)
        root = f" --root {self.request.root}" if self.request.root else ""
        data = f" --data {self.request.data}" if self.request.data else ""
        return ExperimentResult(
            name=self.request.name,
            title=experiment.title,
            claim=experiment.claim,
            scale=plan.scale,
            data=plan.setup.recipe.data.path if experiment.trained else "",
            metric=experiment.metric,
            metric_name=experiment.metric_name,
            share=experiment.share,
            paper_name=experiment.paper_name,
            differs=experiment.differs.get(plan.scale, ""),
            unequal=experiment.unequal,
            command=f"vitral paper {self.request.name} --scale {plan.scale}{data}{root}",
            finished=utc_now(),
            columns=dict(experiment.columns),
            rates_by=plan.setup.recipe.task.best_by if swept else "",
            arms=tuple(self._summarize(each) for each in plan.arms if each.arm.compared),
            checks=tuple(checks),
            verdict=judge(experiment, checks, arms, cells),
            cells=tuple(cell.model_copy(update={"correct": ""}) for cell in cells),
            rates=tuple(self.rates),
        )

    def _summarize(self, planned: PlannedArm) -> ArmResult:
        arm, metric = planned.arm, self.plan.experiment.metric
        own = [cell.values[metric] for cell in self.cells if cell.arm == arm.name and metric in cell.values]
        rate, ends = self.chosen.get(arm.name, 0.0), (min(planned.rates), max(planned.rates))
        return ArmResult(
            arm=arm.name,
            rate=rate,
            values=tuple(own),
            mean=float(np.mean(own)) if own else None,
            spread=spread_of(own),
            paper=arm.paper,
            parameters=model_cost(planned.recipe.model).parameters,
            flops=self.plan.flops_with_start(arm.name) if self.plan.experiment.trained else 0.0,
            group=arm.group,
            x=arm.x,
            at_end=len(planned.rates) > 2 and rate in ends,
        )


@cache
def _provenance() -> Provenance:
    """Of this process."""
    git = git_revision(Path(__file__).parent)
    machine = f"{cpu_name()}, {cpu_count()} cores"
    return Provenance(commit=git.commit, changed=git.dirty, version=__version__, machine=machine)


def _write(path: Path, found: CellResult) -> CellResult:
    make_folders(path.parent)
    write_file_atomically(path, found.to_json() + "\n")
    return found


def _trials(folder: SweepFolder) -> list[Trial]:
    plan = folder.read_plan()
    return folder.trials(plan, plan.candidates, 0, 1.0)


def _arm(trial: Trial) -> str:
    return str(trial.candidate.settings[ARM])


def _cpu(trial: Trial) -> float:
    return round(total_cpu_seconds(read_times(trial.folder.path)), 2)


def _finished(trial: Trial, sweep: SweepFolder) -> TrialResult:
    """The result of a run; one that failed other than by diverging stops the experiment."""
    found = read_result(trial, sweep)
    if found is None or found.code not in {"", DIVERGED}:
        reason = f"{found.code}: {found.message}" if found else "the process was killed"
        hint = "remove the cause, and run the command again with --resume"
        message = f"a run of the arm {_arm(trial)!r} failed: {reason}"
        raise VitralError(message, code="run.trial_failed", where=trial.log_file, hint=hint)
    return found

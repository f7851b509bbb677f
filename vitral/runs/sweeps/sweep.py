"""`sweep`: plan the trials of a search over settings, run them, and write the table and the page."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from torch.utils.data import Dataset

from vitral.core.config import override, to_plain
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError, DataError
from vitral.core.machine import cpu_count
from vitral.core.storage import Lock, write_file_atomically
from vitral.data.loading.sampler import SINGLE_PROCESS
from vitral.data.samples import Samples
from vitral.models.registry import ModelLike
from vitral.recipes.recipe import Recipe
from vitral.runs.build import select_device
from vitral.runs.folder import data_name
from vitral.runs.options import TrainOptions
from vitral.runs.preflight import check_recipe
from vitral.runs.request import RunRequest, data_recipe, open_samples, request_from_options, resolve
from vitral.runs.sweeps.folder import Candidate, SweepFolder, SweepPlan, Trial, create_sweep, free_name
from vitral.runs.sweeps.page import render_page
from vitral.runs.sweeps.processes import StopSweep, run_trials
from vitral.runs.sweeps.results import (
    DIVERGED,
    SweepResult,
    TrialResult,
    format_metric_value,
    read_result,
    results_csv,
    summarize,
)
from vitral.runs.sweeps.search import (
    Choices,
    GridSearch,
    Point,
    RandomSearch,
    Range,
    rung_shares,
    shorten_recipe,
)
from vitral.training.metrics import read_metrics

log = logging.getLogger("vitral")
HELD_OUT = 0.1  # of the training images, to compare models on
REQUEST_FIELDS = ("model", "recipe")  # which are not settings of a recipe, but choose it


@dataclass(frozen=True)
class Sweep:
    """A sweep: its folder and its results, and the signal that stopped it, 0 for none."""

    folder: SweepFolder
    result: SweepResult
    signal: int = 0

    @property
    def path(self) -> Path:
        """The folder of the sweep."""
        return self.folder.path

    @property
    def report(self) -> Path:
        """The HTML page with the table and the charts."""
        return self.folder.report

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r})\n{self.result}"

    def summary(self) -> list[str]:
        """The lines that are logged at the end."""
        if self.signal:
            done = f"stopped and saved with {len(self.result.trials):,} trials done; resume with:"
            return [done, f"vitral sweep --resume {shlex.quote(str(self.path))}"]
        best = self.result.best
        lines = [f"report: {self.report}"]
        if best is not None:
            label = " ".join(f"{path}={value}" for path, value in best.settings.items())
            lines = [
                f"best: {label}, {self.result.metric} {format_metric_value(best.mean, self.result.metric)}",
                *lines,
            ]
        return lines


def sweep(
    data: str | Path,
    over: Mapping[str, Sequence[Any] | Range],
    *,
    search: GridSearch | RandomSearch = GridSearch(),  # noqa: B008, a frozen value
    jobs: int = 0,
    recipe: str | Path | Recipe = "",
    model: ModelLike = "",
    out: str | Path = "",
    **options: Unpack[TrainOptions],
) -> Sweep:
    """Try combinations of settings: `vitral.sweep("photos/", {"lr": [1e-3, 3e-3]}, search=GridSearch(seeds=3))`.

    Each trial is a run of `vitral.train` in a separate process, `jobs` at once, by default one per core. The other
    arguments are those of `vitral.train`. Models are compared by their best weights on the validation images.
    """
    values = {
        path: each if isinstance(each, Range) else Choices(values=tuple(to_plain(list(each))))
        for path, each in over.items()
    }
    with trusted(options.get("trust", False)):
        request = request_from_options(data, None, recipe, model, options)
        plan = plan_sweep(request, values, search, jobs)
        return run_sweep(create_sweep(sweep_path(out, data), plan), jobs)


def sweep_path(out: str | Path, data: str | Path) -> Path:
    """The folder of a new sweep: the one asked for, or one that is named after the data."""
    return Path(out).expanduser() if str(out) else free_name(data_name(str(data)))


def plan_sweep(
    request: RunRequest, over: Mapping[str, Choices | Range], search: GridSearch | RandomSearch, jobs: int = 0
) -> SweepPlan:
    """The complete recipe of every combination; what does not fit is found here, before any training."""
    if not isinstance(search, GridSearch | RandomSearch):
        message, hint = f"expected a GridSearch or RandomSearch, got {search!r}", "use vitral.GridSearch(seeds=3)"
        raise ConfigError(message, code="config.wrong_type", where="search", hint=hint)
    if not over:
        hint = "name a setting and its values: --over lr=1e-3,3e-3"
        raise ConfigError("no setting to search over", code="config.missing_value", where="over", hint=hint)
    if isinstance(request.data, Dataset):
        message = "trials run in other processes, which do not have this object"
        hint = "give a path, or a class as file.py:Class with trust"
        raise DataError(message, code="data.needs_object", where="data", hint=hint)
    request, samples = with_validation(request)
    candidates: list[Candidate] = []
    points = search.points(over)
    shortest = rung_shares(len(points), search.halving)[0]
    for number, point in enumerate(points, start=1):
        recipe = resolve(apply_point(request, point), samples).recipe
        check_recipe(shorten_recipe(recipe, shortest), samples, SINGLE_PROCESS)
        candidates.append(Candidate(number=number, settings=to_plain(point), recipe=recipe))
    threads = max(1, cpu_count() // (jobs or usual_jobs(candidates[0].recipe)))
    return SweepPlan(
        candidates=tuple(fix_threads(each, threads) for each in candidates), seeds=search.seeds, halving=search.halving
    )


def with_validation(request: RunRequest) -> tuple[RunRequest, Samples]:
    """The request and its data; a part of the training images is held out where there are no validation images."""
    samples = open_samples(data_recipe(request), request)
    if not samples.of("val"):
        request = request._replace(settings={**request.settings, "hold_out": HELD_OUT})
        samples = open_samples(data_recipe(request), request)
        log.info(f"no validation images: {len(samples.of('val')):,} of the training images are held out for them")
    return request, samples


def apply_point(request: RunRequest, point: Point) -> RunRequest:
    """The request with the values of a point; a model or recipe is chosen by its name."""
    chosen = {name: value for name, value in point.items() if name in REQUEST_FIELDS}
    settings = {name: value for name, value in point.items() if name not in REQUEST_FIELDS}
    return request._replace(**chosen, settings={**request.settings, **settings})


def usual_jobs(recipe: Recipe) -> int:
    """One trial per core on a CPU, where small models gain little from more threads; one on an accelerator."""
    return cpu_count() if select_device(recipe).type == "cpu" else 1


def fix_threads(candidate: Candidate, threads: int) -> Candidate:
    """The candidate with its share of the cores, where no number of threads was set.

    It is part of the plan, since bits depend on it: a sweep that is resumed with other `jobs` ends in the same table.
    """
    if candidate.recipe.threads != "auto":
        return candidate
    return candidate.model_copy(update={"recipe": override(candidate.recipe, {"threads": threads})})


def resume_sweep(where: str | Path, jobs: int = 0) -> Sweep:
    """Go on with a sweep that was stopped or killed; what is done is not done again."""
    return run_sweep(SweepFolder(Path(where).expanduser()), jobs)


def run_sweep(folder: SweepFolder, jobs: int = 0) -> Sweep:
    """Run the trials of every rung that are not done, and write the results after each rung."""
    plan = folder.read_plan()
    jobs = jobs or usual_jobs(plan.candidates[0].recipe)
    metric = plan.candidates[0].recipe.task.best_by
    shares = rung_shares(len(plan.candidates), plan.halving)
    results: list[TrialResult] = []
    candidates = plan.candidates
    with Lock(folder.path):
        for rung, share in enumerate(shares):
            trials = folder.trials(plan, candidates, rung, share)
            try:
                _run_rung(folder, trials, jobs)
            except StopSweep as stopped:
                return Sweep(folder, _write(folder, trials, results, metric, len(shares)), stopped.signal)
            found = _write(folder, trials, results, metric, len(shares))
            results = list(found.trials)
            kept = [each.candidate for each in found.candidates if each.rung == rung + 1 and each.mean is not None]
            survivors = set(kept[: max(1, len(candidates) // (plan.halving or 1))])
            candidates = tuple(each for each in candidates if each.number in survivors)
            if not candidates:  # every trial has failed
                break
        return Sweep(folder, found)


def _run_rung(folder: SweepFolder, trials: Sequence[Trial], jobs: int) -> None:
    """Run the trials of a rung that have no result, or failed by chance: one that diverged would diverge again."""
    known = [(trial, read_result(trial, folder)) for trial in trials]
    left = [trial for trial, found in known if found is None or found.code not in {"", DIVERGED}]
    share = trials[0].share
    length = "" if share == 1 else f", {share:.3g} of the steps"
    done = len(trials) - len(left)
    log.info(f"{len(trials):,} trials, {jobs} at once{length}{f'; {done:,} are done' if done else ''}")

    def on_end(trial: Trial) -> None:
        nonlocal done
        done += 1
        log.info(f"{done} of {len(trials)}: {_describe(trial, read_result(trial, folder))}")

    def on_wait(running: Sequence[Trial]) -> None:
        epochs = [(trial.folder.path.name, read_metrics(trial.folder.path)) for trial in running]
        shown = [f"{name} epoch {lines[-1].epoch:.3g}" for name, lines in epochs if lines]
        log.info(f"running: {', '.join(shown) or 'starting'}")

    run_trials(left, jobs, on_end, on_wait)


def _describe(trial: Trial, found: TrialResult | None) -> str:
    name = f"{trial.candidate.label()} seed={trial.seed}"
    if found is None or found.code:
        reason = f"{found.code}: {found.message}" if found else "the process was killed"
        return f"{name}: failed, {reason} (see {trial.log_file})"
    metric = trial.candidate.recipe.task.best_by
    return f"{name}: {metric} {format_metric_value(found.value, metric)} in {found.seconds:,.0f} s"


def _write(
    folder: SweepFolder, trials: Sequence[Trial], earlier: Sequence[TrialResult], metric: str, rungs: int
) -> SweepResult:
    """Write results.json, results.csv and the page of what is done."""
    found = [read_result(trial, folder) for trial in trials]
    done = [each for each in found if each is not None]
    result = summarize([*earlier, *done], metric, rungs, len(found) - len(done))
    write_file_atomically(folder.results, result.to_json() + "\n")
    write_file_atomically(folder.table, results_csv(result.trials, metric))
    write_file_atomically(folder.report, render_page(folder.path.name, result))
    return result

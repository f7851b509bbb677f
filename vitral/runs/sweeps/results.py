"""The results of a sweep: the score of every trial, and the mean and deviation of every candidate."""

import csv
import math
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import JsonValue

from vitral.core.config import Config
from vitral.core.files import open_file
from vitral.html.text import MISSING, align_columns, format_loss, percent
from vitral.runs.folder import read_times, total_seconds
from vitral.runs.sweeps.folder import SweepFolder, Trial, format_value
from vitral.training.callbacks import find_best, score
from vitral.training.metrics import read_metrics

ERROR_LINE = re.compile(r"^error\[([a-z_.]+)\]: (.*)$", re.MULTILINE)  # as the command line prints it
LOG_TAIL = 20_000  # bytes of a log in which the error is looked for
DIVERGED = "run.diverged"


class TrialResult(Config):
    """A finished trial, or one that failed."""

    run: str  # its folder, in that of the sweep
    candidate: int
    settings: dict[str, JsonValue]
    seed: int
    rung: int  # from 1
    value: float | None = None  # the metric of the best weights on the validation images
    step: int = 0  # of the best weights
    seconds: float = 0.0
    code: str = ""  # of the error that ended it
    message: str = ""


class CandidateResult(Config):
    """A candidate on the last rung that it reached."""

    candidate: int
    settings: dict[str, JsonValue]
    rung: int
    values: tuple[float, ...]  # of the seeds that were finished
    failed: int  # seeds
    seconds: float
    mean: float | None = None
    deviation: float | None = None  # of the sample; None for fewer than two seeds


class SweepResult(Config):
    """The contents of results.json; candidates from the best on, those of a later rung first."""

    format: int = 1
    metric: str
    rungs: int
    candidates: tuple[CandidateResult, ...]
    trials: tuple[TrialResult, ...]
    missing: int = 0  # trials that are not finished yet

    def __str__(self) -> str:
        return "\n".join(align_columns(*table(self)))

    @property
    def best(self) -> CandidateResult | None:
        """The candidate with the best mean, if any trial was finished."""
        return next((each for each in self.candidates if each.mean is not None), None)


def read_result(trial: Trial, sweep: SweepFolder) -> TrialResult | None:
    """The result of a trial; None if it is not over."""
    where = str(trial.folder.path.relative_to(sweep.path))
    place: dict[str, Any] = {"run": where, "candidate": trial.candidate.number, "settings": trial.candidate.settings}
    place |= {"seed": trial.seed, "rung": trial.rung + 1}
    seconds = round(total_seconds(read_times(trial.folder.path)), 1)
    if not trial.folder.done.is_file():
        found = ERROR_LINE.findall(_tail(trial.log_file))
        return TrialResult(**place, seconds=seconds, code=found[-1][0], message=found[-1][1]) if found else None
    by = trial.candidate.recipe.task.best_by
    lines = [line for line in read_metrics(trial.folder.path) if line.split == "val"]
    best = next(line for line in lines if line.step == find_best(lines, "val", by).step)
    value = abs(score(best, by))
    return TrialResult(**place, value=value if math.isfinite(value) else None, step=best.step, seconds=seconds)


def summarize(results: Sequence[TrialResult], metric: str, rungs: int, missing: int) -> SweepResult:
    """The candidates from the best on; those that were dropped early come after those that went on."""
    latest = {each.candidate: max(r.rung for r in results if r.candidate == each.candidate) for each in results}
    found = [
        _summarize_candidate([each for each in results if (each.candidate, each.rung) == (number, rung)])
        for number, rung in latest.items()
    ]
    found.sort(key=lambda each: (-each.rung, each.failed > 0, rank(each, metric), each.candidate))
    trials = tuple(sorted(results, key=lambda each: (each.rung, each.seed, each.candidate)))
    return SweepResult(metric=metric, rungs=rungs, candidates=tuple(found), trials=trials, missing=missing)


def rank(candidate: CandidateResult, metric: str) -> float:
    """Lower is better."""
    if candidate.mean is None:
        return math.inf
    return candidate.mean if metric == "loss" else -candidate.mean


def _summarize_candidate(trials: Sequence[TrialResult]) -> CandidateResult:
    values = tuple(each.value for each in trials if each.value is not None)
    return CandidateResult(
        candidate=trials[0].candidate,
        settings=trials[0].settings,
        rung=trials[0].rung,
        values=values,
        failed=len(trials) - len(values),
        seconds=round(sum(each.seconds for each in trials), 1),
        mean=mean(values) if values else None,
        deviation=stdev(values) if len(values) > 1 else None,
    )


def format_metric_value(value: float | None, metric: str) -> str:
    """A value of the metric for readers."""
    if value is None:
        return MISSING
    return format_loss(value) if metric == "loss" else percent(value)


def table(result: SweepResult) -> tuple[list[list[str]], range]:
    """The rows of the table, and the columns that are flush right."""
    paths = [*result.candidates[0].settings] if result.candidates else []
    heads = [*paths, result.metric, "deviation", "seeds", "seconds", *(["rung"] if result.rungs > 1 else [])]
    rows = [heads]
    for each in result.candidates:
        failed = f", {each.failed} failed" if each.failed else ""
        row = [format_value(each.settings[path]) for path in paths]
        row += [format_metric_value(each.mean, result.metric), _deviation(each, result.metric)]
        row += [f"{len(each.values)}{failed}", f"{each.seconds:,.0f}"]
        rows.append([*row, *([str(each.rung)] if result.rungs > 1 else [])])
    return rows, range(len(paths), len(heads))


def _deviation(each: CandidateResult, metric: str) -> str:
    if each.deviation is None:
        return MISSING
    return format_loss(each.deviation) if metric == "loss" else f"{100 * each.deviation:.1f}"


def results_csv(results: Iterable[TrialResult], metric: str) -> str:
    """A line for each trial."""
    text = StringIO()
    rows = list(results)
    paths = [*rows[0].settings] if rows else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*paths, "seed", "rung", metric, "step", "seconds", "error", "run"])
    for each in rows:
        settings = [format_value(each.settings[path]) for path in paths]
        writer.writerow([*settings, each.seed, each.rung, each.value, each.step, each.seconds, each.code, each.run])
    return text.getvalue()


def _tail(path: Path) -> str:
    if not path.is_file():
        return ""
    with open_file(path) as file:
        file.seek(max(0, path.stat().st_size - LOG_TAIL))
        return file.read().decode(errors="replace")

"""The results of an experiment: every cell with its provenance and cost, the table, and the verdict on the claim."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vitral.core.config import Config
from vitral.experiments.checks import Check, Sample, Verdict, decide, is_at_chance, overall
from vitral.experiments.experiment import Arm, Experiment, Scale
from vitral.experiments.measures import ACCURACY, CHANCE, IMAGES
from vitral.html.text import MISSING, align_columns, format_count
from vitral.training.progress import format_duration

VERDICT_NOTES = {
    "held": "the claim held at this scale",
    "not held": "the claim did not hold at this scale",
    "undecided": "a difference is smaller than what could have been found",
    "invalid": "an arm is no better than guessing, so this is no result",
}
FEWER_SEEDS = "with fewer than three seeds nothing is decided"


class Provenance(Config):
    """The code and the machine that a number is from."""

    commit: str  # of the tree of Vitral; empty without a repository
    changed: bool  # whether tracked files differed from it
    version: str
    machine: str


class StoredArray(Config):
    """An array for a figure, rounded to four decimals."""

    shape: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, array: NDArray[np.float64]) -> "StoredArray":
        """The array as numbers."""
        return cls(shape=array.shape, values=tuple(np.asarray(array, np.float64).round(4).ravel().tolist()))

    def array(self) -> NDArray[np.float64]:
        """The numbers as an array."""
        return np.array(self.values).reshape(self.shape)


class CellResult(Config):
    """A finished cell: what was measured, where, by which code, and what it cost."""

    arm: str
    seed: int
    rate: float
    values: dict[str, float]
    run: str = ""  # its folder, in that of the experiment
    steps: int = 0
    flops: float = 0.0  # of its training: two for each multiply-add, three passes for each image
    cpu_seconds: float = 0.0
    code: Provenance
    correct: str = ""  # of each test image, as bits in hexadecimal; not in results.json
    arrays: dict[str, StoredArray] = Field(default_factory=dict)  # for the figure

    def correct_images(self) -> NDArray[np.bool_]:
        """Whether each test image is classified correctly; empty if that was not measured."""
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(self.correct), dtype=np.uint8))
        return bits[: int(self.values.get(IMAGES, 0))].astype(np.bool_)


def pack_bits(correct: NDArray[np.bool_]) -> str:
    """Bits in hexadecimal."""
    return np.packbits(correct).tobytes().hex()


class RateResult(Config):
    """A learning rate that was tried for an arm, and the value on the held-out images; None if training diverged."""

    arm: str
    rate: float
    value: float | None
    flops: float = 0.0
    cpu_seconds: float = 0.0


class ArmResult(Config):
    """A row of the table."""

    arm: str
    rate: float
    values: tuple[float, ...]  # of the seeds
    mean: float | None
    spread: float | None  # standard deviation over the seeds
    paper: float | None
    parameters: int
    flops: float  # of one seed, with the arms that it starts from
    group: str = ""
    x: float | None = None
    at_end: bool = False  # the best rate is the first or last that was tried: a better one may be beyond


class CheckResult(Config):
    """A check of the claim."""

    text: str
    metric: str = ""  # by default the one that is compared
    difference: float | None
    smallest: float | None  # difference that could have been found
    verdict: Verdict


class ExperimentResult(Config):
    """The contents of results.json."""

    format: Literal[1] = 1
    name: str
    title: str
    claim: str
    scale: Scale
    data: str
    metric: str
    metric_name: str
    share: bool
    paper_name: str
    differs: str
    unequal: str
    command: str
    finished: str  # ISO time, UTC
    columns: dict[str, str] = Field(default_factory=dict)  # of the table: other metrics, and their names
    rates_by: str  # the metric on the held-out images by which rates were chosen; empty if they were not swept
    arms: tuple[ArmResult, ...]
    checks: tuple[CheckResult, ...]
    verdict: Verdict | Literal["none"]  # none: nothing was claimed
    cells: tuple[CellResult, ...]
    rates: tuple[RateResult, ...]

    def __str__(self) -> str:
        """The table, the checks, the verdict and the cost."""
        rows = [row for _, row in self.table()]
        lines = [f"{self.title}, at the scale {self.scale} on {self.data}" if self.data else self.title]
        lines += [
            f"claim: {self.claim}",
            "",
            *align_columns([self.head(), *rows], right=range(1, len(self.head()))),
            "",
        ]
        lines += self.check_lines()
        lines += [f"verdict: {self.verdict} ({VERDICT_NOTES[self.verdict]})"] if self.verdict != "none" else []
        return "\n".join([*lines, *self.notes()])

    def head(self) -> list[str]:
        """The names of the columns."""
        value = [self.metric_name, "spread", "seeds" if self.trained else "times"]
        value = value if not self.computed else [self.metric_name]
        paper = [self.paper_name or "paper"] if any(arm.paper is not None for arm in self.arms) else []
        cost = ["rate", "parameters", "FLOPs"] if self.trained else []
        return ["arm", *value, *paper, *self.columns.values(), *cost]

    def table(self) -> list[tuple[ArmResult, list[str]]]:
        """The rows as text."""
        has_paper = any(arm.paper is not None for arm in self.arms)
        found = []
        for arm in self.arms:
            row = [arm.arm, self.show(arm.mean)]
            row += [] if self.computed else [self.show(arm.spread, 2), str(len(arm.values))]
            row += [self.show(arm.paper)] if has_paper else []
            row += [self.show_column(arm.arm, name) for name in self.columns]
            row += [f"{arm.rate:g}", format_count(arm.parameters), f"{arm.flops:.2e}"] if self.trained else []
            found.append((arm, row))
        return found

    @property
    def trained(self) -> bool:
        """Whether anything was trained."""
        return any(cell.steps for cell in self.cells)

    @property
    def computed(self) -> bool:
        """Whether every arm has one number, which is the same each time: nothing was trained or timed."""
        return not self.trained and all(len(arm.values) <= 1 for arm in self.arms)

    def values_of(self, arm: str, metric: str) -> list[float]:
        """Of the seeds of an arm."""
        return [cell.values[metric] for cell in self.cells if cell.arm == arm and metric in cell.values]

    def arrays_of(self, arm: str, name: str) -> list[NDArray[np.float64]]:
        """Of the seeds of an arm, those that have it."""
        return [cell.arrays[name].array() for cell in self.cells if cell.arm == arm and name in cell.arrays]

    def show_column(self, arm: str, metric: str) -> str:
        """The mean and the spread of another metric."""
        values = self.values_of(arm, metric)
        spread = spread_of(values)
        mean = f"{np.mean(values):,.3g}" if values else MISSING
        return f"{mean} ± {spread:.2g}" if spread else mean

    def show(self, value: float | None, digits: int = 1) -> str:
        """A value of the metric for readers."""
        if value is None:
            return MISSING
        if self.share:
            return f"{100 * value:.{digits}f}%"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

    def show_difference(self, value: float | None) -> str:
        """A difference of values of the metric for readers."""
        return f"{100 * value:.2f} points" if self.share and value is not None else self.show(value)

    def check_lines(self) -> list[str]:
        """A line for each check: the difference, and the smallest that could have been found."""
        lines = []
        for each in self.checks:
            show = "{:.3g}".format if each.metric else self.show_difference
            found = f"difference {show(each.difference)}" if each.difference is not None else "no value"
            least = f", smallest that could be found {show(each.smallest)}" if each.smallest else ""
            lines.append(f"{each.verdict}: {each.text} ({found}{least})")
        return lines

    def notes(self) -> list[str]:
        """How it was compared, what differs from the original, and what it cost."""
        lines = []
        if self.rates_by:
            tried = len(self.rates) // max(1, len({each.arm for each in self.rates}))
            lines.append(f"rates: the best of {tried} by {self.rates_by} on held-out training images, for every arm")
        ends = [arm.arm for arm in self.arms if arm.at_end]
        if ends:
            lines.append(f"the best rate is the largest or smallest that was tried: {', '.join(ends)}")
        if self.trained and min((len(arm.values) for arm in self.arms), default=0) < 3:
            lines.append(FEWER_SEEDS)
        lines += [f"compute differs between arms: {self.unequal}"] if self.unequal and self.trained else []
        lines += [f"differs from the original: {self.differs}"] if self.differs else []
        parts: list[CellResult | RateResult] = [*self.cells, *self.rates]
        flops, seconds = sum(each.flops for each in parts), sum(each.cpu_seconds for each in parts)
        if self.trained:
            lines.append(f"cost: {flops:.2e} FLOPs in {format_duration(seconds)} of CPU time, {len(parts)} runs")
        return lines


def compare(
    experiment: Experiment, checks: Sequence[Check], arms: Sequence[Arm], cells: Sequence[CellResult]
) -> list[CheckResult]:
    """The checks of an experiment on the values of its cells."""
    samples_of = partial(arm_samples, experiment, arms, cells)
    decisions = decide(checks, samples_of, exact=not experiment.trained and experiment.times == 1)
    return [
        CheckResult(text=check.text, metric=check.metric, **found._asdict())
        for check, found in zip(checks, decisions, strict=True)
    ]


def arm_samples(
    experiment: Experiment, arms: Sequence[Arm], cells: Sequence[CellResult], metric: str = ""
) -> dict[str, Sample]:
    """The values of the compared arms, of a metric or of the one that is compared."""
    name, found = metric or experiment.metric, {}
    share = experiment.share if not metric else metric == ACCURACY
    for arm in arms:
        own = [cell for cell in cells if cell.arm == arm.name and name in cell.values]
        images = int(own[0].values.get(IMAGES, 0)) if own and share else 0
        if arm.compared:
            known = [cell.correct_images() for cell in own if cell.correct and images]
            correct = np.mean(known, axis=0) if known and len(known) == len(own) else np.zeros(0)
            found[arm.name] = Sample(tuple(cell.values[name] for cell in own), images, correct)
    return found


def judge(
    experiment: Experiment, checks: Sequence[CheckResult], arms: Sequence[Arm], cells: Sequence[CellResult]
) -> Verdict | Literal["none"]:
    """The verdict on the claim."""
    if not checks:
        return "none"
    chance = {cell.arm: cell.values.get(CHANCE, 0.0) for cell in cells}
    samples = arm_samples(experiment, arms, cells, "" if experiment.share else ACCURACY)
    lost = any(is_at_chance(each, chance.get(name, 0.0)) for name, each in samples.items())
    return overall([each.verdict for each in checks], lost)


def spread_of(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None for fewer than two values."""
    if len(values) < 2:
        return None
    return float(np.std([value - values[0] for value in values], ddof=1))  # exactly 0 for equal values

"""Accuracy against speed, as tokens are merged.  B images of a batch, K classes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.evaluation.accuracy import Interval, compute_accuracy
from vitral.evaluation.subject import EngineFunction, Logits, Pixels, SubjectModel
from vitral.models.vit import Vit
from vitral.weights.load import Loaded

STEPS = 8  # rows of the curve: the last but one leaves an eighth of the patches
MIN_ROUNDS, MIN_SECONDS = 5, 3.0  # batches, and seconds, for which an engine is timed beside the one that merges nothing
TOLERANCE = 0.005  # of accuracy: a smaller one is none


class MergingResult(Config):
    """How good and how fast the model is when each layer merges so many patches."""

    per_layer: int
    tokens: int  # that the last layer sees
    rate: float  # images a second
    times: float  # as fast as without merging, round by round
    top1: float
    interval: Interval  # of top1


class TokenMergingResult(Config):
    """The judgment over merging, from none to much."""

    kind: Literal["tokens"] = "tokens"
    images: int
    engine: str
    batch: int  # images at a time, as they were timed
    rows: tuple[MergingResult, ...]
    most: int  # what the fastest row merges a layer, of those that lose at most half a point


class TokenMergingEvaluator(Config):
    """The same images with ever more patches merged in every layer, answered by a fast engine."""

    kind: Literal["tokens"] = "tokens"

    def check(self, subject: SubjectModel) -> None:
        subject.need_classes(self.kind)
        try:
            subject.tools.fewer.check(subject.bundle)
        except ConfigError as error:
            hint = error.hint or "leave tokens out of --with"
            raise ConfigError(error.message, code=error.code, where=f"--with {self.kind}", hint=hint) from None

    def judge(self, subject: SubjectModel) -> TokenMergingResult:
        fewer, loaded = subject.tools.fewer, Loaded(subject.model, subject.bundle)
        whole = fewer.build(loaded, 0)
        rows: list[MergingResult] = []
        for count in candidate_counts(subject):
            race = PairedTimer(whole, fewer.build(loaded, count) if count else whole)
            answers = subject.asked(race.ask, f"answers, merging {count} a layer")
            found = compute_accuracy(answers, subject.bundle.classes)
            times = race.times()
            rate = times * (rows[0].rate if rows else race.rate())
            left, top1, interval = fewer.tokens(subject.bundle, count), found.top1, found.interval
            rows.append(MergingResult(per_layer=count, tokens=left, rate=rate, times=times, top1=top1, interval=interval))
        return TokenMergingResult(
            images=len(subject.samples.of(subject.split)),
            engine=fewer.engine,
            batch=race.batch,
            rows=tuple(rows),
            most=fastest_within_tolerance(rows).per_layer,
        )


@dataclass
class PairedTimer:
    """An engine that answers, timed now and then beside the one that merges nothing."""

    whole: EngineFunction
    own: EngineFunction
    batch: int = 0
    seconds: list[tuple[float, float]] = field(default_factory=list)  # of whole and own, on the same images

    def ask(self, pixels: Pixels) -> Logits:
        if not self.batch:  # the first batch warms both up
            self.batch = len(pixels)
            self.whole(pixels)
            self.own(pixels)
        if (len(pixels) == self.batch or not self.seconds) and not self.known():
            return self.timed(pixels)
        return self.own(pixels)

    def known(self) -> bool:
        """Whether it was timed often enough and long enough."""
        return len(self.seconds) >= MIN_ROUNDS and sum(map(sum, self.seconds)) >= MIN_SECONDS

    def timed(self, pixels: Pixels) -> Logits:
        """The answers, with the time that either takes; they go first in turns."""
        spent = {}
        order = (self.whole, self.own) if len(self.seconds) % 2 else (self.own, self.whole)
        for ask in order:
            started = time.perf_counter()
            found = ask(pixels)
            spent[ask] = (time.perf_counter() - started, found)
        self.seconds.append((spent[self.whole][0], spent[self.own][0]))
        return spent[self.own][1]

    def times(self) -> float:
        """How many times as fast as the one that merges nothing."""
        return median(whole / own for whole, own in self.seconds) if self.own is not self.whole else 1.0

    def rate(self) -> float:
        """Images a second."""
        return self.batch / median(own for _, own in self.seconds)


def fastest_within_tolerance(rows: Sequence[MergingResult]) -> MergingResult:
    """The fastest row that loses at most half a point against the first."""
    held = [row for row in rows if row.top1 >= rows[0].top1 - TOLERANCE]
    return max(held, key=lambda row: row.times)


def candidate_counts(subject: SubjectModel) -> list[int]:
    """How many patches to merge a layer, from none on, in steps of an eighth of what would leave none, or of one."""
    model = subject.bundle.model
    assert isinstance(model, Vit), "a ResNet is refused by the check"
    patches = model.layout(subject.trained).grid.cells()
    least = min(1, patches // 2)
    return sorted({0, *(max(least, patches * step // (STEPS * model.depth)) for step in range(1, STEPS))})

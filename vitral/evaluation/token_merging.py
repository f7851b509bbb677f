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
from vitral.weights.load import LoadedModel

STEPS = 8  # points of the curve
MIN_ROUNDS, MIN_SECONDS = (5, 3.0)  # how long an engine is timed beside the baseline
TOLERANCE = 0.005  # largest loss of accuracy that counts as none


class MergingResult(Config):
    """Accuracy and speed when each layer merges this many patches."""

    per_layer: int
    tokens: int  # that the last layer sees
    images_per_second: float
    speedup: float  # over no merging; median of paired timings
    top1: float
    ci95: Interval  # of top1


class TokenMergingResult(Config):
    """Accuracy and speed by merged patches, from none to many."""

    kind: Literal["tokens"] = "tokens"
    images: int
    engine: str
    batch_size: int  # of the timings
    rows: tuple[MergingResult, ...]
    best_per_layer: int  # of the fastest row that loses at most half a point


class TokenMergingEvaluator(Config):
    """Evaluates with more and more patches merged in every layer (arXiv 2210.09461), on an inference engine."""

    kind: Literal["tokens"] = "tokens"

    def check(self, subject: SubjectModel) -> None:
        subject.check_classes(self.kind)
        where, engines = f"--with {self.kind}", subject.context.merging_engines
        if engines is None:
            message = "no inference engine is available"
            raise ConfigError(message, code="config.missing_value", where=where, hint="use vitral.evaluate")
        try:
            engines.check(subject.bundle)
        except ConfigError as error:
            hint = error.hint or "remove tokens from --with"
            raise ConfigError(error.message, code=error.code, where=where, hint=hint) from None

    def evaluate(self, subject: SubjectModel) -> TokenMergingResult:
        engines, loaded = subject.context.merging_engines, LoadedModel(subject.model, subject.bundle)
        assert engines is not None
        baseline = engines.build(loaded, 0)
        rows: list[MergingResult] = []
        for count in candidate_counts(subject):
            timer = PairedTimer(baseline, engines.build(loaded, count) if count else baseline)
            predictions = subject.engine_predictions(timer.run, f"merging {count} patches per layer")
            accuracy, speedup = compute_accuracy(predictions, subject.bundle.classes), timer.speedup()
            row = MergingResult(
                per_layer=count,
                tokens=engines.tokens_left(subject.bundle, count),
                images_per_second=speedup * (rows[0].images_per_second if rows else timer.images_per_second()),
                speedup=speedup,
                top1=accuracy.top1,
                ci95=accuracy.ci95,
            )
            rows.append(row)
        return TokenMergingResult(
            images=len(subject.samples.of(subject.split)),
            engine=engines.engine,
            batch_size=timer.batch,
            rows=tuple(rows),
            best_per_layer=fastest_within_tolerance(rows).per_layer,
        )


@dataclass
class PairedTimer:
    """Runs an engine, timing some batches beside the baseline that merges nothing."""

    baseline: EngineFunction
    engine: EngineFunction
    batch: int = 0
    seconds: list[tuple[float, float]] = field(default_factory=list)  # of baseline and engine, on the same images

    def run(self, pixels: Pixels) -> Logits:
        if not self.batch:  # the first batch warms up both
            self.batch = len(pixels)
            self.baseline(pixels)
            self.engine(pixels)
        if (len(pixels) == self.batch or not self.seconds) and not self.is_done():
            return self.run_both(pixels)
        return self.engine(pixels)

    def is_done(self) -> bool:
        """Whether there are enough timings."""
        return len(self.seconds) >= MIN_ROUNDS and sum(map(sum, self.seconds)) >= MIN_SECONDS

    def run_both(self, pixels: Pixels) -> Logits:
        """The engine's logits; both are timed, in alternating order."""
        seconds, logits = {}, {}
        for engine in (self.baseline, self.engine) if len(self.seconds) % 2 else (self.engine, self.baseline):
            started = time.perf_counter()
            logits[engine] = engine(pixels)
            seconds[engine] = time.perf_counter() - started
        self.seconds.append((seconds[self.baseline], seconds[self.engine]))
        return logits[self.engine]

    def speedup(self) -> float:
        """The median speed relative to the baseline."""
        return median(baseline / own for baseline, own in self.seconds) if self.engine is not self.baseline else 1.0

    def images_per_second(self) -> float:
        """The throughput of the engine."""
        return self.batch / median(own for _, own in self.seconds)


def fastest_within_tolerance(rows: Sequence[MergingResult]) -> MergingResult:
    """The fastest row within half a point of the first row's accuracy."""
    return max((row for row in rows if row.top1 >= rows[0].top1 - TOLERANCE), key=lambda row: row.speedup)


def candidate_counts(subject: SubjectModel) -> list[int]:
    """How many patches to merge per layer: from none, in steps of an eighth of what would leave none, at least one."""
    model = subject.bundle.model
    assert isinstance(model, Vit), "a ResNet is refused by the check"
    patches = model.layout(subject.train_size).grid.cells()
    least = min(1, patches // 2)
    return sorted({0, *(max(least, patches * step // (STEPS * model.depth)) for step in range(1, STEPS))})

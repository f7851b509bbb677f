"""Accuracy against speed, with engines that are handed in."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes, subject, tools, without
from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.evaluation import token_merging
from vitral.evaluation.accuracy import compute_accuracy, wilson_interval
from vitral.evaluation.subject import EngineFunction, Logits, Pixels, SubjectModel
from vitral.evaluation.token_merging import (
    MIN_ROUNDS,
    MergingResult,
    PairedTimer,
    TokenMergingEvaluator,
    candidate_counts,
    fastest_within_tolerance,
)
from vitral.models import Patches
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel


@dataclass(frozen=True)
class Blunt:
    """Engines that are the model itself, and say the first class of every image once they merge too many."""

    most: int
    built: list[int] = field(default_factory=list)
    engine: str = "blunt"

    def check(self, bundle: Bundle) -> None:
        if self.most < 0:
            raise ConfigError("no", code="config.unsupported", where="model.mixer", hint="leave it out")

    def tokens_left(self, bundle: Bundle, per_layer: int) -> int:
        return 100 - per_layer

    def build(self, loaded: LoadedModel, per_layer: int) -> EngineFunction:
        self.built.append(per_layer)

        @torch.no_grad()
        def ask(pixels: Pixels) -> Logits:
            scaled = loaded.bundle.preprocessing.normalize.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2))
            answers = loaded.model(scaled).numpy()
            return answers if per_layer <= self.most else np.eye(3, dtype=np.float32)[np.zeros(len(pixels), dtype=int)]

        return ask


def judged_by(engines: Blunt, batch: int = 7) -> SubjectModel:
    """A model of 64 patches and one layer."""
    loaded = striped_model(stem=Patches(patch=Size(2, 2)))
    return subject(loaded, means=tools(batch)._replace(merging_engines=engines))


def test_counts_go_up_by_eighths_of_what_would_leave_no_patch() -> None:
    assert candidate_counts(judged_by(Blunt(9))) == [0, 8, 16, 24, 32, 40, 48, 56]
    few = subject(striped_model(stem=Patches(patch=Size(8, 8)), depth=2), means=tools())
    assert candidate_counts(few) == [0, 1], "each number once"
    deep = subject(striped_model(stem=Patches(patch=Size(8, 8)), depth=9), means=tools())
    assert candidate_counts(deep) == [0, 1], "one at the least, else nothing would be tried"


@pytest.mark.parametrize("batch", [7, 100])
def test_each_row_has_the_accuracy_of_its_engine(batch: int) -> None:
    engines = Blunt(most=30)
    whole = judged_by(engines, batch)
    found = TokenMergingEvaluator().evaluate(whole)
    own = compute_accuracy(whole.predictions(Size(16, 16)), ("ant", "bee", "cat"))
    assert own.top1 != 1 / 3, "the engines could not be told apart"
    assert [row.per_layer for row in found.rows] == [0, 8, 16, 24, 32, 40, 48, 56] == engines.built
    assert [row.top1 for row in found.rows] == [own.top1] * 4 + [1 / 3] * 4
    assert [row.ci95 for row in found.rows[:4]] == [own.ci95] * 4
    assert [row.tokens for row in found.rows[:2]] == [100, 92]
    assert (found.images, found.engine, found.batch_size) == (18, "blunt", min(batch, 18))
    assert found.rows[0].speedup == 1.0
    assert all(row.images_per_second > 0 for row in found.rows)


@pytest.mark.parametrize(
    ("shares", "times", "best"),
    [
        ([0.9, 0.9, 0.896, 0.894], [1.0, 1.5, 2.0, 3.0], 2),
        ([0.9, 0.8, 0.91, 0.5], [1.0, 1.5, 2.0, 3.0], 2),
        ([0.9, 0.8, 0.8, 0.8], [1.0, 1.5, 2.0, 3.0], 0),
        ([0.9, 0.9, 0.9, 0.9], [1.0, 1.5, 1.2, 0.9], 1),
    ],
)
def test_the_choice_is_the_fastest_that_loses_at_most_half_a_point(
    shares: list[float], times: list[float], best: int
) -> None:
    rows = [
        MergingResult(
            per_layer=count,
            tokens=9,
            images_per_second=9 * speed,
            speedup=speed,
            top1=share,
            ci95=wilson_interval(1, 2),
        )
        for count, (share, speed) in enumerate(zip(shares, times, strict=True))
    ]
    assert fastest_within_tolerance(rows) == rows[best]


def test_engines_are_compared_round_by_round_on_the_same_images() -> None:
    race = PairedTimer(lambda pixels: pixels, lambda pixels: pixels, 4, [(2.0, 1.0), (9.0, 3.0), (8.0, 1.0)])  # type: ignore[arg-type, return-value]
    assert race.speedup() == 3.0
    assert race.images_per_second() == 4.0


def test_whole_batches_are_timed_in_turns_after_one_for_warming_up(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int]] = []

    def engine(name: str) -> EngineFunction:
        def ask(pixels: Pixels) -> Logits:
            shown.append((name, len(pixels)))
            return np.full((len(pixels), 1), name == "own", dtype=np.float32)

        return ask

    monkeypatch.setattr(token_merging, "MIN_SECONDS", 0.0)
    race = PairedTimer(engine("whole"), engine("own"))
    for count in [4] * (MIN_ROUNDS + 2) + [3]:
        assert race.run(np.zeros((count, 2, 2, 3), dtype=np.uint8)).tolist() == [[1.0]] * count
    assert len(race.seconds) == MIN_ROUNDS
    pairs = [("own", 4), ("whole", 4)], [("whole", 4), ("own", 4)]
    timed = [each for number in range(MIN_ROUNDS) for each in pairs[number % 2]]
    assert shown == [("whole", 4), ("own", 4), *timed, ("own", 4), ("own", 4), ("own", 3)]


def test_quick_engines_are_timed_until_it_is_enough() -> None:
    race = PairedTimer(lambda pixels: np.zeros((4, 1), np.float32), lambda pixels: np.zeros((4, 1), np.float32))
    race.seconds = [(0.1, 0.1)] * (2 * MIN_ROUNDS)
    assert not race.is_done()
    race.seconds = [(0.1, 0.1)] * (round(token_merging.MIN_SECONDS / 0.2) + 1)
    assert race.is_done()
    race.seconds = [(9.0, 9.0)] * (MIN_ROUNDS - 1)
    assert not race.is_done()


def test_what_cannot_be_merged_is_refused_before_any_work() -> None:
    with raises("config.unsupported") as caught:
        TokenMergingEvaluator().check(judged_by(Blunt(-1)))
    assert (caught.value.where, caught.value.hint) == ("--with tokens", "leave it out")
    with raises("config.missing_value", "--with tokens"):
        TokenMergingEvaluator().check(subject())


def test_other_classes_are_refused() -> None:
    means = tools()._replace(merging_engines=Blunt(1))
    with raises("data.unknown_class", "cat"):
        TokenMergingEvaluator().check(subject(striped_model(("ant", "bee", "dog")), means=means))
    TokenMergingEvaluator().check(subject(samples=without(stripes(), "train"), means=means))

"""What is said of a run, and when."""

import time
from collections.abc import Mapping, Sequence

import pytest
import torch

from vitral.tasks.task import Outcome
from vitral.training.loop import Communicator, Signals, StepResult
from vitral.training.progress import REDRAW_SECONDS, Display, Progress, ProgressSpan, format_duration, format_metric

COURSE = ProgressSpan(0, 1880, 94, 64)


class Notebook(Display):
    """A display that keeps what it is given."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, Mapping[str, str]]] = []
        self.notes: list[str] = []
        self.calls: list[str] = []

    def open(self, start: int, steps: int) -> None:
        self.calls.append(f"open {start} {steps}")

    def show(self, step: int, fields: Mapping[str, str]) -> None:
        self.shown.append((step, fields))

    def print(self, parts: Sequence[str]) -> None:
        self.notes.append("  ".join(parts))

    def close(self) -> None:
        self.calls.append("close")


def outcome(loss: float, **metrics: float) -> StepResult:
    values = {name: torch.tensor(value) for name, value in metrics.items()}
    return StepResult(0, Outcome(torch.tensor(loss), 64, values), Signals(), Communicator())


def test_the_first_look_says_where_the_run_stands_and_nothing_that_nobody_knows_yet() -> None:
    book = Notebook()
    progress = Progress(COURSE, book)
    progress.run(1, outcome(2.3026, accuracy=0.125))
    assert book.shown == [
        (1, {"epoch": "epoch 1/20", "step": "step 1/1880", "loss": "loss 2.303", "accuracy": "accuracy 12.5%"})
    ]


def test_speed_and_time_left_follow_from_the_looks() -> None:
    book = Notebook()
    progress = Progress(ProgressSpan(100, 500, 94, 64), book)
    progress.run(101, outcome(1.0, accuracy=0.5))
    began = time.monotonic()
    time.sleep(0.1)
    progress.run(111, outcome(1.0, accuracy=0.5))
    took = time.monotonic() - began
    words = book.shown[-1][1]
    speed = float(words["speed"].removesuffix(" images/s").replace(",", ""))
    assert 0.9 * 640 / took < speed <= 640 / 0.1
    assert words["left"] == f"{format_duration(took / 10 * 389)} left"


def test_an_evaluation_counts_into_the_time_left_and_not_into_the_speed() -> None:
    book = Notebook()
    progress = Progress(COURSE, book)
    progress.run(1, outcome(1.0, accuracy=0.5))
    time.sleep(0.05)
    progress.run(2, outcome(1.0, accuracy=0.5))
    before = book.shown[-1][1]["speed"]
    time.sleep(0.3)
    progress.show_evaluation(2, "val", {"loss": 1.0, "accuracy": 0.5})
    progress.run(3, outcome(1.0, accuracy=0.5))
    assert book.shown[-1][1]["speed"] == before
    assert book.shown[-1][1]["left"].endswith("min left")  # 0.17 s a step over 1877 steps


def test_an_evaluation_is_noted_and_stays_in_view() -> None:
    book = Notebook()
    progress = Progress(COURSE, book)
    progress.show_evaluation(282, "val", {"loss": 0.4512, "accuracy": 0.8313, "calibration": 0.1})
    progress.run(283, outcome(1.0, accuracy=0.5))
    assert book.notes == ["epoch  3/20  val loss 0.451  val accuracy 83.1%"]
    assert book.shown[-1][1]["verdict"] == "val 83.1%"


def test_a_task_without_accuracy_is_told_by_its_loss() -> None:
    book = Notebook()
    progress = Progress(COURSE, book)
    progress.run(1, outcome(0.25))
    progress.show_evaluation(94, "val", {"loss": 0.5})
    progress.run(95, outcome(0.25))
    assert "accuracy" not in book.shown[-1][1]
    assert book.shown[-1][1]["verdict"] == "val loss 0.500"
    assert book.notes == ["epoch  1/20  train loss 0.250  val loss 0.500"]


def test_the_lines_of_evaluations_are_aligned_and_the_best_so_far_is_marked() -> None:
    book = Notebook()
    progress = Progress(COURSE, book)
    progress.run(94, outcome(2.0, accuracy=0.1))
    progress.show_evaluation(94, "val", {"loss": 2.1, "accuracy": 0.094}, is_best=True)
    progress.show_evaluation(987, "val", {"loss": 0.4512, "accuracy": 0.083}, is_best=False)
    assert book.notes == [
        "epoch  1/20  train loss 2.000  val loss 2.100  val accuracy  9.4%  best so far",
        "epoch 10.5/20  train loss 2.000  val loss 0.451  val accuracy  8.3%",
    ]


def test_losses_are_smoothed() -> None:
    book = Notebook()
    progress = Progress(COURSE, book)
    for step in range(1, 11):
        progress.run(step, outcome(float(step), accuracy=0.5))
    assert book.shown[-1][1]["loss"] == "loss 5.500"  # the plain mean of ten
    progress.run(11, outcome(15.5, accuracy=0.5))
    assert book.shown[-1][1]["loss"] == "loss 6.500"  # then a tenth of each further one


def test_it_is_due_at_once_at_the_end_and_a_few_times_a_second() -> None:
    progress = Progress(COURSE, Notebook())
    assert progress.due(1, 1880)
    progress.run(1, outcome(1.0, accuracy=0.5))
    assert not progress.due(2, 1880)
    assert progress.due(1880, 1880)
    time.sleep(REDRAW_SECONDS)
    assert progress.due(3, 1880)


def test_the_display_is_closed_whatever_happens() -> None:
    book = Notebook()
    with pytest.raises(KeyboardInterrupt), Progress(ProgressSpan(94, 1880, 94, 64), book):
        raise KeyboardInterrupt
    assert book.calls == ["open 94 1880", "close"]


@pytest.mark.parametrize(
    ("step", "place"),
    [(1, "epoch 1/3"), (10, "epoch 1/3"), (11, "epoch 2/3"), (25, "epoch 3/3")],
)
def test_the_epoch_is_the_one_that_the_step_is_in(step: int, place: str) -> None:
    assert ProgressSpan(0, 25, 10, 64).format_epoch(step) == place


@pytest.mark.parametrize(("step", "place"), [(1, "epoch 0.33/1"), (2, "epoch 0.67/1"), (3, "epoch 1/1")])
def test_an_evaluation_within_an_epoch_shows_two_digits_of_it(step: int, place: str) -> None:
    assert ProgressSpan(0, 3, 3, 64).format_exact_epoch(step) == place


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("loss", 0.5123, "loss 0.512"),
        ("loss", 12.0, "loss 12.000"),
        ("loss", 0.00042, "loss 4.2e-04"),
        ("accuracy", 0.8134, "accuracy 81.3%"),
        ("accuracy", 1.0, "accuracy 100.0%"),
        ("loss", float("nan"), "loss nan"),
    ],
)
def test_values_are_said_in_few_digits(name: str, value: float, words: str) -> None:
    assert format_metric(name, value) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "1 s"),
        (1.4, "1 s"),
        (45.2, "45 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (360, "6 min"),
        (3569, "59 min"),
        (3571, "1 h"),
        (4800, "1 h 20 min"),
        (7200, "2 h"),
        (86_369, "23 h 59 min"),
        (86_371, "1 d"),
        (184_000, "2 d 3 h"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words

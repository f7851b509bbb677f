from pathlib import Path

import pytest
import torch

from vitral.tasks.task import Outcome
from vitral.training.callbacks import MOST_LINES, Halt, Recording, Saving, Watching
from vitral.training.metrics import Metrics

OUTCOME = Outcome(torch.tensor(0.5), 4, {"accuracy": torch.tensor(0.25)})


def saving(seconds: float = 1e9, halted: int | None = None, worth: int = -1) -> tuple[Saving, list[int]]:
    saved: list[int] = []
    return Saving(seconds, saved.append, lambda step: step == worth, lambda: halted, lambda flag: flag), saved


def after(job: Saving, steps: range, last: int) -> None:
    for step in steps:
        assert job.due(step, last)
        job.run(step, OUTCOME)


def test_a_checkpoint_is_written_when_it_is_time_at_a_best_step_and_at_the_end() -> None:
    job, saved = saving(worth=3)
    after(job, range(1, 6), last=5)
    assert saved == [3, 5]
    job, saved = saving(seconds=0)
    after(job, range(1, 4), last=9)
    assert saved == [1, 2, 3]


@pytest.mark.parametrize("signal", [0, 15])
def test_a_run_that_is_to_stop_is_saved_first(signal: int) -> None:
    job, saved = saving(halted=signal)
    with pytest.raises(Halt) as caught:
        after(job, range(4, 5), last=9)
    assert saved == [4]
    assert (caught.value.step, caught.value.signal) == (4, signal)


def test_a_signal_at_the_last_step_stops_nothing() -> None:
    job, saved = saving(halted=15)
    after(job, range(9, 10), last=9)
    assert saved == [9]


def test_the_record_of_a_long_run_stays_short(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    job = Recording(metrics, epoch_steps=10, rate=lambda step: step / 100)
    assert all(job.due(step, MOST_LINES) for step in range(1, MOST_LINES + 1))
    long = 4 * MOST_LINES + 1
    due = [step for step in range(1, long + 1) if job.due(step, long)]
    assert len(due) <= MOST_LINES + 1
    assert due[-1] == long
    job.run(25, OUTCOME)
    assert metrics.lines()[0] == (25, 2.5, "train", {"loss": 0.5, "accuracy": 0.25, "rate": 0.24})


def test_evaluations_come_at_their_rhythm_and_at_the_end() -> None:
    seen: list[int] = []
    job = Watching(4, seen.append)
    for step in range(1, 11):
        if job.due(step, 10):
            job.run(step, OUTCOME)
    assert seen == [4, 8, 10]

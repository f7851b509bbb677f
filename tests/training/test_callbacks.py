from pathlib import Path

import pytest
import torch

from tests.errors import raises
from vitral.tasks.task import CollapseSign, Outcome
from vitral.training.callbacks import (
    MAX_TRAIN_LINES,
    Best,
    Checkpointing,
    Collapsed,
    CollapseDetector,
    MetricsLogger,
    SignalHandler,
    StopTraining,
    Validation,
    find_best,
    score,
)
from vitral.training.loop import Communicator, Signals, StepResult
from vitral.training.metrics import MetricsLine, MetricsLog

OUTCOME = Outcome(torch.tensor(0.5), 4, {"accuracy": torch.tensor(0.25)})
NONE = Signals()


def result(step: int, signals: Signals = NONE, outcome: Outcome = OUTCOME) -> StepResult:
    return StepResult(step - 1, outcome, signals, Communicator())


def checkpointing(
    seconds: float = 1e9, signal: int = 0, best: int = -1, early: bool = False
) -> tuple[Checkpointing, list[int]]:
    saved: list[int] = []
    handler = SignalHandler()
    handler.signal = signal
    return Checkpointing(seconds, saved.append, lambda step: step == best, lambda: early, handler), saved


def run_after(callback: Checkpointing, steps: range, last: int, outcome: Outcome = OUTCOME) -> None:
    for step in steps:
        assert callback.due(step, last)
        callback.run(step, result(step, callback.signals(), outcome))


def test_a_checkpoint_is_written_at_the_best_step_and_at_the_end() -> None:
    callback, saved = checkpointing(best=3)
    run_after(callback, range(1, 6), last=5)
    assert saved == [3, 5]
    callback, saved = checkpointing(seconds=0)
    run_after(callback, range(1, 4), last=9)
    assert saved == [1, 2, 3]


def test_a_checkpoint_is_written_once_after_its_time_has_come() -> None:
    callback, saved = checkpointing(seconds=1000)
    run_after(callback, range(1, 3), last=9)
    callback._saved -= 1001
    run_after(callback, range(3, 9), last=9)
    assert saved == [4]  # the processes agree one step late


def test_all_processes_save_and_stop_when_one_of_them_asks() -> None:
    callback, saved = checkpointing()
    assert callback.due(1, 9)
    callback.run(1, result(1, Signals(stop=15)))  # as summed over processes
    with pytest.raises(StopTraining) as caught:
        callback.run(2, result(2))
    assert (saved, caught.value.step, caught.value.signal) == ([2], 2, 15)


@pytest.mark.parametrize("signal", [0, 15])
def test_a_run_that_is_to_stop_is_saved_first(signal: int) -> None:
    callback, saved = checkpointing(signal=signal, early=not signal)
    with pytest.raises(StopTraining) as caught:
        run_after(callback, range(4, 6), last=9)
    step = 5 if signal else 4
    assert saved == [step]
    assert (caught.value.step, caught.value.signal) == (step, signal)


def test_a_signal_at_the_last_step_stops_nothing() -> None:
    callback, saved = checkpointing(signal=15)
    run_after(callback, range(8, 10), last=9)
    assert saved == [9]


def test_nothing_is_saved_or_evaluated_after_a_loss_that_is_not_finite() -> None:
    bad = OUTCOME._replace(loss=torch.tensor(torch.nan))
    callback, saved = checkpointing(seconds=0)
    with raises("run.diverged", "step 3"):
        run_after(callback, range(4, 5), last=9, outcome=bad)
    evaluated: list[int] = []
    with raises("run.diverged", "step 3"):
        Validation(1, evaluated.append).run(4, result(4, outcome=bad))
    assert saved == evaluated == []


def test_the_record_of_a_long_run_stays_short(tmp_path: Path) -> None:
    metrics = MetricsLog(tmp_path)
    job = MetricsLogger(metrics, steps_per_epoch=10, lr=lambda step: step / 100)
    assert all(job.due(step, MAX_TRAIN_LINES) for step in range(1, MAX_TRAIN_LINES + 1))
    long = 4 * MAX_TRAIN_LINES + 1
    due = [step for step in range(1, long + 1) if job.due(step, long)]
    assert len(due) <= MAX_TRAIN_LINES + 1
    assert due[-1] == long
    job.run(25, result(25))
    assert metrics.lines()[0] == (25, 2.5, "train", {"loss": 0.5, "accuracy": 0.25, "rate": 0.24})


def test_evaluations_come_at_their_rhythm_and_at_the_end() -> None:
    seen: list[int] = []
    job = Validation(4, seen.append)
    for step in range(1, 11):
        if job.due(step, 10):
            job.run(step, result(step))
    assert seen == [4, 8, 10]


SIGNS = CollapseSign("spread", "below", 0.01, "lower the rate"), CollapseSign("entropy", "above", 0.99, "be sharper")


def watched(values: list[tuple[float, float]], steps_per_epoch: int = 40, steps: int = 1000) -> int:
    """The steps that a run takes with these spreads and entropies before it is stopped."""
    detector = CollapseDetector(SIGNS, steps_per_epoch)
    for step, (spread, entropy) in enumerate(values, start=1):
        metrics = {"spread": torch.tensor(spread), "entropy": torch.tensor(entropy)}
        if detector.due(step, steps):
            try:
                detector.run(step, result(step, outcome=Outcome(torch.tensor(1.0), 4, metrics)))
            except Collapsed:
                return step
    return len(values)


def test_a_collapse_stops_a_run_after_a_quarter_of_an_epoch() -> None:
    fine, flat, uniform = (0.5, 0.5), (0.001, 0.5), (0.5, 0.995)
    assert watched([fine] * 100) == 100
    assert watched([fine] * 7 + [flat] * 100) == 7 + 10 + 1  # each is read one step later
    assert watched([fine] * 7 + [uniform] * 100) == 7 + 10 + 1
    assert watched(([flat] * 9 + [fine]) * 20) == 200  # never for long enough
    assert watched([flat] * 300, steps_per_epoch=4) == 11
    assert watched([flat] * 300, steps_per_epoch=100) == 26
    assert watched([flat] * 300, steps_per_epoch=10_000) == 101
    assert watched([flat] * 300, steps=2 * MAX_TRAIN_LINES) == 22  # every second step is logged


def test_a_collapse_is_reported_with_its_metric_and_what_to_do() -> None:
    detector = CollapseDetector(SIGNS[:1], 4)
    with raises("run.collapsed", "spread", 0.001, 0.01, "step 9") as caught:
        for step in range(1, 30):
            outcome = Outcome(torch.tensor(1.0), 4, {"spread": torch.tensor(0.001)})
            detector.run(step, result(step, outcome=outcome))
    assert caught.value.hint == "lower the rate"


def test_where_nothing_says_which_is_better_the_last_evaluation_is_best() -> None:
    lines = [MetricsLine(step, step / 10, "val", {"loss": loss}) for step, loss in ((10, 1.0), (20, 0.5), (30, 2.0))]
    assert find_best(lines, "val", "last") == Best(30, 0)
    assert find_best(lines, "val", "loss") == Best(20, 1)
    assert score(lines[2], "last") > score(lines[1], "last")

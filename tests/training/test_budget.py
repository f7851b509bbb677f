"""Times as people write them, and how many steps fit into one."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from vitral.training.budget import measure_seconds, parse_seconds, steps_within

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("1h30m", 5400),
        ("2h", 7200),
        ("45", 45),
        ("1h30m15s", 5415),
        ("1h5s", 3605),
        ("0.5h", 1800),
        ("1.5", 1.5),
        ("100m", 6000),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0m", "ten", "10 m", "1h30", "m10", "-5m", "10M", "1d", "5m1h", ".5h", "٣"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with raises("config.wrong_type", "time-limit", repr(text), "1h30m"):
        parse_seconds(text)


def cost(steps: int, step: float, evaluation: float, epoch: int) -> float:
    """What so many steps take, one after the other."""
    return sum(step + (evaluation if at % epoch == 0 or at == steps else 0) for at in range(1, steps + 1))


@pytest.mark.parametrize(
    ("limit", "spent", "evaluation", "epoch", "steps"),
    [
        (100, 0, 0, 10, 95),
        (100, 15, 0, 10, 80),
        (100, 0, 5, 1000, 90),
        (100, 0, 5, 10, 60),  # six epochs of 15 s, and the last 5 s would not do for a step and its evaluation
        (100, 0, 3, 10, 71),  # seven epochs of 13 s leave 4 s: one step and its evaluation
        (2, 0, 0.9, 10, 1),  # 1.9 s to the last bit
    ],
)
def test_the_steps_within_a_limit_are_those_counted_by_hand(
    limit: float, spent: float, evaluation: float, epoch: int, steps: int
) -> None:
    assert steps_within(limit, spent, 1.0, evaluation, epoch) == steps


@given(st.integers(1, 400), st.integers(1, 16), st.integers(0, 40), st.integers(1, 30))
def test_as_many_steps_as_fit_and_not_one_more(tenths: int, step: int, evaluation: int, epoch: int) -> None:
    limit, usable = tenths * 10.0, tenths * 9.5
    if step + evaluation > usable:
        with raises("config.time_limit_too_short"):
            steps_within(limit, 0, step, evaluation, epoch)
        return
    found = steps_within(limit, 0, step, evaluation, epoch)
    assert found >= 1
    assert cost(found, step, evaluation, epoch) <= usable + 1e-6
    assert cost(found + 1, step, evaluation, epoch) > usable - 1e-6


def test_a_limit_too_short_for_a_step_says_how_long_it_must_be() -> None:
    with raises("config.time_limit_too_short", "time-limit", "60 s", "50 s", "12 s", "66s"):
        steps_within(60, 50, 4.0, 8.0, 100)
    assert steps_within(66, 50, 4.0, 8.0, 100) == 1


class Work:
    """Takes the given seconds in turn, and counts."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.done = seconds, 0

    def __call__(self) -> None:
        time.sleep(self.seconds[min(self.done, len(self.seconds) - 1)])
        self.done += 1


def test_slow_beginnings_and_one_slow_time_do_not_count() -> None:
    work = Work(0.3, 0.3, 0.01, 0.01, 0.3, 0.01)
    assert 0.01 <= measure_seconds(work, CPU, lambda seconds: seconds > 10) < 0.2
    assert work.done == 7


def test_long_work_is_done_no_more_often_than_needed() -> None:
    work = Work(0.05)
    assert measure_seconds(work, CPU, lambda seconds: seconds > 0.01) >= 0.05
    assert work.done == 3

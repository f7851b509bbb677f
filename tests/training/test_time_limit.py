"""Times as people write them, how many steps fit into one, and how the plan of a run changes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from vitral.training.schedules import Cosine, Linear
from vitral.training.time_limit import (
    FIRST_STEPS,
    PlanChange,
    PlanLog,
    StepPlan,
    TimeBudget,
    check_limit,
    parse_seconds,
    read_plan,
    steps_within,
)


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


def cost(steps: int, step: float, evaluation: float, epoch: int, done: int) -> float:
    """What so many more steps take, one after the other."""
    last = done + steps
    return sum(step + (evaluation if at % epoch == 0 or at == last else 0) for at in range(done + 1, last + 1))


@pytest.mark.parametrize(
    ("seconds", "evaluation", "epoch", "done", "steps"),
    [
        (95, 0, 10, 0, 95),
        (95, 5, 1000, 0, 90),
        (95, 5, 10, 0, 60),  # six epochs of 15 s, and the last 5 s would not do for a step and its evaluation
        (95, 3, 10, 0, 71),  # seven epochs of 13 s leave 4 s: one step and its evaluation
        (95, 5, 10, 5, 60),  # the first evaluation comes after five steps
        (0.5, 0, 10, 7, 0),
        (-3, 0, 10, 7, 0),
    ],
)
def test_the_steps_within_a_time_are_those_counted_by_hand(
    seconds: float, evaluation: float, epoch: int, done: int, steps: int
) -> None:
    assert steps_within(seconds, 1.0, evaluation, epoch, done) == steps


@given(st.integers(1, 400), st.integers(1, 16), st.integers(0, 40), st.integers(1, 30), st.integers(0, 50))
def test_as_many_steps_as_fit_and_not_one_more(seconds: int, step: int, evaluation: int, epoch: int, done: int) -> None:
    found = steps_within(seconds, step, evaluation, epoch, done)
    assert not found or cost(found, step, evaluation, epoch, done) <= seconds
    assert cost(found + 1, step, evaluation, epoch, done) > seconds


def test_a_limit_too_short_for_a_step_says_how_long_it_must_be() -> None:
    with raises("config.time_limit_too_short", "time-limit", "60 s", "50 s", "12 s", "64s"):
        check_limit(60, 50, 12)
    check_limit(64, 50, 12)


def test_a_plan_that_never_changes_is_the_schedule_itself() -> None:
    schedule = Cosine(warmup=0.1)
    plan = StepPlan(97)
    assert [plan.lr_factor(schedule, step) for step in range(97)] == [
        schedule.lr_factor(step, 97) for step in range(97)
    ]


def test_a_changed_plan_stretches_the_rest_of_the_schedule() -> None:
    plan, schedule = StepPlan(200), Linear()
    for step, steps in ((20, 60), (40, 100), (80, 80)):
        plan.add(PlanChange(step=step, steps=steps))
    assert [plan.steps_after(step) for step in (0, 19, 20, 39, 40, 79, 80, 99)] == [200, 200, 60, 60, 100, 100, 80, 80]
    found = [plan.lr_factor(schedule, step) for step in range(81)]
    # 20 of 200 steps are a tenth; of the other nine tenths, 20 of 40 steps; of what is left then, 40 of 60.
    assert [found[step] for step in (0, 20, 40, 70)] == pytest.approx([1, 0.9, 0.45, 0.225])
    assert found == sorted(found, reverse=True)
    ended = StepPlan(100, [PlanChange(step=50, steps=150)])
    assert ended.lr_factor(schedule, 150) == pytest.approx(0)


def test_the_plan_changes_often_at_first_and_before_the_end() -> None:
    plan, steps = StepPlan(FIRST_STEPS), list[int]()
    while (step := plan.next_change()) < 1000:
        steps.append(step)
        plan.add(PlanChange(step=step, steps=1000))
    assert steps[:6] == [2, 4, 8, 16, 32, 64]
    assert steps[-3:] == [997, 998, 999]
    assert len(steps) < 40


def test_a_budget_ends_the_run_in_time_though_steps_become_slower() -> None:
    clock = [10.0]
    budget, plan = TimeBudget(100, lambda: clock[0], 50), StepPlan(FIRST_STEPS)
    budget.evaluation, budget.finish = 2.0, 5.0
    budget.begin(0)
    step = 0
    while step < plan.steps_after(step):
        step += 1
        clock[0] += 0.1 if step < 200 else 0.3
        if step == plan.next_change() and step < plan.steps_after(step):
            plan.add(budget.plan(step))
        if step % 50 == 0 or step == plan.steps_after(step):
            clock[0] += 3.0
            budget.add_evaluation(3.0)
    assert clock[0] + budget.finish == pytest.approx(97, abs=1)
    assert plan.changes[1].steps > 400 > step


def test_the_plan_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    assert read_plan(tmp_path) == []
    changes = [PlanChange(step=0, steps=200), PlanChange(step=2, steps=90, seconds=3.25)]
    log = PlanLog(tmp_path)
    for change in changes:
        log.add(change)
    log.close()
    assert read_plan(tmp_path) == changes
    (tmp_path / "plan.jsonl").write_text('{"step": 1}\n')
    with raises("run.bad_log", tmp_path / "plan.jsonl"):
        read_plan(tmp_path)

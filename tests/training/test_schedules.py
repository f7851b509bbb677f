"""The rates of a run, against numbers worked out by hand and the formulas of big_vision and timm."""

from math import cos, pi, sqrt

import pytest

from tests.errors import raises
from vitral.core.config import union_members
from vitral.training.schedules import BaseSchedule, Constant, Cosine, InverseSquareRoot, Linear, ScheduleConfig

KINDS = union_members(ScheduleConfig)


@pytest.mark.parametrize(
    ("schedule", "first", "half_way_up", "top", "middle", "last"),
    [  # of a run of 110 steps: steps 0, 5, 10, 60 and 109
        (Constant(warmup=10), 0.0, 0.5, 1.0, 1.0, 1.0),
        (Linear(warmup=10), 0.0, 0.5, 1.0, 0.5, 0.01),
        (Linear(warmup=10, end=0.2), 0.0, 0.5, 1.0, 0.6, 0.208),
        (Cosine(warmup=10), 0.0, 0.5, 1.0, 0.5, 0.0002467198171342),
        (Cosine(warmup=10, end=0.2), 0.0, 0.5, 1.0, 0.6, 0.2001973758537074),
        (InverseSquareRoot(warmup=10, timescale=50), 0.0, 0.5, 1.0, sqrt(1 / 2), 0.5792844463634212),
        (InverseSquareRoot(warmup=10, timescale=50, cooldown=20), 0.0, 0.5, 1.0, sqrt(1 / 2), 0.0289642223181711),
    ],
    ids=str,
)
def test_the_rate_rises_and_falls_as_worked_out_by_hand(
    schedule: BaseSchedule, first: float, half_way_up: float, top: float, middle: float, last: float
) -> None:
    found = [schedule.lr_factor(step, 110) for step in (0, 5, 10, 60, 109)]
    assert found == pytest.approx([first, half_way_up, top, middle, last], rel=1e-12, abs=1e-15)


def big_vision(step: int, steps: int, decay: str, warmup: int, timescale: int, cooldown: int) -> float:
    """The rate of big_vision's `create_learning_rate_schedule` at a base of 1 and an end of 0."""
    done = min(max((step - warmup) / (steps - warmup), 0.0), 1.0)
    rate = {
        "linear": 1 - done,
        "cosine": 0.5 * (1 + cos(pi * done)),
        "rsqrt": 1 / sqrt(1 + (step - warmup) / timescale) if warmup <= step else 1.0,
    }[decay]
    if warmup:
        rate *= min(1.0, step / warmup)
    if cooldown:
        rate *= min(1.0, (steps - step) / cooldown)
    return rate


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize("steps", [8, 50])
def test_every_step_is_that_of_big_vision(warmup: int, steps: int) -> None:
    for step in range(steps + 1):
        place = (step, steps)
        assert Linear(warmup=warmup).lr_factor(*place) == pytest.approx(big_vision(*place, "linear", warmup, 1, 0))
        assert Cosine(warmup=warmup).lr_factor(*place) == pytest.approx(big_vision(*place, "cosine", warmup, 1, 0))
        for cooldown in (0, 1):
            ours = InverseSquareRoot(warmup=warmup, timescale=5, cooldown=cooldown).lr_factor(*place)
            assert ours == pytest.approx(big_vision(*place, "rsqrt", warmup, 5, cooldown))


def test_the_cosine_is_that_of_timm() -> None:
    low, high, steps = 1e-5, 8e-4, 90
    schedule = Cosine(end=low / high)
    for step in range(steps):
        timm = low + 0.5 * (high - low) * (1 + cos(pi * step / steps))
        assert high * schedule.lr_factor(step, steps) == pytest.approx(timm, rel=1e-12)


def test_the_papers_pre_training_ends_at_a_hundred_thousandth() -> None:
    schedule = Linear(warmup=10_000, end=1e-5 / 8e-4)
    assert 8e-4 * schedule.lr_factor(10_000, 517_000) == pytest.approx(8e-4)
    assert 8e-4 * schedule.lr_factor(517_000, 517_000) == pytest.approx(1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [0, 1, 3])
def test_the_rate_never_leaves_its_range(kind: type[BaseSchedule], warmup: int) -> None:
    for steps in (1, 2, 3, 4, 20):  # also runs that end before the warm-up does
        rates = [kind(warmup=warmup).lr_factor(step, steps) for step in range(steps + 3)]
        assert all(0 <= rate <= 1 for rate in rates)
        rising = rates[: min(warmup, steps)]
        assert rising == [step / warmup for step in range(len(rising))]
        falling = rates[warmup:]
        assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_would_never_reach_the_peak_is_refused(kind: type[BaseSchedule]) -> None:
    kind(warmup=9).check(10)
    with raises("config.conflict", "warmup", 10):
        kind(warmup=10).check(10)
    kind(warmup=10).check(1)  # a run of one step is a trial


def test_a_cooldown_that_meets_the_warm_up_is_refused() -> None:
    InverseSquareRoot(warmup=4, cooldown=6).check(10)
    with raises("config.conflict", "cooldown", 11, 10):
        InverseSquareRoot(warmup=4, cooldown=7).check(10)


@pytest.mark.parametrize("field", [{"warmup": -1}, {"end": 1.5}, {"end": -0.1}])
def test_a_number_out_of_range_is_refused(field: dict[str, float]) -> None:
    with raises("config.out_of_range", *field):
        Cosine.parse(field)

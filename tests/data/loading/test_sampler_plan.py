"""Plans: the same batches however they are shared out, and positions that fit them or are refused."""

import numpy as np
import pytest

from tests.errors import raises
from vitral.data.loading.sampler import (
    Balanced,
    Order,
    Repeated,
    SamplerState,
    SamplingPlan,
    Sequential,
    Shuffled,
    World,
)

LABELS = np.arange(23) % 3


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("order", [Sequential(), Shuffled(), Balanced(), Repeated(repeats=5)])
def test_processes_interleaved_show_what_one_shows(order: Order, world: int) -> None:
    alone = SamplingPlan(LABELS, order, 12, 5)
    shares = [SamplingPlan(LABELS, order, 12, 5, World(rank=rank, size=world)) for rank in range(world)]
    for step in range(3 * alone.steps_per_epoch):
        whole = alone.indices(step)
        woven = np.full(len(whole), -1)
        for rank, share in enumerate(shares):
            woven[rank::world] = share.indices(step)
            np.testing.assert_array_equal(share.views(step), alone.views(step)[rank::world])
            assert len(share.indices(step)) <= share.max_rows
            assert share.num_images(step) == len(whole)
        np.testing.assert_array_equal(woven, whole)


def test_an_evaluation_shows_each_image_exactly_once_across_processes() -> None:
    shares = [SamplingPlan(LABELS, Sequential(), 5, 0, World(rank=rank, size=2)) for rank in range(2)]
    assert [share.steps_per_epoch for share in shares] == [5, 5]
    shown = np.concatenate([share.indices(step) for share in shares for step in range(5)])
    assert sorted(shown) == list(range(23))


def test_a_process_makes_room_for_its_own_images_and_one_epoch_alone() -> None:
    plan = SamplingPlan(LABELS, Sequential(), 5, 0, World(rank=0, size=2))
    assert plan.max_rows == 3
    for step in range(20):
        plan.indices(step)
    assert len(plan._orders) == 1


def test_steps_go_on_through_the_epochs() -> None:
    plan = SamplingPlan(LABELS, Shuffled(), 5, 0)
    assert [plan.epoch(step) for step in (0, 3, 4, 9)] == [0, 0, 1, 2]
    assert not np.array_equal(plan.indices(0), plan.indices(4))
    np.testing.assert_array_equal(plan.indices(0), SamplingPlan(LABELS, Shuffled(), 5, 0).indices(0))


def test_a_position_is_a_small_json_value_that_any_world_can_go_on_from() -> None:
    text = SamplingPlan(LABELS, Balanced(), 4, 9).state(17).to_json()
    assert len(text) < 200
    assert SamplingPlan(LABELS, Balanced(), 4, 9, World(rank=1, size=2)).resume_step(SamplerState.from_json(text)) == 17


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (SamplingPlan(LABELS, Shuffled(), 4, 1), "seed"),
        (SamplingPlan(LABELS, Shuffled(), 6, 0), "batch_size"),
        (SamplingPlan(LABELS[1:], Shuffled(), 4, 0), "images"),
        (SamplingPlan(LABELS, Balanced(), 4, 0), "order"),
    ],
)
def test_a_position_of_another_stream_is_refused_by_field(other: SamplingPlan, field: str) -> None:
    with raises("config.resume_mismatch") as refusal:
        other.resume_step(SamplingPlan(LABELS, Shuffled(), 4, 0).state(3))
    assert refusal.value.where == field


@pytest.mark.parametrize(
    ("order", "batch", "world", "code", "values"),
    [
        (Shuffled(), 0, World(), "config.out_of_range", ("batch", 1, 0)),
        (Shuffled(), 24, World(), "config.out_of_range", ("batch", 24, 23)),
        (Shuffled(), 5, World(size=2), "config.indivisible", ("batch", 5, 2)),
        (Sequential(), 5, World(rank=2, size=2), "config.out_of_range", ("world", 2)),
    ],
)
def test_impossible_plans_are_refused(
    order: Order, batch: int, world: World, code: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values):
        SamplingPlan(LABELS, order, batch, 0, world)


def test_a_split_without_images_is_refused() -> None:
    with raises("config.empty_split", "split"):
        SamplingPlan(LABELS[:0], Sequential(), 4, 0)

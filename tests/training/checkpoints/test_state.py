"""Stopping after any step and going on ends in the same bits."""

from pathlib import Path

import pytest
import torch

from tests.errors import raises
from tests.training.toy import Toy, small_set
from vitral.core.config import union_members
from vitral.data.samples import Samples
from vitral.training.checkpoints.state import (
    SavedState,
    optimizer_tensors,
    restore_optimizer,
    restore_state,
    saved_state,
    state_tensors,
)
from vitral.training.optimizers import AdamW, OptimizerConfig, Sgd


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return small_set(tmp_path_factory.mktemp("set"))


@pytest.mark.parametrize("portions", [1, 3])
@pytest.mark.sampled(2)
def test_stopping_after_any_step_changes_no_bit(samples: Samples, tmp_path: Path, portions: int) -> None:
    straight = Toy(samples, tmp_path / "straight", portions, workers=0)
    straight.run(straight.steps)
    for stop in range(1, straight.steps):
        folder = tmp_path / f"stopped-{stop}"
        workers = 2 * (stop % 2)
        first = Toy(samples, folder, portions, workers)
        first.run(stop)
        second = Toy(samples, folder, portions, 2 - workers)
        second.run(straight.steps)
        assert second.bits() == straight.bits()
        assert [*first.lines, *second.lines] == straight.lines


@pytest.mark.parametrize("kind", union_members(OptimizerConfig))
def test_a_stop_after_every_step_changes_no_bit(samples: Samples, tmp_path: Path, kind: type[AdamW | Sgd]) -> None:
    straight = Toy(samples, tmp_path / "straight", 2, workers=0, optimizer=kind())
    straight.run(straight.steps)
    for stop in range(1, straight.steps + 1):
        halting = Toy(samples, tmp_path / "halting", 2, workers=0, optimizer=kind())
        halting.run(stop)
    assert halting.bits() == straight.bits()


def test_the_state_travels_as_json(samples: Samples, tmp_path: Path) -> None:
    toy = Toy(samples, tmp_path, 1, workers=0)
    saved = saved_state(toy.learning, toy.loader.plan, 3)
    assert SavedState.from_json(saved.to_json()) == saved
    assert restore_state(toy.learning, toy.loader.plan, state_tensors(toy.learning), saved) == 3


def test_the_state_of_another_stream_is_refused_before_anything_changes(samples: Samples, tmp_path: Path) -> None:
    toy = Toy(samples, tmp_path, 1, workers=0)
    saved = saved_state(toy.learning, toy.loader.plan, 3)
    other = saved.model_copy(update={"position": saved.position.model_copy(update={"seed": 6})})
    before = toy.bits()
    with raises("config.resume_mismatch", "seed"):
        restore_state(toy.learning, toy.loader.plan, state_tensors(toy.learning), other)
    assert toy.bits() == before


def test_an_optimizer_of_another_model_is_refused() -> None:
    layer = torch.nn.Linear(2, 2)
    optimizer = AdamW().build(layer)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    kept = optimizer_tensors(optimizer)
    assert set(kept) == {f"{name}/{key}" for name in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}
    with raises("weights.mismatch", "optimizer", "stranger"):
        restore_optimizer(optimizer, {"stranger/exp_avg": torch.zeros(2)})

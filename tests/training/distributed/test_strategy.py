"""Two processes train, save and resume like one, however the task is spread."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.training.distributed.member import KINDS
from tests.training.distributed.processes import play
from tests.training.distributed.race import ADAMW, CPU, EXACT, STEPS, Race, float64
from vitral.data.datasets.source import open_data
from vitral.training.checkpoints.checkpoint import AsyncCheckpointWriter, open_checkpoint
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import Ddp, DistributedConfig, Fsdp
from vitral.training.optimizers import OptimizerConfig

NAMES = [kind.kind for kind in KINDS]
ROUNDING = 1e-5


def alone(folder: Path, portions: int, optimizer: OptimizerConfig = ADAMW) -> Race:
    return Race(open_data(str(folder / "photos")), ProcessGroup(CPU), Ddp(), portions, optimizer)


def distance(one: Path, other: Path) -> float:
    """The furthest that any weight of one run is from that of another."""
    some, others = (load_file(path.with_suffix(".safetensors")) for path in (one, other))
    assert set(some) == set(others)
    return max((some[name] - others[name]).abs().max().item() for name in some)


@pytest.mark.parametrize("portions", [1, 3])
@pytest.mark.parametrize("kind", NAMES)
def test_two_processes_take_the_steps_of_one(played: Path, kind: str, portions: int) -> None:
    one = alone(played, portions).run(0, 10).evaluate().run(10, STEPS)
    two = json.loads((played / f"{kind}-{portions}.json").read_text())
    assert len(two) == STEPS + 1  # and an evaluation of the averaged weights among them
    assert [line[0] for line in two] == pytest.approx([line[0] for line in one.lines], abs=ROUNDING)
    assert [line[1] for line in two] == pytest.approx([line[1] for line in one.lines], abs=1e-7)
    assert [line[2] for line in two] == [line[2] for line in one.lines]
    assert {line[2] for line in two} == {4, 1, 21}  # a whole batch, the last, and all images of the evaluation
    weights = load_file(played / f"{kind}-{portions}.safetensors")
    torch.testing.assert_close(weights, one.weights(), atol=ROUNDING, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", EXACT, ids=lambda optimizer: optimizer.kind)
def test_two_processes_equal_one_in_float64(played_exactly: Path, optimizer: OptimizerConfig) -> None:
    with float64():
        one = alone(played_exactly, 1, optimizer).run(0, STEPS).weights()
    start = alone(played_exactly, 1).weights()
    assert any((start[name].double() - one[name]).abs().max() > 0.05 for name in start)  # far from where it began
    for kind in NAMES:
        whole = played_exactly / f"{optimizer.kind}-{kind}"
        torch.testing.assert_close(load_file(whole.with_suffix(".safetensors")), one, atol=1e-9, rtol=0)
        assert distance(whole, whole.with_name(f"{whole.name}-stopped")) == 0


@pytest.mark.parametrize("kind", NAMES)
def test_a_stop_changes_no_bit_if_as_many_go_on(played: Path, kind: str) -> None:
    assert distance(played / f"{kind}-to-{kind}", played / f"{kind}-3") == 0


def test_the_way_of_spreading_may_change(played: Path) -> None:
    for kind, other in (NAMES, NAMES[::-1]):
        assert distance(played / f"{kind}-to-{other}", played / f"{kind}-3") < ROUNDING


@pytest.mark.slow
def test_two_processes_then_one_then_two_end_where_an_unbroken_run_does(played: Path) -> None:
    for before in NAMES:
        one = alone(played, 3)
        assert one.resume(played / f"saved-by-{before}") == 7
        one.run(7, 13).save(played / f"saved-by-one-after-{before}", 13)
    play("resumes", played)
    for before in NAMES:
        for kind in NAMES:
            assert distance(played / f"{before}-to-one-to-{kind}", played / f"{kind}-3") < ROUNDING


def test_what_is_saved_has_the_names_and_shapes_that_one_process_gives_them(played: Path) -> None:
    ddp, fsdp = (open_checkpoint(played / f"saved-by-{kind}" / "step-00000007").load() for kind in NAMES)
    assert ddp.state == fsdp.state
    for group, tensors in ddp.tensors.items():
        torch.testing.assert_close(fsdp.tensors[group], tensors, atol=ROUNDING, rtol=0)


def test_processes_agree_on_an_overflow(played: Path) -> None:
    found = [json.loads((played / f"scales-{rank}.json").read_text()) for rank in range(2)]
    names = [f"{optimizer.kind}-{kind}" for optimizer in (ADAMW, *EXACT) for kind in NAMES]
    assert found == [{name: [4.0, True] for name in names}] * 2  # the scale is halved, the step left out


@pytest.mark.parametrize("kind", [Ddp(), Fsdp()])
def test_one_process_has_its_task_as_it_is(tmp_path: Path, kind: DistributedConfig) -> None:
    task = torch.nn.Identity()
    spread = kind.build(task, ProcessGroup(CPU))  # type: ignore[arg-type]
    assert spread.module is task
    writer = spread.checkpoint_writer(tmp_path, 1)
    assert isinstance(writer, AsyncCheckpointWriter)
    writer.close()

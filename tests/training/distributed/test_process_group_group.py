"""Who is there: one process has nobody to ask, and what the environment says is checked."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from vitral.data.loading.sampler import World
from vitral.tasks.task import Outcome
from vitral.training.distributed.process_group import Group, group, world_of

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        ({}, World(rank=0, size=1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, World(rank=0, size=1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, World(rank=3, size=8)),
        ({"WORLD_SIZE": "1"}, World(rank=0, size=1)),
    ],
)
def test_torchrun_says_who_this_is(environment: dict[str, str], world: World) -> None:
    assert world_of(environment) == world


@pytest.mark.parametrize(
    ("environment", "code", "values"),
    [
        ({"WORLD_SIZE": "2"}, "config.missing_value", ("WORLD_SIZE", 2)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "config.out_of_range", ("RANK", 2)),
        ({"RANK": "one", "WORLD_SIZE": "2"}, "config.wrong_type", ("RANK", "'one'")),
        ({"RANK": "0", "WORLD_SIZE": "-2"}, "config.wrong_type", ("WORLD_SIZE", "'-2'")),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    environment: dict[str, str], code: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values):
        world_of(environment)


def test_one_process_hears_what_it_says() -> None:
    with group(CPU) as alone:
        assert type(alone) is Group
        assert (alone.world, alone.first, alone.device) == (World(), True, CPU)
        rows = torch.rand(3, 2)
        outcome = Outcome(torch.tensor(1.0), 3, {})
        assert alone.gather(rows) is rows
        assert alone.joined(outcome) is outcome
        assert alone.share({"a": 1}) == alone.decide(lambda: {"a": 1}) == {"a": 1}
        assert (alone.most(-2), alone.any(False), alone.any(True)) == (-2, False, True)
        alone.meet()
        alone.advise("nobody can be lost")


def test_one_process_imports_nothing_of_many() -> None:
    program = (
        "import sys, torch; before = set(sys.modules)\n"
        "from vitral.training.distributed.strategy import Fsdp\n"
        "from vitral.training.distributed.process_group import group\n"
        "with group(torch.device('cpu')) as alone: Fsdp().keeper(__import__('pathlib').Path('c'), 1, alone).close()\n"
        "print(*sorted({name for name in set(sys.modules) - before if name.startswith('torch.distributed')}))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == []

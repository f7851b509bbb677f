"""Who is there: one process has nobody to ask, and what the environment says is checked."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.errors import raises
from vitral.data.loading.sampler import World
from vitral.tasks.task import Outcome
from vitral.training.distributed.process_group import ProcessGroup, open_process_group, read_world

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
    assert read_world(environment) == world


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
        read_world(environment)


def test_one_process_hears_what_it_says() -> None:
    with open_process_group(CPU) as alone:
        assert type(alone) is ProcessGroup
        assert (alone.world, alone.is_main, alone.device) == (World(), True, CPU)
        rows = torch.rand(3, 2)
        outcome = Outcome(torch.tensor(1.0), 3, {})
        assert alone.gather(rows) is rows
        assert alone.reduce_outcome(outcome) is outcome
        assert alone.broadcast({"a": 1}) == alone.run_on_main(lambda: {"a": 1}) == {"a": 1}
        assert (alone.max(-2), alone.any(False), alone.any(True)) == (-2, False, True)
        alone.barrier()
        alone.set_resume_hint("nobody can be lost")


def test_one_process_imports_nothing_of_many_and_no_compiler() -> None:
    program = (
        "import sys, torch; before = set(sys.modules)\n"
        "import vitral.runs.train\n"
        "from vitral.models import LinearHead, Vit\n"
        "from vitral.training.optimizers import AdamW, Muon, ScheduleFreeAdamW, Sgd\n"
        "model = Vit(image_size=16, width=24, depth=1, head=LinearHead(num_classes=2)).build()\n"
        "for kind in (AdamW, Muon, ScheduleFreeAdamW, Sgd):\n"
        "    optimizer = kind().build(model)\n"
        "    model(torch.zeros(1, 3, 16, 16)).sum().backward()\n"
        "    optimizer.step(); optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict())\n"
        "from vitral.training.distributed.strategy import Fsdp\n"
        "from vitral.training.distributed.process_group import open_process_group\n"
        "with open_process_group(torch.device('cpu')) as alone: Fsdp().build(torch.nn.Identity(), alone)\n"
        "heavy = ('torch.distributed', 'torch._dynamo', 'sympy')\n"
        "print(*sorted(name for name in set(sys.modules) - before if name.startswith(heavy)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.split() == []

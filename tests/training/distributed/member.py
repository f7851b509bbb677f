"""What each of several processes does in a test: `python -m tests.training.distributed.member SCENE FOLDER`."""

import json
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable
from itertools import product
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from tests.training.distributed.methods import METHODS, SOME, run_methods
from tests.training.distributed.race import ADAMW, CPU, EXACT, STEPS, Race, float64
from vitral.core.config import union_members
from vitral.core.errors import DataError, VitralError
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples
from vitral.tasks.task import Outcome
from vitral.training.distributed import process_group
from vitral.training.distributed.process_group import ProcessGroup, open_process_group
from vitral.training.distributed.strategy import Ddp, DistributedConfig, Fsdp

KINDS: tuple[DistributedConfig, ...] = tuple(kind() for kind in union_members(DistributedConfig))


def talk(folder: Path, company: ProcessGroup) -> None:
    """All that processes say to each other."""
    rank = company.world.rank
    outcome = Outcome(torch.tensor(1.0 + rank), 3 - 2 * rank, {"accuracy": torch.tensor(0.5 * rank)})
    joined = company.reduce_outcome(outcome)
    nothing = company.reduce_outcome(Outcome(torch.tensor(0.0), 0, {}))
    rows = torch.arange(rank * 10, rank * 10 + 1 + 2 * rank, dtype=torch.bfloat16)[:, None].expand(-1, 2)
    flags = torch.tensor([True, False][rank:])
    heard = {
        "joined": [joined.loss.item(), joined.images, joined.metrics["accuracy"].item(), nothing.images],
        "gathered": company.gather(rows).tolist(),
        "kind": str(company.gather(rows).dtype),
        "flags": company.gather(flags).tolist(),
        "none": list(company.gather(torch.zeros(rank * 0, 3)).shape),
        "shared": company.broadcast({"é": [rank, None, 0.1]}),
        "decided": company.run_on_main(lambda: os.environ["RANK"]),
        "most": company.max(-rank),
        "any": [company.any(rank == 1), company.any(False)],
        "first": company.is_main,
    }
    (folder / f"heard-{rank}.json").write_text(json.dumps(heard))


def shares(folder: Path, company: ProcessGroup) -> None:
    """Sums and rows of a batch of 6 that gradients pass through; each process has every second row."""
    collective, rank = company.collective(), company.world.rank
    assert collective is not None
    rows = torch.arange(12, dtype=torch.float64).reshape(6, 2)[rank::2].requires_grad_()
    total, gathered = collective.sum(rows.square().sum(0)), collective.gather(rows)
    own = gathered[collective.places(len(rows))]
    loss = (total * torch.tensor([1.0, 2.0])).sum() + (gathered.cumsum(0) ** 2).sum() + (rank + 1) * own.sum()
    (loss * 0.5).backward()
    assert rows.grad is not None
    heard = [total.tolist(), gathered.tolist(), own.tolist(), rows.grad.tolist()]
    (folder / f"shares-{rank}.json").write_text(json.dumps(heard))


def partings(folder: Path, company: ProcessGroup) -> None:
    """How often a library still held what was said when a meeting was over."""
    words: list[weakref.ref[torch.Tensor]] = []
    all_reduce = dist.all_reduce

    def noted(word: torch.Tensor) -> None:
        words.append(weakref.ref(word))
        all_reduce(word)

    with patch.object(dist, "all_reduce", noted):
        held = 0
        for _ in range(300):
            company.barrier()
            held += words[-1]() is not None
    (folder / f"held-{company.world.rank}.json").write_text(json.dumps([len(words), held]))


def races(folder: Path, company: ProcessGroup) -> None:
    """Whole runs, and those that are saved and gone on with by as many processes."""
    samples = open_data(str(folder / "photos"))
    for kind in KINDS:
        for portions in (1, 3):
            race = Race(samples, company, kind, portions).run(0, 10).evaluate().run(10, STEPS)
            keep(folder / f"{kind.kind}-{portions}", race)
        stopped(folder, samples, company, kind)


def exact(folder: Path, company: ProcessGroup) -> None:
    """Whole runs in float64 with optimizers that need more than the shard of a weight; one is stopped on the way."""
    samples = open_data(str(folder / "photos"))
    with float64():
        for optimizer in EXACT:
            for kind in KINDS:
                name = f"{optimizer.kind}-{kind.kind}"
                keep(folder / name, Race(samples, company, kind, 1, optimizer).run(0, STEPS))
                Race(samples, company, kind, 1, optimizer).run(0, 7).save(folder / f"saved-{name}", 7)
                second = Race(samples, company, kind, 1, optimizer)
                keep(folder / f"{name}-stopped", second.run(second.resume(folder / f"saved-{name}"), STEPS))


def some_methods(folder: Path, company: ProcessGroup) -> None:
    """Self-supervised methods, as the default tests run them."""
    run_methods(folder, open_data(str(folder / "photos")), company, SOME, KINDS)


def all_methods(folder: Path, company: ProcessGroup) -> None:
    """Every self-supervised method."""
    run_methods(folder, open_data(str(folder / "photos")), company, tuple(METHODS), KINDS)


def stopped(folder: Path, samples: Samples, company: ProcessGroup, kind: DistributedConfig) -> None:
    saved = folder / f"saved-by-{kind.kind}"
    Race(samples, company, kind, 3).run(0, 7).save(saved, 7)
    for other in KINDS:
        second = Race(samples, company, other, 3)
        assert second.resume(saved) == 7
        keep(folder / f"{kind.kind}-to-{other.kind}", second.run(7, STEPS))


def resumes(folder: Path, company: ProcessGroup) -> None:
    """What one process has saved, gone on with by all."""
    samples = open_data(str(folder / "photos"))
    for before in KINDS:
        for kind in KINDS:
            race = Race(samples, company, kind, 3)
            assert race.resume(folder / f"saved-by-one-after-{before.kind}") == 13
            keep(folder / f"{before.kind}-to-one-to-{kind.kind}", race.run(13, STEPS))


def keep(name: Path, race: Race) -> None:
    weights = race.weights()
    if race.group.is_main:
        save_file({key: tensor.contiguous() for key, tensor in weights.items()}, name.with_suffix(".safetensors"))
        name.with_suffix(".json").write_text(json.dumps(race.lines))


def three(folder: Path, company: ProcessGroup) -> None:
    """More processes than two, whose sums depend on the order; one run goes through, another stops."""
    samples = open_data(str(folder / "photos"))
    keep(folder / "through", Race(samples, company, Ddp(), 3).run(0, STEPS))
    Race(samples, company, Ddp(), 3).run(0, 7).save(folder / "halfway", 7)
    second = Race(samples, company, Ddp(), 3)
    keep(folder / "stopped", second.run(second.resume(folder / "halfway"), STEPS))


def scales(folder: Path, company: ProcessGroup) -> None:
    """Gradients that overflow in a weight that one process has all of."""
    samples = open_data(str(folder / "photos"))
    found = {}
    for kind, optimizer in product(KINDS, (ADAMW, *EXACT)):
        race = Race(samples, company, kind, 1, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        race.learning.precision.scaler = scaler
        race.run(2, 3)
        before = race.weights()
        race.learning.task.get_submodule("model.prefix").register_forward_pre_hook(overflow)
        race.run(3, 4)
        after = race.weights()
        kept = all(torch.equal(before[name], after[name]) for name in before if name.startswith("own/"))
        found[f"{optimizer.kind}-{kind.kind}"] = [scaler.get_scale(), kept]
    (folder / f"scales-{company.world.rank}.json").write_text(json.dumps(found))


def overflow(prefix: nn.Module, inputs: object) -> None:
    prefix.get_parameter("tokens").register_hook(lambda gradient: gradient * torch.inf)


def full(folder: Path, company: ProcessGroup) -> None:
    """A process that cannot write, and what the others hear of it."""
    race = Race(open_data(str(folder / "photos")), company, Fsdp(), 1)
    (folder / "checkpoints").touch()
    try:
        race.save(folder / "checkpoints", 1)
    except VitralError as error:
        (folder / f"full-{company.world.rank}.txt").write_text(f"{error.code} {error}")


def killed(folder: Path, company: ProcessGroup) -> None:
    """A process that is killed in the middle of a run that was saved."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # a run notes it and leaves after the step at hand
    race = Race(open_data(str(folder / "photos")), company, Fsdp(), 1).run(0, 3)
    company.set_resume_hint("resume with: vitral train --resume RUN")
    race.save(folder / "checkpoints", 3)
    if company.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    race.run(3, STEPS)


def frozen(folder: Path, company: ProcessGroup) -> None:
    """A process that falls silent, while the other waits for it in a library."""
    if company.world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    company.barrier()


def failed(folder: Path, company: ProcessGroup) -> None:
    """A process that leaves with an error, while the other waits for it."""
    if company.world.rank == 1:
        raise DataError("truncated after 12 KB", code="data.truncated_image", where="cat/07.jpg", hint="remove it")
    company.barrier()


SCENES: dict[str, Callable[[Path, ProcessGroup], None]] = {
    scene.__name__: scene
    for scene in (
        talk, shares, partings, races, exact, some_methods, all_methods, resumes, three, scales, full, killed, frozen,
        failed,
    )
}  # fmt: skip


def main(scene: str, folder: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    if scene == "frozen":
        process_group.TIMEOUT, process_group.EXIT_GRACE = 3.0, 1.0  # so that the test need not wait as long
    try:
        with open_process_group(CPU) as company:
            for name in scene.split("+"):
                SCENES[name](Path(folder), company)
    except VitralError as error:
        print(f"error[{error.code}]: {error.message}\nwhere: {error.where}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])

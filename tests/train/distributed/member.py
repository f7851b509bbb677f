"""What each of several processes does in a test: `python -m tests.train.distributed.member SCENE FOLDER`."""

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.train.distributed.race import CPU, STEPS, Race
from vitral.config import members
from vitral.data.samples import Samples
from vitral.data.sources.source import open_data
from vitral.errors import DataError, VitralError
from vitral.tasks.task import Outcome
from vitral.train.distributed.choice import Ddp, DistributedConfig, Fsdp
from vitral.train.distributed.group import Group, group

KINDS: tuple[DistributedConfig, ...] = tuple(kind() for kind in members(DistributedConfig))


def talk(folder: Path, company: Group) -> None:
    """All that processes say to each other."""
    rank = company.world.rank
    outcome = Outcome(torch.tensor(1.0 + rank), 3 - 2 * rank, {"accuracy": torch.tensor(0.5 * rank)})
    joined = company.joined(outcome)
    nothing = company.joined(Outcome(torch.tensor(0.0), 0, {}))
    rows = torch.arange(rank * 10, rank * 10 + 1 + 2 * rank, dtype=torch.bfloat16)[:, None].expand(-1, 2)
    flags = torch.tensor([True, False][rank:])
    heard = {
        "joined": [joined.loss.item(), joined.images, joined.metrics["accuracy"].item(), nothing.images],
        "gathered": company.gather(rows).tolist(),
        "kind": str(company.gather(rows).dtype),
        "flags": company.gather(flags).tolist(),
        "none": list(company.gather(torch.zeros(rank * 0, 3)).shape),
        "shared": company.share({"é": [rank, None, 0.1]}),
        "decided": company.decide(lambda: os.environ["RANK"]),
        "most": company.most(-rank),
        "any": [company.any(rank == 1), company.any(False)],
        "first": company.first,
    }
    (folder / f"heard-{rank}.json").write_text(json.dumps(heard))


def races(folder: Path, company: Group) -> None:
    """Whole runs, and those that are saved and gone on with by as many processes."""
    samples = open_data(str(folder / "photos"))
    for kind in KINDS:
        for portions in (1, 3):
            keep(folder / f"{kind.kind}-{portions}", Race(samples, company, kind, portions).run(0, STEPS))
        stopped(folder, samples, company, kind)


def stopped(folder: Path, samples: Samples, company: Group, kind: DistributedConfig) -> None:
    saved = folder / f"saved-by-{kind.kind}"
    Race(samples, company, kind, 3).run(0, 7).save(saved, 7)
    for other in KINDS:
        second = Race(samples, company, other, 3)
        assert second.resume(saved) == 7
        keep(folder / f"{kind.kind}-to-{other.kind}", second.run(7, STEPS))


def resumes(folder: Path, company: Group) -> None:
    """What one process has saved, gone on with by all."""
    samples = open_data(str(folder / "photos"))
    for before in KINDS:
        for kind in KINDS:
            race = Race(samples, company, kind, 3)
            assert race.resume(folder / f"saved-by-one-after-{before.kind}") == 13
            keep(folder / f"{before.kind}-to-one-to-{kind.kind}", race.run(13, STEPS))


def keep(name: Path, race: Race) -> None:
    weights = race.weights()
    if race.group.first:
        save_file({key: tensor.contiguous() for key, tensor in weights.items()}, name.with_suffix(".safetensors"))
        name.with_suffix(".json").write_text(json.dumps(race.lines))


def scales(folder: Path, company: Group) -> None:
    """A gradient that overflows in one process alone."""
    samples = open_data(str(folder / "photos"))
    found = {}
    for kind in KINDS:
        race = Race(samples, company, kind, 1)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        race.learning.precision.scaler = scaler
        before = race.weights()
        for name, weight in race.learning.task.named_parameters():
            if name == "model.head.linear.weight" and not company.first:
                weight.register_hook(lambda gradient: gradient * torch.inf)
        race.run(0, 1)
        after = race.weights()
        kept = all(torch.equal(before[name], after[name]) for name in before if name.startswith("own/"))
        found[kind.kind] = [scaler.get_scale(), kept]
    (folder / f"scales-{company.world.rank}.json").write_text(json.dumps(found))


def full(folder: Path, company: Group) -> None:
    """A process that cannot write, and what the others hear of it."""
    race = Race(open_data(str(folder / "photos")), company, Fsdp(), 1)
    (folder / "checkpoints").touch()
    try:
        race.save(folder / "checkpoints", 1)
    except VitralError as error:
        (folder / f"full-{company.world.rank}.txt").write_text(str(error))


def killed(folder: Path, company: Group) -> None:
    race = Race(open_data(str(folder / "photos")), company, Ddp(), 1)
    company.advise("resume with: vitral train --resume RUN")
    race.run(0, 3)
    if company.world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    race.run(3, STEPS)


def frozen(folder: Path, company: Group) -> None:
    """A process that goes silent without a word, while the other waits for it in a library."""
    if company.world.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    company.meet()


def failed(folder: Path, company: Group) -> None:
    """A process that leaves with an error, while the other waits for it."""
    if company.world.rank == 1:
        raise DataError("truncated after 12 KB", where="cat/07.jpg", remedy="remove it")
    company.meet()


SCENES: dict[str, Callable[[Path, Group], None]] = {
    scene.__name__: scene for scene in (talk, races, resumes, scales, full, killed, frozen, failed)
}


def main(scene: str, folder: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    started = time.monotonic()
    try:
        with group(CPU) as company:
            SCENES[scene](Path(folder), company)
    except VitralError as error:
        print(f"after {time.monotonic() - started:.1f} s: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`python -m benchmarks.kill_resume [--kills 100]`: a run killed at random instants and resumed, compared at its end.

The run saves after every step, so that many kills fall into the writing of a checkpoint. Its final weights, its record
and its results must be those of a run that nobody disturbed, to the byte.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.__main__ import machine
from vitral.core.config import parse_settings
from vitral.runs.train import resume, train

SETTINGS = (
    "data.fraction=0.02", "epochs=20", "batch_size=20", "checkpoints.every_seconds=0", "seed=3", "workers=0",
    "microbatches=3",
    "model.width=16", "model.depth=2", "model.mixer.heads=2", "model.block.drop_path_rate=0.2", "task.mixing=mixup",
    "average=ema", "eval_every=2",
)  # fmt: skip
COMPARED = ("last/model.safetensors", "best/model.safetensors", "metrics.jsonl", "results.csv")


def work(folder: Path) -> None:
    """Begin the run or go on with it, to its end."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, it lasts as long as the process
    if (folder / "recipe.json").exists():
        resume(str(folder))
        return
    for leftover in folder.iterdir() if folder.exists() else ():  # killed before the run had begun
        leftover.unlink()
    train("sample", settings=parse_settings([*SETTINGS]), recipe="sample", out=str(folder))


def digests(folder: Path) -> dict[str, str]:
    return {name: sha256((folder / name).read_bytes()).hexdigest()[:16] for name in COMPARED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    context = multiprocessing.get_context("fork")  # torch is imported once, here
    torch.set_num_threads(1)
    with TemporaryDirectory() as home:
        train(
            "sample", settings=parse_settings([*SETTINGS, "steps=1"]), recipe="sample", out=f"{home}/warm"
        )  # so that a child begins at once
        whole, broken = Path(home) / "whole", Path(home) / "broken"
        started = time.monotonic()
        undisturbed = context.Process(target=work, args=(whole,))
        undisturbed.start()
        undisturbed.join()
        seconds = time.monotonic() - started
        assert undisturbed.exitcode == 0, "the undisturbed run failed"
        kills = ends = same = 0
        while kills < options.kills:
            process = context.Process(target=work, args=(broken,))
            process.start()
            process.join(rng.uniform(0.01, seconds / 4))
            if process.exitcode is None:
                os.kill(process.pid or 0, signal.SIGKILL)
                process.join()
                kills += 1
            elif process.exitcode:
                sys.exit(f"after {kills} kills the run did not resume: exit code {process.exitcode}")
            else:
                ends += 1
                same += digests(broken) == digests(whole)
                broken = Path(home) / f"broken-{ends}"
            print(
                f"\r{kills} kills, {ends} runs came to their end, {same} of them to the same bytes", end="", flush=True
            )
        print()
        process = context.Process(target=work, args=(broken,))  # the last one is let go on to its end
        process.start()
        process.join()
        ends, same = ends + 1, same + (process.exitcode == 0 and digests(broken) == digests(whole))
        print(machine())
        print(f"{kills} kills at random instants of runs of {seconds:.1f} s: all resumed")
        print(f"{ends} runs came to their end, {same} of them with the bytes of the undisturbed one")
    sys.exit(same != ends)


if __name__ == "__main__":
    main()

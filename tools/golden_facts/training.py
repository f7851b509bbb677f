"""Training: losses of 20 steps and the weights that they end in, through the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

from tools.golden_facts.command import output_of
from tools.golden_facts.images import write_photos
from tools.golden_facts.models import hash_of

STEPS = 20
WORDS = (
    "--recipe", "small_hundreds", "--image", "16", "--batch", "6", "--lr", "3e-3", "--device", "cpu", "--seed", "1",
    "--set", "model.stem.patch=[8, 8]", "--set", "model.width=32", "--set", "model.depth=2",
    "--set", "model.mixer.heads=2", "--set", "length:steps", "--set", f"length.steps={STEPS}", "--set", "evaluate=2",
    "--set", "saving.seconds=100000", "--set", "precision:float32", "--set", "model.block.drop_path=0.1",
)  # fmt: skip
TASKS = ("classify", "masked")
OPTIMIZERS = ("adamw", "sgd")
EXTRAS: dict[str, tuple[str, ...]] = {
    "sigmoid": ("task:classify.loss:sigmoid",),
    "cutmix": ("task:classify.mixing:cutmix",),
    "mixup or cutmix": ("task:classify.mixing:mixup_or_cutmix",),
    "whole patch": ("task:masked", "task:masked.target:whole_patch"),
    "downsized": ("task:masked", "task:masked.target:downsized"),
    "polyak": ("average:polyak",),
    "no average": ("average:none",),
    "linear": ("schedule:linear",),
    "inverse square root": ("schedule:inverse_square_root",),
    "constant": ("schedule:constant",),
    "portions": ("portions=3",),
    "bfloat16": ("precision:bfloat16",),
    "recompute": ("model:vit.memory:recompute",),
    "augmented": ('images.augment=[{"kind": "rand_augment"}, {"kind": "random_erasing"}]',),
    "epochs": ("length:epochs", "length:epochs.epochs=2.5"),
    "balanced": ("data.order:balanced",),
}
TUNINGS = ("head", "layers", "probed", "lora")


class Job(NamedTuple):
    """A run: its name, what it is trained on and its settings, as one command line."""

    name: str
    words: tuple[str, ...]


def job(name: str, data: str, settings: tuple[str, ...], *words: str) -> Job:
    chosen = [word for setting in settings for word in ("--set", setting)]
    return Job(name, ("train", data, *WORDS, *words, *chosen, "--out", name.replace(" ", "-")))


def jobs(processes: int, before: Path) -> Iterator[Job]:
    """What is trained by so many processes."""
    tail = f"processes={processes}"
    for task in TASKS:
        for optimizer in OPTIMIZERS:
            for workers in (0, 2):
                settings = (f"task:{task}", f"optimiser:{optimizer}", "optimiser.rate=3e-3")
                name = f"{task} {optimizer} workers={workers} {tail}"
                yield job(name, "photos", settings, "--workers", str(workers))
    if processes > 1:
        yield job(f"fsdp {tail}", "photos", ("distributed:fsdp",), "--workers", "0")
        return
    yield from (job(name, "photos", extra, "--workers", "0") for name, extra in EXTRAS.items())
    for tuning in TUNINGS:
        start = ("--from", str(before / "bundles/classify"), "--workers", "0")
        words = ("train", "photos", "--image", "16", "--batch", "6", "--seed", "1", *start, "--set", "length:steps")
        rest = ("--set", f"length.steps={STEPS}", "--set", f"tuning:{tuning}", "--set", "precision:float32")
        yield Job(f"tuning {tuning}", (*words, *rest, "--set", "saving.seconds=100000", "--out", f"tuning-{tuning}"))
    share = ("data.share=0.02", "model:vit.channels=1")
    yield job("sample", "sample", share, "--workers", "0")


def training(work: Path, before: Path) -> dict[str, Any]:
    """Losses and weights of every run."""
    write_photos(work / "photos")
    found: dict[str, Any] = {}
    for each in jobs(1, before):
        print(f"  {each.name}", file=sys.stderr)
        code, _ = output_of([*each.words, "--quiet"])
        found |= results(work, each, code)
    for each, code in together(work, before):
        found |= results(work, each, code)
    return found


def together(work: Path, before: Path) -> Iterator[tuple[Job, int]]:
    """The runs of two processes, each started by torchrun."""
    for each in jobs(2, before):
        print(f"  {each.name}", file=sys.stderr)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--log-dir", str(work)]
        command = [*launcher, str(Path(__file__).with_name("probe.py")), "member", *each.words]
        yield each, subprocess.run(command, cwd=work, env=os.environ, capture_output=True, check=False).returncode


def member(words: list[str]) -> None:
    """One process of several."""
    code, _ = output_of([*words, "--quiet"])
    sys.exit(code)


def results(work: Path, done: Job, code: int) -> dict[str, Any]:
    """The losses and weights that a run left, or the code that it ended with."""
    folder = work / done.name.replace(" ", "-")
    if code or not (folder / "last/model.safetensors").exists():
        return {f"{done.name} | exit": code}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    weights: dict[str, np.ndarray[Any, Any]] = load_file(folder / "last/model.safetensors")
    best: dict[str, np.ndarray[Any, Any]] = load_file(folder / "best/model.safetensors")
    return {
        f"{done.name} | losses": [line["loss"] for line in lines if line["split"] == "train"],
        f"{done.name} | evaluations": [line["loss"] for line in lines if line["split"] != "train"],
        f"{done.name} | last weights": hash_of(weights),
        f"{done.name} | best weights": hash_of(best),
    }

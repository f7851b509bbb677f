"""`python -m benchmarks.before CHECKOUT [--quick] [--only TEXT] [--json FILE]`: is this tree slower than another one?

Both trees do the same work in processes of their own, each with its own environment (`CHECKOUT/.venv`), and take turns:
training steps, inference with the default engine, loading, `predict` from files, `--help` and the time to the first
answer. A ratio is new seconds / old seconds, round by round, so that whatever slows the machine slows both; beside the
median stands the middle half of the rounds. Below 1 this tree is faster.

Only the public API and the command line are used, because both trees have those. The models are files as timm writes
them, which either tree reads.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, mkdtemp
from typing import Any, NamedTuple

HERE = Path(__file__).parents[1]
LIMIT = 1.03  # times the old seconds
MODELS = {"Ti/16": 192, "S/16": 384, "B/16": 768}  # width
BATCHES = (1, 8, 32)
TURN = 0.5  # seconds of inference in a turn
PHOTOS, DISTINCT = 3200, 64  # the files are links to this many distinct photos
PREDICTED = 192  # photos that `predict` reads from files
WARM_UP_STEPS = 3
OLD_SETTINGS = {  # as trees before the new layout call them
    "image_size": "image",
    "batch_size": "batch",
    "eval_every": "evaluate",
    "checkpoints.every_seconds": "saving.seconds",
}
TRAINING = (
    "device=cpu", "workers=0", "precision=float32", "length=steps", "length.steps=100000", "eval_every=100000",
    "checkpoints.every_seconds=100000", "seed=0",
)  # fmt: skip
TINY = ("model.width=16", "model.depth=1", "model.mixer.heads=1", "model.stem.patch=16", "image_size=64")
RUNS = {  # data, settings, optimizer steps in a turn
    "training step, sample recipe": ("sample", (), 10),
    "training step, Ti/16 at 224, batch 16": ("photos", ("image_size=224", "batch_size=16", "model=Ti/16"), 1),
    "loading, a tiny model on photos": ("photos", (*TINY, "batch_size=32"), 4),
}


class Tree(NamedTuple):
    """A checkout with its own environment."""

    name: str
    root: Path

    @property
    def python(self) -> list[str]:
        """The interpreter; without -P the folder of this file would be on its import path."""
        return [str(self.root / ".venv/bin/python"), "-P"]

    def environment(self, home: Path) -> dict[str, str]:
        """The environment of its processes: this tree's vitral, and a cache of its own."""
        usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return usual | {"PYTHONPATH": str(self.root), "XDG_CACHE_HOME": str(home / f"cache-{self.name}")}

    def command(self, *words: str) -> list[str]:
        return [*self.python, "-m", "vitral", *words]


class Result(NamedTuple):
    """Seconds of each turn of both trees at one kind of work."""

    name: str
    new: list[float]
    old: list[float]

    def ratios(self) -> tuple[float, float, float]:
        """First quartile, median and third quartile of new / old."""
        ratios = [new / old for new, old in zip(self.new, self.old, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        return low, median, high

    def record(self) -> dict[str, Any]:
        low, median, high = self.ratios()
        return {
            "name": self.name,
            "ratio": median,
            "low": low,
            "high": high,
            "within_limit": median <= LIMIT,
            "new_seconds": self.new,
            "old_seconds": self.old,
        }

    def line(self) -> str:
        low, median, high = self.ratios()
        new, old = statistics.median(self.new), statistics.median(self.old)
        verdict = "" if median <= LIMIT else "  SLOWER"
        return (
            f"{self.name:<40} {new:9.4f} {old:9.4f}   {median:.3f} ({low:.3f} to {high:.3f}, {len(self.new)}){verdict}"
        )


class TimingWorker:
    """A process of a tree that does one turn of work for each line on its stdin, and prints the seconds it took."""

    def __init__(self, tree: Tree, home: Path, words: Sequence[str]) -> None:
        self.log = TemporaryFile()  # noqa: SIM115, closed with the process
        self.process = subprocess.Popen(
            [*tree.python, __file__, "--worker", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            cwd=home,
            env=tree.environment(home),
        )
        self.name = f"{tree.name}: {' '.join(words)}"

    def turn(self) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("seconds "):  # a command prints lines of its own as well
                return float(line.split()[1])
        code = self.process.wait()
        self.log.seek(0)
        talk = self.log.read().decode(errors="replace")[-2000:]
        raise RuntimeError(f"{self.name} ended with exit code {code}:\n{talk}")

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


def serve_inference(model: str, batch: int) -> None:
    """The loop of a worker that infers: the mean seconds of a call, over the calls that fill a turn."""
    import numpy as np

    import vitral

    vitral.keep_freed_memory()
    predictor = vitral.Predictor(model)
    predictor.warm_up(batch)
    pixels = np.random.default_rng(0).integers(256, size=(batch, 224, 224, 3), dtype=np.uint8)
    for _ in sys.stdin:
        started, calls = time.perf_counter(), 0
        while not calls or time.perf_counter() - started < TURN:
            predictor.logits(pixels)
            calls += 1
        print("seconds", (time.perf_counter() - started) / calls, flush=True)


def serve_training(run: str, home: str) -> None:
    """The loop of a worker that trains: `vitral train`, which waits for a line after every so many optimizer steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    import vitral
    from vitral.cli import main

    data, settings, steps = RUNS[run]
    is_old = not (Path(vitral.__file__).parent / "training").is_dir()
    taken, started = 0, 0.0

    def pause(*_: object) -> None:
        nonlocal taken, started
        taken += 1
        if taken < WARM_UP_STEPS or (taken - WARM_UP_STEPS) % steps:
            return
        if taken > WARM_UP_STEPS:
            print("seconds", (time.perf_counter() - started) / steps, flush=True)
        sys.stdin.readline()
        started = time.perf_counter()

    register_optimizer_step_post_hook(pause)
    words = []
    for setting in (*TRAINING, *settings):
        path, _, value = setting.partition("=")
        if path == "model":
            words += ["--model", value]
        else:
            words += ["--set", f"{OLD_SETTINGS.get(path, path) if is_old else path}={value}"]
    recipe = [] if data == "sample" else ["--recipe", "small_hundreds"]
    main(["train", data, *recipe, "--out", f"{mkdtemp(dir=home)}/run", *words])


def seconds_of(tree: Tree, home: Path, words: Sequence[str]) -> float:
    """Seconds of a whole command."""
    started = time.perf_counter()
    subprocess.run(tree.command(*words), check=True, cwd=home, env=tree.environment(home), capture_output=True)
    return time.perf_counter() - started


def seconds_to_answer(tree: Tree, home: Path, words: Sequence[str]) -> float:
    """Seconds from the start of a command to its first line of output."""
    quiet = subprocess.DEVNULL
    started = time.perf_counter()
    with subprocess.Popen(
        tree.command(*words), stdout=subprocess.PIPE, stderr=quiet, cwd=home, env=tree.environment(home)
    ) as process:
        assert process.stdout
        first = process.stdout.readline()
        seconds = time.perf_counter() - started
        process.stdout.read()
    if process.returncode or not first:
        raise RuntimeError(f"{tree.name}: vitral {' '.join(words)} ended with exit code {process.returncode}")
    return seconds


class Plan(NamedTuple):
    """How long to measure: workers are started anew for every heat, since each has its own luck with memory."""

    heats: int
    rounds: int  # in each heat
    commands: int  # rounds of whole commands


def compare_workers(name: str, trees: Sequence[Tree], home: Path, words: Sequence[Sequence[str]], plan: Plan) -> Result:
    """Turns of a worker of each tree; the first turn of a heat warms up and is not counted."""
    seconds: list[list[float]] = [[], []]
    for _ in range(plan.heats):
        with ExitStack() as stack:
            workers = []
            for tree, each in zip(trees, words, strict=True):
                workers.append(TimingWorker(tree, home, each))
                stack.callback(workers[-1].stop)
                workers[-1].turn()
            for number in range(plan.rounds):
                for index in (0, 1) if number % 2 else (1, 0):
                    seconds[index].append(workers[index].turn())
    return Result(name, *seconds)


def compare_commands(name: str, calls: Sequence[Callable[[], float]], rounds: int) -> Result:
    """Turns of a whole command of each tree; the first one is not counted: it reads files and fills caches."""
    seconds: list[list[float]] = [[], []]
    for number in range(1 + rounds):
        for index in (0, 1) if number % 2 else (1, 0):
            found = calls[index]()
            if number:
                seconds[index].append(found)
    return Result(name, *seconds)


def compare(trees: Sequence[Tree], home: Path, plan: Plan, only: str) -> Iterator[Result]:
    """Every kind of work whose name has the text in it."""
    for run in RUNS:
        if only in run:
            yield compare_workers(run, trees, home, [["train", run, str(home)]] * 2, plan)
    for model in MODELS:
        for batch in BATCHES:
            name = f"inference {model}, batch {batch}"
            if only in name:
                file = str(home / f"{model.replace('/', '')}.safetensors")
                yield compare_workers(name, trees, home, [["infer", file, str(batch)]] * 2, plan)
    small, base = str(home / "S16.safetensors"), str(home / "B16.safetensors")
    photo = str(home / "predicted/0000.jpg")
    commands: dict[str, tuple[Callable[..., float], list[str]]] = {
        f"predict S/16, {PREDICTED} photos in files": (
            seconds_of,
            ["predict", small, "predicted", "--format", "jsonl"],
        ),
        "start to first answer, B/16": (seconds_to_answer, ["predict", base, photo]),
        "vitral --help": (seconds_of, ["--help"]),
        "vitral train --help": (seconds_of, ["train", "--help"]),
    }
    for name, (measure, command) in commands.items():
        if only in name:
            calls = [partial(measure, tree, home, command) for tree in trees]
            yield compare_commands(name, calls, plan.commands)


def write_files(home: Path) -> None:
    """Photos in class folders to train on, photos to predict, and models with random weights as timm writes them."""
    from safetensors.torch import save_file

    from benchmarks.photos import jpeg

    photos = [jpeg(375, 500, seed) for seed in range(DISTINCT)]
    for index in range(PHOTOS + 64):
        split = "train" if index < PHOTOS else "val"
        path = home / "photos" / split / f"class{index % 4}" / f"{index:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photos[index % DISTINCT])
    (home / "predicted").mkdir()
    for index in range(PREDICTED):
        (home / f"predicted/{index:04}.jpg").write_bytes(photos[index % DISTINCT])
    for name, width in MODELS.items():
        save_file(timm_weights(width), home / f"{name.replace('/', '')}.safetensors")


def timm_weights(width: int, depth: int = 12, classes: int = 1000) -> dict[str, Any]:
    """Random weights of a ViT of patch 16 at 224 pixels, named as timm names them."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 197, width),
        "patch_embed.proj.weight": (width, 3, 16, 16),
        "patch_embed.proj.bias": (width,),
    }
    for index in range(depth):
        for layer, rows, columns in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 4 * width, width),
            ("mlp.fc2", width, 4 * width),
        ):
            shapes[f"blocks.{index}.{layer}.weight"] = (rows, columns)
            shapes[f"blocks.{index}.{layer}.bias"] = (rows,)
    shapes |= {"head.weight": (classes, width), "head.bias": (classes,)}
    tensors = {name: 0.02 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    norms = [f"blocks.{index}.norm{which}" for index in range(depth) for which in (1, 2)]
    for norm in (*norms, "norm"):
        tensors |= {f"{norm}.weight": torch.ones(width), f"{norm}.bias": torch.zeros(width)}
    return tensors


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        kind, first, second = sys.argv[2:]
        if kind == "infer":
            serve_inference(first, int(second))
        else:
            serve_training(first, second)
        return
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.before", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the other tree, with its .venv")
    parser.add_argument("--quick", action="store_true", help="one heat of three rounds: a look, not a measurement")
    parser.add_argument("--heats", type=int, default=3, help="times that every worker is started anew")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each tree in a heat")
    parser.add_argument("--only", default="", metavar="TEXT", help="work with this in its name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every measurement there")
    given = parser.parse_args()
    plan = Plan(1, 3, 3) if given.quick else Plan(given.heats, given.rounds, given.heats * given.rounds)
    trees = [Tree("new", HERE), Tree("old", given.checkout.resolve())]
    for tree in trees:
        if not (tree.root / ".venv/bin/python").exists():
            parser.error(f"{tree.root} has no .venv")
    results = []
    print(f"{'seconds of one step, call or command':<40} {'new':>9} {'old':>9}   new / old (middle half, rounds)")
    with TemporaryDirectory() as folder:
        write_files(Path(folder))
        for result in compare(trees, Path(folder), plan, given.only):
            results.append(result)
            print(result.line(), flush=True)
            if given.json:
                given.json.write_text(json.dumps([each.record() for each in results], indent=1) + "\n")
    slower = [each.name for each in results if each.ratios()[1] > LIMIT]
    print(f"{len(results) - len(slower)} of {len(results)} within {LIMIT} of the old seconds")


if __name__ == "__main__":
    main()

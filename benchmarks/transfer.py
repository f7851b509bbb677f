"""`python -m benchmarks.transfer [--root FOLDER] [--seeds 0 1 2]`: what pre-training is worth on 1,000 other images.

A small ViT is pre-trained on 20,000 images of Fashion-MNIST. 1,000 digits of MNIST are then learnt from scratch, by a
linear probe of the frozen features, by fine-tuning with the recipe that `--from` chooses, and by fine-tuning at a
higher resolution. Each is tested on the 10,000 test images of MNIST, and each seed has a pre-training of its own.
"""

import argparse
import logging
import time
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from statistics import mean, stdev
from tempfile import mkdtemp

import vitral
from benchmarks.__main__ import machine, say
from vitral.data.loader.subset import subset
from vitral.data.sources.source import open_data
from vitral.evaluate.linear import LinearFound

PRETRAINED, KNOWN = 20_000, 1_000  # of the 60,000 training images of each set
SCRATCH = 100  # epochs
LARGE = 42  # pixels across, of 28


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default="", help="where MNIST is, if not in a usual place")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=15, help="of pre-training")
    given = parser.parse_args()
    logging.getLogger("vitral").setLevel(logging.ERROR)
    print(machine(), flush=True)
    found: dict[str, list[float]] = {}
    home = Path(mkdtemp(prefix="vitral-transfer-"))
    try:
        for seed in given.seeds:
            for name, right in judged(home / str(seed), given.root, seed, given.epochs).items():
                found.setdefault(name, []).append(100 * right)
    finally:
        rmtree(home, ignore_errors=True)
    print(f"right on the 10,000 test images, %, seeds {', '.join(map(str, given.seeds))}:")
    for name, rights in found.items():
        spread = f" +- {stdev(rights):.2f}" if len(rights) > 1 else ""
        print(f"  {name:<26} {mean(rights):.2f}{spread}   ({', '.join(f'{right:.2f}' for right in rights)})")


def judged(home: Path, root: str, seed: int, epochs: int) -> dict[str, float]:
    """The share of right answers of each way, for one seed."""
    start = str(home / "pretrained")
    timed("pre-trained", lambda: fresh("fashion-mnist", "", start, PRETRAINED, seed, epochs))
    ways: dict[str, Callable[[], float]] = {
        "from scratch": lambda: fresh("mnist", root, str(home / "scratch"), KNOWN, seed, SCRATCH),
        "linear probe": lambda: probed(start, root, seed),
        "fine-tuned": lambda: tuned(start, root, str(home / "tuned"), seed),
        f"fine-tuned at {LARGE} pixels": lambda: tuned(start, root, str(home / "large"), seed, f"image={LARGE}"),
    }
    return {name: timed(name, way) for name, way in ways.items()}


def timed(name: str, way: Callable[[], float]) -> float:
    began = time.perf_counter()
    right = way()
    say(f"{name}: {100 * right:.2f} % after {time.perf_counter() - began:.0f} s")
    return right


def fresh(data: str, root: str, out: str, images: int, seed: int, epochs: int) -> float:
    """From fresh weights, by the recipe for few images of Fashion-MNIST."""
    settings = (f"epochs={epochs}", "evaluate=1000", f"data.share={images / 60_000}", f"seed={seed}")
    return top1(vitral.train(data, *settings, recipe="fashion_tenth", root=root, out=out))


def tuned(start: str, root: str, out: str, seed: int, *settings: str) -> float:
    """From weights, by the recipe that is chosen for them."""
    usual = (f"from={start}", f"seed={seed}", f"data.share={KNOWN / 60_000}", "evaluate=1000")
    return top1(vitral.train("mnist", *usual, *settings, root=root, out=out))


def probed(start: str, root: str, seed: int) -> float:
    samples = subset(open_data("mnist", root=root), KNOWN / 60_000, seed=0)
    found = vitral.evaluate(start, samples, f"seed={seed}", with_=("linear",)).found[0]
    assert isinstance(found, LinearFound)
    return found.top1


def top1(run: vitral.Run) -> float:
    assert run.judgement is not None
    return run.judgement.accuracy.top1


if __name__ == "__main__":
    main()

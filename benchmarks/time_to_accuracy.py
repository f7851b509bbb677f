"""`python -m benchmarks.time_to_accuracy [--root FOLDER]`: seconds to 90% on Fashion-MNIST, vitral against timm.

Ours is the recipe `fashion_mnist` as it stands. The other is a plain loop around timm's VisionTransformer of the same
shape, with timm's optimizer and schedule at their usual settings, the images in memory, and the same crops by
torchvision. Both train for as many epochs in batches of the same size, an epoch each in turn, and are tested after each
on all 10,000 images; the tests are part of the time. Needs the environment of `make bench`.
"""

import argparse
import atexit
import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.__main__ import machine, say
from benchmarks.stepwise_run import StepwiseRun
from vitral.data.datasets.arrays import ArrayStore, load_once
from vitral.data.samples import Samples
from vitral.data.transforms.crop import RandomResizedCrop
from vitral.models.attention import Attention
from vitral.models.vit import Vit
from vitral.recipes.recipe import Epochs, Recipe
from vitral.runs.bench import TimingProcess
from vitral.runs.request import RunRequest, resolve
from vitral.training.metrics import read_metrics
from vitral.weights.oracles.torchvision_stub import import_torchvision

GOAL = 0.9  # of the images
ENGINES = ("vitral", "timm")
# timm's usual settings for a ViT; its rate for AdamW follows the root of the batch, from 1e-3 at 256.
RATE, RATE_BATCH, DECAY, SMOOTHING, WARMUP = 1e-3, 256, 0.05, 0.1, 5

Epoch = Callable[[], float]  # an epoch of training, then the accuracy


class Point(NamedTuple):
    """How far a run has come after an epoch."""

    seconds: float  # since its first step
    accuracy: float


def wished(root: str, epochs: int) -> tuple[Recipe, Samples]:
    """Our recipe and its data; 0 epochs are as many as it has itself."""
    settings = {"device": "cpu", "eval_every": 1, "root": root} | ({"epochs": epochs} if epochs else {})
    found = resolve(RunRequest("fashion-mnist", recipe="fashion_mnist", settings=settings))
    return found.recipe, found.samples


def our_epoch(recipe: Recipe, samples: Samples) -> Epoch:
    paced = StepwiseRun(recipe, samples)
    atexit.register(paced.close)

    def epoch() -> float:
        paced.take(paced.steps_per_epoch)
        return [line.values["accuracy"] for line in read_metrics(paced.folder.path) if line.split == "test"][-1]

    return epoch


def timm_epoch(recipe: Recipe, samples: Samples) -> Epoch:
    crop = crops(recipe)  # before timm, which would import a torchvision of its own
    images, labels = tensors(samples, "train")
    batches = -(-len(images) // recipe.batch_size)
    epochs = epochs_of(recipe)
    torch.manual_seed(recipe.seed)
    model = build_timm(recipe)
    rate = RATE * (recipe.batch_size / RATE_BATCH) ** 0.5
    optimizer = import_module("timm.optim").create_optimizer_v2(model, opt="adamw", lr=rate, weight_decay=DECAY)
    schedule = import_module("timm.scheduler").CosineLRScheduler(
        optimizer,
        t_initial=epochs * batches,
        warmup_t=min(WARMUP, epochs // 4) * batches,
        warmup_lr_init=1e-6,
        t_in_epochs=False,
    )
    steps = iter(range(epochs * batches))
    tested = tensors(samples, "test")

    def epoch() -> float:
        model.train()
        for places in torch.randperm(len(images)).split(recipe.batch_size):
            schedule.step_update(next(steps))
            shown = recipe.images.normalize.apply(torch.stack([crop(image) for image in images[places]]))
            loss = F.cross_entropy(model(shown), labels[places], label_smoothing=SMOOTHING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return accuracy(model, recipe, *tested)

    return epoch


def crops(recipe: Recipe) -> Callable[[Tensor], Tensor]:
    """The crops of the recipe, as torchvision makes them."""
    view = recipe.images.crop
    assert isinstance(view, RandomResizedCrop)
    v2 = import_torchvision("torchvision.transforms.v2")
    crop = v2.RandomResizedCrop(tuple(recipe.model.image_size), scale=view.area, ratio=view.aspect, antialias=True)
    changed: Callable[[Tensor], Tensor] = v2.Compose([crop, v2.RandomHorizontalFlip(0.5 if view.flip else 0.0)])
    return changed


def tensors(samples: Samples, part: str) -> tuple[Tensor, Tensor]:
    """All images of a part (images, 1, 28, 28), as bytes, and their labels."""
    assert isinstance(samples.store, ArrayStore)
    found = load_once(samples.store.reader, part)
    return torch.from_numpy(found.images.copy()).unsqueeze(1), torch.from_numpy(found.labels.astype("int64"))


def build_timm(recipe: Recipe) -> nn.Module:
    """timm's model of the shape that the recipe has."""
    shape = recipe.model
    assert isinstance(shape, Vit)
    assert isinstance(shape.mixer, Attention)
    model = import_module("timm.models.vision_transformer").VisionTransformer(
        img_size=tuple(shape.image_size),
        patch_size=tuple(shape.stem.patch),
        in_chans=shape.channels,
        embed_dim=shape.width,
        depth=shape.depth,
        num_heads=shape.mixer.heads,
        num_classes=10,
        class_token=shape.tokens.cls,
        global_pool="token" if shape.tokens.cls else "avg",
    )
    assert isinstance(model, nn.Module)
    return model


@torch.inference_mode()
def accuracy(model: nn.Module, recipe: Recipe, images: Tensor, labels: Tensor) -> float:
    model.eval()
    pairs = zip(images.split(recipe.batch_size), labels.split(recipe.batch_size), strict=True)
    right = sum(
        int((model(recipe.images.normalize.apply(some)).argmax(dim=1) == message).sum()) for some, message in pairs
    )
    return right / len(labels)


def epochs_of(recipe: Recipe) -> int:
    assert isinstance(recipe.length, Epochs)
    return round(recipe.length.epochs)


def work(engine: str, root: str, epochs: str) -> None:
    """The process of an engine: an epoch for each line that comes in."""
    recipe, samples = wished(root, int(epochs))
    epoch = {"vitral": our_epoch, "timm": timm_epoch}[engine](recipe, samples)
    for _ in sys.stdin:
        started = time.perf_counter()
        reached = epoch()
        print(json.dumps([time.perf_counter() - started, reached]), flush=True)


def raced(root: str, epochs: int) -> dict[str, list[Point]]:
    """The curve of each engine, up to the epoch in which the last of them reaches the goal."""
    total = epochs_of(wished(root, epochs)[0])
    runners = {
        name: TimingProcess(name, ["benchmarks.time_to_accuracy", "--work", name, root, str(epochs)])
        for name in ENGINES
    }
    curves: dict[str, list[Point]] = {name: [] for name in ENGINES}
    try:
        for number in range(total):
            for name in ENGINES if number % 2 else reversed(ENGINES):
                seconds, reached = runners[name].measure()
                before = curves[name][-1].seconds if curves[name] else 0.0
                curves[name].append(Point(before + seconds, reached))
                say(f"epoch {number + 1} of {total}: {name} {100 * reached:.2f}% after {before + seconds:.0f} s")
            if all(curve[-1].accuracy >= GOAL for curve in curves.values()):
                break
    finally:
        for runner in runners.values():
            runner.stop()
    return curves


def seconds_to(level: float, curve: Sequence[Point]) -> float:
    """When a curve came to a level first; it must have."""
    return next(point.seconds for point in curve if point.accuracy >= level)


def measure(root: str = "", epochs: int = 0) -> str:
    """The curves, and the ratio of the seconds to 90%, or to the best that both reach."""
    if not find_spec("timm"):
        return "seconds to 90% on Fashion-MNIST: NOT measured, for want of timm; use the Python of `make bench`"
    curves = raced(root, epochs)
    best = {name: max(point.accuracy for point in curve) for name, curve in curves.items()}
    level = min(GOAL, *best.values())
    lines = ["seconds to 90% on Fashion-MNIST, an evaluation after each epoch:"]
    for name, curve in curves.items():
        points = ", ".join(f"{100 * point.accuracy:.2f}% {point.seconds:.0f} s" for point in curve)
        lines.append(f"  {name:<7} {points}")
    for name, reached in best.items():
        if reached < GOAL:
            lines.append(f"  {name} does not come to 90% in {len(curves[name])} epochs: {100 * reached:.2f}% at best")
    ours, theirs = (seconds_to(level, curves[name]) for name in ENGINES)
    lines.append(
        f"  to {100 * level:.2f}%: vitral {ours:.0f} s, timm {theirs:.0f} s; "
        f"ours takes {ours / theirs:.2f} x the seconds of timm"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default="", help="where Fashion-MNIST is, if not in a usual place")
    parser.add_argument("--epochs", type=int, default=0, help="of both; as many as the recipe has if 0")
    given = parser.parse_args()
    print(machine())
    print(measure(given.root, given.epochs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
    else:
        main()

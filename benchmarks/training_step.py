"""The training loop against the bare step, and two processes against two threads: a suite for `benchmarks.compare`.

The loop is a whole run but for its evaluations: images from memory through the loader, the clipped gradient, the
average, the record of every step, progress, checkpoints as often as a recipe asks for by the clock, which does not rest
while others have their turn. The bare step is the forward pass, the backward pass and the step of the optimizer, with
one batch, ready to be used, again and again. Both see all patches of images of the full size.
"""

import atexit
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.compare import Case, start_engine
from benchmarks.random_dataset import open_noise
from benchmarks.stepwise_run import StepwiseRun
from vitral.core.config import override
from vitral.core.machine import keep_freed_memory
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import get_recipe
from vitral.runs.build import build_run
from vitral.tasks.classify import Classify, Softmax
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.loop import microbatches

BARE, NO_WORKER, ONE_WORKER = "bare step", "no worker", "one worker"
TWO_PROCESSES, ONE_PROCESS, SECOND = "two processes of one thread", "one process of two threads", "the second of two"
LOOP = (NO_WORKER, ONE_WORKER, BARE)
# A turn is an epoch, so that after the warming up all images are in memory.
SAMPLE_STEPS, CIFAR_BATCH, CIFAR_STEPS = 100, 128, 10
SAMPLE = Case("loop at the sample's size, batch 50", SAMPLE_STEPS * 50, 1 / 1.15, LOOP, (BARE,))
CIFAR = Case("loop at CIFAR-10's size, batch 128", CIFAR_STEPS * CIFAR_BATCH, 1 / 1.05, LOOP, (BARE,))
PROCESSES = Case(
    "processes at CIFAR-10's size, batch 128",
    CIFAR_STEPS * CIFAR_BATCH,
    0.9,
    (TWO_PROCESSES, ONE_PROCESS),
    (ONE_PROCESS,),
)
CASES = (SAMPLE, CIFAR, PROCESSES)
# So few steps that each of them is recorded.
SETTINGS = (
    "precision=float32",
    "device=cpu",
    "length=steps",
    "length.steps=5000",
    "images.size=fixed",
    "task.patch_drop=none",
)


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """A turn of the case."""
    steps = SAMPLE_STEPS if case == SAMPLE else CIFAR_STEPS
    recipe, samples = sample() if case == SAMPLE else cifar()
    if engine == BARE:
        return bare(recipe, samples, steps)
    if engine == TWO_PROCESSES:
        return together(recipe, samples, steps)
    if case == PROCESSES:
        torch.set_num_threads(1 if engine == SECOND else 2)
    paced = StepwiseRun(override(recipe, [f"workers={int(engine == ONE_WORKER)}"]), samples)
    atexit.register(paced.close)
    return partial(paced.take, steps)


def sample() -> tuple[Recipe, Samples]:
    """The recipe for the bundled images, with those to train on."""
    return only_training("sample", open_data("sample"))


def cifar() -> tuple[Recipe, Samples]:
    """The recipe for CIFAR-10, with an epoch of noise."""
    return only_training("cifar10", open_noise(CIFAR_BATCH * CIFAR_STEPS))


def only_training(name: str, samples: Samples) -> tuple[Recipe, Samples]:
    """Without images to test with there is no evaluation."""
    recipe = override(get_recipe(name), SETTINGS).with_classes(len(samples.classes))
    return recipe, replace(samples, items=samples.of("train"))


def bare(recipe: Recipe, samples: Samples, steps: int) -> Callable[[], object]:
    """The same model, loss and optimizer, and nothing around them."""
    keep_freed_memory()
    parts = build_run(override(recipe, ["workers=0"]), samples, ProcessGroup(torch.device("cpu")))
    model, optimizer = parts.model.train(), parts.state.optimizer
    batch = next(microbatches(parts.loader, 0, 1, parts.microbatch_config))[0]
    assert isinstance(recipe.task, Classify)
    assert isinstance(recipe.task.loss, Softmax)
    smoothing = recipe.task.loss.smoothing

    def turn() -> None:
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(batch.images), batch.labels, label_smoothing=smoothing).backward()
            optimizer.step()

    return turn


def together(recipe: Recipe, samples: Samples, steps: int) -> Callable[[], object]:
    """This process as the first of two, with the other one started and paced by it: what torchrun would start."""
    torch.set_num_threads(1)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    second = start_engine("benchmarks.training_step", PROCESSES, SECOND, RANK="1", **world)
    os.environ.update(world, RANK="0")
    stack = ExitStack()
    atexit.register(stack.close)
    stack.callback(second.stop)
    paced = StepwiseRun(override(recipe, ["workers=0"]), samples)
    stack.callback(paced.close)
    stack.callback(second.close_stdin)  # the first to be done: the two leave their group together

    def turn() -> None:
        second.request()
        paced.take(steps)
        second.result()

    return turn

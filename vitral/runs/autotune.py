"""Fit a recipe to the memory and the load of the machine, and estimate what a run costs beside its steps."""

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vitral.core.config import override
from vitral.core.machine import available_memory, other_running_threads
from vitral.data.samples import Samples
from vitral.html.page import plural
from vitral.models.embed import Patches
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe
from vitral.runs.build import build_eval_loader, build_run, build_task, cache_bytes, first_split, local_processes
from vitral.training.budget import plan_memory
from vitral.training.callbacks import evaluate
from vitral.training.checkpoints.state import TrainingState
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.loop import MicrobatchConfig, microbatches
from vitral.training.precision import Precision, probe_hardware

log = logging.getLogger("vitral")
TRIAL_IMAGES = 16  # in a batch that is timed
TRIAL_ROUNDS = 2
BUSY = 0.5  # other threads that run, on average
CLEARLY_FASTER = 0.7  # of the time with all threads: a smaller gain is left, so that runs stay alike
STEP_COST = 3  # of a training step, in evaluations of its images
FINISH_SECONDS = 1.5  # for the bundles and the report
ESTIMATE_LIMIT = 0.1  # of the free memory: below it no exact plan is needed
MAX_OUTPUTS = 25_000  # of a head
BYTES = 4  # of a float32
CACHE_SHARE = 4  # the part of the free memory that decoded images take at most: one in so many


def fit_memory(recipe: Recipe, samples: Samples, group: ProcessGroup) -> Recipe:
    """Split the batches of the recipe into as many microbatches as the free memory requires.

    On a CPU the cache of decoded images is in the same memory: it is counted, and takes at most a quarter.
    """
    free = available_memory(group.device)
    if group.device.type == "cpu":
        if recipe.data.cache_bytes > free // CACHE_SHARE:  # changes no bit, so processes need not agree
            recipe = override(recipe, [f"data.cache_bytes={free // CACHE_SHARE}"])
        free = free // local_processes() - cache_bytes(recipe)
    rows = -(-recipe.batch_size // group.world.size)
    is_tight = estimate_bytes(recipe, rows) >= ESTIMATE_LIMIT * free
    if not group.any(is_tight):  # in all processes or none: some may have less memory
        return recipe
    precision = Precision(recipe.precision.decide(probe_hardware(group.device)).dtype, group.device)
    shape = (recipe.model.channels, *recipe.model.image_size)
    plan = plan_memory(build_task(recipe, samples, group.device), shape, rows, free, precision)
    count = group.max(plan.microbatches)
    if count <= recipe.microbatches:
        return recipe
    if group.is_main:
        other = f"another process has less memory: splitting a batch into {count:,} microbatches"
        log.info(plan.message if plan.microbatches == count else other)
    return override(recipe, [f"microbatches={count}"])


def estimate_bytes(recipe: Recipe, rows: int) -> float:
    """A rough upper bound of the bytes of a step, without running the model; infinite for other than plain patches."""
    model = recipe.model
    if not isinstance(model, Vit) or not isinstance(model.stem, Patches):
        return float("inf")
    tokens = model.layout(model.image_size).length()
    ends = model.channels * model.stem.patch.height * model.stem.patch.width + MAX_OUTPUTS
    weights = model.width * (16 * model.depth * model.width + ends)
    activations = tokens * model.depth * (40 * model.width + 2 * tokens * max(1, model.width // 16))
    return BYTES * (10 * weights + rows * activations)


def fix_threads(recipe: Recipe, samples: Samples, group: ProcessGroup) -> Recipe:
    """Use the recipe's number of threads, or choose one for all processes and record it: sums depend on it."""
    if group.device.type != "cpu":
        return recipe
    chosen = recipe.threads
    threads = group.run_on_main(lambda: choose_threads(recipe, samples)) if chosen == "auto" else chosen
    assert isinstance(threads, int)
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    return override(recipe, [f"threads={threads}"])


def choose_threads(recipe: Recipe, samples: Samples) -> int:
    """The default number of threads; if other processes are running, a smaller one that is clearly faster in a trial.

    Threads of OpenMP wait for each other after every operation: one whose core is taken stops all of them.
    """
    most = torch.get_num_threads()
    if most == 1 or (others := other_running_threads()) < BUSY:
        return most
    seconds = time_threads(recipe, samples, [most >> halvings for halvings in range(most.bit_length())])
    best = min(seconds, key=lambda threads: seconds[threads])
    chosen = best if seconds[best] < CLEARLY_FASTER * seconds[most] else most
    trial = ", ".join(f"{1000 * spent:.0f} ms with {threads}" for threads, spent in seconds.items())
    log.info(f"{others:.1f} other threads are running: training with {plural(chosen, 'thread')}; a trial took {trial}")
    return chosen


def time_threads(recipe: Recipe, samples: Samples, candidates: Sequence[int]) -> dict[int, float]:
    """The seconds of a forward pass of a few images with each number of threads: the shortest of a few."""
    count = min(recipe.batch_size, TRIAL_IMAGES)
    labels = torch.zeros(count, dtype=torch.int64)  # (B,)
    images = torch.zeros(count, recipe.model.channels, *recipe.model.image_size)  # (B, C, H, W)
    found: dict[int, list[float]] = {threads: [] for threads in candidates}
    before = torch.get_num_threads()
    try:
        with torch.random.fork_rng(devices=()), torch.no_grad():
            task = build_task(recipe, samples, torch.device("cpu"))
            torch.set_num_threads(1)
            task(images, labels, np.random.default_rng(0))  # allocates memory
            for threads in [*candidates] * TRIAL_ROUNDS:
                torch.set_num_threads(threads)
                started = time.perf_counter()
                task(images, labels, np.random.default_rng(0))
                found[threads].append(time.perf_counter() - started)
    finally:
        torch.set_num_threads(before)
    return {threads: min(seconds) for threads, seconds in found.items()}


class CostEstimate(NamedTuple):
    """Seconds of what comes before and after the steps of a run."""

    evaluation: float  # on the validation images, or the test images
    finish: float  # the final evaluation, the bundles and the report
    least: float  # all of it, with one step


def estimate_costs(
    recipe: Recipe, samples: Samples, group: ProcessGroup, state: TrainingState | None = None
) -> CostEstimate:
    """Estimate the costs of a run beside its steps by evaluating a few images. A collective."""
    state = state or build_run(recipe, samples, group).state
    split = first_split(samples, "val", "test") or "train"
    few = recipe.model_copy(update={"batch_size": TRIAL_IMAGES, "microbatches": 1, "workers": 0})
    loader = build_eval_loader(few, samples, split, group.world)
    config = MicrobatchConfig(recipe.images.normalize, 1, group.device)
    for batch in range(min(2, loader.plan.steps_per_epoch)):  # the first one warms up
        started = time.perf_counter()
        evaluate(state, microbatches(loader, batch, batch + 1, config))
        image = (time.perf_counter() - started) / loader.plan.num_images(batch)
    evaluation = image * len(samples.of(split)) if split != "train" else 0.0
    final = image * len(samples.of(first_split(samples, "test", "val") or "val")) + FINISH_SECONDS
    fitting = image * len(samples.of("train")) if recipe.finetune.needs_train_images else 0.0
    start = evaluation if recipe.weights else 0.0
    step = STEP_COST * image * recipe.batch_size
    return CostEstimate(evaluation, final, fitting + start + step + evaluation + final)

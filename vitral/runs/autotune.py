"""Fit a recipe to the memory of the machine and to a time limit."""

import logging
import time

from vitral.core.config import override
from vitral.core.machine import available_memory
from vitral.data.samples import Samples, Split
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe
from vitral.runs.build import (
    RunParts,
    build_eval_loader,
    build_run,
    build_task,
    cache_bytes,
    first_split,
    local_processes,
)
from vitral.training.budget import measure_seconds, plan_memory, steps_within
from vitral.training.callbacks import evaluate
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.loop import microbatches, train
from vitral.training.precision import Precision, probe_hardware
from vitral.training.progress import format_duration

log = logging.getLogger("vitral")
TRIAL_SECONDS = 5.0  # for timing steps
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
    """A rough upper bound of the bytes of a step, without running the model; infinite for a ResNet."""
    model = recipe.model
    if not isinstance(model, Vit):
        return float("inf")
    tokens = model.layout(model.image_size).length()
    ends = model.channels * model.stem.patch.height * model.stem.patch.width + MAX_OUTPUTS
    weights = model.width * (16 * model.depth * model.width + ends)
    activations = tokens * model.depth * (40 * model.width + 2 * tokens * max(1, model.width // 16))
    return BYTES * (10 * weights + rows * activations)


def fit_time(recipe: Recipe, samples: Samples, group: ProcessGroup, limit: float, began: float) -> Recipe:
    """Set the length of the recipe to the steps that fit into `limit` seconds from `began` on.

    A few steps are timed, and their result is discarded.
    """
    trial = override(recipe, ['length={"kind":"steps","steps":1000000}'])  # so that its schedule fits
    parts = build_run(trial, samples, group)
    batches = microbatches(parts.loader, 0, parts.steps, parts.microbatch_config)
    step = measure_seconds(
        lambda: train(parts.strategy.module, batches, parts.update_rule, 0, 1, []),
        group.device,
        lambda seconds: group.any(seconds > TRIAL_SECONDS),
    )
    batches.close()
    split = first_split(samples, "val", "test")
    evaluation = _seconds_over(parts, split, group) if split else 0.0
    probing = _seconds_over(parts, "train", group) if recipe.finetune.needs_train_images else 0.0
    every = max(1, round(recipe.eval_every * parts.plan.steps_per_epoch))
    spent = time.monotonic() - began + probing + 2 * evaluation  # the final evaluation is one more
    steps = group.broadcast(steps_within(limit, spent, step, evaluation, every))
    assert isinstance(steps, int)
    epochs = steps / parts.plan.steps_per_epoch
    if group.is_main:
        log.info(f"a step takes {step:.3g} s: {steps:,} steps ({epochs:.3g} epochs) fit into {format_duration(limit)}")
    return override(recipe, [f'length={{"kind":"steps","steps":{steps}}}'])


def _seconds_over(parts: RunParts, split: Split, group: ProcessGroup) -> float:
    """The seconds of an evaluation of a split, estimated from a few of its batches."""
    loader = build_eval_loader(parts.recipe, parts.samples, split, group.world)
    batches = min(3, loader.plan.steps_per_epoch)
    started = time.perf_counter()
    evaluate(parts.state, microbatches(loader, 0, batches, parts.microbatch_config))
    return (time.perf_counter() - started) / batches * loader.plan.steps_per_epoch

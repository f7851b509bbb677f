"""Fitting a recipe to the machine: to its memory, and to the time that the user has."""

import logging
import os
import time

from vitral.core.config import override
from vitral.core.memory import available
from vitral.data.samples import Samples, Split
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe
from vitral.runs.build import Parts, parts_of, still_loader_of, task_of
from vitral.runs.session import watched_split
from vitral.training.budget import fit, seconds_for, steps_within
from vitral.training.callbacks import watched
from vitral.training.distributed.process_group import Group
from vitral.training.loop import feed, train
from vitral.training.precision import Precision, probe
from vitral.training.progress import duration

log = logging.getLogger("vitral")
TRIAL = 5.0  # seconds for timing steps
PLAIN = 0.1  # of the memory that is free: what surely takes less need not be counted
MOST_OUTPUTS = 25_000  # of a head
BYTES = 4  # of a float32


def fitted_in_memory(recipe: Recipe, samples: Samples, group: Group) -> Recipe:
    """The recipe with its batches taken in as many portions as the memory asks for."""
    neighbors = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if group.device.type == "cpu" else 1
    free = available(group.device) // neighbors
    rows = -(-recipe.batch_size // group.world.size)
    if not group.any(rough_need(recipe, rows) >= PLAIN * free):  # all count, or none: some may have less memory
        return recipe
    precision = Precision(recipe.precision.decide(probe(group.device)).dtype, group.device)
    shape = (recipe.model.channels, *recipe.model.image_size)
    found = fit(task_of(recipe, samples, group.device), shape, rows, free, precision)
    portions = group.most(found.portions)
    if portions <= recipe.microbatches:
        return recipe
    if group.first:
        less = f"another process has less memory: a batch is taken in {portions:,} portions"
        log.info(found.words if found.portions == portions else less)
    return override(recipe, [f"microbatches={portions}"])


def rough_need(recipe: Recipe, rows: int) -> float:
    """More bytes than a step takes, by a rule of thumb that needs no run of the model; endless for a ResNet."""
    model = recipe.model
    if not isinstance(model, Vit):
        return float("inf")
    tokens = model.layout(model.image_size).length()
    ends = model.channels * model.stem.patch.height * model.stem.patch.width + MOST_OUTPUTS
    weights = model.width * (16 * model.depth * model.width + ends)
    activations = tokens * model.depth * (40 * model.width + 2 * tokens * max(1, model.width // 16))
    return BYTES * (10 * weights + rows * activations)


def fitted_in_time(recipe: Recipe, samples: Samples, group: Group, limit: float, began: float) -> Recipe:
    """The recipe with as many steps as fit into so many seconds from a moment on, whatever its own length is.

    A few steps are taken, and thrown away, to see how long one takes.
    """
    trial = override(recipe, ['length={"kind":"steps","steps":1000000}'])  # so that its schedule fits
    parts = parts_of(trial, samples, group)
    batches = feed(parts.loader, 0, parts.steps, parts.serving)
    step = seconds_for(
        lambda: train(parts.spread.module, batches, parts.descent, 0, 1, []),
        group.device,
        lambda seconds: group.any(seconds > TRIAL),
    )
    batches.close()
    split = watched_split(samples)
    evaluation = _seconds_over(parts, split, group) if split else 0.0
    looking = _seconds_over(parts, "train", group) if recipe.finetune.looks else 0.0
    every = max(1, round(recipe.eval_every * parts.plan.epoch_steps))
    spent = time.monotonic() - began + looking + 2 * evaluation  # the last word on the best weights is another one
    steps = group.share(steps_within(limit, spent, step, evaluation, every))
    assert isinstance(steps, int)
    epochs = steps / parts.plan.epoch_steps
    if group.first:
        log.info(f"a step takes {step:.3g} s: {steps:,} steps ({epochs:.3g} epochs) fit into {duration(limit)}")
    return override(recipe, [f'length={{"kind":"steps","steps":{steps}}}'])


def _seconds_over(parts: Parts, split: Split, group: Group) -> float:
    """How long it takes to answer every image of a split, from a few of its batches."""
    loader = still_loader_of(parts.recipe, parts.samples, split, group.world)
    some = min(3, loader.plan.epoch_steps)
    started = time.perf_counter()
    watched(parts.learning, feed(loader, 0, some, parts.serving))
    return (time.perf_counter() - started) / some * loader.plan.epoch_steps

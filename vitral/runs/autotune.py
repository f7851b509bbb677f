"""Fit a recipe to the memory and the load of the machine, estimate what a run costs, and plan its fine-tuning by it."""

import logging
import time
from collections.abc import Callable, Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.core.config import override
from vitral.core.machine import available_memory, other_running_threads
from vitral.data.loading.sampler import SamplingPlan
from vitral.data.samples import Samples
from vitral.data.transforms.mixup import NoMixing
from vitral.html.page import plural
from vitral.models.embed import Convolutions, Patches, projected_values
from vitral.models.vit import Vit
from vitral.recipes.recipe import FixedSize, ImagesSeen, PlannedSteps, Recipe, Steps, TimeLimit, needs_whole_batch
from vitral.runs.build import (
    build_eval_loader,
    build_loader,
    build_run,
    build_task,
    cache_bytes,
    first_split,
    local_processes,
    token_bytes,
)
from vitral.tasks.classify import Classify, NoPatchDrop
from vitral.training.budget import plan_memory
from vitral.training.callbacks import evaluate
from vitral.training.checkpoints.state import TrainingState
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import Fsdp
from vitral.training.finetune import Staged, TuningStage
from vitral.training.loop import MicrobatchConfig, microbatches
from vitral.training.precision import Precision, probe_hardware
from vitral.training.progress import format_duration
from vitral.training.stage_plan import MAX_VIEWS, StageCosts, StagePlan, plan_epochs
from vitral.training.time_limit import MAX_STEPS

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
CACHE_SHARE = 4  # the part of the free memory that decoded images, or tokens, take at most: one in so many
MIN_EPOCHS = 5  # of all layers that must fit into a time limit, if they are to train


def fit_memory(recipe: Recipe, samples: Samples, group: ProcessGroup) -> Recipe:
    """Split the batches of the recipe into as many microbatches as the free memory requires.

    On a CPU the cache of decoded images is in the same memory: it is counted, and takes at most a quarter.
    """
    free = available_memory(group.device)
    if group.device.type == "cpu":
        if recipe.data.cache_bytes > free // CACHE_SHARE:  # changes no bit, so processes need not agree
            recipe = override(recipe, [f"data.cache_bytes={free // CACHE_SHARE}"])
        free = free // local_processes() - cache_bytes(recipe)
        free -= token_bytes(recipe, samples, max(span.stage.views for span in recipe.finetune.spans(MAX_STEPS)))
    rows = -(-recipe.batch_size // group.world.size)
    is_tight = estimate_bytes(recipe, rows) >= ESTIMATE_LIMIT * free
    if not group.any(is_tight):  # in all processes or none: some may have less memory
        return recipe
    precision = Precision(recipe.precision.decide(probe_hardware(group.device)).dtype, group.device)
    none = recipe.train_pipeline().empty_batch(0)
    shape = tuple(none.shape[1:]) if isinstance(none, Tensor) else tuple(tuple(group.shape[1:]) for group in none)
    plan = plan_memory(build_task(recipe, samples, group.device), shape, rows, free, precision)
    count = group.max(plan.microbatches)
    if count <= recipe.microbatches:
        return recipe
    if reason := recipe.task.batch_dependence():
        raise needs_whole_batch(recipe.task.kind, f"{reason}; {plan.message or 'another process has less memory'}")
    if group.is_main:
        other = f"another process has less memory: splitting a batch into {count:,} microbatches"
        log.info(plan.message if plan.microbatches == count else other)
    return override(recipe, [f"microbatches={count}"])


def estimate_bytes(recipe: Recipe, rows: int) -> float:
    """A rough upper bound of the bytes of a step, without running the model; infinite for a ResNet or a rare stem.

    It is infinite for several views of an image, too.
    """
    model = recipe.model
    if recipe.task.views > 1:
        return float("inf")
    if not isinstance(model, Vit) or not isinstance(model.stem, Patches | Convolutions):
        return float("inf")
    tokens = model.layout(model.image_size).length()
    pixels = model.stem.patch.height * model.stem.patch.width
    ends = projected_values(model.stem, model.channels) + MAX_OUTPUTS
    weights = model.width * (16 * model.depth * model.width + ends)
    activations = tokens * model.depth * (40 * model.width + 2 * tokens * max(1, model.width // 16))
    if isinstance(model.stem, Convolutions):
        widest = max(model.channels, *model.stem.widths)
        layers = len(model.stem.widths) + model.stem.same_size
        weights += 9 * layers * widest**2
        activations += 8 * tokens * pixels * widest  # each layer has at most a quarter of the positions before it
        activations += 8 * tokens * model.stem.same_size * widest
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
    log.info(f"the machine is busy (load {others:.1f}): training with {plural(chosen, 'thread')}; a trial took {trial}")
    return chosen


def time_threads(recipe: Recipe, samples: Samples, candidates: Sequence[int]) -> dict[int, float]:
    """The seconds of a forward pass of a few images with each number of threads: the shortest of a few."""
    count = min(recipe.batch_size, TRIAL_IMAGES)
    labels = torch.zeros(count, dtype=torch.int64)  # (B,)
    images = recipe.train_pipeline().empty_batch(count)
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


def estimate_image_seconds(
    recipe: Recipe,
    samples: Samples,
    group: ProcessGroup,
    state: TrainingState | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The seconds per image of evaluating a few images, the slowest of all processes. A collective."""
    state = state or build_run(recipe, samples, group).state
    split = first_split(samples, "val", "test") or "train"
    few = recipe.model_copy(update={"batch_size": TRIAL_IMAGES, "microbatches": 1, "workers": 0})
    loader = build_eval_loader(few, samples, split, group.world)
    config = MicrobatchConfig(recipe.images.normalize, 1, group.device)
    image = 0.0
    for batch in range(min(2, loader.plan.steps_per_epoch)):  # the first one warms up
        started = clock()
        evaluate(state, microbatches(loader, batch, batch + 1, config))
        image = (clock() - started) / loader.plan.num_images(batch)
    return group.max(ceil(image * 1e9)) / 1e9


def estimate_costs(
    recipe: Recipe,
    samples: Samples,
    group: ProcessGroup,
    state: TrainingState | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostEstimate:
    """Estimate the costs of a run beside its steps by evaluating a few images. A collective."""
    split = first_split(samples, "val", "test") or "train"
    image = estimate_image_seconds(recipe, samples, group, state, clock)
    evaluation = image * len(samples.of(split)) if split != "train" else 0.0
    last = samples.of(first_split(samples, "test", "val") or "val") if recipe.task.trains == "classify" else ()
    final = image * len(last) + FINISH_SECONDS
    fitting = image * len(samples.of("train")) if recipe.finetune.needs_train_images else 0.0
    start = evaluation if recipe.weights else 0.0
    step = STEP_COST * image * recipe.batch_size
    return CostEstimate(evaluation, final, fitting + start + step + evaluation + final)


def plan_stages(recipe: Recipe, samples: Samples, group: ProcessGroup) -> Recipe:
    """The recipe with its stages, which are the same in all processes. A collective if they are not planned yet."""
    finetune = recipe.finetune
    if not isinstance(finetune, Staged) or finetune.stages != "auto":
        return recipe
    plan = build_loader(recipe, samples, "train", group.world).plan
    recipe, stages = _choose_stages(recipe, finetune, samples, group, plan)
    planned = finetune.model_copy(update={"stages": stages})
    if not isinstance(recipe.length, TimeLimit):
        for span in planned.spans(recipe.length.total_steps(plan)):
            recipe.schedule.check(span.end - span.first)
    return recipe.model_copy(update={"finetune": planned})


def _choose_stages(
    recipe: Recipe, finetune: Staged, samples: Samples, group: ProcessGroup, plan: SamplingPlan
) -> tuple[Recipe, tuple[TuningStage, ...]]:
    """The stages of a recipe, and the recipe with their steps."""
    length, model = recipe.length, recipe.model
    assert isinstance(model, Vit)
    views, layers = count_views(recipe, samples, group), min(finetune.layers, model.depth)
    last, whole = TuningStage(layers=layers, views=views), TuningStage()
    if isinstance(recipe.distributed, Fsdp) or isinstance(length, PlannedSteps):
        return recipe, (whole,)  # sharded weights cannot be frozen later; a planned length is that of one stage
    if not isinstance(length, ImagesSeen | TimeLimit):  # as many steps as were asked for
        half = length.total_steps(plan) // 2
        return recipe, (last, TuningStage(first=half)) if half else (whole,)
    final = first_split(samples, "test", "val")
    costs = StageCosts(
        image=estimate_image_seconds(recipe, samples, group),
        train=len(samples.of("train")),
        val=len(samples.of("val")),
        final=len(samples.of(final)) if final else 0,
        share=layers / model.depth,
        views=views,
    )
    if isinstance(length, TimeLimit):  # which changes the steps on the way, so there is one stage
        chosen = plan_epochs(costs, length.seconds, MIN_EPOCHS, MIN_EPOCHS)
        return recipe, (whole if chosen.all_epochs else last.model_copy(update={"views": chosen.views}),)
    seconds = max(finetune.seconds, finetune.seconds_per_image * costs.train)
    most = length.total_steps(plan) / plan.steps_per_epoch
    chosen = plan_epochs(costs, seconds, min(length.min_epochs, most), most)
    _log_plan(group, layers, chosen, costs, seconds)
    steps = (chosen.last_epochs + chosen.all_epochs) * plan.steps_per_epoch
    stages = [last.model_copy(update={"views": chosen.views})]
    if chosen.all_epochs:
        stages.append(TuningStage(first=chosen.last_epochs * plan.steps_per_epoch))
    return recipe.model_copy(update={"length": Steps(steps=steps)}), tuple(stages)


def _log_plan(group: ProcessGroup, layers: int, chosen: StagePlan, costs: StageCosts, seconds: float) -> None:
    if not group.is_main:
        return
    views = f" on {plural(chosen.views, 'view')} of each image" if chosen.views else ""
    more = (
        f"{plural(chosen.all_epochs, 'epoch')} of all layers"
        if chosen.all_epochs
        else "all layers would take too long (finetune.seconds)"
    )
    log.info(
        f"an image takes {1000 * costs.image:.0f} ms, {format_duration(seconds)} are planned: the head, then "
        f"{plural(chosen.last_epochs, 'epoch')} of the last {plural(layers, 'layer')}{views}, then {more}"
    )


def count_views(recipe: Recipe, samples: Samples, group: ProcessGroup) -> int:
    """How many views of an image can be kept as tokens, at most MAX_VIEWS. A collective."""
    task = recipe.task
    plain = (
        isinstance(task, Classify) and isinstance(task.mixing, NoMixing) and isinstance(task.patch_drop, NoPatchDrop)
    )
    if not plain or not isinstance(recipe.images.size, FixedSize):
        return 0  # what changes images or patches in a step needs the images
    room = available_memory(torch.device("cpu")) // CACHE_SHARE
    fitting = max(views for views in range(MAX_VIEWS + 1) if token_bytes(recipe, samples, views) <= room or not views)
    return MAX_VIEWS - group.max(MAX_VIEWS - fitting)  # the least of any process

"""Build the components of a run from a recipe and its data."""

import math
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from vitral.core.errors import ConfigError
from vitral.core.machine import cpu_count
from vitral.core.rng import Purpose, rng_for
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Order, SamplingPlan, Sequential, World
from vitral.data.samples import Samples, Split
from vitral.evaluation.linear_probe import fit_head
from vitral.models.vit import LastBlocks, VisionTransformer, Vit
from vitral.recipes.recipe import PlannedSteps, Recipe, TimeLimit
from vitral.tasks.task import Task
from vitral.training.checkpoints.state import TrainingState
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import Strategy
from vitral.training.finetune import TrainImages, TuningStage
from vitral.training.loop import Microbatch, MicrobatchConfig, TaskHooks, UpdateRule, microbatches
from vitral.training.optimizers import ConstantDecay, build_average
from vitral.training.precision import Precision, probe_hardware
from vitral.training.progress import SetupProgress
from vitral.training.time_limit import StepPlan
from vitral.training.token_cache import TokenCache, View
from vitral.weights.adapt import load_pretrained
from vitral.weights.formats.pretraining import LAYOUTS, read_training_parts, restored_state
from vitral.weights.load import LoadedModel

BYTES = 4  # of a float32
FIT_BATCH = 64  # images that are decoded at once


class CachedStage(NamedTuple):
    """A stage of fine-tuning whose steps start from the tokens of frozen layers."""

    task: Task  # that takes tokens
    train: TokenCache
    val: TokenCache | None  # of the images that the run is evaluated on


@dataclass(frozen=True)
class RunParts:
    """The components of a run."""

    recipe: Recipe
    samples: Samples
    strategy: Strategy
    state: TrainingState
    update_rule: UpdateRule
    loader: Loader
    stages: Sequence[tuple[int, Loader]]  # the first step of each image size, and its loader; the last is `loader`
    microbatch_config: MicrobatchConfig
    step_plan: StepPlan
    number: int  # of the stage of fine-tuning
    stage_end: Callable[[int], int]  # the last step of the stage, as planned after a step
    cached: CachedStage | None = None  # what the steps and evaluations of the stage start from, instead of images

    @property
    def steps(self) -> int:
        """The steps of the whole run; with a time limit, as they are planned so far."""
        return self.step_plan.steps

    @property
    def plan(self) -> SamplingPlan:
        """The batches of all steps."""
        return self.loader.plan

    def batches(self, start: int, stop: int) -> Generator[Sequence[Microbatch]]:
        """Yield the microbatches of the steps from `start` up to `stop`, at the image size of each."""
        if self.cached is not None:
            yield from self.cached.train.batches(self.plan, start, stop)
            return
        ends = [first for first, _ in self.stages[1:]]
        for (first, loader), end in zip(self.stages, [*ends, stop], strict=True):
            if (low := max(start, first)) < (high := min(stop, end)):
                yield from microbatches(loader, low, high, self.microbatch_config)

    def eval_batches(self, loader: Loader) -> Iterator[Sequence[Microbatch]]:
        """The microbatches of the images that the run is evaluated on, for `eval_module`."""
        steps = loader.plan.steps_per_epoch
        if self.cached is not None and self.cached.val is not None:
            return self.cached.val.batches(loader.plan, 0, steps)
        return microbatches(loader, 0, steps, self.microbatch_config)

    @property
    def eval_module(self) -> nn.Module:
        """What takes those microbatches: the task, or one with its weights that takes tokens."""
        return self.cached.task if self.cached is not None else self.state.task

    @property
    def model(self) -> nn.Module:
        """What the task trains for use: the model, or the teacher's."""
        return self.state.task.get_submodule(self.state.task.bundled)


def build_run(recipe: Recipe, samples: Samples, group: ProcessGroup) -> RunParts:
    """Build a run with its weights before the first step."""
    return build_run_for_task(build_task(recipe, samples, group.device), recipe, samples, group)


def build_run_for_task(
    task: Task, recipe: Recipe, samples: Samples, group: ProcessGroup, stage: int = 0, cached: CachedStage | None = None
) -> RunParts:
    """Build a run for a task, which is distributed over the processes, in a stage of its fine-tuning."""
    loader = build_loader(recipe, samples, "train", group.world)
    steps = recipe.length.total_steps(loader.plan)
    if not isinstance(recipe.length, TimeLimit | PlannedSteps):
        recipe.schedule.check(steps)
    step_plan = StepPlan(steps, recipe.length.changes if isinstance(recipe.length, PlannedSteps) else ())
    spans = recipe.finetune.spans(steps)
    span = spans[stage]
    recipe.finetune.begin_stage(task, span.stage)
    strategy = recipe.distributed.build(cached.task if cached else task, group)
    strategy.task = task  # which has the names that are saved
    if recipe.compile:
        strategy.module.compile()
    precision = Precision(recipe.precision.decide(probe_hardware(group.device)).dtype, group.device)
    optimizer = recipe.optimizer.build(strategy.task)  # after sharding
    state = TrainingState(strategy.task, optimizer, build_average(recipe.average, optimizer, steps), precision)
    state.average.first = span.first
    clip = math.inf if recipe.clip == "none" else recipe.clip
    peak = recipe.optimizer.lr
    local = StepPlan(span.end - span.first) if len(spans) > 1 else step_plan  # the schedule of each stage is its own
    lr = lambda step: peak * local.lr_factor(recipe.schedule, step - span.first)  # noqa: E731
    done = lambda step: local.fraction(step - span.first)  # noqa: E731
    decay = build_weight_decay(recipe, done)
    rule = UpdateRule(optimizer, lr, clip, precision, strategy, TaskHooks(strategy.task, done), decay)
    config = MicrobatchConfig(recipe.images.normalize, recipe.microbatches, group.device)
    stages = build_stages(recipe, samples, group.world, loader, steps)
    end = (lambda step: span.end) if len(spans) > 1 else step_plan.steps_after
    return RunParts(recipe, samples, strategy, state, rule, loader, stages, config, step_plan, stage, end, cached)


def build_weight_decay(recipe: Recipe, done: Callable[[int], float]) -> Callable[[int], float] | None:
    """The weight decay at each step; None if it stays what it is."""
    schedule = getattr(recipe.optimizer, "decay_schedule", ConstantDecay())  # a user's own class may have none
    if isinstance(schedule, ConstantDecay):
        return None
    return lambda step: schedule.value(recipe.optimizer.weight_decay, done(step))


def build_stage(task: Task, recipe: Recipe, samples: Samples, group: ProcessGroup, number: int) -> RunParts:
    """Build a stage of the fine-tuning of a task."""
    steps = recipe.length.total_steps(build_loader(recipe, samples, "train", group.world).plan)
    stage = recipe.finetune.spans(steps)[number].stage
    cached = build_cached_stage(task, recipe, samples, group, stage)
    return build_run_for_task(task, recipe, samples, group, number, cached)


def stage_of(parts: RunParts, step: int) -> int:
    """The number of the stage in which a step was taken; the last step of a stage belongs to it."""
    spans = parts.recipe.finetune.spans(parts.steps)
    return max((number for number, span in enumerate(spans) if span.first < step), default=0)


def build_stages(
    recipe: Recipe, samples: Samples, world: World, loader: Loader, steps: int
) -> list[tuple[int, Loader]]:
    """The loader of each image size of a run, with its first step. The last one is that of the full size."""
    *smaller, last = recipe.images.size.stages(recipe.model.image_size, recipe.model.token_size(), steps)
    order, batch = recipe.data.order, recipe.batch_size
    loaders = [
        (
            stage.first,
            _build_loader(recipe, samples, "train", recipe.train_pipeline(stage.image_size), order, batch, world),
        )
        for stage in smaller
    ]
    return [*loaders, (last.first, loader)]


def build_task(recipe: Recipe, samples: Samples, device: torch.device, source: LoadedModel | None = None) -> Task:
    """The task of a recipe with random weights, or with those of a model to start from; frozen as `finetune` says."""
    torch.manual_seed(recipe.seed)
    model = recipe.model.build()
    if source:
        load_pretrained(model, source)
    counts = samples.counts("train")
    task = recipe.task.build(model, len(samples.classes), counts, recipe.images.normalize)
    recipe.finetune.apply(task)
    return task.to(device)


def continue_training(task: Task, recipe: Recipe, file: Path) -> list[str]:
    """Give a task all parts of a checkpoint of its authors, if the weights to start from are one."""
    parts = read_training_parts(recipe.task.kind, file)
    if not parts:
        return []
    assert isinstance(recipe.model, Vit)
    task.load_state_dict(restored_state(recipe.task.kind, recipe.model, task.state_dict(), parts, file), strict=False)
    title = LAYOUTS[recipe.task.kind].title
    return [f"continues the training of {title} with all its parts; the optimizer starts with an empty state"]


def fit_task(task: Task, recipe: Recipe, samples: Samples, group: ProcessGroup) -> str:
    """Let a new task compute what it needs from random training images, and say so. A collective.

    All processes get the buffers of the main one. A run that resumes has them in its checkpoint.
    """
    if not task.fit_images:
        return ""
    items, rng = samples.of("train"), rng_for(recipe.seed, Purpose.FITTING, 0)
    chosen = np.sort(rng.permutation(len(items))[: task.fit_images]).tolist()
    labels = np.zeros(len(chosen), dtype=np.int64)
    plan = SamplingPlan(labels, Sequential(), min(len(chosen), FIT_BATCH), recipe.seed)
    picked = [items[index] for index in chosen]
    loader = Loader(picked, samples.store, recipe.eval_pipeline(), plan, 0, cache_bytes(recipe))
    config = MicrobatchConfig(recipe.images.normalize, 1, group.device)
    if group.is_main:
        images = [part.images for step in microbatches(loader, 0, plan.steps_per_epoch, config) for part in step]
        task.fit_buffers(torch.cat(images), rng)
    for buffer in task.buffers():
        values = buffer.detach().flatten()
        buffer.copy_(group.gather(values if group.is_main else values[:0]).view_as(buffer))
    return f"the {recipe.task.kind} task was fitted on {len(chosen):,} training images"


def build_cached_stage(
    task: Task, recipe: Recipe, samples: Samples, group: ProcessGroup, stage: TuningStage
) -> CachedStage | None:
    """What a stage of fine-tuning starts from if it has views of its images in memory; else nothing."""
    if not stage.views:
        return None
    model = task.model
    assert isinstance(model, VisionTransformer)
    assert stage.layers != "all"
    last = LastBlocks(model, stage.layers)
    config = MicrobatchConfig(recipe.images.normalize, recipe.microbatches, group.device)
    plain = build_eval_loader(recipe, samples, "train", group.world)
    pipeline, batch = recipe.train_pipeline(), plain.plan.batch_size
    augmented = _build_loader(recipe, samples, "train", pipeline, Sequential(), batch, group.world)
    views = [View(plain, 0), *(View(augmented, epoch) for epoch in range(1, stage.views))]
    split = first_split(samples, "val", "test")
    val = [View(build_eval_loader(recipe, samples, split, group.world), 0)] if split else []
    trained = recipe.task.build(last, len(samples.classes), samples.counts("train"), recipe.images.normalize)
    return CachedStage(
        trained.to(group.device),
        TokenCache(last, views, config, group.gather),
        TokenCache(last, val, config, group.gather) if val else None,
    )


def build_train_images(
    recipe: Recipe,
    samples: Samples,
    group: ProcessGroup,
    progress: SetupProgress | None = None,
    cached: CachedStage | None = None,
) -> TrainImages:
    """The training images as evaluation sees them, or their tokens, for what is fitted before the first step."""
    loader = build_eval_loader(recipe, samples, "train", group.world)
    config = MicrobatchConfig(recipe.images.normalize, 1, group.device)

    def batches() -> Iterator[Sequence[Microbatch]]:
        steps = loader.plan.steps_per_epoch
        found = cached.train.batches(loader.plan, 0, steps) if cached else microbatches(loader, 0, steps, config)
        return progress.watch(found) if progress else found

    fit = partial(fit_head, classes=len(samples.classes), seed=recipe.seed)
    return TrainImages(batches, group.gather, group.is_main, fit)


def build_loader(recipe: Recipe, samples: Samples, split: Split, world: World) -> Loader:
    """The loader of a split: for training, or for evaluation of any other split."""
    if split != "train":
        return build_eval_loader(recipe, samples, split, world)
    return _build_loader(recipe, samples, split, recipe.train_pipeline(), recipe.data.order, recipe.batch_size, world)


def build_eval_loader(recipe: Recipe, samples: Samples, split: Split, world: World) -> Loader:
    """The loader of any split for evaluation, in sequential order."""
    batch_size = -(-recipe.batch_size // recipe.microbatches)  # a microbatch fits into memory
    return _build_loader(recipe, samples, split, recipe.eval_pipeline(), Sequential(), batch_size, world)


def _build_loader(
    recipe: Recipe, samples: Samples, split: Split, pipeline: ImagePipeline, order: Order, batch_size: int, world: World
) -> Loader:
    items = samples.of(split)
    labels = np.array([item.label for item in items], dtype=np.int64)
    plan = SamplingPlan(labels, order, batch_size, recipe.seed, world)
    return Loader(items, samples.store, pipeline, plan, num_workers(recipe), cache_bytes(recipe))


def first_split(samples: Samples, *splits: Split) -> Split | None:
    """The first of the splits that has images."""
    return next((split for split in splits if samples.of(split)), None)


def cache_bytes(recipe: Recipe) -> int:
    """The part of the cache of decoded images for this process: the processes of a machine divide it."""
    return recipe.data.cache_bytes // local_processes()


def token_bytes(recipe: Recipe, samples: Samples, views: int) -> int:
    """The memory of the tokens of so many views of the training images, for all processes of this machine."""
    model = recipe.model
    if not views or not isinstance(model, Vit):
        return 0
    images = views * len(samples.of("train")) + max(len(samples.of("val")), len(samples.of("test")))
    return local_processes() * images * model.layout(model.image_size).length() * model.width * BYTES


def local_processes() -> int:
    """The number of processes of this run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def select_device(recipe: Recipe) -> torch.device:
    """The requested device, or the fastest available for `auto`."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if recipe.device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there[recipe.device]:
        held = ", ".join(name for name, found in there.items() if found)
        message = f"{recipe.device} is not available; available: {held}"
        raise ConfigError(message, code="config.device_unavailable", where="device", hint="use auto or cpu")
    return torch.device(recipe.device)


def num_workers(recipe: Recipe) -> int:
    """The number of worker processes; for `auto` 0 if the model runs on the CPU, else one per core up to 8."""
    if recipe.workers != "auto":
        return recipe.workers
    return 0 if select_device(recipe).type == "cpu" else min(8, cpu_count())

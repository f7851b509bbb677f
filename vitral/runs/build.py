"""Build the components of a run from a recipe and its data."""

import math
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from vitral.core.errors import ConfigError
from vitral.core.machine import cpu_count
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Order, SamplingPlan, Sequential, World
from vitral.data.samples import Samples, Split
from vitral.evaluation.linear_probe import fit_head
from vitral.recipes.recipe import PlannedSteps, Recipe, TimeLimit
from vitral.tasks.task import Task
from vitral.training.checkpoints.state import TrainingState
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import Strategy
from vitral.training.finetune import TrainImages
from vitral.training.loop import Microbatch, MicrobatchConfig, UpdateRule, microbatches
from vitral.training.optimizers import build_average
from vitral.training.precision import Precision, probe_hardware
from vitral.training.progress import SetupProgress
from vitral.training.time_limit import StepPlan
from vitral.weights.adapt import load_pretrained
from vitral.weights.load import LoadedModel


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
        ends = [first for first, _ in self.stages[1:]]
        for (first, loader), end in zip(self.stages, [*ends, stop], strict=True):
            if (low := max(start, first)) < (high := min(stop, end)):
                yield from microbatches(loader, low, high, self.microbatch_config)

    @property
    def model(self) -> nn.Module:
        """What the task trains."""
        return self.state.task.model


def build_run(recipe: Recipe, samples: Samples, group: ProcessGroup) -> RunParts:
    """Build a run with its weights before the first step."""
    return build_run_for_task(build_task(recipe, samples, group.device), recipe, samples, group)


def build_run_for_task(task: Task, recipe: Recipe, samples: Samples, group: ProcessGroup) -> RunParts:
    """Build a run for a task, which is distributed over the processes."""
    loader = build_loader(recipe, samples, "train", group.world)
    steps = recipe.length.total_steps(loader.plan)
    if not isinstance(recipe.length, TimeLimit | PlannedSteps):
        recipe.schedule.check(steps)
    step_plan = StepPlan(steps, recipe.length.changes if isinstance(recipe.length, PlannedSteps) else ())
    strategy = recipe.distributed.build(task, group)
    if recipe.compile:
        strategy.module.compile()
    precision = Precision(recipe.precision.decide(probe_hardware(group.device)).dtype, group.device)
    optimizer = recipe.optimizer.build(strategy.task)  # after sharding
    state = TrainingState(strategy.task, optimizer, build_average(recipe.average, optimizer, steps), precision)
    max_norm = math.inf if recipe.clip == "none" else recipe.clip
    peak = recipe.optimizer.lr
    lr = lambda step: peak * step_plan.lr_factor(recipe.schedule, step)  # noqa: E731
    begin = lambda step: strategy.task.begin_step(step_plan.fraction(step))  # noqa: E731
    rule = UpdateRule(optimizer, lr, max_norm, precision, strategy, begin)
    config = MicrobatchConfig(recipe.images.normalize, recipe.microbatches, group.device)
    stages = build_stages(recipe, samples, group.world, loader, steps)
    return RunParts(recipe, samples, strategy, state, rule, loader, stages, config, step_plan)


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


def build_train_images(
    recipe: Recipe, samples: Samples, group: ProcessGroup, progress: SetupProgress | None = None
) -> TrainImages:
    """The training images as evaluation sees them, for what is fitted before the first step."""
    loader = build_eval_loader(recipe, samples, "train", group.world)
    config = MicrobatchConfig(recipe.images.normalize, 1, group.device)

    def batches() -> Iterator[Sequence[Microbatch]]:
        found = microbatches(loader, 0, loader.plan.steps_per_epoch, config)
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

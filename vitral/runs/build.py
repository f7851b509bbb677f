"""A recipe and its data become the parts of a run."""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn

from vitral.core.errors import ConfigError
from vitral.core.machine import cpu_count
from vitral.data.loading.loader import Loader
from vitral.data.loading.sampler import Indices, SamplingPlan, Sequential, World
from vitral.data.samples import Samples, Split
from vitral.evaluation.linear_probe import fit_head
from vitral.recipes.recipe import Recipe
from vitral.tasks.task import Task
from vitral.training.checkpoints.state import TrainingState
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.distributed.strategy import Strategy
from vitral.training.finetune import TrainImages
from vitral.training.loop import MicrobatchConfig, UpdateRule, microbatches
from vitral.training.precision import Precision, probe_hardware
from vitral.weights.adapt import load_pretrained
from vitral.weights.load import LoadedModel


@dataclass(frozen=True)
class RunParts:
    """All that a run is made of."""

    recipe: Recipe
    samples: Samples
    spread: Strategy
    learning: TrainingState
    descent: UpdateRule
    loader: Loader
    serving: MicrobatchConfig
    steps: int

    @property
    def plan(self) -> SamplingPlan:
        """The batches of all steps."""
        return self.loader.plan

    @property
    def model(self) -> nn.Module:
        """What the task trains."""
        return self.learning.task.model


def build_run(recipe: Recipe, samples: Samples, group: ProcessGroup) -> RunParts:
    """New parts, the weights as they are before the first step."""
    return build_run_for_task(build_task(recipe, samples, group.device), recipe, samples, group)


def build_run_for_task(task: Task, recipe: Recipe, samples: Samples, group: ProcessGroup) -> RunParts:
    """The parts of a run for its task, which is spread over the processes."""
    loader = build_loader(recipe, samples, "train", group.world)
    steps = recipe.length.total_steps(loader.plan)
    recipe.schedule.check(steps)
    spread = recipe.distributed.build(task, group)
    precision = Precision(recipe.precision.decide(probe_hardware(group.device)).dtype, group.device)
    optimizer = recipe.optimizer.build(spread.task)  # after the task was spread: it learns the parts that are here
    learning = TrainingState(spread.task, optimizer, recipe.average.build(steps), precision)
    max_norm = math.inf if recipe.clip == "none" else recipe.clip
    peak = recipe.optimizer.lr
    rate = lambda step: peak * recipe.schedule.lr_factor(step, steps)  # noqa: E731
    descent = UpdateRule(optimizer, rate, max_norm, precision, spread)
    serving = MicrobatchConfig(recipe.images.normalize, recipe.microbatches, group.device)
    return RunParts(recipe, samples, spread, learning, descent, loader, serving, steps)


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


def build_train_images(recipe: Recipe, samples: Samples, group: ProcessGroup) -> TrainImages:
    """A look at the training images, for what is done before the first step."""
    loader = build_eval_loader(recipe, samples, "train", group.world)
    serving = MicrobatchConfig(recipe.images.normalize, 1, group.device)

    fit = partial(fit_head, classes=len(samples.classes), seed=recipe.seed)
    return TrainImages(lambda: microbatches(loader, 0, loader.plan.steps_per_epoch, serving), group.gather, group.is_main, fit)


def build_loader(recipe: Recipe, samples: Samples, split: Split, world: World) -> Loader:
    """The images of a split: as training sees them, or one after the other as every other use does."""
    if split != "train":
        return build_eval_loader(recipe, samples, split, world)
    plan = SamplingPlan(_labels(samples, split), recipe.data.order, recipe.batch_size, recipe.seed, world)
    return Loader(samples.of(split), samples.store, recipe.train_pipeline(), plan, num_workers(recipe))


def build_eval_loader(recipe: Recipe, samples: Samples, split: Split, world: World) -> Loader:
    """The images of any split, one after the other, each as evaluation sees it."""
    batch = -(-recipe.batch_size // recipe.microbatches)  # what fits is known for a portion
    plan = SamplingPlan(_labels(samples, split), Sequential(), batch, recipe.seed, world)
    return Loader(samples.of(split), samples.store, recipe.eval_pipeline(), plan, num_workers(recipe))


def _labels(samples: Samples, split: Split) -> Indices:
    return np.array([item.label for item in samples.of(split)], dtype=np.int64)


def select_device(recipe: Recipe) -> torch.device:
    """The device asked for, if it is there; by itself the fastest that is."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if recipe.device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there[recipe.device]:
        held = ", ".join(name for name, found in there.items() if found)
        message = f"torch finds no {recipe.device} here, only {held}"
        raise ConfigError(message, code="config.device_unavailable", where="device", hint="use auto or cpu")
    return torch.device(recipe.device)


def num_workers(recipe: Recipe) -> int:
    """The processes asked for; by itself none beside a model on a CPU, which needs all cores, and up to 8 for a GPU."""
    if recipe.workers != "auto":
        return recipe.workers
    return 0 if select_device(recipe).type == "cpu" else min(8, cpu_count())

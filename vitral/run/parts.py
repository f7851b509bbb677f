"""A recipe and its data become the parts of a run."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from vitral.data.loader.loader import Loader, Sight
from vitral.data.loader.order import InOrder, Order
from vitral.data.loader.plan import Plan, World
from vitral.data.samples import Samples, Split
from vitral.errors import ConfigError
from vitral.recipe import Recipe
from vitral.tasks.task import Task
from vitral.train.distributed.group import Group
from vitral.train.distributed.spread import Spread
from vitral.train.environment import cores
from vitral.train.feed import Serving
from vitral.train.loop import Descent
from vitral.train.precision import Precision, probe
from vitral.train.state import Learning
from vitral.weights.adapt import adapted
from vitral.weights.load import load


@dataclass(frozen=True)
class Parts:
    """All that a run is made of."""

    recipe: Recipe
    samples: Samples
    spread: Spread
    learning: Learning
    descent: Descent
    loader: Loader
    serving: Serving
    steps: int

    @property
    def plan(self) -> Plan:
        """The batches of all steps."""
        return self.loader.plan

    @property
    def model(self) -> nn.Module:
        """What the task trains."""
        return self.learning.task.model


def parts_of(recipe: Recipe, samples: Samples, group: Group, begun: bool = False) -> Parts:
    """New parts, the weights as they are before the first step; a run that has begun will get others."""
    loader = loader_of(recipe, samples, "train", group.world)
    steps = recipe.length.total(loader.plan)
    recipe.schedule.check(steps)
    spread = recipe.distributed.spread(task_of(recipe, samples, group.device, begun), group)
    precision = Precision(recipe.precision.decide(probe(group.device)).dtype, group.device)
    optimizer = recipe.optimiser.build(spread.task)  # after the task was spread: it learns the parts that are here
    learning = Learning(spread.task, optimizer, recipe.average.build(steps), precision)
    peak = recipe.optimiser.rate
    rate = lambda step: peak * recipe.schedule.rate(step, steps)  # noqa: E731
    descent = Descent(optimizer, rate, recipe.clip, precision, spread)
    serving = Serving(recipe.images.scaling, recipe.portions, group.device)
    return Parts(recipe, samples, spread, learning, descent, loader, serving, steps)


def task_of(recipe: Recipe, samples: Samples, device: torch.device, begun: bool = False) -> Task:
    """The task with a model of fresh weights, or of those that the recipe starts from, which may be gone later."""
    torch.manual_seed(recipe.seed)
    model = recipe.model.build()
    if recipe.weights and not begun:
        adapted(model, load(recipe.weights))
    counts = samples.counts("train")
    return recipe.task.build(model, len(samples.classes), counts, recipe.images.scaling).to(device)


def loader_of(recipe: Recipe, samples: Samples, split: Split, world: World) -> Loader:
    """The images of a split: as training sees them, or one after the other as every other use does."""
    training = split == "train"
    order: Order = recipe.data.order if training else InOrder()
    sight: Sight = recipe.sight() if training else recipe.still_sight()
    items = samples.of(split)
    labels = np.array([item.label for item in items], dtype=np.int64)
    batch = recipe.batch if training else -(-recipe.batch // recipe.portions)  # what fits is known for a portion
    plan = Plan(labels, order, batch, recipe.seed, world)
    return Loader(items, samples.store, sight, plan, workers_of(recipe))


def device_of(recipe: Recipe) -> torch.device:
    """The device asked for, if it is there; by itself the fastest that is."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if recipe.device == "auto":
        return torch.device(next(name for name in ("cuda", "mps", "cpu") if there[name]))
    if not there[recipe.device]:
        held = ", ".join(name for name, found in there.items() if found)
        raise ConfigError(f"torch finds no {recipe.device} here, only {held}", where="device", remedy="use auto or cpu")
    return torch.device(recipe.device)


def workers_of(recipe: Recipe) -> int:
    """The processes asked for; by itself none beside a model on a CPU, which needs all cores, and up to 8 for a GPU."""
    if recipe.workers != "auto":
        return recipe.workers
    return 0 if device_of(recipe).type == "cpu" else min(8, cores())

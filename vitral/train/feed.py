"""From the loader's bytes to what a task is given, portion by portion.  B images, C channels, H rows, W columns."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.data.loader.dice import Purpose, dice
from vitral.data.loader.loader import Batch, Loader
from vitral.data.loader.plan import Plan
from vitral.data.transforms.scaling import Scaling


class Portion(NamedTuple):
    """As much of a batch as the task is given at a time."""

    images: Tensor  # (B, C, H, W), scaled
    labels: Tensor  # (B,)
    share: float  # of the images of the batch, which is that of all processes
    dice: np.random.Generator  # for what the task draws
    seed: int  # for what the model draws


class Serving(NamedTuple):
    """How batches are served: scaled, in so many portions, on this device."""

    scaling: Scaling
    portions: int
    device: torch.device


def feed(loader: Loader, start: int, stop: int, serving: Serving) -> Generator[Sequence[Portion]]:
    """The portions of the batch of every step, in turn."""
    for step, batch in enumerate(loader.batches(start, stop), start):
        yield portions(batch, step, loader.plan, serving)


def portions(batch: Batch, step: int, plan: Plan, serving: Serving) -> list[Portion]:
    """This process's part of a batch in portions of nearly the same size, each with dice of its own."""
    whole = plan.images(step)
    pieces = zip(batch.images.tensor_split(serving.portions), batch.labels.tensor_split(serving.portions), strict=True)
    found = []
    for number, (images, labels) in enumerate(pieces, plan.world.rank * serving.portions):
        throws = dice(plan.seed, Purpose.MIXING, step, number)
        seed = int(throws.integers(2**63))
        scaled = serving.scaling.apply(images.to(serving.device))
        found.append(Portion(scaled, labels.to(serving.device), len(labels) / whole, throws, seed))
    return found

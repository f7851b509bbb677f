"""The album: pictures of one size that lie in memory side by side, seen a batch at a time.

What it shows has the bits that the loader's rows would have one by one, for a small part of their time.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitral.core.config import Size
from vitral.core.rng import Purpose, uniform_for
from vitral.data.decoding.pixels import Pixels
from vitral.data.loading.sampler import Indices, SamplingPlan
from vitral.data.transforms.crop import CropBatch, RandomResizedCrop, Resize
from vitral.data.transforms.resize import crop_and_resize_batch

DRAW_AHEAD = 2_000  # pictures, about, whose crops are drawn together


class ImageTable(NamedTuple):
    """Pictures, (pictures, H, W, C), and which of them is at each place of a set."""

    pictures: Pixels
    rows: Indices


@dataclass(frozen=True)
class InMemoryImages:
    """The pictures of a plan, and how they are seen."""

    pages: ImageTable
    view: RandomResizedCrop | Resize
    image: Size
    plan: SamplingPlan
    _drawn: dict[int, CropBatch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def images(self, step: int) -> Tensor:
        """What the batch of a step shows, (B, C, H, W), uint8."""
        rows = self.pages.rows[self.plan.indices(step)]
        return crop_and_resize_batch(self.pages.pictures, rows, self._crops(step), self.image, self.view.filter)

    def _crops(self, step: int) -> CropBatch:
        if step not in self._drawn:
            self._draw(step)
        return self._drawn[step]

    def _draw(self, step: int) -> None:
        """The crops of this step and of some after it, in the same epoch."""
        epoch = self.plan.epoch(step)
        stop = min(step + max(1, DRAW_AHEAD // self.plan.max_rows), (epoch + 1) * self.plan.steps_per_epoch)
        places = [self.plan.indices(each) for each in range(step, stop)]
        numbers = uniform_for(self.plan.seed, Purpose.VIEW, epoch, np.concatenate(places), self.view.draws)
        boxes, mirrored = self.view.plan_batch(Size(*self.pages.pictures.shape[1:3]), numbers)
        ends = np.cumsum([len(each) for each in places])[:-1]
        drawn = map(CropBatch, np.split(boxes, ends), np.split(mirrored, ends))
        self._drawn.clear()
        self._drawn.update(zip(range(step, stop), drawn, strict=True))

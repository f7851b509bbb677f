"""Images of one size that are held in memory as one array, cropped and resized a batch at a time.

The batches have the bits that the loader would give row by row, in a fraction of the time.
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

DRAW_AHEAD = 2_000  # approximate number of images whose crops are drawn together


class ImageTable(NamedTuple):
    """Images, (images, H, W, C), and the row of each item of the loader."""

    images: Pixels
    rows: Indices


@dataclass(frozen=True)
class InMemoryImages:
    """In-memory images with a sampling plan and a crop."""

    table: ImageTable
    crop: RandomResizedCrop | Resize
    image_size: Size
    plan: SamplingPlan
    _drawn: dict[int, CropBatch] = field(default_factory=dict, init=False, repr=False, compare=False)

    def images(self, step: int) -> Tensor:
        """The images of the batch of a step, (B, C, H, W), uint8."""
        rows = self.table.rows[self.plan.indices(step)]
        return crop_and_resize_batch(self.table.images, rows, self._crops(step), self.image_size, self.crop.filter)

    def _crops(self, step: int) -> CropBatch:
        if step not in self._drawn:
            self._draw(step)
        return self._drawn[step]

    def _draw(self, step: int) -> None:
        """Draw the crops of this step and of some following steps of the same epoch."""
        epoch = self.plan.epoch(step)
        stop = min(step + max(1, DRAW_AHEAD // self.plan.max_rows), (epoch + 1) * self.plan.steps_per_epoch)
        indices = [self.plan.indices(each) for each in range(step, stop)]
        numbers = uniform_for(self.plan.seed, Purpose.VIEW, epoch, np.concatenate(indices), self.crop.draws)
        boxes, mirrored = self.crop.plan_batch(Size(*self.table.images.shape[1:3]), numbers)
        ends = np.cumsum([len(each) for each in indices])[:-1]
        drawn = map(CropBatch, np.split(boxes, ends), np.split(mirrored, ends))
        self._drawn.clear()
        self._drawn.update(zip(range(step, stop), drawn, strict=True))

"""Pictures of training: random views of some images, and masked images with their reconstruction.

B images, C channels, H rows, W columns.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.core.errors import DataError
from vitral.core.rng import Purpose, rng_for
from vitral.data.decoding.decode import open_image
from vitral.data.decoding.pixels import Pixels
from vitral.data.samples import Item, Samples
from vitral.data.thumbnails import picture_url, thumbnail_url
from vitral.models.hooks import eval_mode
from vitral.recipes.recipe import Recipe
from vitral.runs.build import first_split
from vitral.tasks.task import Task

MAX_ROWS = 4  # images
MAX_VIEWS = 5  # of each image, one an epoch
SIDE = 256  # pixels of the whole image


class PictureRow(NamedTuple):
    """Pictures of one image, as data URLs."""

    name: str
    pictures: tuple[str, ...]


class PictureGrid(NamedTuple):
    """Rows of pictures under the same headings."""

    headings: tuple[str, ...]
    rows: tuple[PictureRow, ...]


def augmented_grid(recipe: Recipe, samples: Samples) -> PictureGrid | None:
    """Some training images, whole and as the first epochs draw them; None if training changes no image."""
    if recipe.images.external:
        return None  # the user's own transform, which cannot be drawn again
    rows = []
    for index, item in _spread(samples.of("train")):
        try:
            views = _views(recipe, samples, item, index)
            whole = thumbnail_url(samples, item, SIDE, recipe.decoding())
        except DataError:  # it was readable before training
            continue
        if any((view != views[0]).any() for view in views[1:]):
            rows.append(PictureRow(item.name, (whole, *map(picture_url, views))))
    headings = ("image", *(f"epoch {number + 1}" for number in range(MAX_VIEWS)))
    return PictureGrid(headings, tuple(rows)) if rows else None


def _views(recipe: Recipe, samples: Samples, item: Item, index: int) -> list[Pixels]:
    """The views (H, W, C) of a training image in the first epochs, with the random numbers of the loader."""
    image = open_image(samples.read(item), item.name, recipe.decoding())
    draws = (rng_for(recipe.seed, Purpose.VIEW, epoch, index) for epoch in range(MAX_VIEWS))
    return [recipe.train_pipeline().apply(image, rng) for rng in draws]


def masked_grid(task: Task, recipe: Recipe, samples: Samples) -> PictureGrid | None:
    """Some held-out images, masked, and what the task predicts of them; None for a task that predicts no pixels."""
    if recipe.images.external:
        return None
    split = first_split(samples, "val", "test", "train")
    items, crops = [], []
    for _, item in _spread(samples.of(split)) if split else ():
        try:
            crops.append(recipe.preprocessing().pixels(samples.read(item), item.name))
        except DataError:
            continue
        items.append(item)
    if not items:
        return None
    batch = torch.from_numpy(np.stack(crops)).permute(0, 3, 1, 2).to(next(task.parameters()).device)  # (B, C, H, W)
    with eval_mode(task), torch.no_grad():
        found = task.reconstruct(recipe.images.normalize.apply(batch))
    if found is None:
        return None
    columns = {"image": found.images, "input": found.inputs, "target": found.targets, "prediction": found.predictions}
    if torch.equal(found.targets, found.images):
        del columns["target"]
    urls = [[picture_url(_pixels(image)) for image in images] for images in columns.values()]
    rows = [PictureRow(item.name, pictures) for item, pictures in zip(items, zip(*urls, strict=True), strict=True)]
    return PictureGrid(tuple(columns), tuple(rows))


def _spread(items: Sequence[Item]) -> list[tuple[int, Item]]:
    """A few items from first to last, which are sorted by name, with their indices."""
    indices = np.linspace(0, len(items) - 1, min(MAX_ROWS, len(items))).round().astype(int).tolist()
    return [(index, items[index]) for index in indices]


def _pixels(image: Tensor) -> Pixels:
    """Levels (C, H, W) as pixels (H, W, C)."""
    return image.round().clamp(0, 255).byte().permute(1, 2, 0).cpu().numpy()

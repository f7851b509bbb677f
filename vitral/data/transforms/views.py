"""Several views of an image, which a self-supervised task compares: each with its own crop, size and augmentations."""

from typing import Annotated, Literal, NamedTuple, Protocol, Self

import numpy as np
from pydantic import Field, model_validator

from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.augment import Augment
from vitral.data.transforms.crop import CropConfig, RandomResizedCrop


class Augmentation(Protocol):
    """Changes the pixels of an image, not its size."""

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """Return changed pixels; the input is not modified."""
        ...


class ImageView(NamedTuple):
    """How a view is made of an image."""

    image_size: Size
    crop: CropConfig
    augment: tuple[Augmentation, ...]


class View(Config):
    """One view: a crop of the image at a size, augmented."""

    crop: CropConfig = RandomResizedCrop()
    augment: tuple[Augment, ...] = ()
    size: Literal["model"] | Size = "model"  # pixels; by default that of the model's images

    def plan(self, image_size: Size) -> ImageView:
        """The view for a model of this image size."""
        return ImageView(image_size if self.size == "model" else self.size, self.crop, self.augment)


def check_sizes(first: View, second: View) -> None:
    """Raise ConfigError if two views of a task, which are one tensor, differ in size."""
    if first.size != second.size:
        message = f"the first two views must have one size, not {first.size} and {second.size}"
        raise ConfigError(message, code="config.conflict", where="second.size", hint="set both to the same")


class OneView(Config):
    """One view of each image, by the crop and the augmentations of the recipe."""

    kind: Literal["one"] = "one"

    def count(self) -> int:
        """The number of views of an image."""
        return 1

    def plan(self, image_size: Size) -> tuple[ImageView, ...]:
        """The views for a model of this image size; empty if there is only that of the recipe."""
        return ()


class TwoViews(Config):
    """Two views of each image, of one size, as contrastive tasks compare them."""

    kind: Literal["two"] = "two"
    first: View = View()
    second: View = View()

    @model_validator(mode="after")
    def sizes_agree(self) -> Self:
        check_sizes(self.first, self.second)
        return self

    def count(self) -> int:
        """The number of views of an image."""
        return 2

    def plan(self, image_size: Size) -> tuple[ImageView, ...]:
        """The views for a model of this image size."""
        return self.first.plan(image_size), self.second.plan(image_size)


class MultiCrop(Config):
    """Two views of most of the image and several smaller ones of parts of it (SwAV, arXiv 2006.09882; DINO)."""

    kind: Literal["multi_crop"] = "multi_crop"
    first: View = View(crop=RandomResizedCrop(area=(0.4, 1.0)))
    second: View = View(crop=RandomResizedCrop(area=(0.4, 1.0)))
    local: View = View(crop=RandomResizedCrop(area=(0.05, 0.4)), size=Size(96, 96))
    local_views: int = Field(default=8, ge=0, le=100)

    @model_validator(mode="after")
    def sizes_agree(self) -> Self:
        check_sizes(self.first, self.second)
        return self

    def count(self) -> int:
        """The number of views of an image."""
        return 2 + self.local_views

    def plan(self, image_size: Size) -> tuple[ImageView, ...]:
        """The views for a model of this image size, the two large ones first."""
        views = (self.first, self.second, *[self.local] * self.local_views)
        return tuple(view.plan(image_size) for view in views)


ViewsConfig = Annotated[OneView | TwoViews | MultiCrop, OpenUnion()]


def size_groups(views: tuple[ImageView, ...]) -> dict[Size, list[int]]:
    """The numbers of the views of each size, in their order."""
    groups: dict[Size, list[int]] = {}
    for number, view in enumerate(views):
        groups.setdefault(view.image_size, []).append(number)
    return groups

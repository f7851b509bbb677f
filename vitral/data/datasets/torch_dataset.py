"""Any torch Dataset of (image, label) as a source.

Images are paths, bytes, PIL images, arrays or uint8 tensors (C, H, W), which go through the transforms of the recipe;
or float tensors (C, H, W), which are used as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Subset

from vitral.core.config import Config
from vitral.core.custom import find_class
from vitral.core.errors import DataError
from vitral.data.decoding.image_objects import image_bytes
from vitral.data.samples import Row, Samples, Split, Store, StratifiedSplit, build_samples, reorder_classes

DIGITS = 8  # so that the order of names is that of the indices


@dataclass(frozen=True, eq=False)
class DatasetStore:
    """Reads items of datasets by name: `train/00000012` is item 12 of the dataset for training."""

    where: str
    datasets: Mapping[str, Dataset[Any]]

    def item(self, name: str) -> Any:
        """The image of an item as the dataset gives it."""
        part, _, index = name.partition("/")
        return self.datasets[part][int(index)][0]

    def read(self, name: str) -> bytes:
        image = self.item(name)
        if isinstance(image, torch.Tensor):
            image = _pixels(image, self.address(name))
        return image_bytes(image, self.address(name))

    @cached_property
    def tensor_shape(self) -> tuple[int, int, int] | None:
        """The shape (C, H, W) of the first image if it is a float tensor, else None."""
        first = self.datasets["train"][0][0]
        is_tensor = isinstance(first, torch.Tensor) and first.is_floating_point() and first.ndim == 3
        return (int(first.shape[0]), int(first.shape[1]), int(first.shape[2])) if is_tensor else None

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A float tensor (C, H, W) as an array of this shape, (H, W, C)."""
        image = self.item(name)
        if (
            not isinstance(image, torch.Tensor)
            or not image.is_floating_point()
            or image.shape != (shape[2], *shape[:2])
        ):
            message = f"expected a float tensor of shape {(shape[2], *shape[:2])}, got {_describe(image)}"
            raise DataError(message, code="data.mixed_items", where=self.address(name), hint="let all items be alike")
        return image.permute(1, 2, 0).numpy().astype(np.float32, copy=False)  # (H, W, C)

    def address(self, name: str) -> str:
        part, _, index = name.partition("/")
        return f"{part} dataset, item {int(index)}"

    def size(self, name: str) -> int:
        """Unknown without reading every item: fingerprints of such data have names and labels only."""
        return 0


def gives_tensors(store: Store) -> TypeGuard[DatasetStore]:
    """Whether images come as float tensors, which are used as they are."""
    return isinstance(store, DatasetStore) and store.tensor_shape is not None


def _pixels(image: torch.Tensor, name: str) -> NDArray[np.uint8]:
    """A tensor (C, H, W) as pixels (H, W, C); floats, whose scale is unknown, are stretched for display."""
    if image.is_floating_point() and image.ndim == 3:
        low, high = image.min(), image.max()
        image = ((image - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
    if image.dtype != torch.uint8 or image.ndim != 3:
        message = f"expected a uint8 or float tensor (C, H, W), got {_describe(image)}"
        raise DataError(message, code="data.unsupported_image", where=name, hint="return uint8 pixels or floats")
    return image.permute(1, 2, 0).contiguous().numpy()  # (H, W, C)


def _describe(image: object) -> str:
    if isinstance(image, torch.Tensor):
        return f"a tensor of {image.dtype} with shape {tuple(image.shape)}"
    return f"a {type(image).__name__}"


def open_dataset(
    train: Dataset[Any],
    val: Dataset[Any] | None = None,
    val_split: StratifiedSplit = StratifiedSplit(),  # noqa: B008, a frozen value
    where: str = "",
) -> Samples:
    """The samples of a dataset; `val_split` divides it if there is no dataset for validation.

    Classes keep the order of the labels, so that output k of the model is label k of the dataset.
    """
    datasets = {"train": train} if val is None else {"train": train, "val": val}
    where = where or f"{type(train).__name__} object"
    labels = {part: read_labels(dataset, part) for part, dataset in datasets.items()}
    names = class_names(train, [label for part in labels.values() for label in part])
    splits: dict[str, Split] = {"train": "train", "val": "val"}
    rows = [
        Row(f"{part}/{index:0{DIGITS}}", names[label], splits[part])
        for part, found in labels.items()
        for index, label in enumerate(found)
    ]
    if not rows:
        raise DataError("the dataset is empty", code="data.empty", where=where, hint="give a dataset with images")
    samples = build_samples(where, rows, DatasetStore(where, datasets), val_split)
    return reorder_classes(samples, names.values(), keep_empty=True)


class BaseDataset(Config):
    """A dataset as a class of a user, for `vitral train ./birds.py:Birds --trust`; its fields are `data.options`."""

    def build(self, split: Split) -> Dataset[Any] | None:
        """The dataset of (image, label) of a split; None if there is no such split. Only `train` is required."""
        raise NotImplementedError


def open_dataset_class(reference: str, options: Mapping[str, Any], val_split: StratifiedSplit) -> Samples:
    """The samples of a user's dataset class."""
    config = find_class(reference, BaseDataset, "data").parse(options)
    train = config.build("train")
    if train is None:
        raise DataError("build('train') gave None", code="data.empty", where=reference, hint="return a Dataset")
    return open_dataset(train, config.build("val"), val_split, reference)


def read_labels(dataset: Dataset[Any], part: str) -> list[int | str]:
    """The label of every item: from `targets`, as torchvision's datasets have it, or else by reading every item."""
    if isinstance(dataset, Subset):
        targets = getattr(dataset.dataset, "targets", None)
        found = None if targets is None else [targets[index] for index in dataset.indices]
    else:
        found = getattr(dataset, "targets", None)
    count = len(dataset)  # type: ignore[arg-type]  # a Dataset of a length; others are refused below
    if found is None or len(found) != count:
        found = [_label(dataset[index], f"{part} dataset, item {index}") for index in range(count)]
    return [value if isinstance(value, str) else int(value) for value in found]


def _label(item: object, where: str) -> Any:
    if (
        not isinstance(item, tuple | list)
        or len(item) < 2
        or not isinstance(item[1], int | str | torch.Tensor | np.integer)
    ):
        message = f"expected (image, label), got {_describe(item)}"
        raise DataError(message, code="data.bad_label", where=where, hint="return an image and an int or str")
    return item[1]


def class_names(dataset: Dataset[Any], labels: Sequence[int | str]) -> dict[int | str, str]:
    """The name of the class of each label, in the order of labels: from `classes` of the dataset, or else the label."""
    base = dataset.dataset if isinstance(dataset, Subset) else dataset
    known = getattr(base, "classes", None)
    if all(isinstance(label, int) and label >= 0 for label in labels):
        count = max((int(label) for label in labels), default=-1) + 1
        if known is not None and len(known) >= count:
            return {index: str(name) for index, name in enumerate(known)}
        return {index: str(index) for index in range(count)}
    return {label: str(label) for label in sorted(set(labels), key=str)}

"""What the features of a run without labels are worth, measured at each evaluation. It changes nothing of the training.

N training images that are searched, Q held-out images, D width.

Where images have labels, which training does not use, they give the k-NN accuracy: the share of held-out images whose
nearest training images have their class. Everywhere there are the spread and the rank of the features, and the report
shows neighbors, clusters and a map. None of these numbers chooses the best weights: that is `best_by` of the task.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitral.core.errors import DataError
from vitral.data.datasets.source import open_data
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import SamplingPlan, Sequential
from vitral.data.samples import Item, Samples
from vitral.evaluation.feature_space.projection import measure_spread
from vitral.evaluation.knn import predict_knn
from vitral.evaluation.subject import collect_outputs
from vitral.html.page import plural
from vitral.models.base import Model
from vitral.models.hooks import eval_mode
from vitral.recipes.recipe import Recipe
from vitral.runs.build import cache_bytes, first_split, num_workers
from vitral.runs.request import OBJECT

SEARCHED, ASKED = 1_000, 400  # images at most: of the training set, and held out
NEIGHBORS = 20  # that vote
MAX_CACHE = 2**28  # bytes of decoded images
Labels = NDArray[np.int64]


class ImageLabels(NamedTuple):
    """The classes of images that are trained on without labels."""

    classes: tuple[str, ...]
    searched: Labels  # (N,)
    asked: Labels  # (Q,)


class FeatureSnapshot(NamedTuple):
    """The features after a step."""

    step: int
    searched: NDArray[np.float32]  # (N, D)
    asked: NDArray[np.float32]  # (Q, D)


class FeatureMonitor:
    """Computes the features of some training and some held-out images, the same at each evaluation."""

    def __init__(self, recipe: Recipe, samples: Samples, device: torch.device) -> None:
        self.recipe, self.samples, self.device = recipe, samples, device
        split = first_split(samples, "val", "test")
        self.searched = spread_evenly(samples.of("train"), SEARCHED)
        self.asked = spread_evenly(samples.of(split), ASKED) if split else ()
        self.labels = find_labels(recipe, samples, self.searched, self.asked)
        items = (*self.searched, *self.asked)
        plan = SamplingPlan(np.zeros(len(items), np.int64), Sequential(), batch_size(recipe), seed=0)
        # One plain view of each image: evaluation has several for tasks that compare them.
        pipeline = ImagePipeline(recipe.model.image_size, recipe.decoding(), recipe.images.eval_crop)
        cached = min(MAX_CACHE, cache_bytes(recipe))
        self._loader = Loader(items, samples.store, pipeline, plan, num_workers(recipe), cached)

    def measure(self, model: Model, step: int) -> FeatureSnapshot:
        """The features of a model, whose mode is restored."""
        scaling = self.recipe.images.normalize
        with eval_mode(model):
            found = collect_outputs(model.forward_pooled, self._loader, scaling, self.device, _own, _unheard)
        rows = found.values.numpy()
        return FeatureSnapshot(step, rows[: len(self.searched)], rows[len(self.searched) :])

    def metrics(self, snapshot: FeatureSnapshot) -> dict[str, float]:
        """The numbers of a snapshot; none of features that are not finite."""
        if not (np.isfinite(snapshot.searched).all() and np.isfinite(snapshot.asked).all()):
            return {}
        found = {}
        if self.labels is not None and len(self.asked):
            votes = min(NEIGHBORS, len(self.searched))
            answers = predict_knn(snapshot.searched, self.labels.searched, snapshot.asked, votes)
            found["knn_accuracy"] = float((answers == self.labels.asked).mean())
        spread = measure_spread(snapshot.asked if len(self.asked) > 1 else snapshot.searched)
        return {**found, "feature_spread": spread.std, "effective_rank": spread.rank}

    def describe(self) -> str:
        """A line for the start of the run: whether there are labels, and what they are used for."""
        if self.labels is None:
            return "no labels: the spread and the rank of the features are shown, and their neighbors in report.html"
        classes = plural(len(self.labels.classes), "class", "classes")
        images = plural(len(self.asked), "held-out image")
        return f"the labels ({classes}) are not used for training; they give the k-NN accuracy of {images}"


def batch_size(recipe: Recipe) -> int:
    """As many images at a time as in evaluation."""
    return -(-recipe.batch_size // recipe.microbatches)


def spread_evenly(items: Sequence[Item], most: int) -> tuple[Item, ...]:
    """At most so many items, from the first to the last."""
    indices = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return tuple(items[index] for index in indices)


def find_labels(
    recipe: Recipe, samples: Samples, searched: Sequence[Item], asked: Sequence[Item]
) -> ImageLabels | None:
    """The labels that the data has, though the task does not use them; None for images without classes."""
    classes, labels = samples.classes, {item.name: item.label for item in samples.items}
    if len(classes) < 2:
        known = _labels_of_folders(recipe)
        if known is None:
            return None
        classes, labels = known
    if not all(item.name in labels for item in (*searched, *asked)):
        return None
    rows = [np.array([labels[item.name] for item in items], dtype=np.int64) for items in (searched, asked)]
    return ImageLabels(classes, *rows)


def _labels_of_folders(recipe: Recipe) -> tuple[tuple[str, ...], dict[str, int]] | None:
    """The classes of a folder whose images are opened without them, if it has a folder for each class."""
    path = recipe.data.path
    if not path or path.startswith(OBJECT):
        return None
    try:
        samples = open_data(path, recipe.data.split, recipe.data.root)
    except DataError:
        return None
    return (samples.classes, {item.name: item.label for item in samples.items}) if len(samples.classes) > 1 else None


def _own(rows: torch.Tensor) -> torch.Tensor:
    """In a single process, its own rows are all."""
    return rows


def _unheard(images: int) -> None:
    """The evaluation has no progress of its own."""

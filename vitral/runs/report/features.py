"""The features of a run without labels: a map of the set, neighbors, clusters, and what each head attends to.

N training images and Q held-out images of the monitor, R x S patches, H heads.
"""

from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from vitral.core.errors import DataError
from vitral.data.decoding.pixels import Pixels
from vitral.data.samples import Item
from vitral.data.thumbnails import encode_picture, picture_url, thumbnail_url, to_rgb_image
from vitral.evaluation.feature_space.kmeans import kmeans
from vitral.evaluation.feature_space.neighbors import ExactSearch
from vitral.evaluation.feature_space.projection import project
from vitral.explanation.page.pictures import heat_colors
from vitral.explanation.trace import has_attention
from vitral.html.text import percent
from vitral.models.base import Model
from vitral.models.hooks import attention_maps
from vitral.models.vit import VisionTransformer
from vitral.runs.callbacks.features import FeatureMonitor, FeatureSnapshot
from vitral.runs.report.pictures import SIDE, PictureGrid, PictureRow

QUERIES, NEIGHBORS = 12, 6
CLUSTERS, TYPICAL = 8, 8
CELLS = 13  # thumbnails along a side of the map
MAP_SIDE, MAP_THUMBNAIL = 1000, 72  # SVG units, pixels
TRIMMED = 1.0  # percent of the images that lie outside of the map at each side, and are drawn at its edge
THUMBNAIL = 112  # pixels
HEADS, EXAMPLES = 12, 4


class MapImage(NamedTuple):
    """A thumbnail on the map."""

    x: float
    y: float
    source: str
    label: str


class FeatureMap(NamedTuple):
    """The images on the plane of the two largest principal components."""

    images: tuple[MapImage, ...]
    explained: str
    side: int = MAP_SIDE
    cell: float = MAP_SIDE / CELLS


class FoundImage(NamedTuple):
    """A neighbor or a member of a cluster; `same` if it has the class of the query."""

    name: str
    source: str
    text: str
    same: bool = False


class NeighborRow(NamedTuple):
    """A held-out image and the nearest training images."""

    query: FoundImage
    neighbors: tuple[FoundImage, ...]


class ClusterRow(NamedTuple):
    """A cluster of images, with its most typical members."""

    number: int
    images: int
    share: str
    classes: str  # the most frequent ones; empty without labels
    typical: tuple[FoundImage, ...]


class FeatureSection(NamedTuple):
    """What the report says of features."""

    step: int
    images: int
    facts: tuple[tuple[str, str], ...]
    map: FeatureMap
    neighbors: tuple[NeighborRow, ...]
    clusters: tuple[ClusterRow, ...]


def feature_section(monitor: FeatureMonitor, snapshot: FeatureSnapshot) -> FeatureSection | None:
    """The section for a snapshot; None for tensors of the user's own, or for features that are not finite."""
    rows = np.concatenate([snapshot.searched, snapshot.asked])
    if monitor.recipe.images.external or len(rows) < 2 or not np.isfinite(rows).all():
        return None
    gallery = _Gallery(monitor)
    measured = monitor.metrics(snapshot)  # as in the curves
    facts = [
        ("spread of the features (1: all directions, 0: collapsed)", f"{measured['feature_spread']:.2f}"),
        (f"effective rank, of {rows.shape[1]}", f"{measured['effective_rank']:.1f}"),
    ]
    if "knn_accuracy" in measured:
        facts = [("k-NN accuracy, with labels that training did not use", percent(measured["knn_accuracy"])), *facts]
    return FeatureSection(
        snapshot.step,
        len(rows),
        tuple(facts),
        _map(rows, gallery),
        tuple(_neighbors(snapshot, gallery)),
        tuple(_clusters(rows, gallery, monitor.recipe.seed)),
    )


class _Gallery:
    """The images of a monitor, searched ones first, with their classes and thumbnails."""

    def __init__(self, monitor: FeatureMonitor) -> None:
        self.monitor = monitor
        self.items: tuple[Item, ...] = (*monitor.searched, *monitor.asked)
        labels = monitor.labels
        self.labels = None if labels is None else np.concatenate([labels.searched, labels.asked])
        self._sources: dict[tuple[int, int], str] = {}

    def class_name(self, index: int) -> str:
        """The class of an image; empty without labels."""
        known = self.monitor.labels
        return "" if self.labels is None or known is None else known.classes[self.labels[index]]

    def source(self, index: int, side: int = THUMBNAIL) -> str:
        """The thumbnail; empty for an image that cannot be read any more."""
        key = index, side
        if key not in self._sources:
            self._sources[key] = ""
            with suppress(DataError):
                decoding = self.monitor.recipe.decoding()
                self._sources[key] = thumbnail_url(self.monitor.samples, self.items[index], side, decoding)
        return self._sources[key]

    def found(self, index: int, text: str = "", query: int | None = None) -> FoundImage:
        """An image for the page."""
        same = query is not None and self.labels is not None and bool(self.labels[index] == self.labels[query])
        return FoundImage(self.items[index].name, self.source(index), text or self.class_name(index), same)


def _map(rows: np.ndarray, gallery: _Gallery) -> FeatureMap:
    found = project(rows)
    low, high = np.percentile(found.points, [TRIMMED, 100 - TRIMMED], axis=0)
    unit = ((found.points - low) / np.where(high > low, high - low, 1)).clip(0, 1)  # (N, 2)
    unit[:, 1] = 1 - unit[:, 1]  # up is positive
    cells = np.minimum((unit * CELLS).astype(int), CELLS - 1)
    centers = (cells + 0.5) / CELLS
    order = np.argsort(np.square(unit - centers).sum(axis=1), kind="stable")
    nearest: dict[tuple[int, int], int] = {}
    for index in order.tolist():  # the image nearest to the middle of a cell is shown in it
        nearest.setdefault((int(cells[index, 0]), int(cells[index, 1])), index)
    size = MAP_SIDE / CELLS
    images = (
        MapImage(column * size, row * size, gallery.source(index, MAP_THUMBNAIL), gallery.items[index].name)
        for (column, row), index in sorted(nearest.items())
    )
    first, second = (percent(share) for share in found.explained)
    return FeatureMap(tuple(each for each in images if each.source), f"{first} and {second}")


def _neighbors(snapshot: FeatureSnapshot, gallery: _Gallery) -> list[NeighborRow]:
    count = len(snapshot.asked)
    if not count:
        return []
    asked = np.unique(np.linspace(0, count - 1, min(QUERIES, count)).round().astype(int))
    found = ExactSearch(snapshot.searched).find(snapshot.asked[asked], NEIGHBORS)
    rows = []
    for place, indices, scores in zip(asked.tolist(), found.indices.tolist(), found.scores.tolist(), strict=True):
        query = len(snapshot.searched) + place
        neighbors = tuple(
            gallery.found(index, f"{score:.2f} {gallery.class_name(index)}".strip(), query)
            for index, score in zip(indices, scores, strict=True)
        )
        rows.append(
            NeighborRow(gallery.found(query, gallery.class_name(query) or gallery.items[query].name), neighbors)
        )
    return rows


def _clusters(rows: np.ndarray, gallery: _Gallery, seed: int) -> list[ClusterRow]:
    found = kmeans(rows, min(CLUSTERS, len(rows)), seed)
    clusters = []
    for number in range(len(found.centers)):
        members = found.members(number).tolist()
        if not members:
            continue
        common = Counter(gallery.class_name(index) for index in members).most_common(3)
        classes = ", ".join(f"{name} {percent(count / len(members))}" for name, count in common if name)
        typical = tuple(gallery.found(index) for index in members[:TYPICAL])
        clusters.append(ClusterRow(number + 1, len(members), percent(len(members) / len(rows)), classes, typical))
    return clusters


@torch.no_grad()
def attention_grid(model: Model, monitor: FeatureMonitor) -> PictureGrid | None:
    """What each head of the last layer attends to, on some held-out images; None without attention.

    From the class token; in models without one, from all patches on average.
    """
    recipe = monitor.recipe
    if recipe.images.external or not has_attention(model) or not isinstance(model, VisionTransformer):
        return None
    rows = []
    heads = 0
    for index in np.linspace(0, len(monitor.asked or monitor.searched) - 1, EXAMPLES).round().astype(int):
        item = (monitor.asked or monitor.searched)[index]
        try:
            pixels = recipe.preprocessing().pixels(monitor.samples.read(item), item.name)  # (H, W, C)
        except DataError:  # it was readable before training
            continue
        batch = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None].to(monitor.device)
        images = recipe.images.normalize.apply(batch)  # (1, C, H, W)
        grid = model.layout(images).grid
        attention = attention_maps(model, images)[-1][0, :HEADS, :, -grid.cells() :]  # (H, L, R S)
        weights = attention[:, 0] if model.config.tokens.cls else attention.mean(dim=1)  # (H, R S)
        heads = len(weights)
        maps = weights.unflatten(1, tuple(grid)).float().cpu().numpy()  # (H, R, S)
        whole = picture_url(_enlarge(pixels))
        rows.append(PictureRow(item.name, (whole, *(_heat_url(each) for each in maps))))
    headings = ("image", *(f"head {number + 1}" for number in range(heads)))
    return PictureGrid(headings, tuple(rows)) if rows else None


def _enlarge(pixels: Pixels) -> Pixels:
    """The crop of the model at the size of the page."""
    picture = to_rgb_image(pixels)
    scale = SIDE / max(picture.size)
    size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    return np.asarray(picture.resize(size, Image.Resampling.BICUBIC))


def _heat_url(values: np.ndarray) -> str:
    """A map (R, S) in heat colors, each patch as a square; the strongest patch is the brightest."""
    picture = Image.fromarray(heat_colors((values / max(float(values.max()), 1e-12)).astype(np.float32)))
    return encode_picture(picture, "png", optimize=True)

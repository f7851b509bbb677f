"""The pages of `search`, `cluster` and `curate`: one file each, with thumbnails, no script and nothing to load."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral import __version__
from vitral.core.storage import write_file_atomically
from vitral.evaluation.feature_space.projection import project
from vitral.evaluation.knn import Features
from vitral.html.charts import Chart, Dot, linear_axis
from vitral.html.page import render
from vitral.html.text import percent
from vitral.inference.inputs import ImageRef
from vitral.runs.similarity.collection import thumbnail

FOLDER = Path(__file__).parent
MAX_BYTES = 4_000_000  # of thumbnails on a page
MAX_QUERIES = 40  # that are shown on a page of search
MAX_CLUSTERS = 60  # on a page
MAX_DOTS = 2_000  # of a map
SIDE = 160  # pixels of a thumbnail
MAP_SIDE = 400.0  # of a map, in SVG units
COLORS = 10  # of clusters

Fact = tuple[str, str]  # name and value


class Answer(NamedTuple):
    """A query, and its neighbors with their similarity."""

    query: ImageRef
    neighbors: tuple[tuple[ImageRef, float], ...]


class ShownCluster(NamedTuple):
    """A cluster on the page: its most typical images, and those farthest from its center."""

    number: int
    images: int
    share: float
    similarity: float  # mean, of its images to its center
    typical: tuple[ImageRef, ...]
    edge: tuple[ImageRef, ...]


class Duplicates(NamedTuple):
    """A kept image and its near duplicates, which were left out."""

    kept: ImageRef
    dropped: tuple[ImageRef, ...]


class LeftOut(NamedTuple):
    """An image that was left out, the kept one that is nearest to it, and their similarity."""

    image: ImageRef
    kept: ImageRef
    similarity: float


def thumbnails() -> Callable[[ImageRef], str]:
    """A function that gives the thumbnail of an image, each made once; empty ones after MAX_BYTES of them."""
    known: dict[str, str] = {}
    left = MAX_BYTES

    def source(image: ImageRef) -> str:
        nonlocal left
        if image.name not in known:
            known[image.name] = thumbnail(image, SIDE) if left > 0 else ""
            left -= len(known[image.name])
        return known[image.name]

    return source


def write_search_page(path: Path, model: str, images: int, answers: Sequence[Answer]) -> None:
    """The page of a search."""
    _write(path, "search.html", model=model, images=images, answers=answers[:MAX_QUERIES], all=len(answers))


def write_cluster_page(path: Path, facts: Sequence[Fact], clusters: Sequence[ShownCluster], chart: Chart) -> None:
    """The page of a clustering; the chart is the map of the images."""
    _write(path, "cluster.html", facts=facts, clusters=clusters[:MAX_CLUSTERS], all=len(clusters), chart=chart)


def map_chart(features: Features, names: Sequence[str], labels: NDArray[np.int64]) -> Chart:
    """The images on the plane of the two largest principal components, colored by cluster."""
    found = project(features)
    shown = np.unique(np.linspace(0, len(names) - 1, min(MAX_DOTS, len(names))).round().astype(int))
    points = found.points[shown]
    reach = float(np.abs(points).max()) or 1.0
    x, y = (
        linear_axis(-reach, reach, 0, MAP_SIDE, 4, nice=False),
        linear_axis(-reach, reach, MAP_SIDE, 0, 4, nice=False),
    )
    dots = tuple(
        Dot(
            f"c{labels[index] % COLORS}",
            x.scale(point[0]),
            y.scale(point[1]),
            f"{names[index]}: cluster {labels[index] + 1}",
        )
        for index, point in zip(shown.tolist(), points, strict=True)
    )
    first, second = (percent(share) for share in found.explained)
    some = f" {len(shown):,} of {len(names):,} images are drawn." if len(shown) < len(names) else ""
    return Chart(
        alt=f"Map of {len(names):,} images: similar ones are close to each other, as far as a plane can show it",
        x_ticks=x.ticks(),
        y_ticks=y.ticks(),
        x_label=f"first principal component, {first} of the variance",
        y_label=f"second component, {second}",
        dots=dots,
        caption=f"Each dot is an image, its color is its cluster; {COLORS} colors repeat.{some}",
        width=MAP_SIDE,
        height=MAP_SIDE,
    )


def write_curate_page(
    path: Path,
    facts: Sequence[Fact],
    kept: Sequence[ImageRef],
    duplicates: Sequence[Duplicates],
    left_out: Sequence[LeftOut],
) -> None:
    """The page of a curated set."""
    _write(path, "curate.html", facts=facts, kept=kept, duplicates=duplicates, left_out=left_out)


def _write(path: Path, template: str, **values: object) -> None:
    html = render(FOLDER / template, thumbnail=thumbnails(), short=short_name, version=__version__, **values)
    write_file_atomically(path, html)


def short_name(image: ImageRef) -> str:
    """The last part of the name."""
    return image.name.rpartition("/")[2]

"""What is seen of one image, as plain arrays: what the page and the figures show.

L layers that are shown, H heads, T tokens (prefix + cells), K classes, R x S grid of patches, P points of a curve.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.data.decoding.pixels import Pixels
from vitral.models.base import Grid, Layout
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit

if TYPE_CHECKING:  # what draws is built on this file
    from vitral.explanation.figures.canvas import Drawing

Array = NDArray[np.float32]
MapKind = Literal["rollout", "relevance", "attention", "occlusion"]


class Photo(NamedTuple):
    """A picture, and the part of it that the model saw."""

    name: str
    picture: Pixels  # (h, w, 3), to look at: at most 1,024 pixels a side
    seen: Pixels  # (H, W, C), what the model was given, before it was scaled
    top: float  # of the part that was seen; all four are shares of the picture's height or width
    left: float
    height: float
    width: float


class LayerView(NamedTuple):
    """What one layer did with the image."""

    layer: int  # counted from 1, as the paper does
    attention: Array  # (H, T, T), what each token looked at; rows sum to one; no heads where there is no attention
    distance: Array  # (H,), mean attention distance of this image in pixels
    probabilities: Array  # (K,), what the head would answer if this layer were the last


class HeatMap(NamedTuple):
    """How much each patch counts, by one way to tell."""

    kind: MapKind
    title: str
    about: str  # a sentence or two for someone who sees such a map for the first time
    values: Array  # (R, S), the larger the more it counts


class Curve(NamedTuple):
    """The probability of a class while patches go, or come back, in the order that a map gives them."""

    shares: Array  # (P,), of the patches that went or came back, from 0 to 1
    deletion: Array  # (P,), the sooner it falls the better
    insertion: Array  # (P,), the sooner it rises the better

    @property
    def deletion_area(self) -> float:
        return float(np.trapezoid(self.deletion, self.shares))

    @property
    def insertion_area(self) -> float:
        return float(np.trapezoid(self.insertion, self.shares))


class Trial(NamedTuple):
    """A map put to the test."""

    kind: MapKind
    curve: Curve


class Faithfulness(NamedTuple):
    """Which map to believe; without trials where nothing was measured."""

    trials: tuple[Trial, ...] = ()
    chance: tuple[Curve, ...] = ()  # of random maps


class ModelView(NamedTuple):
    """What is seen of the model itself, whatever the image. Arrays of no rows stand for what the model lacks."""

    filters: Array  # (at most 28, h, w, C), principal components of the patch embedding (Fig. 7, left)
    shares: Array  # (as many,), of the variance of the filters
    positions: Array  # (R, S, R, S), cosine similarity of position embeddings (Fig. 7, center)
    distances: Array  # (layers, H), mean attention distance in pixels over some images (Fig. 7, right)
    images: int  # that the distances are a mean over


class Stage(NamedTuple):
    """A step on the way from the picture to the answer, for learners."""

    title: str
    equation: str  # of the paper, with the model's own numbers; empty where it has none
    words: str
    shape: str  # such as "197 x 768"
    numbers: tuple[tuple[str, float], ...]  # of this image in this model, each with its name
    pictures: tuple[Pixels, ...] = ()  # (h, w, 3) each


class Explanation(NamedTuple):
    """All that is told of one image and one model."""

    title: str  # of the model
    config: Vit | Resnet
    photo: Photo
    classes: tuple[str, ...]  # none where the model has no head
    probabilities: Array  # (K,)
    target: str  # the class that maps and curves are about; empty where there are none
    layout: Layout  # of the model's tokens
    shown: Grid  # of the cells in `attention` and `similarity`: patches, or means of neighbors where there are many
    layers: tuple[LayerView, ...]
    maps: tuple[HeatMap, ...]
    colors: Array  # (R, S, 3), the first three principal components of the last patch tokens, from 0 to 1
    similarity: Array  # (cells, cells), cosine similarity of the last patch tokens
    faithfulness: Faithfulness
    stages: tuple[Stage, ...]
    model: ModelView
    lacks: tuple[str, ...]  # what this model cannot show, and why, a sentence each

    def save(self, path: str | Path) -> None:
        """Write the page: one HTML file that needs no network."""
        from vitral.explanation.page.page import write_page

        write_page(Path(path).expanduser(), [self])

    def figures(self) -> "dict[str, Drawing]":
        """The figures by name; each shows itself in a notebook, and has `save`."""
        from vitral.explanation.figures.figures import figures

        return figures(self)

    def _repr_html_(self) -> str:
        """The page, as a notebook shows it."""
        from vitral.explanation.page.page import notebook

        return notebook(self)

    def __repr__(self) -> str:
        """One line, not a million numbers."""
        best = f"{self.classes[self.probabilities.argmax()]}, {self.probabilities.max():.1%}" if self.classes else ""
        return f"<{self.photo.name} as {self.title} sees it{f': {best}' if best else ''}>"

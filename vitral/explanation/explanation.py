"""The record of an explanation: plain arrays, from the analysis to the page and the figures; and its JSON summary.

L layers, H heads, T tokens (prefix + cells), K classes, R x S grid of patches, P points of a curve.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.data.decoding.pixels import Pixels
from vitral.models.base import Grid, Layout
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit

if TYPE_CHECKING:  # figures import this module
    from vitral.explanation.figures import ExplanationFigure

Array = NDArray[np.float32]
MapKind = Literal["rollout", "relevance", "attention", "occlusion"]
MAP_TITLES: dict[MapKind, str] = {
    "rollout": "Attention rollout",
    "relevance": "Relevance",
    "attention": "Attention of the last layer",
    "occlusion": "Occlusion",
}
Verdict = Literal["better", "worse", "unclear"]  # than random
VERDICTS: dict[Verdict, str] = {
    "better": "better than random",
    "worse": "worse than random",
    "unclear": "not clearly better than random",
}
CLEAR = 2.0  # standard deviations: one more random map lies that far from eight, to a given side, once in twenty times
MIN_EFFECT = 0.05  # of the probability of the unchanged image: a smaller difference of areas is never clear
MIN_STD = 1e-3  # of areas: smaller differences mean nothing
TOP = 5  # classes in a summary


class Photo(NamedTuple):
    """An image file, and the part of it that the model is given."""

    name: str
    image: Pixels  # (h, w, 3), for display: at most 1,024 pixels a side
    crop: Pixels  # (H, W, C), what the model is given, before normalization
    top: float  # of the crop; all four are fractions of the image's height or width
    left: float
    height: float
    width: float


class LayerView(NamedTuple):
    """One layer at work on the image."""

    layer: int  # counts from 1, as in the paper
    attention: Array  # (H, T, T), rows sum to one; no heads without attention
    distance: Array  # (H,), mean attention distance in pixels
    probabilities: Array  # (K,), the prediction if this layer were the last (logit lens); empty without classes


class Curve(NamedTuple):
    """The probability of a class while patches are deleted, or inserted, in the order of a map."""

    fractions: Array  # (P,), of the patches, from 0 to 1
    deletion: Array  # (P,), should fall early
    insertion: Array  # (P,), should rise early

    @property
    def deletion_auc(self) -> float:
        return float(np.trapezoid(self.deletion, self.fractions))

    @property
    def insertion_auc(self) -> float:
        return float(np.trapezoid(self.insertion, self.fractions))

    def merits(self) -> NDArray[np.float64]:
        """What should be large (3,): the negative deletion area, the insertion area, and their sum."""
        return np.array([-self.deletion_auc, self.insertion_auc, self.insertion_auc - self.deletion_auc])


class MapScore(NamedTuple):
    """How far a map is above random maps; a difference of 2 between two scores is clear (see `Faithfulness.scores`)."""

    deletion: float
    insertion: float
    combined: float  # of the insertion area minus the deletion area

    @property
    def verdict(self) -> Verdict:
        """Better or worse than random in both tests, or unclear."""
        if min(self.deletion, self.insertion) >= CLEAR:
            return "better"
        return "worse" if max(self.deletion, self.insertion) <= -CLEAR else "unclear"


class Faithfulness(NamedTuple):
    """The deletion and insertion test of the maps; empty where it was not run."""

    curves: Mapping[MapKind, Curve] = {}
    random: tuple[Curve, ...] = ()  # of random maps

    def scores(self) -> dict[MapKind, MapScore]:
        """The score of each map; none where the test was not run.

        The unit is the standard deviation of random maps, but at least half of `MIN_EFFECT`: a clear difference is one
        of two standard deviations that is also large enough to matter.
        """
        if len(self.random) < 2:
            return {}
        random = np.array([curve.merits() for curve in self.random])  # (random maps, 3)
        least = max(MIN_STD, MIN_EFFECT / CLEAR * float(self.random[0].deletion[0]))
        mean, unit = random.mean(axis=0), np.maximum(random.std(axis=0, ddof=1), least)  # each (3,)
        return {kind: MapScore(*((curve.merits() - mean) / unit).tolist()) for kind, curve in self.curves.items()}


class ModelView(NamedTuple):
    """What depends on the weights alone (Fig. 7 of the paper). Arrays are empty for what the model does not have."""

    filters: Array  # (at most 28, h, w, C), principal components of the patch embedding
    explained_variance: Array  # (as many,), ratios
    positions: Array  # (R, S, R, S), cosine similarity of position embeddings
    distances: Array  # (L, H), mean attention distance in pixels over some images
    images: int  # the number of those images


class Step(NamedTuple):
    """One step of the walkthrough from the image to the prediction."""

    title: str
    equation: str  # of the paper, with the model's own numbers; empty where it has none
    text: str
    shape: str  # such as "197 x 768"
    numbers: tuple[tuple[str, float], ...]  # measured on this image, each with its name
    images: tuple[Pixels, ...] = ()  # (h, w, 3) each


@dataclass(frozen=True, eq=False)
class Analysis:
    """What one forward and one backward pass tell about an image. Arrays are empty for what the model does not have."""

    layout: Layout  # of the model's tokens
    cells: Grid  # of `attention` and `similarity`: the patches, or means of neighbors where there are many
    probabilities: Array  # (K,)
    layers: tuple[LayerView, ...]
    maps: Mapping[MapKind, Array]  # (R, S) each, the larger the more a patch matters
    feature_colors: Array  # (R, S, 3), the first three principal components of the last patch tokens, from 0 to 1
    similarity: Array  # (cells, cells), cosine similarity of the last patch tokens


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Analysis):
    """An image explained: the analysis, the tests of its maps, the walkthrough, and the model itself."""

    model_name: str
    config: Vit | Resnet
    photo: Photo
    classes: tuple[str, ...]  # empty for a model without a head
    target: str  # the class that maps and curves are about; empty without classes
    faithfulness: Faithfulness
    steps: tuple[Step, ...]
    model: ModelView
    unavailable: tuple[str, ...]  # what this model cannot show and why, a sentence each

    def save(self, path: str | Path) -> None:
        """Write the explanation as one HTML file that works offline."""
        from vitral.explanation.page.page import write_page

        write_page(Path(path).expanduser(), [self])

    def figures(self) -> "dict[str, ExplanationFigure]":
        """The figures by name; each displays itself in a notebook and has `save`."""
        from vitral.explanation.figures import figures

        return figures(self)

    def _repr_html_(self) -> str:
        """The page, for a notebook."""
        from vitral.explanation.page.page import notebook

        return notebook(self)

    def __repr__(self) -> str:
        """One line."""
        best = f"{self.classes[self.probabilities.argmax()]}, {self.probabilities.max():.1%}" if self.classes else ""
        return f"<{self.photo.name} explained by {self.model_name}{f': {best}' if best else ''}>"


class Prediction(Config):
    """A class and its probability."""

    name: str
    probability: float


class MapTest(Config):
    """The areas under the deletion and insertion curves of a map, and the mean areas of random maps."""

    map: MapKind
    deletion_auc: float  # lower is better
    insertion_auc: float  # higher is better
    random_deletion_auc: float
    random_insertion_auc: float
    verdict: Verdict


class ImageSummary(Config):
    """One image."""

    image: str
    predictions: tuple[Prediction, ...]  # most probable first; none without classes
    target: str  # the class that the maps are about
    maps: tuple[MapKind, ...]
    faithfulness: tuple[MapTest, ...]
    unavailable: tuple[str, ...]


class Summary(Config):
    """What was explained, and where the page and the figures are."""

    model: str
    page: str
    figures: tuple[str, ...]  # files
    images: tuple[ImageSummary, ...]
    errors: tuple[str, ...]  # of images that could not be read


def summarize(explanation: Explanation) -> ImageSummary:
    """The summary of one image."""
    best = np.argsort(-explanation.probabilities, kind="stable")[:TOP]
    curves, random = explanation.faithfulness
    scores = explanation.faithfulness.scores()
    return ImageSummary(
        image=explanation.photo.name,
        predictions=tuple(
            Prediction(name=explanation.classes[label], probability=float(explanation.probabilities[label]))
            for label in best
        ),
        target=explanation.target,
        maps=tuple(explanation.maps),
        faithfulness=tuple(
            MapTest(
                map=kind,
                deletion_auc=curve.deletion_auc,
                insertion_auc=curve.insertion_auc,
                random_deletion_auc=float(np.mean([each.deletion_auc for each in random])),
                random_insertion_auc=float(np.mean([each.insertion_auc for each in random])),
                verdict=scores[kind].verdict,
            )
            for kind, curve in curves.items()
        ),
        unavailable=explanation.unavailable,
    )

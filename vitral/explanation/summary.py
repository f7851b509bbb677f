"""The JSON summary of `vitral explain --json`."""

import numpy as np

from vitral.core.config import Config
from vitral.explanation.explanation import Explanation, MapKind
from vitral.explanation.faithfulness import Verdict, score_maps

TOP = 5  # classes that are listed


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
    return ImageSummary(
        image=explanation.photo.name,
        predictions=tuple(
            Prediction(name=explanation.classes[label], probability=float(explanation.probabilities[label]))
            for label in best
        ),
        target=explanation.target,
        maps=tuple(explanation.maps),
        faithfulness=tuple(map_tests(explanation)),
        unavailable=explanation.unavailable,
    )


def map_tests(explanation: Explanation) -> list[MapTest]:
    scores, faithfulness = score_maps(explanation.faithfulness), explanation.faithfulness
    return [
        MapTest(
            map=kind,
            deletion_auc=curve.deletion_auc,
            insertion_auc=curve.insertion_auc,
            random_deletion_auc=float(np.mean([random.deletion_auc for random in faithfulness.random])),
            random_insertion_auc=float(np.mean([random.insertion_auc for random in faithfulness.random])),
            verdict=scores[kind].verdict,
        )
        for kind, curve in faithfulness.curves.items()
    ]

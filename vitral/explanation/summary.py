"""What a program wants to know of an explanation, in a few numbers."""

from collections.abc import Sequence

import numpy as np

from vitral.core.config import Config
from vitral.explanation.explanation import Explanation, MapKind
from vitral.explanation.faithfulness import verdicts

TOP = 5  # answers that are named


class Answer(Config):
    """A class and its probability."""

    name: str
    probability: float


class MapTest(Config):
    """How a map did when patches went, or came back, in its order, and how random ones did."""

    map: MapKind
    deletion_area: float  # the smaller the better
    insertion_area: float  # the larger the better
    random_deletion_area: float
    random_insertion_area: float
    standing: str  # better or worse than chance, or unclear


class ImageSummary(Config):
    """One image."""

    image: str
    answers: tuple[Answer, ...]  # the most probable first; none where the model has no head
    explained: str  # the class that the maps are about
    maps: tuple[MapKind, ...]
    tests: tuple[MapTest, ...]
    lacks: tuple[str, ...]


class Summary(Config):
    """What was explained, and where it is to be looked at."""

    model: str
    page: str
    figures: tuple[str, ...]  # files
    images: tuple[ImageSummary, ...]
    refused: tuple[str, ...]  # images that could not be read, each with the reason


def summary_of(explanation: Explanation) -> ImageSummary:
    """The image in a few numbers."""
    best = np.argsort(-explanation.probabilities, kind="stable")[:TOP]
    answers = [
        Answer(name=explanation.classes[label], probability=float(explanation.probabilities[label])) for label in best
    ]
    return ImageSummary(
        image=explanation.photo.name,
        answers=tuple(answers),
        explained=explanation.target,
        maps=tuple(heat.kind for heat in explanation.maps),
        tests=tuple(tests_of(explanation)),
        lacks=explanation.lacks,
    )


def tests_of(explanation: Explanation) -> list[MapTest]:
    tried = explanation.faithfulness
    return [
        MapTest(
            map=trial.kind,
            deletion_area=trial.curve.deletion_area,
            insertion_area=trial.curve.insertion_area,
            random_deletion_area=mean([curve.deletion_area for curve in tried.chance]),
            random_insertion_area=mean([curve.insertion_area for curve in tried.chance]),
            standing=verdict.standing,
        )
        for trial, verdict in zip(tried.trials, verdicts(tried), strict=True)
    ]


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))

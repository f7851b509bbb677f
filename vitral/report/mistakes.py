"""The worst mistakes: wrong answers that the model was most sure of, as pictures."""

from typing import NamedTuple

from vitral.data.samples import Samples
from vitral.data.thumbnail import thumbnail
from vitral.errors import DataError
from vitral.report.story import Judgement

MOST_MISTAKES = 24
MOST_BYTES = 1_500_000  # of thumbnails, so that the page stays below 3 MB


class Mistake(NamedTuple):
    """An image, the class it is labelled with and the one it was given; without a source where it cannot be shown."""

    name: str
    label: str
    given: str
    probability: float  # of what was given
    label_probability: float
    source: str


def worst_mistakes(judgement: Judgement, samples: Samples) -> list[Mistake]:
    """At most 24 of them, the surest first."""
    answers, items = judgement.answers, samples.of(judgement.split)
    given, sure = answers.given, answers.sure  # each (N,)
    wrong = (given != answers.labels).nonzero()[:, 0]
    order = wrong[sure[wrong].argsort(descending=True, stable=True)][:MOST_MISTAKES]
    found, left = [], MOST_BYTES
    for row in order.tolist():
        item = items[int(answers.places[row])]
        source = ""
        if left > 0:
            try:
                source = thumbnail(samples, item)
            except DataError:  # it was sound when it was judged: the page is not the place to tell
                source = ""
        left -= len(source)
        label, answer = int(answers.labels[row]), int(given[row])
        chance = answers.logits[row].double().softmax(dim=0).tolist()
        found.append(
            Mistake(item.name, samples.classes[label], samples.classes[answer], chance[answer], chance[label], source)
        )
    return found

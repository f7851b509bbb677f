"""Findings that need no file to be read: how many images there are of each class, and what the source had to say."""

from collections.abc import Iterator

from vitral.data.doctor.finding import Example, Finding, plural
from vitral.data.samples import SPLITS, Samples
from vitral.data.sources.labels import listed

MOST_IMBALANCE = 10.0  # of the largest class to the smallest
FEW = 10  # training images of a class


def class_findings(samples: Samples) -> Iterator[Finding]:
    """What the counts give cause to say, and the notes of the source."""
    missing = list(_missing(samples))
    yield from missing
    yield from _unjudged(samples)
    yield from _imbalance(samples)
    yield from _few(samples)
    said = {finding.title for finding in missing}
    yield from (Finding("note", "source", note, 1, (), "") for note in samples.notes if note not in said)


def _missing(samples: Samples) -> Iterator[Finding]:
    for split in SPLITS:
        counts = samples.counts(split)
        names = [name for name, count in zip(samples.classes, counts, strict=True) if not count]
        if names and any(counts):
            title = f"no images in {split}: {listed(names)}"
            remedy = f"add some to {split}: without them nobody knows how well these are told apart"
            yield Finding("warning", "missing", title, len(names), tuple(Example((), name) for name in names), remedy)


def _unjudged(samples: Samples) -> Iterator[Finding]:
    if all(item.split == "train" for item in samples.items):
        title = "no images to judge a model by, all are for training"
        yield Finding("warning", "unjudged", title, 1, (), "add images, some of them in a folder called val")


def _imbalance(samples: Samples) -> Iterator[Finding]:
    held = [(count, name) for count, name in zip(samples.counts("train"), samples.classes, strict=True) if count]
    (largest, most), (smallest, least) = max(held), min(held)
    if largest > MOST_IMBALANCE * smallest:
        ratio = f"{largest / smallest:.0f} times the training images of {least}"
        title = f"{most} has {ratio}: {largest:,} and {smallest:,}"
        examples = (Example((), most), Example((), least))
        yield Finding(
            "warning", "imbalance", title, 1, examples, "use balanced sampling, and look at accuracy by class"
        )


def _few(samples: Samples) -> Iterator[Finding]:
    counts = zip(samples.classes, samples.counts("train"), strict=True)
    found = tuple(Example((), f"{name} ({count})") for name, count in counts if count < FEW)
    if found:
        title = f"{plural(len(found), 'class has', 'classes have')} fewer than {FEW} training images"
        yield Finding("warning", "few", title, len(found), found, "add images, or begin from trained weights")

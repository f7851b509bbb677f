"""The data doctor: check every file of a dataset, or a random sample in seconds, and the resulting `Diagnosis`."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.doctor.checks import class_findings, enlargement, file_findings, mode_name, readable_items
from vitral.data.doctor.duplicates import duplicate_findings
from vitral.data.doctor.examine import ExaminedItem, examine, examine_all, with_progress
from vitral.data.doctor.finding import SEVERITIES, Example, Finding, Severity, sort_by_severity
from vitral.data.samples import SPLITS, Samples

IMAGE_SIZE = Size(224, 224)  # what the paper's models take
MAX_SQUEEZE = 1.5  # the ratio of the sides from which a resize to a square shows


@dataclass(frozen=True)
class Diagnosis:
    """What a data set is, and what is wrong with it, worst first."""

    samples: Samples
    examined: int  # how many files were looked into
    sizes: Counter[Size]
    formats: Counter[str]
    modes: Counter[str]
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        """How many findings are so bad."""
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(frozen=True)
class ResizeSummary:
    """What resizing to the model's input size does to the images."""

    smallest: Size
    median: Size  # of the heights and of the widths
    largest: Size
    enlarged: int  # pictures of which a side becomes longer
    reduction: float  # median ratio of the longer side before to that side after
    squeezed: int  # pictures of which one side shrinks more than SQUEEZED times as much as the other


def diagnose(samples: Samples, examined: Sequence[ExaminedItem]) -> Diagnosis:
    """The findings about a data set of which these files, all or some, were examined."""
    items = readable_items(examined)
    findings = (*class_findings(samples), *file_findings(examined, IMAGE_SIZE), *duplicate_findings(items))
    return Diagnosis(
        samples,
        len(examined),
        Counter(result.header.size for _, result in items),
        Counter(result.header.format for _, result in items),
        Counter(mode_name(result.header.mode) for _, result in items),
        sort_by_severity(findings),
    )


def summarize_resize(sizes: Counter[Size], image: Size = IMAGE_SIZE) -> ResizeSummary:
    """How images of these sizes are resized to the model's input size."""
    every = sorted(sizes.elements(), key=lambda size: size.height * size.width)
    middle = Size(round(median(size.height for size in every)), round(median(size.width for size in every)))
    return ResizeSummary(
        smallest=every[0],
        median=middle,
        largest=every[-1],
        enlarged=sum(enlargement(size, image) > 1 for size in every),
        reduction=median(max(size) / max(image) for size in every),
        squeezed=sum(max(size) > MAX_SQUEEZE * min(size) for size in every),
    )


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data for JSON.

    where, classes            what was examined, and the names of the classes
    splits                    images by split
    counts                    images by class and split
    examined                  how many files were looked into
    formats, modes            files by format and by mode, of those that decode
    resizing                  sizes as [height, width], and what a resize to `image` does; null when nothing decodes
    findings                  severity, kind, title, count, hint, and all examples with their files (name, class,
                              split) and a detail
    errors, warnings, notes   how many findings of each severity
    """
    samples = diagnosis.samples
    counts = {split: samples.counts(split) for split in SPLITS}
    sizes = diagnosis.sizes
    return {
        "where": samples.where,
        "classes": list(samples.classes),
        "splits": {split: sum(found) for split, found in counts.items()},
        "counts": {
            name: {split: counts[split][label] for split in SPLITS} for label, name in enumerate(samples.classes)
        },
        "examined": diagnosis.examined,
        "formats": dict(diagnosis.formats),
        "modes": dict(diagnosis.modes),
        "resizing": {"image": IMAGE_SIZE, **vars(summarize_resize(sizes))} if sizes else None,
        "findings": [
            {**vars(finding), "examples": [_example(example, samples) for example in finding.examples]}
            for finding in diagnosis.findings
        ],
        **{f"{severity}s": diagnosis.count(severity) for severity in SEVERITIES},
    }


def _example(example: Example, samples: Samples) -> dict[str, Any]:
    files = [{"name": item.name, "class": samples.classes[item.label], "split": item.split} for item in example.items]
    return {"files": files, "detail": example.detail}


FEW_FILES = 200
FEW_BYTES = 64_000_000  # of encoded images: some seconds of decoding, whatever their size


def check(samples: Samples, workers: int) -> Diagnosis:
    """Examine every file with so many worker processes, and a progress bar on a terminal."""
    return diagnose(samples, list(with_progress(examine_all(samples, workers), len(samples.items))))


def check_sample(samples: Samples) -> Diagnosis:
    """Run the checks that read no files, and examine a fixed random sample of the files."""
    return diagnose(samples, list(_drawn(samples)))


def _drawn(samples: Samples) -> Iterator[ExaminedItem]:
    count = min(FEW_FILES, len(samples.items))
    left = FEW_BYTES
    for item in random.Random(0).sample(samples.items, count):
        yield ExaminedItem(item, examine(samples.store, item))
        left -= _size(samples, item.name)
        if left < 0:
            return


def _size(samples: Samples, name: str) -> int:
    try:
        return samples.store.size(name)
    except DataError:  # it vanished, and its exam says so
        return 0

"""The data doctor: check every file of a dataset, or a random sample in seconds. The result is a `Diagnosis`."""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.doctor import checks
from vitral.data.doctor.checks import SEVERITIES, Example, Finding, Severity
from vitral.data.doctor.duplicates import duplicate_findings
from vitral.data.doctor.examine import ExaminedItem, examine, examine_all, with_progress
from vitral.data.samples import SPLITS, Samples

IMAGE_SIZE = Size(224, 224)  # the input size of the paper's models
MAX_SQUEEZE = 1.5  # the ratio of the sides above which a resize to a square is visible
FEW_FILES = 200
FEW_BYTES = 64_000_000  # of encoded images: some seconds of decoding, whatever their size


@dataclass(frozen=True)
class Diagnosis:
    """What a dataset holds, and the findings about it, worst first."""

    samples: Samples
    examined: int  # number of files
    sizes: Counter[Size]
    formats: Counter[str]
    modes: Counter[str]
    findings: tuple[Finding, ...]

    def count(self, severity: Severity) -> int:
        """The number of findings of this severity."""
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(frozen=True)
class ResizeSummary:
    """What resizing to the model's input size does to the images."""

    smallest: Size
    median: Size  # of the heights and of the widths
    largest: Size
    enlarged: int  # images of which a side becomes longer
    reduction: float  # median ratio of the longer side before to that side after
    squeezed: int  # images of which one side shrinks more than MAX_SQUEEZE times as much as the other


def check(samples: Samples, workers: int) -> Diagnosis:
    """Examine every file with so many worker processes, and a progress bar on a terminal."""
    return diagnose(samples, list(with_progress(examine_all(samples, workers), len(samples.items))))


def check_sample(samples: Samples) -> Diagnosis:
    """Run the checks that read no files, and examine a fixed random sample of the files."""
    examined, left = [], FEW_BYTES
    for item in random.Random(0).sample(samples.items, min(FEW_FILES, len(samples.items))):
        examined.append(ExaminedItem(item, examine(samples.store, item)))
        with suppress(DataError):  # a file that vanished: its result says so
            left -= samples.store.size(item.name)
        if left < 0:
            break
    return diagnose(samples, examined)


def diagnose(samples: Samples, examined: Sequence[ExaminedItem]) -> Diagnosis:
    """The diagnosis of a dataset of which these files, all or some, were examined."""
    items = checks.readable_items(examined)
    found = (*checks.class_findings(samples), *checks.file_findings(examined, IMAGE_SIZE), *duplicate_findings(items))
    return Diagnosis(
        samples,
        len(examined),
        Counter(info.header.size for _, info in items),
        Counter(info.header.format for _, info in items),
        Counter(checks.mode_name(info.header.mode) for _, info in items),
        checks.sort_by_severity(found),
    )


def summarize_resize(sizes: Counter[Size], image: Size = IMAGE_SIZE) -> ResizeSummary:
    """How images of these sizes are resized to the model's input size."""
    every = sorted(sizes.elements(), key=lambda size: size.height * size.width)
    return ResizeSummary(
        smallest=every[0],
        median=Size(round(median(size.height for size in every)), round(median(size.width for size in every))),
        largest=every[-1],
        enlarged=sum(checks.enlargement(size, image) > 1 for size in every),
        reduction=median(max(size) / max(image) for size in every),
        squeezed=sum(max(size) > MAX_SQUEEZE * min(size) for size in every),
    )


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain data for JSON.

    where, classes            what was examined, and the names of the classes
    splits                    images by split
    counts                    images by class and split
    examined                  number of files that were examined
    formats, modes            files by format and by mode, of those that decode
    resizing                  sizes as [height, width], and what a resize to `image` does; null when nothing decodes
    findings                  severity, kind, title, count, hint, and all examples with their files (name, class,
                              split) and a detail
    errors, warnings, notes   number of findings of each severity
    """
    samples, sizes = diagnosis.samples, diagnosis.sizes
    counts = {split: samples.counts(split) for split in SPLITS}
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

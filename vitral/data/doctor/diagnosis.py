"""The diagnosis of a dataset: all of its files are examined, or a random sample of them within seconds."""

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.isolation import Isolation
from vitral.data.doctor import checks
from vitral.data.doctor.checks import SEVERITIES, Example, Finding, ModelInput, Severity
from vitral.data.doctor.duplicates import duplicate_findings
from vitral.data.doctor.examine import (
    DEFAULT,
    ExaminedItem,
    examine,
    examine_all,
    examine_isolated,
    with_progress,
)
from vitral.data.samples import SPLITS, Samples
from vitral.html.page import plural

MAX_SQUEEZE = 1.5  # aspect ratio above which a resize to a square is visible
FEW_FILES = 200
FEW_BYTES = 64_000_000  # of encoded images, which decode in some seconds


@dataclass(frozen=True)
class TrainingForecast:
    """The training that `vitral train` would run on the data, from its recipe."""

    recipe: str
    reason: str  # why this recipe was chosen, if none was named
    task: str
    weights: str  # to start from, empty for random weights
    model: str  # in words
    parameters: int  # of the model
    image_size: Size
    patch: Size  # in pixels
    patches: int  # of an image
    squeezes: bool  # whether images are resized to the image size without keeping their aspect ratio
    epochs: float
    steps: int
    batch_size: int

    @property
    def model_input(self) -> ModelInput:
        """What the model takes."""
        return ModelInput(self.image_size, self.patch)


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What a dataset contains, the findings about it, worst first, and the training that it is for."""

    samples: Samples
    examined: int  # number of files
    sizes: Counter[Size]
    formats: Counter[str]
    modes: Counter[str]
    findings: tuple[Finding, ...]
    training: TrainingForecast | None = None  # unknown for a sample of the files, and without training images
    arguments: str = ""  # of `vitral train` and `vitral check` for this data; empty if it was passed as an object
    decoding: Decoding = DEFAULT  # for the thumbnails of a page
    isolation: Isolation | None = None

    def __repr__(self) -> str:
        found = ", ".join(plural(self.count(severity), severity) for severity in SEVERITIES)
        return f"Diagnosis({self.samples.where!r}: {plural(len(self.samples.items), 'image')}, {found})"

    def count(self, severity: Severity) -> int:
        """The number of findings of this severity."""
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(frozen=True)
class ResizeSummary:
    """What resizing to the model's input size does to the images."""

    smallest: Size
    median: Size  # of the heights and of the widths
    largest: Size
    enlarged: int  # images with a side that becomes longer
    reduction: float  # median ratio of the longer side before to that side after
    squeezed: int  # images of which one side shrinks more than MAX_SQUEEZE times as much as the other


@dataclass(frozen=True)
class ImagesPerClass:
    """The number of training images of the classes."""

    smallest: int
    median: int
    largest: int


def diagnose_all(
    samples: Samples,
    workers: int,
    faults: Sequence[DataError] = (),
    training: TrainingForecast | None = None,
    arguments: str = "",
    decoding: Decoding = DEFAULT,
    isolation: Isolation | None = None,
) -> Diagnosis:
    """Examine every file in worker processes, or decode it in isolation, with a progress bar on a terminal.

    `faults` are the structural faults that were found when the data was opened.
    """
    results = examine_isolated(samples, isolation, decoding) if isolation else examine_all(samples, workers, decoding)
    examined = list(with_progress(results, len(samples.items)))
    diagnosis = diagnose(samples, examined, faults, training, arguments)
    return replace(diagnosis, decoding=decoding, isolation=isolation)


def diagnose_sample(samples: Samples, model_input: ModelInput, decoding: Decoding = DEFAULT) -> Diagnosis:
    """Run the checks that read no files, and examine a fixed random sample of the files."""
    examined, left = [], FEW_BYTES
    for item in random.Random(0).sample(samples.items, min(FEW_FILES, len(samples.items))):
        examined.append(ExaminedItem(item, examine(samples.store, item, decoding)))
        with suppress(DataError):  # the file was deleted, and its result says so
            left -= samples.store.size(item.name)
        if left < 0:
            break
    return diagnose(samples, examined, model_input=model_input)


def diagnose(
    samples: Samples,
    examined: Sequence[ExaminedItem],
    faults: Sequence[DataError] = (),
    training: TrainingForecast | None = None,
    arguments: str = "",
    model_input: ModelInput | None = None,
) -> Diagnosis:
    """The diagnosis of a dataset of which these files were examined; the forecast says what the model takes."""
    items = checks.readable_items(examined)
    return Diagnosis(
        samples,
        len(examined),
        Counter(info.header.size for _, info in items),
        Counter(info.header.format for _, info in items),
        Counter(checks.mode_name(info.header.mode) for _, info in items),
        find_all(samples, examined, training.model_input if training else model_input, faults),
        training,
        arguments,
    )


def find_all(
    samples: Samples,
    examined: Sequence[ExaminedItem],
    model_input: ModelInput | None,
    faults: Sequence[DataError] = (),
) -> tuple[Finding, ...]:
    """All findings, worst first."""
    found = (
        *checks.fault_findings(faults),
        *checks.class_findings(samples),
        *checks.file_findings(examined, model_input),
        *duplicate_findings(checks.readable_items(examined), checks.is_labeled(samples)),
    )
    return checks.sort_by_severity(found)


def images_per_class(samples: Samples) -> ImagesPerClass:
    """The number of training images of the classes that have any; there must be one."""
    counts = [count for count in samples.counts("train") if count]
    return ImagesPerClass(min(counts), round(median(counts)), max(counts))


def summarize_resize(sizes: Counter[Size], image: Size) -> ResizeSummary:
    """How images of these sizes are resized to the input size `image`."""
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

    where, classes            the dataset, and the names of its classes; one empty name if it has no labels
    splits                    images by split
    counts                    images by class and split
    examined                  number of files that were examined
    formats, modes            files by format and by mode, of those that decode
    resizing                  sizes as [height, width], and what a resize to `image` does; null if nothing decodes
    findings                  severity, kind, title, count, hint, the error code of structural faults, and all examples
                              with their files (name, class, split) and a detail
    errors, warnings, notes   number of findings of each severity
    training                  the training that `vitral train` would run: recipe, image size, patches, length, and
                              training images per class; null if there are no training images
    command                   what to run next
    """
    samples, sizes, training = diagnosis.samples, diagnosis.sizes, diagnosis.training
    counts = {split: samples.counts(split) for split in SPLITS}
    resizing = None
    if sizes and training:
        resizing = {"image": training.image_size, **vars(summarize_resize(sizes, training.image_size))}
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
        "resizing": resizing,
        "findings": [
            {**vars(finding), "examples": [_example(example, samples) for example in finding.examples]}
            for finding in diagnosis.findings
        ],
        **{f"{severity}s": diagnosis.count(severity) for severity in SEVERITIES},
        "training": vars(training) | {"images_per_class": vars(images_per_class(samples))} if training else None,
        "command": next_command(diagnosis),
    }


def next_command(diagnosis: Diagnosis) -> str:
    """The command to run next: `vitral train`, or `vitral check` after the errors are fixed."""
    verb = "check" if diagnosis.count("error") else "train"
    return f"vitral {verb} {diagnosis.arguments}" if diagnosis.arguments else f"vitral.{verb}(...)"


def _example(example: Example, samples: Samples) -> dict[str, Any]:
    files = [{"name": item.name, "class": samples.classes[item.label], "split": item.split} for item in example.items]
    return {"files": files, "detail": example.detail}

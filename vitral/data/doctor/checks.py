"""Findings, and the checks of structure, class counts and splits, which read no image, and of single files."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, get_args

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.datasets.files import is_image, suffix
from vitral.data.decoding.header import ImageFormat
from vitral.data.doctor.examine import ExaminedItem, ImageInfo, Unreadable
from vitral.data.samples import SPLITS, Item, Samples, format_names
from vitral.html.page import plural, printable

Severity = Literal["error", "warning", "note"]  # worst first
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

# Everything that is checked. Programs that read the JSON may rely on these names.
FindingKind = Literal[
    "structure",
    "corrupt",
    "damaged",
    "channels",
    "contradiction",
    "leak",
    "look-alike leak",
    "missing",
    "unjudged",
    "look-alike labels",
    "duplicates",
    "blank",
    "unlabeled",
    "imbalance",
    "few",
    "aspect",
    "enlarged",
    "large",
    "look-alikes",
    "misnamed",
    "modes",
    "rotated",
    "source",
]


class Example(NamedTuple):
    """One case of a finding: its images, if any, and a detail."""

    items: tuple[Item, ...]
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """One result of a check. `count` is the number in the title; `examples` has every case, not only the first ones."""

    severity: Severity
    kind: FindingKind
    title: str
    count: int
    examples: tuple[Example, ...]
    hint: str
    code: str = ""  # of the error that `vitral train` stops with, for the kind "structure"

    @classmethod
    def of(cls, severity: Severity, kind: FindingKind, title: str, examples: Sequence[Example], hint: str) -> "Finding":
        """A finding whose count is the number of its examples."""
        return cls(severity, kind, title, len(examples), tuple(examples), hint)


def nonempty(*findings: Finding) -> list[Finding]:
    """The findings with a count above 0."""
    return [finding for finding in findings if finding.count]


def sort_by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity; within one severity in the order of `FindingKind`."""
    kinds = get_args(FindingKind)
    return tuple(sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), kinds.index(finding.kind))))


def fault_findings(faults: Iterable[DataError]) -> list[Finding]:
    """A finding for each structural fault; faults with the same code and hint are one finding."""
    groups: defaultdict[tuple[str, str], list[DataError]] = defaultdict(list)
    for fault in faults:
        groups[fault.code, fault.hint].append(fault)
    return [_fault(group) for group in groups.values()]


def _fault(faults: Sequence[DataError]) -> Finding:
    described = [f"{fault.where}: {fault.message}" for fault in faults]
    title = described[0] if len(faults) == 1 else f"{len(faults):,} faults of one kind"
    examples = tuple(Example((), text) for text in described) if len(faults) > 1 else ()
    return Finding("error", "structure", title, len(faults), examples, faults[0].hint, faults[0].code)


MAX_IMBALANCE = 10.0  # ratio of the largest class to the smallest
FEW = 10  # training images of a class


def class_findings(samples: Samples) -> list[Finding]:
    """Findings about class counts and splits, and the notes of the source."""
    found = {split: _missing(samples, counts, split) for split in SPLITS if any(counts := samples.counts(split))}
    reported = {finding.title for finding in found.values()}
    missing = nonempty(*(finding for split, finding in found.items() if split != "train"))  # of train it is a fault
    notes = [Finding("note", "source", note, 1, (), "") for note in samples.notes if note not in reported]
    if not samples.of("train"):  # a structural fault, which is reported as such
        return notes
    if not is_labeled(samples):
        return [_unlabeled(samples), *notes]
    return [*missing, *nonempty(_no_validation(samples), _imbalance(samples), _few(samples)), *notes]


def is_labeled(samples: Samples) -> bool:
    """Whether the images have classes; a folder that was opened without labels has one class without a name."""
    return samples.classes != ("",)


def _unlabeled(samples: Samples) -> Finding:
    folder = printable(shlex.quote(samples.where))
    hint = (
        "to train a classifier, put the images of each class in a folder of their own; "
        f"to classify them with a trained model: vitral predict MODEL {folder}"
    )
    return Finding("note", "unlabeled", "the images have no labels", 1, (), hint)


def _missing(samples: Samples, counts: Sequence[int], split: str) -> Finding:
    names = [name for name, count in zip(samples.classes, counts, strict=True) if not count]
    title = f"no images in {split}: {format_names(names)}"
    hint = f"add some to {split}: without them the accuracy on these classes is unknown"
    return Finding.of("warning", "missing", title, [Example((), name) for name in names], hint)


def _no_validation(samples: Samples) -> Finding:
    count = int(all(item.split == "train" for item in samples.items))
    title, hint = (
        "no validation or test images: all are for training",
        "add images, some of them in a folder called val",
    )
    return Finding("warning", "unjudged", title, count, (), hint)


def _imbalance(samples: Samples) -> Finding:
    held = [(count, name) for count, name in zip(samples.counts("train"), samples.classes, strict=True) if count]
    (largest, most), (smallest, least) = max(held), min(held)
    ratio = f"{largest / smallest:.0f} times as many training images as {least}"
    title = f"{most} has {ratio}: {largest:,} and {smallest:,}"
    examples = (Example((), most), Example((), least))
    hint = "sample classes equally often (--set data.order=balanced), and look at the accuracy of each class"
    return Finding("warning", "imbalance", title, int(largest > MAX_IMBALANCE * smallest), examples, hint)


def _few(samples: Samples) -> Finding:
    counts = zip(samples.classes, samples.counts("train"), strict=True)
    found = [Example((), f"{name} ({count})") for name, count in counts if 0 < count < FEW]
    title = f"{plural(len(found), 'class has', 'classes have')} fewer than {FEW} training images"
    return Finding.of("warning", "few", title, found, "add images, or start from pretrained weights (--weights)")


BLANK_SPREAD = 8  # gray levels; a JPEG of a single color stays within them
MAX_ASPECT = 3.0
MAX_ENLARGEMENT = 4.0
MANY_PIXELS = 12_000_000

SUFFIXES: dict[ImageFormat, tuple[str, ...]] = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"),
    "AVIF": (".avif",),
    "NPY": (".npy",),
}
MODES = {
    "1": "1-bit",
    "L": "gray",
    "LA": "gray with alpha",
    "La": "gray with alpha",
    "RGB": "color",
    "RGBA": "color with alpha",
    "P": "palette",
    "PA": "palette",
    "F": "float gray",
    "YCbCr": "color",
}

ReadableItem = tuple[Item, ImageInfo]


def readable_items(examined: Iterable[ExaminedItem]) -> list[ReadableItem]:
    """The files that decode."""
    return [(item, result) for item, result in examined if isinstance(result, ImageInfo)]


@dataclass(frozen=True)
class ModelInput:
    """What the model takes: the image size, in pixels, of which each side is a multiple of that of `patch`."""

    image_size: Size
    patch: Size


def file_findings(examined: Sequence[ExaminedItem], model_input: ModelInput | None) -> list[Finding]:
    """Findings about single files; those about the image size only if the model's input is known."""
    items = readable_items(examined)
    checks = (_damaged, _channels, _blank, _aspect, _large, _misnamed, _modes, _rotated)
    enlarged = [_enlarged(items, model_input)] if model_input else []
    return nonempty(_corrupt(examined), *enlarged, *(check(items) for check in checks))


def enlargement(size: Size, image: Size) -> float:
    """The factor by which resizing to `image` upscales the image, along the side with the larger factor."""
    return max(image.height / size.height, image.width / size.width)


def _corrupt(examined: Sequence[ExaminedItem]) -> Finding:
    broken = [(item, result) for item, result in examined if isinstance(result, Unreadable)]
    title = plural(len(broken), "file cannot be read as an image", "files cannot be read as images")
    hints = {result.hint for _, result in broken if result.hint}
    hint = hints.pop() if len(hints) == 1 else "remove or replace them"
    return Finding.of("error", "corrupt", title, [Example((item,), result.message) for item, result in broken], hint)


def _damaged(items: Sequence[ReadableItem]) -> Finding:
    found = [Example((item,), info.damage) for item, info in items if info.damage]
    title = f"{plural(len(found), 'damaged image is', 'damaged images are')} used as far as they decode"
    return Finding.of("warning", "damaged", title, found, "remove or replace them: some of their pixels are wrong")


def _channels(items: Sequence[ReadableItem]) -> Finding:
    """Gray and color images are converted to each other; arrays with more channels are not."""
    counts = [int(info.header.mode.rpartition(" ")[2]) if info.header.format == "NPY" else 3 for _, info in items]
    kinds = sorted({3 if count in {1, 3} else count for count in counts})
    odd = [(item, count) for (item, _), count in zip(items, counts, strict=True) if count not in {1, 3}]
    found = [Example((item,), f"{count} channels") for item, count in odd] if len(kinds) > 1 else []
    title = f"{plural(len(found), 'array differs', 'arrays differ')} in channels: {', '.join(map(str, kinds))}"
    return Finding.of("error", "channels", title, found, "save all images with the same number of channels")


def _blank(items: Sequence[ReadableItem]) -> Finding:
    found = [Example((item,)) for item, info in items if info.contrast <= BLANK_SPREAD]
    title = f"{plural(len(found), 'image has', 'images have')} a single color"
    return Finding.of("warning", "blank", title, found, "remove blank images")


def _enlarged(items: Sequence[ReadableItem], model_input: ModelInput) -> Finding:
    image, patch = model_input.image_size, model_input.patch
    found = _select(items, lambda size: enlargement(size, image) > MAX_ENLARGEMENT)
    title = f"{plural(len(found), 'image is', 'images are')} upscaled more than {MAX_ENLARGEMENT:g} times, to {image}"
    if len(found) <= len(items) / 2:
        return Finding.of("warning", "enlarged", title, found, "replace them with larger images, or remove them")
    sizes = [info.header.size for _, info in items]
    height = _round_up(round(median(size.height for size in sizes)), patch.height)
    width = _round_up(round(median(size.width for size in sizes)), patch.width)
    hint = f"train at about the size of the images: --image-size {height if height == width else Size(height, width)}"
    return Finding.of("note", "enlarged", title, found, hint)


def _round_up(pixels: int, multiple: int) -> int:
    return -(-pixels // multiple) * multiple


def _aspect(items: Sequence[ReadableItem]) -> Finding:
    found = _select(items, lambda size: max(size) > MAX_ASPECT * min(size))
    title = f"{plural(len(found), 'image is', 'images are')} more than {MAX_ASPECT:g} times as long as wide"
    return Finding.of("warning", "aspect", title, found, "crop them: resizing to the input size distorts them")


def _large(items: Sequence[ReadableItem]) -> Finding:
    found = _select(items, lambda size: size.height * size.width > MANY_PIXELS)
    title = f"{plural(len(found), 'image has', 'images have')} more than {MANY_PIXELS // 10**6} megapixels"
    return Finding.of("note", "large", title, found, "save them at a smaller size: they are slow to read")


def _select(items: Sequence[ReadableItem], condition: Callable[[Size], bool]) -> list[Example]:
    """The images whose size meets the condition; the size is the detail."""
    return [Example((item,), str(info.header.size)) for item, info in items if condition(info.header.size)]


def _misnamed(items: Sequence[ReadableItem]) -> Finding:
    """Files whose name claims another image format. A row of a table claims none: its name is that of the table."""
    named = [(item, suffix(item.name), info.header.format) for item, info in items if is_image(item.name)]
    found = [Example((item,), f"is {kind}") for item, name, kind in named if name not in SUFFIXES[kind]]
    title = f"{plural(len(found), 'file has', 'files have')} another format than the name says"
    return Finding.of("note", "misnamed", title, found, "nothing to do: the format is detected from the content")


def _modes(items: Sequence[ReadableItem]) -> Finding:
    named = [(item, mode_name(info.header.mode)) for item, info in items]
    counts = Counter(name for _, name in named)
    usual = max(counts, key=counts.__getitem__, default="")  # the first of two that are equally frequent
    rest = [Example((item,), name) for item, name in named if name != usual]
    others = ", ".join(sorted(counts.keys() - {usual}))
    title = f"{plural(len(rest), 'image is', 'images are')} not {usual} like most others: {others}"
    hint = "nothing to do if this is intended: all are converted, transparent pixels to white"
    return Finding.of("note", "modes", title, rest, hint)


def mode_name(mode: str) -> str:
    """A readable name for a mode of Pillow or of an array."""
    channels = mode.partition(" x ")[2]  # of an array
    if channels:
        return {"1": "gray", "3": "color"}.get(channels, f"{channels} channels")
    if mode.startswith("I"):
        return "16-bit gray"
    base, deep, _ = mode.partition(";16")
    return f"{'16-bit ' * bool(deep)}{MODES.get(base, base)}"


def _rotated(items: Sequence[ReadableItem]) -> Finding:
    turned = [(item, info.header.orientation) for item, info in items if info.header.orientation > 1]
    found = [Example((item,), f"EXIF {orientation}") for item, orientation in turned]
    title = f"{plural(len(found), 'image is', 'images are')} stored rotated or mirrored"
    return Finding.of("note", "rotated", title, found, "nothing to do: they are rotated upright when they are read")

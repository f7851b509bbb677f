"""Findings, and the checks of class counts and splits (which read no file) and of single files."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple, get_args

from vitral.core.config import Size
from vitral.data.datasets.files import suffix
from vitral.data.decoding.header import ImageFormat
from vitral.data.doctor.examine import ExaminedItem, ImageInfo, Unreadable
from vitral.data.samples import SPLITS, Item, Samples, format_names
from vitral.html.page import plural

Severity = Literal["error", "warning", "note"]  # worst first
SEVERITIES: tuple[Severity, ...] = get_args(Severity)

# All that the doctor looks for; programs that read the JSON may rely on these names.
FindingKind = Literal[
    "corrupt",
    "channels",
    "contradiction",
    "leak",
    "look-alike leak",
    "missing",
    "unjudged",
    "look-alike labels",
    "duplicates",
    "blank",
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
    """One case of a finding: the images it is about, if any, and a detail."""

    items: tuple[Item, ...]
    detail: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing to know about a dataset. `count` is the number in the title, `examples` are all of its cases."""

    severity: Severity
    kind: FindingKind
    title: str
    count: int
    examples: tuple[Example, ...]
    hint: str

    @classmethod
    def of(cls, severity: Severity, kind: FindingKind, title: str, examples: Sequence[Example], hint: str) -> "Finding":
        """A finding that counts its examples."""
        return cls(severity, kind, title, len(examples), tuple(examples), hint)


def nonempty(*findings: Finding) -> list[Finding]:
    """The findings of checks that found anything."""
    return [finding for finding in findings if finding.count]


def sort_by_severity(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """By severity; within one severity in the order of `FindingKind`."""
    kinds = get_args(FindingKind)
    return tuple(sorted(findings, key=lambda finding: (SEVERITIES.index(finding.severity), kinds.index(finding.kind))))


MAX_IMBALANCE = 10.0  # of the largest class to the smallest
FEW = 10  # training images of a class


def class_findings(samples: Samples) -> list[Finding]:
    """Findings about class counts and splits, and the notes of the source."""
    missing = nonempty(*(_missing(samples, counts, split) for split in SPLITS if any(counts := samples.counts(split))))
    reported = {finding.title for finding in missing}
    notes = [Finding("note", "source", note, 1, (), "") for note in samples.notes if note not in reported]
    return [*missing, *nonempty(_no_validation(samples), _imbalance(samples), _few(samples)), *notes]


def _missing(samples: Samples, counts: Sequence[int], split: str) -> Finding:
    names = [name for name, count in zip(samples.classes, counts, strict=True) if not count]
    title = f"no images in {split}: {format_names(names)}"
    hint = f"add some to {split}: without them the accuracy on these classes is unknown"
    return Finding.of("warning", "missing", title, [Example((), name) for name in names], hint)


def _no_validation(samples: Samples) -> Finding:
    count = int(all(item.split == "train" for item in samples.items))
    title = "no validation or test images, all are for training"
    return Finding("warning", "unjudged", title, count, (), "add images, some of them in a folder called val")


def _imbalance(samples: Samples) -> Finding:
    held = [(count, name) for count, name in zip(samples.counts("train"), samples.classes, strict=True) if count]
    (largest, most), (smallest, least) = max(held), min(held)
    ratio = f"{largest / smallest:.0f} times the training images of {least}"
    title = f"{most} has {ratio}: {largest:,} and {smallest:,}"
    examples = (Example((), most), Example((), least))
    hint = "use balanced sampling, and look at accuracy by class"
    return Finding("warning", "imbalance", title, int(largest > MAX_IMBALANCE * smallest), examples, hint)


def _few(samples: Samples) -> Finding:
    counts = zip(samples.classes, samples.counts("train"), strict=True)
    found = [Example((), f"{name} ({count})") for name, count in counts if count < FEW]
    title = f"{plural(len(found), 'class has', 'classes have')} fewer than {FEW} training images"
    return Finding.of("warning", "few", title, found, "add images, or start from pretrained weights")


BLANK_SPREAD = 8  # levels: JPEG keeps a single color within them
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


def file_findings(examined: Sequence[ExaminedItem], image: Size) -> list[Finding]:
    """Findings about single files, for a model with this input size."""
    items = readable_items(examined)
    checks = (_channels, _blank, _aspect, _large, _misnamed, _modes, _rotated)
    return nonempty(_corrupt(examined), _enlarged(items, image), *(check(items) for check in checks))


def enlargement(size: Size, image: Size) -> float:
    """The factor by which the image is enlarged, along the side where that is most."""
    return max(image.height / size.height, image.width / size.width)


def _corrupt(examined: Sequence[ExaminedItem]) -> Finding:
    broken = [(item, result) for item, result in examined if isinstance(result, Unreadable)]
    title = f"{plural(len(broken), 'file')} cannot be used"
    hints = {result.hint for _, result in broken if result.hint}
    hint = hints.pop() if len(hints) == 1 else "remove or replace them"
    return Finding.of("error", "corrupt", title, [Example((item,), result.message) for item, result in broken], hint)


def _channels(items: Sequence[ReadableItem]) -> Finding:
    """Gray and color are converted into each other; arrays with other channel counts fit only their like."""
    counts = [int(info.header.mode.rpartition(" ")[2]) if info.header.format == "NPY" else 3 for _, info in items]
    kinds = sorted({3 if count in {1, 3} else count for count in counts})
    odd = [(item, count) for (item, _), count in zip(items, counts, strict=True) if count not in {1, 3}]
    found = [Example((item,), f"{count} channels") for item, count in odd] if len(kinds) > 1 else []
    title = f"{plural(len(found), 'array')} with other channel counts than the rest: {', '.join(map(str, kinds))}"
    return Finding.of("error", "channels", title, found, "save all of them with the same number of channels")


def _blank(items: Sequence[ReadableItem]) -> Finding:
    found = [Example((item,)) for item, info in items if info.contrast <= BLANK_SPREAD]
    title = f"{plural(len(found), 'image is', 'images are')} of one color"
    return Finding.of("warning", "blank", title, found, "remove images that show nothing")


def _enlarged(items: Sequence[ReadableItem], image: Size) -> Finding:
    found = _select(items, lambda size: enlargement(size, image) > MAX_ENLARGEMENT)
    title = f"{plural(len(found), 'image is', 'images are')} enlarged more than {MAX_ENLARGEMENT:g} times"
    if len(found) <= len(items) / 2:
        return Finding.of("warning", "enlarged", title, found, "replace them with larger ones, or remove them")
    patches = -(-round(median(min(info.header.size) for _, info in items)) // 16)
    return Finding.of("note", "enlarged", title, found, f"train near their size: --image-size {patches * 16}")


def _aspect(items: Sequence[ReadableItem]) -> Finding:
    found = _select(items, lambda size: max(size) > MAX_ASPECT * min(size))
    title = f"{plural(len(found), 'image is', 'images are')} more than {MAX_ASPECT:g} times as long as wide"
    return Finding.of("warning", "aspect", title, found, "crop them: resizing to a square distorts them")


def _large(items: Sequence[ReadableItem]) -> Finding:
    found = _select(items, lambda size: size.height * size.width > MANY_PIXELS)
    title = f"{plural(len(found), 'image has', 'images have')} more than {MANY_PIXELS // 10**6} megapixels"
    return Finding.of("note", "large", title, found, "slow to read: save them smaller, once")


def _select(items: Sequence[ReadableItem], condition: Callable[[Size], bool]) -> list[Example]:
    """The images whose size meets the condition, with their sizes."""
    return [Example((item,), str(info.header.size)) for item, info in items if condition(info.header.size)]


def _misnamed(items: Sequence[ReadableItem]) -> Finding:
    named = [(item, suffix(item.name), info.header.format) for item, info in items]
    found = [Example((item,), f"is {kind}") for item, name, kind in named if name and name not in SUFFIXES[kind]]
    title = f"{plural(len(found), 'file has', 'files have')} another format than the name says"
    return Finding.of("note", "misnamed", title, found, "nothing to do: the content decides")


def _modes(items: Sequence[ReadableItem]) -> Finding:
    named = [(item, mode_name(info.header.mode)) for item, info in items]
    counts = Counter(name for _, name in named)
    usual = max(counts, key=counts.__getitem__, default="")  # the first of two that are equally frequent
    rest = [Example((item,), name) for item, name in named if name != usual]
    title = f"{plural(len(rest), 'file')} among {usual} images: {', '.join(sorted(counts.keys() - {usual}))}"
    hint = "nothing to do if this is intended: each is converted correctly, alpha on white"
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
    return Finding.of("note", "rotated", title, found, "nothing to do: they are turned upright when read")

"""Checks of class counts and splits, which read no file, and checks of single files: damage, sizes, modes, names."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median

from vitral.core.config import Size
from vitral.data.datasets.files import suffix
from vitral.data.decoding.header import ImageFormat
from vitral.data.doctor.examine import ExaminedItem, ImageInfo, Unreadable
from vitral.data.doctor.finding import Example, Finding, plural
from vitral.data.samples import SPLITS, Item, Samples, format_names

MOST_IMBALANCE = 10.0  # of the largest class to the smallest
FEW = 10  # training images of a class


def class_findings(samples: Samples) -> Iterator[Finding]:
    """What the counts give cause to say, and the notes of the source."""
    missing = list(_missing(samples))
    yield from missing
    yield from _no_validation(samples)
    yield from _imbalance(samples)
    yield from _few(samples)
    said = {finding.title for finding in missing}
    yield from (Finding("note", "source", note, 1, (), "") for note in samples.notes if note not in said)


def _missing(samples: Samples) -> Iterator[Finding]:
    for split in SPLITS:
        counts = samples.counts(split)
        names = [name for name, count in zip(samples.classes, counts, strict=True) if not count]
        if names and any(counts):
            title = f"no images in {split}: {format_names(names)}"
            hint = f"add some to {split}: without them the accuracy on these classes is unknown"
            yield Finding("warning", "missing", title, len(names), tuple(Example((), name) for name in names), hint)


def _no_validation(samples: Samples) -> Iterator[Finding]:
    if all(item.split == "train" for item in samples.items):
        title = "no validation or test images, all are for training"
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


BLANK_SPREAD = 8  # levels: what JPEG makes of one color stays within them
LONG_ASPECT = 3.0
MOST_ENLARGED = 4.0
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

ReadableItem = tuple[Item, ImageInfo]


def readable_items(examined: Iterable[ExaminedItem]) -> list[ReadableItem]:
    """The files that decode."""
    return [(item, result) for item, result in examined if isinstance(result, ImageInfo)]


def file_findings(examined: Sequence[ExaminedItem], image: Size) -> Iterator[Finding]:
    """What single files give cause to say, for a model that takes images of a size."""
    items = readable_items(examined)
    yield from _corrupt(examined)
    yield from _channels(items)
    yield from _blank(items)
    yield from _sizes(items, image)
    yield from _misnamed(items)
    yield from _modes(items)
    yield from _rotated(items)


def enlargement(size: Size, image: Size) -> float:
    """How many times longer the picture becomes, along the side where that is most."""
    return max(image.height / size.height, image.width / size.width)


def _corrupt(examined: Sequence[ExaminedItem]) -> Iterator[Finding]:
    broken = [(item, result) for item, result in examined if isinstance(result, Unreadable)]
    if broken:
        title = f"{plural(len(broken), 'file')} cannot be used"
        examples = tuple(Example((item,), result.message) for item, result in broken)
        hints = list(dict.fromkeys(result.hint for _, result in broken if result.hint))
        hint = hints[0] if len(hints) == 1 else "remove them, or replace them with sound ones"
        yield Finding("error", "corrupt", title, len(broken), examples, hint)


def _channels(items: Sequence[ReadableItem]) -> Iterator[Finding]:
    """Gray and color become one another; arrays of other counts fit only their like."""
    counts = [_channel_count(result) for _, result in items]
    kinds = sorted({3 if count in {1, 3} else count for count in counts})
    if len(kinds) > 1:
        odd = [(item, count) for (item, _), count in zip(items, counts, strict=True) if count not in {1, 3}]
        title = f"{plural(len(odd), 'array')} of other channels than the rest: {', '.join(map(str, kinds))}"
        examples = tuple(Example((item,), f"{count} channels") for item, count in odd)
        yield Finding("error", "channels", title, len(odd), examples, "save all of them with the same channels")


def _channel_count(result: ImageInfo) -> int:
    return int(result.header.mode.rpartition(" ")[2]) if result.header.format == "NPY" else 3


def _blank(items: Sequence[ReadableItem]) -> Iterator[Finding]:
    blank = [item for item, result in items if result.contrast <= BLANK_SPREAD]
    if blank:
        title = f"{plural(len(blank), 'picture is', 'pictures are')} of one color"
        hint = "remove images that show nothing"
        yield Finding("warning", "blank", title, len(blank), tuple(Example((item,)) for item in blank), hint)


def _sizes(items: Sequence[ReadableItem], image: Size) -> Iterator[Finding]:
    small = _select(items, lambda result: enlargement(result.header.size, image) > MOST_ENLARGED)
    if small:
        title = (
            f"{plural(len(small), 'picture')} become{'s' * (len(small) == 1)} more than {MOST_ENLARGED:g} times larger"
        )
        ordinary = len(small) > len(items) / 2
        fitting = (
            -(-round(median(min(result.header.size) for _, result in items)) // 16) * 16
        )  # a whole number of patches
        hint = (
            f"train near their size, with images of {fitting}"
            if ordinary
            else "replace them with larger ones, or remove them"
        )
        yield Finding("note" if ordinary else "warning", "enlarged", title, len(small), small, hint)
    long = _select(items, lambda result: max(result.header.size) > LONG_ASPECT * min(result.header.size))
    if long:
        title = f"{plural(len(long), 'picture is', 'pictures are')} more than {LONG_ASPECT:g} times as long as wide"
        yield Finding("warning", "aspect", title, len(long), long, "crop them: the resize to a square squeezes them")
    large = _select(items, lambda result: result.header.size.height * result.header.size.width > MANY_PIXELS)
    if large:
        title = f"{plural(len(large), 'picture has', 'pictures have')} more than {MANY_PIXELS // 10**6} megapixels"
        yield Finding("note", "large", title, len(large), large, "slow to read: save them smaller, once")


def _select(items: Sequence[ReadableItem], condition: Callable[[ImageInfo], bool]) -> tuple[Example, ...]:
    """The pictures of which it is true, with their sizes."""
    return tuple(Example((item,), str(result.header.size)) for item, result in items if condition(result))


def _misnamed(items: Sequence[ReadableItem]) -> Iterator[Finding]:
    examples = tuple(
        Example((item,), f"is {result.header.format}")
        for item, result in items
        if suffix(item.name) and suffix(item.name) not in SUFFIXES[result.header.format]
    )
    if examples:
        title = f"{plural(len(examples), 'file is', 'files are')} of another format than the name says"
        yield Finding("note", "misnamed", title, len(examples), examples, "nothing to do: the content decides")


def _modes(items: Sequence[ReadableItem]) -> Iterator[Finding]:
    named = [(item, mode_name(result.header.mode)) for item, result in items]
    found = Counter(name for _, name in named)
    usual = max(found, key=found.__getitem__, default="")  # the first of them where two are as many
    rest = tuple(Example((item,), name) for item, name in named if name != usual)
    if rest:
        title = f"{plural(len(rest), 'file')} among {usual} pictures: {', '.join(sorted(found.keys() - {usual}))}"
        hint = "nothing to do if that is meant: each is read rightly, alpha on white"
        yield Finding("note", "modes", title, len(rest), rest, hint)


def mode_name(mode: str) -> str:
    """What Pillow's mode, or ours, is to a reader."""
    names = {
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
        "RGB;16": "16-bit color",
        "RGBA;16": "16-bit color with alpha",
        "LA;16": "16-bit gray with alpha",
        "CMYK;16": "16-bit CMYK",
    }
    channels = mode.partition(" x ")[2]  # of an array
    if channels:
        return {"1": "gray", "3": "color"}.get(channels, f"{channels} channels")
    return "16-bit gray" if mode.startswith("I") else names.get(mode, mode)


def _rotated(items: Sequence[ReadableItem]) -> Iterator[Finding]:
    turned = tuple(
        Example((item,), f"EXIF {result.header.orientation}") for item, result in items if result.header.orientation > 1
    )
    if turned:
        title = f"{plural(len(turned), 'picture is', 'pictures are')} stored turned or mirrored"
        yield Finding("note", "rotated", title, len(turned), turned, "nothing to do: they are turned upright when read")

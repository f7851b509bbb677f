"""preprocessor_config.json, in all its ages, and the preprocessing that it stands for."""

from collections.abc import Mapping
from math import isclose, nextafter
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Filter, Resize
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.weights.formats.huggingface.fields import Fields

FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
NUMBERS = {name: number for number, name in FILTERS.items()}
BYTE = 1 / 255


class ProcessorDefaults(NamedTuple):
    """What a family's processor does where its file does not tell."""

    crop: EvalCropConfig
    normalize: Normalize
    shortest_edge: bool = False  # whether a size of one number is that of the shorter side, not of a square


class ResizedCrop(NamedTuple):
    """Which part of a picture is seen, at what size, and what is not quite as in the file."""

    image_size: Size
    crop: EvalCropConfig
    assumptions: tuple[str, ...] = ()


def read_processor(fields: Fields, channels: int, defaults: ProcessorDefaults) -> tuple[Preprocessing, tuple[str, ...]]:
    """The preprocessing, and what is not quite as in the file; what it cannot be told in is refused by its field."""
    for step in ("do_resize", "do_rescale"):
        if not fields.flag(step, True):
            expected = "true: images are always resized, and their bytes divided by 255"
            raise fields.wrong(step, expected, "weights.unsupported")
    if fields.has("rescale_factor") and not isclose(fields.number("rescale_factor"), BYTE, rel_tol=1e-6):
        raise fields.wrong("rescale_factor", "1/255", "weights.unsupported")
    if fields.has("resample") and fields.data["resample"] not in list(FILTERS):
        raise fields.wrong("resample", "2 (bilinear) or 3 (bicubic)", "weights.unsupported")
    how = FILTERS[fields.data["resample"]] if fields.has("resample") else defaults.crop.filter
    crop = _resized_crop(fields, how, defaults)
    try:
        decoding = Decoding(channels=channels)
        made = Preprocessing(
            image_size=crop.image_size, decoding=decoding, crop=crop.crop, normalize=_scaling(fields, defaults)
        )
    except ConfigError as error:
        raise fields.wrong("image_mean", f"as many numbers as channels, {channels}: {error.message}") from None
    return made, crop.assumptions


def processor_fields(given: Preprocessing) -> dict[str, Any]:
    """The fields of a file that the library reads."""
    each = given.decoding.channels if len(given.normalize.mean) == 1 else 1
    whole = {"height": given.image_size.height, "width": given.image_size.width}
    crops = isinstance(given.crop, CenterCrop)
    fields: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor" if crops else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": _shortest(given.image_size, given.crop)}
        if isinstance(given.crop, CenterCrop)
        else whole,
        "resample": NUMBERS[given.crop.filter],
        "do_center_crop": crops,
        "do_rescale": True,
        "rescale_factor": BYTE,
        "do_normalize": True,
        "image_mean": [*given.normalize.mean] * each,
        "image_std": [*given.normalize.std] * each,
    }
    return fields | ({"crop_size": whole} if crops else {})


def _scaling(fields: Fields, defaults: ProcessorDefaults) -> Normalize:
    if not fields.flag("do_normalize", True):
        return Normalize(mean=(0.0,), std=(1.0,))
    if not fields.has("image_mean") and not fields.has("image_std"):
        return defaults.normalize
    mean, deviation = fields.numbers("image_mean"), fields.numbers("image_std")
    if len(mean) != len(deviation) or min(deviation) <= 0:
        raise fields.wrong("image_std", f"{len(mean)} numbers above 0, as image_mean has")
    return Normalize(mean=mean, std=deviation)


def _resized_crop(fields: Fields, how: Filter, defaults: ProcessorDefaults) -> ResizedCrop:
    resized, shortest = _resized(fields, defaults)
    if not fields.flag("do_center_crop", isinstance(defaults.crop, CenterCrop)):
        if shortest:
            expected = "true beside size.shortest_edge, for images of one size"
            raise fields.wrong("do_center_crop", expected, "weights.unsupported")
        return ResizedCrop(resized, Resize(filter=how))
    crop = _sides(fields, "crop_size")
    if crop.height > resized.height or crop.width > resized.width:
        raise fields.wrong("crop_size", f"at most the size, {resized}")
    if crop == resized and not shortest:
        return ResizedCrop(crop, Resize(filter=how))
    if crop.height != crop.width or resized.height != resized.width:
        expected = "a square out of a square: no other crop keeps the shape of a picture"
        raise fields.wrong("crop_size", expected, "weights.unsupported")
    view = CenterCrop(fraction=_fraction(crop.height, resized.height), filter=how)
    if shortest:
        return ResizedCrop(crop, view)
    words = f"a picture that is no square keeps its shape; the library would first squash it to {resized}"
    return ResizedCrop(crop, view, (words,))


def _resized(fields: Fields, defaults: ProcessorDefaults) -> tuple[Size, bool]:
    """The size before cropping, and whether it is the shorter side's alone."""
    value = fields.given("size")
    if not isinstance(value, dict):
        return fields.size("size"), defaults.shortest_edge
    if set(value) == {"shortest_edge"}:
        side = fields.part("size", {}).whole("shortest_edge")
        return Size(side, side), True
    return _sides(fields, "size"), False


def _sides(fields: Fields, name: str) -> Size:
    """A size of one number, or of height and width by name."""
    value: object = fields.given(name)
    if not isinstance(value, Mapping):
        return fields.size(name)
    if set(value) != {"height", "width"}:
        raise fields.wrong(name, "height and width, or shortest_edge")
    part = fields.part(name, {})
    return Size(part.whole("height"), part.whole("width"))


def _fraction(crop: int, shortest: int) -> float:
    """The share from which `CenterCrop` comes back to the same side, whatever rounding does to it."""
    fraction = crop / shortest
    return fraction if int(crop / fraction) == shortest else nextafter(fraction, 0)


def _shortest(image: Size, view: CenterCrop) -> int:
    return int(min(image) / view.fraction)

"""config.json and preprocessor_config.json: checked fields, and the preprocessing that all versions of it describe."""

from collections.abc import Mapping
from math import isclose, isfinite, nextafter
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Filter, Resize
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.models.activation import ActivationName

GELUS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}
ACTIVATIONS: dict[ActivationName, str] = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}
FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
NUMBERS = {name: number for number, name in FILTERS.items()}
BYTE = 1 / 255


class Fields(NamedTuple):
    """The fields of a file, or of a part of it. A field that is null counts as missing."""

    data: Mapping[str, Any]
    where: str  # the file, for messages
    hint: str
    path: str = ""  # of a part: `vision_config.`

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def given(self, name: str) -> Any:
        if not self.has(name):
            message = f"{self.path}{name} is missing"
            raise WeightsError(message, code="weights.bad_config", where=self.where, hint=self.hint)
        return self.data[name]

    def wrong(self, name: str, expected: str, code: str = "weights.bad_config") -> WeightsError:
        """The error for a field with another value than expected."""
        found = repr(self.data.get(name))
        message = f"{self.path}{name}: expected {expected}, got {found[:60]}"
        return WeightsError(message, code=code, where=self.where, hint=self.hint)

    def whole(self, name: str, least: int = 1) -> int:
        value = self.given(name)
        if type(value) is not int or value < least:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def number(self, name: str) -> float:
        value = self.given(name)
        if type(value) not in (int, float) or not isfinite(value) or value <= 0:
            raise self.wrong(name, "a number above 0")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self.given(name)
        values = value if isinstance(value, list) else [value]
        if not values or not all(type(each) in (int, float) and isfinite(each) for each in values):
            raise self.wrong(name, "numbers")
        return tuple(map(float, values))

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return default if value is None else value

    def size(self, name: str) -> Size:
        """A size of one number or two, or of height and width by name."""
        value = self.given(name)
        if isinstance(value, Mapping):
            if set(value) != {"height", "width"}:
                raise self.wrong(name, "height and width, or shortest_edge")
            part = self.part(name, {})
            return Size(part.whole("height"), part.whole("width"))
        try:
            return Size.parse(value)
        except ConfigError:
            raise self.wrong(name, "a number of pixels, or two") from None

    def gelu(self) -> ActivationName:
        """The kind of GELU that `hidden_act` names."""
        if self.given("hidden_act") not in list(GELUS):
            raise self.wrong("hidden_act", format_choices(GELUS), "weights.unsupported")
        return GELUS[self.data["hidden_act"]]

    def part(self, name: str, defaults: Mapping[str, Any]) -> "Fields":
        """The fields within a field, completed by the library's defaults."""
        value = self.data.get(name) or {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return self._replace(data={**defaults, **value}, path=f"{self.path}{name}.")

    def labels(self, classes: int) -> tuple[str, ...]:
        """The class names in the order of their labels; none where the file has none."""
        value = self.data.get("id2label")
        if value is None:
            return ()
        if not isinstance(value, dict) or sorted(value) != sorted(map(str, range(classes))):
            raise self.wrong("id2label", f"a name for each label from 0 to {classes - 1}, as the classifier has")
        return tuple(str(value[str(label)]) for label in range(classes))


class ProcessorDefaults(NamedTuple):
    """What a family's processor does where its file does not say."""

    crop: EvalCropConfig
    normalize: Normalize
    shortest_edge: bool = False  # whether a size of one number is that of the shorter side, not of a square


def read_processor(fields: Fields, channels: int, defaults: ProcessorDefaults) -> tuple[Preprocessing, tuple[str, ...]]:
    """The preprocessing, and in what it differs from the file; a field without counterpart is refused."""
    for step in ("do_resize", "do_rescale"):
        if not fields.flag(step, True):
            expected = "true: images are always resized, and their bytes divided by 255"
            raise fields.wrong(step, expected, "weights.unsupported")
    if fields.has("rescale_factor") and not isclose(fields.number("rescale_factor"), BYTE, rel_tol=1e-6):
        raise fields.wrong("rescale_factor", "1/255", "weights.unsupported")
    if fields.has("resample") and fields.data["resample"] not in list(FILTERS):
        raise fields.wrong("resample", "2 (bilinear) or 3 (bicubic)", "weights.unsupported")
    filter = FILTERS[fields.data["resample"]] if fields.has("resample") else defaults.crop.filter
    image, crop, assumptions = _resized_crop(fields, filter, defaults)
    normalize = _normalize(fields, defaults)
    try:
        decoding = Decoding(channels=channels)
        made = Preprocessing(image_size=image, decoding=decoding, crop=crop, normalize=normalize)
    except ConfigError as error:
        raise fields.wrong("image_mean", f"as many numbers as channels, {channels}: {error.message}") from None
    return made, assumptions


def processor_fields(given: Preprocessing) -> dict[str, Any]:
    """The fields of a file that the library reads."""
    normalize = given.normalize.per_channel(given.decoding.channels)
    whole = {"height": given.image_size.height, "width": given.image_size.width}
    fields: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": whole,
        "resample": NUMBERS[given.crop.filter],
        "do_center_crop": False,
        "do_rescale": True,
        "rescale_factor": BYTE,
        "do_normalize": True,
        "image_mean": list(normalize.mean),
        "image_std": list(normalize.std),
    }
    if isinstance(given.crop, CenterCrop):
        shortest = {"shortest_edge": int(min(given.image_size) / given.crop.fraction)}
        fields |= {"image_processor_type": "CLIPImageProcessor", "do_center_crop": True}
        fields |= {"size": shortest, "crop_size": whole}
    return fields


def _normalize(fields: Fields, defaults: ProcessorDefaults) -> Normalize:
    if not fields.flag("do_normalize", True):
        return Normalize(mean=(0.0,), std=(1.0,))
    if not fields.has("image_mean") and not fields.has("image_std"):
        return defaults.normalize
    mean, std = fields.numbers("image_mean"), fields.numbers("image_std")
    if len(mean) != len(std) or min(std) <= 0:
        raise fields.wrong("image_std", f"{len(mean)} numbers above 0, as image_mean has")
    return Normalize(mean=mean, std=std)


def _resized_crop(
    fields: Fields, filter: Filter, defaults: ProcessorDefaults
) -> tuple[Size, EvalCropConfig, tuple[str, ...]]:
    """The image size, the crop, and in what it differs from the file."""
    resized, shortest = _resized(fields, defaults)
    if not fields.flag("do_center_crop", isinstance(defaults.crop, CenterCrop)):
        if shortest:
            expected = "true beside size.shortest_edge, for images of one size"
            raise fields.wrong("do_center_crop", expected, "weights.unsupported")
        return resized, Resize(filter=filter), ()
    crop = fields.size("crop_size")
    if crop.height > resized.height or crop.width > resized.width:
        raise fields.wrong("crop_size", f"at most the size, {resized}")
    if crop == resized and not shortest:
        return crop, Resize(filter=filter), ()
    if crop.height != crop.width or resized.height != resized.width:
        expected = "a square out of a square: no other crop keeps the aspect ratio of an image"
        raise fields.wrong("crop_size", expected, "weights.unsupported")
    fraction = crop.height / resized.height
    if int(crop.height / fraction) != resized.height:  # so that `CenterCrop` computes the same side despite rounding
        fraction = nextafter(fraction, 0)
    words = f"an image that is not square keeps its aspect ratio; the library would first squash it to {resized}"
    return crop, CenterCrop(fraction=fraction, filter=filter), () if shortest else (words,)


def _resized(fields: Fields, defaults: ProcessorDefaults) -> tuple[Size, bool]:
    """The size before cropping, and whether it is only that of the shorter side."""
    value = fields.given("size")
    if isinstance(value, dict) and set(value) == {"shortest_edge"}:
        side = fields.part("size", {}).whole("shortest_edge")
        return Size(side, side), True
    return fields.size("size"), defaults.shortest_edge and not isinstance(value, dict)

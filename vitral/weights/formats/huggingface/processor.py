"""preprocessor_config.json: the preprocessing that all versions of it describe, with the pixels of the library."""

import re
from math import isclose, nextafter
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, format_choices
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Filter, Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize, Preprocessing
from vitral.weights.formats.huggingface.config import Fields

FILTERS: dict[int, Filter] = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
NUMBERS = {name: number for number, name in FILTERS.items()}
BYTE = 1 / 255
CLIP_NORMALIZE = Normalize(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))
USUAL_FRACTIONS = (0.875, 0.9, 0.95)  # that others note, and the library as a number of pixels
# The end of the name of a class, and of its older, faster and slower variants.
SUFFIX = re.compile(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$")


class Processor(NamedTuple):
    """What a class of the library does where its file does not say."""

    crop: bool = False  # whether it crops the center
    filter: Filter = "bilinear"
    normalize: Normalize = CENTERED
    shortest_edge: bool = False  # whether a size of one number is that of the shorter side, not of a square
    rounds: bool = True  # whether resized pixels are whole numbers
    whole: bool = False  # whether it keeps the aspect ratio of the whole image, so that sizes differ
    boxes: bool = False  # whether it cuts boxes out of the image, which come with it


PROCESSORS = {
    "ViT": Processor(),
    "Beit": Processor(filter="bicubic"),
    "Bit": Processor(True, "bicubic", CLIP_NORMALIZE, shortest_edge=True),
    "CLIP": Processor(True, "bicubic", CLIP_NORMALIZE, shortest_edge=True),
    "DeiT": Processor(True, "bicubic"),
    "Siglip": Processor(filter="bicubic", shortest_edge=True),
    "DINOv3ViT": Processor(normalize=IMAGENET, rounds=False),
    "Blip": Processor(filter="bicubic", normalize=CLIP_NORMALIZE),
    "DPT": Processor(filter="bicubic"),
    "Yolos": Processor(normalize=IMAGENET, whole=True),
    "Siglip2": Processor(whole=True),
    "VitPose": Processor(normalize=IMAGENET, boxes=True),
}


def find_processor(fields: Fields, default: str) -> Processor:
    """The class of the library that the file names, or else that of the family."""
    for name in ("image_processor_type", "feature_extractor_type"):
        if fields.has(name):
            kind = SUFFIX.sub("", str(fields.data[name]))
            if kind not in PROCESSORS:
                expected = format_choices(f"{each}ImageProcessor" for each in PROCESSORS)
                raise fields.wrong(name, expected, "weights.unsupported")
            return PROCESSORS[kind]
    return PROCESSORS[default]


def read_processor(
    fields: Fields, channels: int, default: str, image_size: Size
) -> tuple[Preprocessing, tuple[str, ...]]:
    """The preprocessing, and in what it differs from the file; a field without counterpart is refused.

    `default` is the class of a file that names none, and `image_size` that of the model.
    """
    processor = find_processor(fields, default)
    for step in ("do_resize", "do_rescale"):
        if not fields.flag(step, True):
            expected = "true: images are always resized, and their bytes divided by 255"
            raise fields.wrong(step, expected, "weights.unsupported")
    if fields.has("rescale_factor") and not isclose(fields.number("rescale_factor"), BYTE, rel_tol=1e-6):
        raise fields.wrong("rescale_factor", "1/255", "weights.unsupported")
    if fields.has("resample") and fields.data["resample"] not in list(FILTERS):
        raise fields.wrong("resample", "2 (bilinear) or 3 (bicubic)", "weights.unsupported")
    filter = FILTERS[fields.data["resample"]] if fields.has("resample") else processor.filter
    image, crop, assumptions = _resized_crop(fields, filter, processor, image_size)
    normalize = _normalize(fields, processor)
    try:
        decoding = Decoding(channels=channels, jpeg_scale="full")
        made = Preprocessing(image_size=image, decoding=decoding, crop=crop, normalize=normalize)
    except ConfigError as error:
        raise fields.wrong("image_mean", f"as many numbers as channels, {channels}: {error.message}") from None
    if not processor.rounds:
        assumptions += ("resized pixels are rounded to whole levels, which the library does not do",)
    return made, assumptions


def processor_fields(given: Preprocessing) -> dict[str, Any]:
    """The fields of a file that the library reads."""
    normalize, crop = given.normalize.per_channel(given.decoding.channels), given.crop
    whole = {"height": given.image_size.height, "width": given.image_size.width}
    fields: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": whole,
        "resample": NUMBERS[crop.filter],
        "do_center_crop": False,
        "do_rescale": True,
        "rescale_factor": BYTE,
        "do_normalize": True,
        "image_mean": list(normalize.mean),
        "image_std": list(normalize.std),
    }
    if not isinstance(crop, CenterCrop):
        return fields
    filled, squash = crop.filled(given.image_size), crop.aspect == "squash"
    size = {"height": filled.height, "width": filled.width} if squash else {"shortest_edge": min(filled)}
    kind = "DeiTImageProcessor" if squash else "CLIPImageProcessor"
    return fields | {"image_processor_type": kind, "do_center_crop": True, "size": size, "crop_size": whole}


def _normalize(fields: Fields, processor: Processor) -> Normalize:
    if not fields.flag("do_normalize", True):
        return Normalize(mean=(0.0,), std=(1.0,))
    if not fields.has("image_mean") and not fields.has("image_std"):
        return processor.normalize
    mean, std = fields.numbers("image_mean"), fields.numbers("image_std")
    if len(mean) != len(std) or min(std) <= 0:
        raise fields.wrong("image_std", f"{len(mean)} numbers above 0, as image_mean has")
    return Normalize(mean=mean, std=std)


def _resized_crop(
    fields: Fields, filter: Filter, processor: Processor, image_size: Size
) -> tuple[Size, EvalCropConfig, tuple[str, ...]]:
    """The image size, the crop, and in what it differs from the file."""
    if processor.whole or fields.flag("keep_aspect_ratio", False):
        words = f"images are resized to {image_size}; the library keeps their aspect ratio, so that their sizes differ"
        return image_size, Resize(filter=filter), (words,)
    if processor.boxes:
        words = f"whole images are resized to {image_size}; the library cuts out the boxes that it is given"
        return image_size, Resize(filter=filter), (words,)
    if fields.flag("do_pad", False) and (fields.has("pad_size") or fields.has("size_divisor")):
        raise fields.wrong("do_pad", "false: images are cropped, not padded", "weights.unsupported")
    resized, shortest = _resized(fields, processor)
    if not fields.flag("do_center_crop", processor.crop):
        if shortest:
            expected = "true beside size.shortest_edge, for images of one size"
            raise fields.wrong("do_center_crop", expected, "weights.unsupported")
        return resized, Resize(filter=filter), ()
    crop = fields.size("crop_size")
    if crop.height > resized.height or crop.width > resized.width:
        raise fields.wrong("crop_size", f"at most the size, {resized}", "weights.unsupported")
    if crop == resized and not shortest:
        return crop, Resize(filter=filter), ()
    fraction = _fraction(crop, resized)
    if fraction is None or (shortest and crop.height != crop.width):
        expected = "a square out of a square, or the same part of both sides"
        raise fields.wrong("crop_size", expected, "weights.unsupported")
    aspect: Any = "keep" if shortest else "squash"
    return crop, CenterCrop(fraction=fraction, filter=filter, aspect=aspect, rounding="down"), ()


def _fraction(crop: Size, resized: Size) -> float | None:
    """The fraction from which `CenterCrop` computes the resized size despite rounding; None where there is none."""
    fraction = crop.height / resized.height
    near = (*USUAL_FRACTIONS, fraction, nextafter(fraction, 0))
    return next((each for each in near if CenterCrop(fraction=each).filled(crop) == resized), None)


def _resized(fields: Fields, processor: Processor) -> tuple[Size, bool]:
    """The size before cropping, and whether it is only that of the shorter side."""
    value = fields.given("size")
    if isinstance(value, dict) and set(value) == {"shortest_edge"}:
        side = fields.part("size", {}).whole("shortest_edge")
        return Size(side, side), True
    size = fields.size("size")
    if not fields.has("ensure_multiple_of"):
        return size, not isinstance(value, dict) and not fields.flag("default_to_square", not processor.shortest_edge)
    step = fields.whole("ensure_multiple_of")  # of DPT's processor
    return Size(*(round(side / step) * step for side in size)), False

"""The config.json that timm writes for the hub: an architecture, its arguments, the preprocessing."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Filter, Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize, Preprocessing
from vitral.weights.formats.format import CONFIG, USE_ANOTHER, Checkpoint, assumed_preprocessing, count_layers

MISMATCH = "weights.config_mismatch"
FILTERS: dict[str, Filter] = {"bilinear": "bilinear", "bicubic": "bicubic", "random": "bicubic"}
CROPS = ("center", "squash")
# What timm takes for fields that `pretrained_cfg` omits.
DEFAULT_IMAGES: Mapping[str, Any] = {
    "mean": IMAGENET.mean,
    "std": IMAGENET.std,
    "crop_pct": 0.875,
    "interpolation": "bicubic",
}


class HubConfig(NamedTuple):
    """The content of the file; everything is empty where there is none."""

    architecture: str = ""
    arguments: Mapping[str, Any] = {}  # `model_args`
    images: Mapping[str, Any] = {}  # `pretrained_cfg`
    labels: tuple[str, ...] = ()
    pool: str = ""  # what timm notes of the model that it saved, and does not read


def parse_config(ckpt: Checkpoint) -> HubConfig:
    """The content of timm's config.json; nothing where there is none, or another library's."""
    found = ckpt.config
    architecture = found.get("architecture")
    if not isinstance(architecture, str):
        return HubConfig()
    arguments, images = found.get("model_args") or {}, found.get("pretrained_cfg", found)
    if not isinstance(arguments, Mapping) or not isinstance(images, Mapping):
        raise config_error(ckpt, "model_args and pretrained_cfg must be objects", "weights.bad_config")
    labels = next((part[name] for part in (found, images) for name in ("label_names", "labels") if part.get(name)), ())
    pool = found.get("global_pool")
    return HubConfig(architecture, arguments, images, parse_labels(labels), pool if isinstance(pool, str) else "")


def check_arguments(ckpt: Checkpoint, given: Mapping[str, Any]) -> None:
    """Refuse tensors that are not of the model that `model_args` describes: some may be missing."""
    found: dict[str, object] = {"depth": count_layers(ckpt.tensors, "blocks."), "class_token": has(ckpt, "cls_token")}
    for name in ("reg_tokens", "num_reg_tokens"):
        found[name] = register_count(ckpt)
    if has(ckpt, "patch_embed.proj.weight"):
        width, _, *patch = ckpt.shape("patch_embed.proj.weight", 4)
        found |= {"embed_dim": width, "patch_size": Size(*patch)}
    for name, value in found.items():
        stated = given.get(name, value)
        if isinstance(value, Size) and isinstance(stated, int | list):
            stated = Size.parse(stated)
        if stated != value:
            raise config_error(ckpt, f"model_args.{name} is {stated}, and {value} in the tensors", MISMATCH)


def register_count(ckpt: Checkpoint) -> int:
    name = next((name for name in ("reg_token", "embeds.reg_token") if name in ckpt.tensors), "")
    return ckpt.shape(name, 3)[1] if name else 0


def has(ckpt: Checkpoint, name: str) -> bool:
    return name in ckpt.tensors or f"embeds.{name}" in ckpt.tensors


def parse_labels(found: Any) -> tuple[str, ...]:
    """The class names, from a list or by number; none where numbers are missing."""
    if isinstance(found, Mapping):
        found = [found.get(str(number)) for number in range(len(found))]
    known = isinstance(found, Sequence) and all(isinstance(name, str) for name in found)
    return tuple(found) if known else ()


def input_size(images: Mapping[str, Any], ckpt: Checkpoint) -> Size | None:
    """The image size in `pretrained_cfg`, if there is one."""
    found = images.get("input_size")
    try:
        return Size.parse(found[-2:] if isinstance(found, list | tuple) else found) if found else None
    except ConfigError as error:
        raise config_error(ckpt, error.message, "weights.bad_config", ", pretrained_cfg.input_size") from None


def parse_preprocessing(given: Mapping[str, Any], image: Size, channels: int, ckpt: Checkpoint) -> Preprocessing:
    """The preprocessing that `pretrained_cfg` notes, or timm's default."""
    scaling = CENTERED
    try:
        if "mean" in given and "std" in given:
            scaling = Normalize(mean=tuple(map(float, given["mean"])), std=tuple(map(float, given["std"])))
        if len(scaling.mean) not in {1, channels} and "architecture" in ckpt.config:
            raise ValueError(f"{len(scaling.mean)} means for {channels} channels")
        return assumed_preprocessing(image, channels, parse_crop(given, image), scaling)
    except KeyError as error:
        message = f"pretrained_cfg has {error}, expected {format_choices((*FILTERS, *CROPS))}"
        raise config_error(ckpt, message, "weights.unsupported") from None
    except (TypeError, ValueError, ConfigError) as error:
        message = f"pretrained_cfg is not as timm writes it: {error}"
        raise config_error(ckpt, message, "weights.bad_config") from None


def complete_images(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The fields with timm's defaults for those that are missing, and a line that names these."""
    missing = {name: value for name, value in DEFAULT_IMAGES.items() if name not in given}
    words = f"pretrained_cfg omits fields, for which timm has defaults: {', '.join(missing)}"
    return {**missing, **given}, (words,) if missing else ()


def parse_crop(given: Mapping[str, Any], image: Size) -> EvalCropConfig:
    """How an image becomes one of the input size."""
    fraction, mode = float(given.get("crop_pct", 0.9)), str(given.get("crop_mode", "center"))
    filter: Filter = FILTERS[str(given.get("interpolation", "bicubic"))]
    if mode not in CROPS:
        raise KeyError(mode)
    if mode == "squash" and fraction == 1:
        return Resize(filter=filter)
    if mode == "center" and int(image.height / fraction) != int(image.width / fraction):
        filter = "bilinear"  # whatever the interpolation: timm does not hand it on for such sizes
    return CenterCrop(fraction=fraction, filter=filter, aspect="keep" if mode == "center" else "squash")


def config_error(ckpt: Checkpoint, message: str, code: str, field: str = "") -> WeightsError:
    """An error about the file beside the weights."""
    where = f"{ckpt.path.parent / CONFIG}{field}"
    hint = USE_ANOTHER if code == "weights.unsupported" else "download it again, with the weights"
    return WeightsError(message, code=code, where=where, hint=hint)

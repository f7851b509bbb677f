"""The config.json that timm writes for the hub: an architecture, its arguments, and what images it was trained on."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop, Filter, Resize
from vitral.data.transforms.preprocessing import CENTERED, Normalize, Preprocessing
from vitral.models.mlp import Gelu
from vitral.models.pool import DistilledPool
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint

GELUS: dict[Gelu, str] = {"erf": "gelu", "tanh": "gelu_tanh", "quick": "quick_gelu"}
# Which of timm's SigLIP towers have the tanh form; the others, of the same layout, have the erf form.
TANH = re.compile(r"vit_(base_patch32|large_patch16(?=.*_512)|so400m_patch16|giantopt_patch16)_siglip_(gap_)?\d+")
HEADS = {"vit_base_patch16_gap_224": 16}  # where they are not as many as others of the width have


FILTERS: dict[str, Filter] = {"bilinear": "bilinear", "bicubic": "bicubic", "random": "bicubic"}
CROPS = {"center": False, "squash": True}  # whether the whole picture is seen


class TimmConfig(NamedTuple):
    """What the file tells; all of it is empty where there is none."""

    architecture: str = ""
    arguments: Mapping[str, Any] = {}
    images: Mapping[str, Any] = {}  # `pretrained_cfg`
    labels: tuple[str, ...] = ()
    pool: str = ""  # token, avg, map
    heads: int = 0  # or nothing
    sizes: tuple[Size, ...] = ()  # of images, the likeliest first

    def gelu(self) -> Gelu | None:
        """The kind of GELU; timm's default is erf."""
        if not self.architecture:
            return None
        told = self.arguments.get("act_layer")
        if told is not None:
            return next((kind for kind, name in GELUS.items() if name == told), None)
        if "quickgelu" in self.architecture:
            return "quick"
        return "tanh" if TANH.fullmatch(self.architecture) else "erf"


def parse_config(ckpt: Checkpoint) -> TimmConfig:
    """What a config.json of timm's tells; nothing where there is none, or another library's."""
    found = ckpt.config
    architecture = found.get("architecture")
    if not isinstance(architecture, str):
        return TimmConfig()
    arguments, images = found.get("model_args", {}), found.get("pretrained_cfg", found)
    if not isinstance(arguments, Mapping) or not isinstance(images, Mapping):
        message = "model_args and pretrained_cfg are not fields by name"
        raise WeightsError(message, code="weights.bad_config", where=ckpt.path.parent)
    labels = next((part[name] for part in (found, images) for name in ("label_names", "labels") if part.get(name)), ())
    pool = arguments.get("global_pool") or found.get("global_pool") or ""
    name = architecture.partition(".")[0]
    try:
        heads, sizes = parse_heads(name, arguments), parse_sizes(arguments, images)
    except ConfigError as error:
        where = f"{ckpt.path.parent / 'config.json'}, {error.where}"
        raise WeightsError(error.message, code="weights.bad_config", where=where) from None
    return TimmConfig(name, arguments, images, parse_labels(labels), str(pool), heads, sizes)


def parse_heads(architecture: str, arguments: Mapping[str, Any]) -> int:
    """The number of heads, or nothing."""
    told = arguments.get("num_heads", HEADS.get(architecture, 0))
    if not isinstance(told, int) or (told < 1 and "num_heads" in arguments):
        message = f"expected a whole number from 1 on, got {told!r}"
        raise ConfigError(message, code="config.out_of_range", where="model_args.num_heads")
    return told


def parse_sizes(arguments: Mapping[str, Any], images: Mapping[str, Any]) -> tuple[Size, ...]:
    """The image sizes that are named."""
    named = {"model_args.img_size": arguments.get("img_size"), "pretrained_cfg.input_size": images.get("input_size")}
    found = []
    for where, each in named.items():
        try:
            found += [Size.parse(each[-2:] if isinstance(each, list) else each)] if each else []
        except ConfigError as error:
            raise ConfigError(error.message, code=error.code, where=where) from None
    return tuple(found)


def check_consistent(config: TimmConfig, model: Vit, ckpt: Checkpoint) -> None:
    """Refuse tensors that are not of the model that is noted beside them: a file may have been cut."""
    found = {
        "depth": model.depth,
        "embed_dim": model.width,
        "class_token": model.tokens.cls,
        "reg_tokens": 0 if isinstance(model.pool, DistilledPool) else model.tokens.registers,
        "patch_size": model.stem.patch,
    }
    for name, value in found.items():
        told = config.arguments.get(name, value)
        if isinstance(value, Size) and isinstance(told, int | list):
            told = Size.parse(told)
        if told != value:
            message = f"model_args.{name} is {told}, and {value} in the tensors"
            where, hint = str(ckpt.path.parent / "config.json"), "get both from where they came from"
            raise WeightsError(message, code="weights.config_mismatch", where=where, hint=hint)


def parse_labels(found: Any) -> tuple[str, ...]:
    """The names of classes, from a list or by number; none where numbers are left out."""
    if isinstance(found, Mapping):
        found = [found.get(str(number)) for number in range(len(found))]
    known = isinstance(found, Sequence) and all(isinstance(name, str) for name in found)
    return tuple(found) if known else ()


def parse_preprocessing(
    config: TimmConfig, image: Size, channels: int, scaling: Normalize, ckpt: Checkpoint
) -> Preprocessing:
    """What is done to images, as the config have it, or as timm's default has it."""
    told = config.images
    try:
        if "mean" in told and "std" in told:
            scaling = Normalize(mean=tuple(map(float, told["mean"])), std=tuple(map(float, told["std"])))
        if len(scaling.mean) not in {1, channels} and "mean" in told:
            raise ValueError(f"{len(scaling.mean)} means for {channels} channels")
        if len(scaling.mean) not in {1, channels}:
            scaling = CENTERED
        fraction = float(told.get("crop_pct", 0.9))
        filter: Filter = FILTERS[str(told.get("interpolation", "bicubic"))]
        whole = CROPS[str(told.get("crop_mode", "center"))]
        if whole and fraction != 1:
            raise ValueError(f"crop_mode is squash and crop_pct {fraction:g}, expected 1")
        view = Resize(filter=filter) if whole else CenterCrop(fraction=fraction, filter=filter)
        if config.arguments.get("dynamic_img_size") and "input_size" in told:
            image = Size.parse(told["input_size"][-2:])  # which may be another than the table's
        return Preprocessing(image_size=image, decoding=Decoding(channels=channels), crop=view, normalize=scaling)
    except KeyError as error:
        message = f"pretrained_cfg has {error}, expected {format_choices((*FILTERS, *CROPS))}"
        where = str(ckpt.path.parent / "config.json")
        raise WeightsError(message, code="weights.unsupported", where=where) from None
    except (TypeError, ValueError, ConfigError) as error:
        message = f"pretrained_cfg is not as timm writes it: {error}"
        raise WeightsError(message, code="weights.bad_config", where=ckpt.path.parent / "config.json") from None

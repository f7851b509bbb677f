"""The config.json that timm writes for the hub, read and written: an architecture, its arguments, the preprocessing."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.transforms.crop import CenterCrop, Filter, Resize
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.models.activation import ActivationName
from vitral.models.attention import Attention
from vitral.models.block import LayerScale
from vitral.models.embed import Patches
from vitral.models.mlp import SwiGlu
from vitral.models.pool import DistilledPool
from vitral.models.position import Learned1d
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import CONFIG, Checkpoint, assumed_preprocessing, parse_positive_int

GELUS: dict[str, ActivationName] = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu"}
ACTIVATIONS = {kind: name for name, kind in GELUS.items()}
POOLS = {"cls": "token", "distilled": "token", "mean": "avg", "attention": "map"}
# Which of timm's SigLIP towers have the tanh form; the others, of the same layout, have the erf form.
TANH = re.compile(r"vit_(base_patch32|large_patch16(?=.*_512)|so400m_patch16|giantopt_patch16)_siglip_(gap_)?\d+")
HEADS = {"vit_base_patch16_gap_224": 16}  # architectures that differ from others of the same width
FILTERS: dict[str, Filter] = {"bilinear": "bilinear", "bicubic": "bicubic", "random": "bicubic"}
CROPS = {"center": False, "squash": True}  # whether the whole image is resized
# Architectures for what no argument sets: DeiT's token, a norm before the first layer with eps 1e-5, SwiGLU.
DISTILLED, CLIP, GATED = "deit_base_distilled_patch16_224", "vit_base_patch16_clip_224", "vit_giant_patch14_dinov2"


class TimmConfig(NamedTuple):
    """The content of the file; everything is empty where there is none."""

    architecture: str = ""
    arguments: Mapping[str, Any] = {}
    images: Mapping[str, Any] = {}  # `pretrained_cfg`
    labels: tuple[str, ...] = ()
    pool: str = ""  # token, avg, map
    heads: int = 0  # or nothing
    sizes: tuple[Size, ...] = ()  # of images, the likeliest first

    def gelu(self) -> ActivationName | None:
        """The kind of GELU, by default erf; None for another activation."""
        if (given := self.arguments.get("act_layer")) is not None:
            return GELUS.get(str(given))
        if "quickgelu" in self.architecture:
            return "quick_gelu"
        return "gelu_tanh" if TANH.fullmatch(self.architecture) else "gelu"


def parse_config(ckpt: Checkpoint) -> TimmConfig:
    """The content of timm's config.json; nothing where there is none, or another library's."""
    found = ckpt.config
    architecture = found.get("architecture")
    if not isinstance(architecture, str):
        return TimmConfig()
    arguments, images = found.get("model_args", {}), found.get("pretrained_cfg", found)
    if not isinstance(arguments, Mapping) or not isinstance(images, Mapping):
        raise _config_error(ckpt, "model_args and pretrained_cfg must be objects", "weights.bad_config")
    labels = next((part[name] for part in (found, images) for name in ("label_names", "labels") if part.get(name)), ())
    pool = arguments.get("global_pool") or found.get("global_pool") or ""
    name = architecture.partition(".")[0]
    try:
        heads = parse_positive_int(str(arguments.get("num_heads", HEADS.get(name, 1))), "model_args.num_heads")
        sizes = parse_sizes(arguments, images)
    except ConfigError as error:
        raise _config_error(ckpt, error.message, "weights.bad_config", f", {error.where}") from None
    heads = heads if "num_heads" in arguments or name in HEADS else 0
    return TimmConfig(name, arguments, images, parse_labels(labels), str(pool), heads, sizes)


def parse_sizes(arguments: Mapping[str, Any], images: Mapping[str, Any]) -> tuple[Size, ...]:
    """The image sizes that the file gives."""
    named = {"model_args.img_size": arguments.get("img_size"), "pretrained_cfg.input_size": images.get("input_size")}
    found = []
    for where, each in named.items():
        try:
            found += [Size.parse(each[-2:] if isinstance(each, list) else each)] if each else []
        except ConfigError as error:
            raise ConfigError(error.message, code=error.code, where=where) from None
    return tuple(found)


def parse_labels(found: Any) -> tuple[str, ...]:
    """The class names, from a list or by number; none where numbers are missing."""
    if isinstance(found, Mapping):
        found = [found.get(str(number)) for number in range(len(found))]
    known = isinstance(found, Sequence) and all(isinstance(name, str) for name in found)
    return tuple(found) if known else ()


def check_consistent(config: TimmConfig, model: Vit, ckpt: Checkpoint) -> None:
    """Refuse tensors that are not of the model that the file describes: some may be missing."""
    found = {
        "depth": model.depth,
        "embed_dim": model.width,
        "class_token": model.tokens.cls,
        "reg_tokens": 0 if isinstance(model.pool, DistilledPool) else model.tokens.registers,
        "patch_size": model.stem.patch,
    }
    for name, value in found.items():
        given = config.arguments.get(name, value)
        if isinstance(value, Size) and isinstance(given, int | list):
            given = Size.parse(given)
        if given != value:
            message = f"model_args.{name} is {given}, and {value} in the tensors"
            raise _config_error(ckpt, message, "weights.config_mismatch")


def parse_preprocessing(
    config: TimmConfig, image: Size, channels: int, scaling: Normalize, ckpt: Checkpoint
) -> Preprocessing:
    """The preprocessing in the file, or timm's default."""
    given = config.images
    try:
        if "mean" in given and "std" in given:
            scaling = Normalize(mean=tuple(map(float, given["mean"])), std=tuple(map(float, given["std"])))
        if len(scaling.mean) not in {1, channels} and "mean" in given:
            raise ValueError(f"{len(scaling.mean)} means for {channels} channels")
        fraction = float(given.get("crop_pct", 0.9))
        filter: Filter = FILTERS[str(given.get("interpolation", "bicubic"))]
        whole = CROPS[str(given.get("crop_mode", "center"))]
        if whole and fraction != 1:
            raise ValueError(f"crop_mode is squash and crop_pct {fraction:g}, expected 1")
        crop = Resize(filter=filter) if whole else CenterCrop(fraction=fraction, filter=filter)
        if config.arguments.get("dynamic_img_size") and "input_size" in given:
            image = Size.parse(given["input_size"][-2:])  # which may differ from that of the table
        return assumed_preprocessing(image, channels, crop, scaling)
    except KeyError as error:
        message = f"pretrained_cfg has {error}, expected {format_choices((*FILTERS, *CROPS))}"
        raise _config_error(ckpt, message, "weights.unsupported") from None
    except (TypeError, ValueError, ConfigError) as error:
        message = f"pretrained_cfg is not as timm writes it: {error}"
        raise _config_error(ckpt, message, "weights.bad_config") from None


def _config_error(ckpt: Checkpoint, message: str, code: str, field: str = "") -> WeightsError:
    where = f"{ckpt.path.parent / CONFIG}{field}"
    return WeightsError(message, code=code, where=where, hint="download it again, with the weights")


def special_architectures(model: Vit) -> dict[str, str]:
    """The architectures of timm for the parts of a model that no argument sets, and what these parts are."""
    parts = {
        DISTILLED: "a distillation token" if isinstance(model.pool, DistilledPool) else "",
        CLIP: "a norm before the first layer" if model.tokens.norm else "",
        GATED: "a gated MLP" if isinstance(model.mlp, SwiGlu) else "",
    }
    return {name: words for name, words in parts.items() if words}


def timm_config(bundle: Bundle, model: Vit) -> dict[str, Any]:
    """The config.json of a model: an architecture, and everything in which this model differs from it."""
    assert isinstance(model.stem, Patches)
    assert isinstance(model.mixer, Attention)
    preprocessing, gated = bundle.preprocessing, isinstance(model.mlp, SwiGlu)
    crop, normalize = preprocessing.crop, preprocessing.normalize.per_channel(model.channels)
    arguments: dict[str, Any] = {
        "img_size": list(model.image_size),
        "in_chans": model.channels,
        "patch_size": list(model.stem.patch),
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.mixer.heads,
        "mlp_ratio": _ratio((1 + gated) * model.mlp.hidden(model.width), model.width),
        "qkv_bias": model.mixer.qkv_bias,
        "qk_norm": model.mixer.qk_norm,
        "class_token": model.tokens.cls,
        "global_pool": POOLS[model.pool.kind],
        "pre_norm": model.tokens.norm,
    }
    arguments |= (
        {"init_values": 0.0} if isinstance(model.mlp, SwiGlu) else {"act_layer": ACTIVATIONS[model.mlp.activation]}
    )
    if not isinstance(model.pool, DistilledPool):
        assert isinstance(model.position, Learned1d)
        arguments |= {"reg_tokens": model.tokens.registers, "no_embed_class": not model.position.cls}
        arguments["fc_norm"] = model.pool.normalizes()
    if preprocessing.image_size != model.image_size:
        arguments["dynamic_img_size"] = True  # else timm refuses images of any size but the table's
    if isinstance(model.block.scale, LayerScale):
        arguments["init_values"] = model.block.scale.init
    return {
        "architecture": next(iter(special_architectures(model)), "vit_base_patch16_224"),
        "num_classes": len(bundle.classes),
        "label_names": list(bundle.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [model.channels, *preprocessing.image_size],
            "mean": list(normalize.mean),
            "std": list(normalize.std),
            "crop_pct": crop.fraction if isinstance(crop, CenterCrop) else 1.0,
            "crop_mode": "center" if isinstance(crop, CenterCrop) else "squash",
            "interpolation": crop.filter,
        },
    }


def _ratio(hidden: int, width: int) -> float:
    """The number that timm multiplies the width with, and truncates to a whole number."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width

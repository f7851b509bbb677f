"""Models by name: `B/16`, `ViT-L/16`, `vit_large_patch16_224`, `R50+ViT-B/16`, `R152x4`."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

from vitral.core.config import Config, Size, override
from vitral.core.documents import is_document, read_document
from vitral.core.errors import ConfigError, format_choices
from vitral.models.attention import Attention
from vitral.models.block import BaseBlock
from vitral.models.embed import Hybrid, Patches, StemConfig
from vitral.models.head import BaseHead
from vitral.models.init import BaseInit
from vitral.models.mlp import BaseMlp, Mlp
from vitral.models.pool import BasePool
from vitral.models.position import BasePosition
from vitral.models.resnet import Resnet
from vitral.models.vit import Tokens, Vit


class ModelSize(NamedTuple):
    """A model size of the paper's Table 1 or of later papers."""

    width: int
    depth: int
    heads: int
    hidden: int
    timm_name: str  # as in vit_base_patch16; empty where timm has no such size


SIZES = {
    "Ti": ModelSize(192, 12, 3, 768, "tiny"),
    "S": ModelSize(384, 12, 6, 1536, "small"),
    "B": ModelSize(768, 12, 12, 3072, "base"),
    "b": ModelSize(384, 12, 12, 1536, ""),  # figure 4: B with all widths halved
    "L": ModelSize(1024, 24, 16, 4096, "large"),
    "H": ModelSize(1280, 32, 16, 5120, "huge"),
    "g": ModelSize(1408, 40, 16, 6144, "giant"),  # arXiv 2106.04560
    "G": ModelSize(1664, 48, 16, 8192, "gigantic"),
}
TIMM_SIZES = {size.timm_name: size for size in SIZES.values() if size.timm_name}
PATCHES = (2, 4, 8, 14, 16, 32)  # listed; any other parses as well
HYBRID_STEMS = {"26": (2, 2, 2, 2), "50": (3, 4, 6, 3), "101": (3, 4, 23, 3)}
RESNET_LAYERS = HYBRID_STEMS | {"152": (3, 8, 36, 3), "200": (3, 24, 36, 3)}

VIT_NAME = re.compile(r"(?:R(?P<units>\d*)\+)?(?:ViT-)?(?P<scale>Ti|S|b|B|L|H|g|G)/(?P<patch>[1-9]\d*)")
TIMM_NAME = re.compile(r"vit_(?P<word>[a-z]+)_patch(?P<patch>[1-9]\d*)(?:_(?P<image>[1-9]\d*))?")
RESNET_NAME = re.compile(r"(?:BiT-)?R(?P<units>\d+)x(?P<factor>[1-9]\d*)")


def list_models(pattern: str = "*") -> tuple[str, ...]:
    """The known model names that fit a pattern: every size with common patch sizes, hybrids and ResNets."""
    plain = [f"{scale}/{patch}" for scale in SIZES for patch in PATCHES]
    hybrids = [f"R{units}+{scale}/{stride}" for units in HYBRID_STEMS for scale in SIZES for stride in (16, 32)]
    timm = [f"vit_{word}_patch{patch}_224" for word in TIMM_SIZES for patch in PATCHES]
    baselines = [f"R{units}x{factor}" for units in RESNET_LAYERS for factor in (1, 2, 3, 4)]
    names = (*plain, "R+Ti/16", *hybrids, *timm, *baselines)
    return tuple(name for name in names if fnmatchcase(name, pattern))


SizeLike = int | str | tuple[int, int] | Size
ModelLike = str | Path | Vit | Resnet


class ModelOptions(TypedDict, total=False):
    """Keywords of `create_model`: the fields of a `Vit`, and the ends of some of their paths."""

    image_size: SizeLike
    any_size: bool
    channels: int
    width: int
    depth: int
    stem: Config | str
    tokens: Tokens
    position: BasePosition | str
    block: BaseBlock | str
    mixer: Config | str
    mlp: BaseMlp | str
    pool: BasePool | str
    head: BaseHead | str
    norm: Config | str
    eps: float
    init: BaseInit | str
    memory: Config | str
    # ends of paths
    num_classes: int
    patch: SizeLike
    heads: int
    registers: int
    drop_path_rate: float


def model_config(
    model: ModelLike, settings: Mapping[str, object] | None = None, **options: Unpack[ModelOptions]
) -> Vit | Resnet:
    """The config of a model: by name, from a JSON or YAML file, or as given; with settings by path applied."""
    config = model if isinstance(model, Vit | Resnet) else _named_config(model)
    changes = {**options, **(settings or {})}
    return override(config, changes) if changes else config


def _named_config(model: str | Path) -> Vit | Resnet:
    if not is_document(model):
        return parse_name(str(model))
    data = read_document(Path(model).expanduser())
    try:
        return Resnet.parse(data) if data.get("kind") == "resnet" else Vit.parse(data)
    except ConfigError as error:
        raise ConfigError(error.message, code=error.code, where=f"{model}: {error.where}", hint=error.hint) from None


def parse_name(name: str) -> Vit | Resnet:
    if (match := VIT_NAME.fullmatch(name)) and (stem := parse_stem(match["units"], match["patch"])):
        return vit_config(SIZES[match["scale"]], stem)
    if (match := TIMM_NAME.fullmatch(name)) and match["word"] in TIMM_SIZES:
        stem = Patches(patch=Size.parse(match["patch"]))
        return vit_config(TIMM_SIZES[match["word"]], stem, match["image"] or "224")
    if (match := RESNET_NAME.fullmatch(name)) and match["units"] in RESNET_LAYERS:
        return Resnet(layers=RESNET_LAYERS[match["units"]], root=64 * int(match["factor"]))
    raise ConfigError(f"unknown model {name!r}", code="config.unknown_name", where="model", hint=suggest_names(name))


def vit_config(scale: ModelSize, stem: StemConfig, image: str = "224") -> Vit:
    mlp, mixer = Mlp(ratio=scale.hidden / scale.width), Attention(heads=scale.heads)
    return Vit(image_size=Size.parse(image), width=scale.width, depth=scale.depth, stem=stem, mixer=mixer, mlp=mlp)


def parse_stem(units: str | None, patch: str) -> StemConfig | None:
    """Patches, or a hybrid in one of the paper's forms: all four stages for /32, the last two merged for /16."""
    if units is None:
        return Patches(patch=Size.parse(patch))
    if not units and patch == "16":
        # R+Ti/16 is the root alone with 8x8 patches of its map. It is Google's name, although a token covers 32 pixels.
        return Hybrid(layers=(), patch=Size(8, 8))
    if units in HYBRID_STEMS and patch in ("16", "32"):
        one, two, three, four = RESNET_LAYERS[units]
        return Hybrid(layers=(one, two, three, four) if patch == "32" else (one, two, three + four))
    return None


def suggest_names(name: str) -> str:
    """A hint with the known names most similar to this one, ignoring case and prefixes."""
    plain = normalize_name(name)
    alike = {known: SequenceMatcher(None, plain, normalize_name(known)).ratio() for known in list_models()}
    best = sorted((known for known in alike if alike[known] > 0.4), key=lambda known: -alike[known])
    return f"did you mean {format_choices(best[:3])}?" if best else "use a name such as B/16, R50+B/16 or R50x1"


def normalize_name(name: str) -> str:
    return name.lower().removeprefix("vit").strip("-_ ").replace("resnet", "r")

"""The vision towers of CLIP (arXiv 2103.00020) in the state dicts of open_clip and of OpenAI's own repository.

A whole model has its vision tower under `visual.`; a tower saved alone has the same names without it. A folder of the
hub has `open_clip_config.json`, which records what the tensors do not: heads, kind of GELU, pool, preprocessing.
`visual.trunk.` is a tower of timm.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from vitral.core.config import Size
from vitral.core.documents import parse_json
from vitral.core.errors import ConfigError
from vitral.core.files import read_file
from vitral.core.storage import wrap_read_errors
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Filter, Resize
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.models.activation import ActivationName
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Patches
from vitral.models.head import HeadConfig, LinearHead, NoHead, ProjectionHead
from vitral.models.mlp import Mlp
from vitral.models.pool import ClassPool, MeanPool, NormPlace, PoolConfig
from vitral.models.position import Learned1d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    Format,
    assumed_preprocessing,
    infer_sizes,
    parse_positive_int,
)
from vitral.weights.formats.rules import (
    STEM,
    TABLE,
    TOKENS,
    Names,
    Rule,
    Weights,
    layer_names,
    mapped,
    patch_kernel,
    same,
    unsqueezed,
)
from vitral.weights.formats.timm import Timm

CONFIG = "open_clip_config.json"
TOWER, BLOCK = "visual.", "transformer.resblocks.0."
TRUNK, PROJECTION = "visual.trunk.", "visual.head.proj."
POOL_MARKS = {"trunk.attn_pool.latent", "trunk.fc_norm.weight"}  # that tell the pool of timm's towers
MARKS = {"conv1.weight", "class_embedding", "positional_embedding", f"{BLOCK}attn.in_proj_weight"}
OPENAI = {"input_resolution", "context_length", "vocab_size"}  # numbers in OpenAI's own files
HEAD_WIDTH = 64  # by default; the published models of these widths have 16 heads
HEADS = {1280: 16, 1408: 16, 1664: 16, 1792: 16}
NORMALIZE = Normalize(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))
MIDDLE = CenterCrop(fraction=1.0, filter="bicubic")
FILTERS: dict[str, Filter] = {"bicubic": "bicubic", "bilinear": "bilinear", "random": "bicubic"}
UNSUPPORTED = (
    (r"attn_pool\.|attn_pool_contrastive\.", "its attentional pool, of CoCa"),
    (r".*\.ln_attn\.", "a norm after attention"),
    (r".*\.attn\.logit_scale$", "its attention of cosines"),
    (r".*\.attn\.head_scale$", "a factor for each head"),
)
OUTSIDE = (
    (r"(logit_scale|logit_bias)$", "scales the similarity of images and texts"),
    (r"(input_resolution|context_length|vocab_size)$", "a number of the whole model"),
    (r"", "belongs to the text tower"),
)


class OpenClip(Format):
    """A tower of open_clip's own class, or of OpenAI's."""

    library = package = name = "open_clip"
    title = "open_clip's vision tower"
    names: ClassVar[Names] = {
        STEM: "conv1",
        "first_norm": "ln_pre",
        **layer_names(
            "transformer.resblocks.*.",
            {
                "mixer_norm": "ln_1",
                "mixer.heads.qkv.weight": "attn.in_proj_weight",
                "mixer.heads.qkv.bias": "attn.in_proj_bias",
                "mixer.heads.q_norm": "attn.ln_q",
                "mixer.heads.k_norm": "attn.ln_k",
                "mixer.output_norm": "attn.ln_inner",
                "mixer.project": "attn.out_proj",
                "mixer_branch.scale.factor": "ls_1.gamma",
                "mlp_norm": "ln_2",
                "mlp.expand": "mlp.c_fc",
                "mlp.norm": "mlp.ln",
                "mlp.contract": "mlp.c_proj",
                "mlp_branch.scale.factor": "ls_2.gamma",
            },
        ),
        "norm": "ln_post",
        "pool.norm": "ln_post",
    }
    writable = False

    def short(self, name: str) -> str:
        return name.removeprefix(TOWER)

    def matches(self, ckpt: Checkpoint) -> bool:
        names = ckpt.tensors.keys()
        return any({prefix + mark for mark in MARKS} <= names for prefix in (TOWER, ""))

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        config, openai = read_config(ckpt), ckpt.tensors.keys() >= OPENAI
        tower, unused = split_tower(ckpt.tensors)
        ckpt = ckpt._replace(tensors=tower)
        for pattern, part in UNSUPPORTED:
            if found := next((name for name in tower if re.match(pattern, name)), ""):
                raise ckpt.error(f"{found}: {part} has no counterpart", "weights.unsupported")
        names, vision = tower.keys(), part_of(config, "vision_cfg", ckpt)
        width, channels, patch, depth, hidden = infer_sizes(ckpt, self.names)
        heads, assumed = infer_heads(ckpt, width, vision)
        image = image_size(ckpt, patch, vision)
        model = Vit(
            image_size=image,
            channels=channels,
            width=width,
            depth=depth,
            stem=Patches(patch=patch, bias=False, remainder="crop"),
            tokens=Tokens(norm="ln_pre.weight" in names),
            position=Learned1d(resampling="bicubic_antialias"),
            block=PreNorm(scale=LayerScale() if f"{BLOCK}ls_1.gamma" in names else NoScale()),
            mixer=Attention(
                heads=heads,
                qk_norm=f"{BLOCK}attn.ln_q.weight" in names,
                output_norm=f"{BLOCK}attn.ln_inner.weight" in names,
            ),
            mlp=Mlp(
                ratio=hidden / width,
                activation=infer_activation(ckpt, config, openai),
                norm=f"{BLOCK}mlp.ln.weight" in names,
            ),
            pool=infer_pool(ckpt, vision, assumed),
            head=infer_head(ckpt),
            eps=norm_eps(vision),
        )
        preprocessing = infer_preprocessing(ckpt, config, image, assumed)
        return self.detected(ckpt, model, preprocessing, assumed, unused=unused)

    def special_rules(self, model: Vit) -> list[Rule]:
        """Tokens and positions without a first dimension, and a projection with its inputs first."""
        rules = [
            patch_kernel(f"{STEM}.weight", f"{self.names[STEM]}.weight", model.stem.patch),
            unsqueezed(TABLE, "positional_embedding"),
            unsqueezed(TOKENS, "class_embedding"),
        ]
        if isinstance(model.head, ProjectionHead):
            rules.append(mapped("head.linear.weight", "proj", lambda found: found.mT, lambda own: own.mT))
        return rules

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        yield f"library: {self.title} can be read, not written: its files have a text tower too"


class OpenClipTimm(Format):
    """A tower of timm's, read by timm's format, with open_clip's projection."""

    library = package = "open_clip"
    name = "open_clip-timm"
    title = "open_clip's vision tower of timm"
    names: ClassVar[Names] = {}
    writable = False
    takes_arch = True

    def matches(self, ckpt: Checkpoint) -> bool:
        return Timm().matches(ckpt._replace(tensors=trunk_tensors(ckpt.tensors)))

    def candidates(self, ckpt: Checkpoint) -> list[str]:
        return Timm().candidates(ckpt._replace(tensors=trunk_tensors(ckpt.tensors)))

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        config, (tower, unused) = read_config(ckpt), split_tower(ckpt.tensors)
        if other := [name for name in tower if name.startswith(("head.mlp.", "head.pool."))]:
            raise ckpt.error(f"{TOWER}{other[0]}: only a linear projection has a counterpart", "weights.unsupported")
        vision = part_of(config, "vision_cfg", ckpt)
        if not (config or ckpt.setting("pool") or tower.keys() & POOL_MARKS):
            message = f"does not record its pool: put {CONFIG} beside it, or give pool=cls or pool=mean"
            raise ckpt.missing_setting(message, "pool=mean")
        notes = timm_notes(vision, tower)
        found = Timm().detect(ckpt._replace(tensors=trunk_tensors(ckpt.tensors), config=notes))
        assert isinstance(found.model, Vit)
        assert found.rules is not None
        head, projection = found.model.head, tower.get("head.proj.weight")
        if projection is not None:
            head = ProjectionHead(width=len(projection), bias="head.proj.bias" in tower)
        elif isinstance(head, LinearHead):  # timm's classifier is the projection
            head = ProjectionHead(width=head.num_classes, bias="trunk.head.bias" in tower)
        assumed = list(found.assumptions)
        image = config_image_size(vision) or found.preprocessing.image_size
        return found._replace(
            title=self.title,
            model=found.model.model_copy(update={"head": head}),
            preprocessing=infer_preprocessing(ckpt, config, image, assumed) if config else found.preprocessing,
            classes=(),
            tensors={TRUNK + name: each for name, each in found.tensors.items()} | projection_tensors(ckpt.tensors),
            unused=unused | {TRUNK + name: reason for name, reason in found.unused.items()},
            assumptions=tuple(line for line in assumed if "classes" not in line),
            rules=partial(trunk_rules, found.rules, projection is not None),
        )

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        yield f"library: {self.title} can be read, not written: its files have a text tower too"


def trunk_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(TRUNK): tensor for name, tensor in tensors.items() if name.startswith(TRUNK)}


def projection_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name.startswith(PROJECTION)}


def trunk_rules(inner: Callable[[Vit, Weights], list[Rule]], projected: bool, model: Vit, own: Weights) -> list[Rule]:
    """Timm's rules under the names of the trunk, and the projection after it."""
    kept = {name: tensor for name, tensor in own.items() if not (projected and name.startswith("head."))}
    rules = [replace(rule, theirs=tuple(TRUNK + name for name in rule.theirs)) for rule in inner(model, kept)]
    parts = [name.removeprefix("head.linear.") for name in own if name not in kept]
    return [*rules, *(same(f"head.linear.{part}", PROJECTION + part) for part in parts)]


def timm_notes(vision: Mapping[str, Any], tower: Mapping[str, Tensor]) -> dict[str, Any]:
    """What timm's config.json would record of the trunk; nothing where there is no config."""
    if not isinstance(vision.get("timm_model_name"), str):
        return {}
    arguments = dict(vision.get("timm_model_kwargs") or {})
    classes = len(tower["trunk.head.weight"]) if "trunk.head.weight" in tower else 0
    notes = {"architecture": vision["timm_model_name"], "model_args": arguments | {"num_classes": classes}}
    pool = vision.get("timm_pool", "avg")
    return notes | ({"global_pool": pool} if pool else {}) | {"pretrained_cfg": {}}


def split_tower(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tower's tensors without their prefix, and the names of the others, each with the reason why it is unused."""
    prefix = TOWER if any(name.startswith(TOWER) for name in tensors) else ""
    tower = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    others = [name for name in tensors if not name.startswith(prefix)]
    return tower, {name: next(why for pattern, why in OUTSIDE if re.match(pattern, name)) for name in others}


def read_config(ckpt: Checkpoint) -> Mapping[str, Any]:
    """The content of open_clip_config.json beside the file, empty where there is none."""
    path = ckpt.path.parent / CONFIG
    if not path.exists():
        return {}
    with wrap_read_errors(path):
        text = read_file(path)
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ckpt.error(f"{CONFIG} is not JSON: {error}", "weights.bad_config") from None
    if not isinstance(found, dict) or not isinstance(found.get("model_cfg"), dict):
        raise ckpt.error(f"{CONFIG} has no model_cfg", "weights.bad_config")
    return found


def part_of(config: Mapping[str, Any], name: str, ckpt: Checkpoint) -> Mapping[str, Any]:
    """A part of the model's config; empty where there is no config."""
    found = config["model_cfg"].get(name, {}) if config else {}
    if not isinstance(found, dict):
        raise ckpt.error(f"{CONFIG} has no {name}", "weights.bad_config")
    return found


def infer_heads(ckpt: Checkpoint, width: int, vision: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The number of heads, and a line where it is that of published models."""
    if given := ckpt.setting("mixer.heads"):
        return parse_positive_int(given, "mixer.heads"), []
    if vision:
        each = vision.get("head_width", HEAD_WIDTH)
        if not isinstance(each, int) or each < 1 or width % each:
            raise ckpt.error(f"{CONFIG} has heads of {each}, and the width is {width}", "weights.bad_config")
        return width // each, []
    if width not in HEADS and width % HEAD_WIDTH:
        raise ckpt.missing_setting(f"does not record the heads of its width of {width}", "mixer.heads=N")
    heads = HEADS.get(width, width // HEAD_WIDTH)
    return heads, [f"{heads} heads, as in the published model of width {width}"]


def image_size(ckpt: Checkpoint, patch: Size, vision: Mapping[str, Any]) -> Size:
    given, rows = config_image_size(vision), ckpt.shape("positional_embedding", 2)[0]
    if given and not ckpt.setting("image_size"):
        ckpt = ckpt._replace(settings=(*ckpt.settings, f"image_size={given}"))
    return ckpt.infer_image_size(rows, [1], patch)[0]


def config_image_size(vision: Mapping[str, Any]) -> Size | None:
    """The image size that the config records, if it does."""
    given = vision.get("image_size")
    return Size.parse(given) if given else None


def infer_activation(ckpt: Checkpoint, config: Mapping[str, Any], openai: bool) -> ActivationName:
    """The activation of the MLP, which OpenAI's files and a config record."""
    if ckpt.setting("mlp.activation"):
        return "gelu"  # the setting is applied to the detected model
    if not config and not openai:
        message = "does not record its kind of GELU: quick_gelu in models of OpenAI and in those that open_clip names "
        message += "-quickgelu (MetaCLIP and DFN among them), gelu in the others"
        raise ckpt.missing_setting(message, "mlp.activation=quick_gelu")
    quick = openai or bool(config["model_cfg"].get("quick_gelu", False))
    if config and part_of(config, "vision_cfg", ckpt).get("act_kwargs"):
        if quick:
            raise ckpt.error(f"{CONFIG} has act_kwargs for quick_gelu", "weights.unsupported")
        approximate = part_of(config, "vision_cfg", ckpt)["act_kwargs"] == {"approximate": "tanh"}
        if not approximate:
            raise ckpt.error(f"{CONFIG} has act_kwargs that are not known", "weights.unsupported")
        return "gelu_tanh"
    return "quick_gelu" if quick else "gelu"


def infer_pool(ckpt: Checkpoint, vision: Mapping[str, Any], assumed: list[str]) -> PoolConfig:
    """The pool, from the config; without one, CLIPA's where there is no norm before the first layer."""
    if given := ckpt.setting("pool"):
        return MeanPool() if given == "mean" else ClassPool()
    if vision:
        kind, after = vision.get("pool_type", "tok"), bool(vision.get("final_ln_after_pool", False))
        if kind not in ("tok", "avg"):
            raise ckpt.error(f"{CONFIG} has pool_type {kind!r}, expected tok or avg", "weights.unsupported")
        norm: NormPlace = "after" if after else "before"
        return MeanPool(norm=norm) if kind == "avg" else ClassPool(norm=norm)
    if "ln_pre.weight" in ckpt.tensors:
        assumed.append("the class token is pooled, as in all published models with ln_pre")
        return ClassPool()
    assumed.append("the mean of the patches is pooled and then normalized, as in CLIPA, which has no ln_pre")
    return MeanPool(norm="after")


def infer_head(ckpt: Checkpoint) -> HeadConfig:
    return ProjectionHead(width=ckpt.shape("proj", 2)[1]) if "proj" in ckpt.tensors else NoHead()


def norm_eps(vision: Mapping[str, Any]) -> float:
    return float((vision.get("norm_kwargs") or {}).get("eps", 1e-5))


def infer_preprocessing(ckpt: Checkpoint, config: Mapping[str, Any], image: Size, assumed: list[str]) -> Preprocessing:
    """The preprocessing of the config; without one, OpenAI's."""
    fields = config.get("preprocess_cfg")
    if not isinstance(fields, dict):
        assumed.append("OpenAI's preprocessing: the middle of the image, its own mean")
        return assumed_preprocessing(image, 3, MIDDLE, NORMALIZE)
    mode, name = fields.get("resize_mode", "shortest"), fields.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash") or name not in FILTERS:
        message = f"{CONFIG} resizes images by {mode} with {name}, which has no counterpart"
        raise ckpt.error(message, "weights.unsupported")
    crop: EvalCropConfig = CenterCrop(fraction=1.0, filter=FILTERS[name])
    if mode == "squash":
        crop = Resize(filter=FILTERS[name])
    mean, std = (fields.get(name, getattr(NORMALIZE, name)) for name in ("mean", "std"))
    try:
        normalize = Normalize(mean=tuple(mean), std=tuple(std))
    except ConfigError as error:
        raise ckpt.error(f"{CONFIG}: {error.message}", "weights.bad_config") from None
    return assumed_preprocessing(image, 3, crop, normalize)

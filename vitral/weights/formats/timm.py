"""timm: `vit_*`, `deit_*` and hybrids; a state dict, alone or with the config.json of the hub.

D width, P x Q pixels a patch, R registers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Preprocessing
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Hybrid, Patches, StemConfig
from vitral.models.head import LinearHead, NoHead
from vitral.models.mlp import Gelu, Mlp, SwiGlu
from vitral.models.pool import AttentionPool, ClassPool, DistilledPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    FileSettings,
    Format,
    ModelOutputs,
    count_layers,
    json_file,
    numbered_classes,
    setting_hint,
    tensor_shape,
)
from vitral.weights.formats.rules import (
    Rule,
    affine,
    averaged_heads,
    patch_kernel,
    position_rules,
    resnet_layers,
    resnet_rules,
    same,
)
from vitral.weights.formats.support import ANY_NUMBER, Supported
from vitral.weights.formats.timm_config import GELUS, TimmConfig, check_consistent, parse_config, parse_preprocessing

POOLS = {"cls": "token", "distilled": "token", "mean": "avg", "attention": "map"}
PLAIN, DISTILLED = "vit_base_patch16_224", "deit_base_distilled_patch16_224"
CLIP, GATED = "vit_base_patch16_clip_224", "vit_giant_patch14_dinov2"  # the only ones with eps 1e-5, and with SwiGLU


class Timm(Format):
    """A Vision Transformer of timm."""

    library: ClassVar[str] = "timm"
    package: ClassVar[str] = "timm"
    name: ClassVar[str] = "timm"
    title: ClassVar[str] = "timm's Vision Transformer"
    supported: ClassVar[Supported] = Supported(
        stem_bias=None, registers=ANY_NUMBER, pre_norm=None, scale=None, qk_norm=True, swiglu=True
    )

    def matches(self, ckpt: Checkpoint) -> bool:
        names = ckpt.tensors.keys()
        return {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= names and not names & DINOV2

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        names, config = ckpt.tensors.keys(), parse_config(ckpt)
        width = tensor_shape(ckpt, "patch_embed.proj.weight", 4)[0]
        tokens = Tokens(cls="cls_token" in names, registers=_registers(ckpt), norm="norm_pre.weight" in names)
        stem, channels = _stem(ckpt)
        image, rows = self._grid(ckpt, tokens, stem, settings, config)
        classes = tensor_shape(ckpt, "head.weight", 2)[0] if "head.weight" in names else 0
        model = Vit(
            image_size=image,
            channels=channels,
            width=width,
            depth=count_layers(names, "blocks."),
            stem=stem,
            tokens=tokens,
            position=Learned1d(cls=tokens.cls and rows > 0, resampling="bicubic_antialias"),
            block=PreNorm(scale=LayerScale() if "blocks.0.ls1.gamma" in names else NoScale()),
            mixer=Attention(
                heads=_heads(ckpt, width, tokens, settings, config),
                qkv_bias="blocks.0.attn.qkv.bias" in names,
                qk_norm="blocks.0.attn.q_norm.weight" in names,
            ),
            mlp=_mlp(ckpt, width, settings, config),
            pool=_pool(ckpt, tokens, config),
            head=LinearHead(num_classes=classes) if classes else NoHead(),
            eps=1e-5 if tokens.norm else 1e-6,
        )
        check_consistent(config, model, ckpt)
        scaling = IMAGENET if "dist_token" in names else CENTERED
        preprocessing = parse_preprocessing(config, image, channels, scaling, ckpt)
        assumed = () if config.images else (f"what timm has by default: the erf form of GELU, {_words(preprocessing)}",)
        labels = config.labels if classes else ()
        if len(labels) != classes:
            labels, assumed = numbered_classes(classes), (*assumed, f"its {classes:,} classes have no names: numbered")
        return DetectedModel(self.title, model, preprocessing, labels, ckpt.tensors, {}, assumed)

    def rules(self, model: Vit) -> list[Rule]:
        distilled = isinstance(model.pool, DistilledPool)
        tokens = ["cls_token"] * model.tokens.cls
        tokens += ["dist_token" if distilled else "reg_token"] * bool(model.tokens.registers)
        rules = [*stem_rules(model), *position_rules(model, tokens, "pos_embed")]
        rules += affine("first_norm", "norm_pre") if model.tokens.norm else []
        for layer in range(model.depth):
            rules += block_rules(model, f"blocks.{layer}", f"blocks.{layer}")
        rules += affine("pool.norm", "fc_norm") if model.pool.normalizes() else affine("norm", "norm")
        if isinstance(model.pool, AttentionPool):
            rules += pool_rules()
        if isinstance(model.head, LinearHead):
            rules += (
                averaged_heads("head.linear", ("head", "head_dist")) if distilled else affine("head.linear", "head")
            )
        return rules

    def _grid(
        self, ckpt: Checkpoint, tokens: Tokens, stem: StemConfig, settings: FileSettings, config: TimmConfig
    ) -> tuple[Size, int]:
        """The image size, and how many rows of the table are for tokens that are no patches."""
        rows = tensor_shape(ckpt, "pos_embed", 3)[1]
        prefixes = sorted({0, tokens.cls + tokens.registers})
        cell = stem.token_size()
        if not settings.get("image_size"):  # timm config the size it was trained with, which need not be the table's
            cells = [(size, (size.height // cell.height) * (size.width // cell.width)) for size in config.sizes]
            fitting = [f"image_size={size}" for size, count in cells if rows - count in prefixes]
            settings = FileSettings((*settings.items, *fitting[:1]))
        return settings.infer_image_size(rows, prefixes, cell, ckpt)

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if isinstance(model.stem, Patches) and model.stem.norm == "none" and model.stem.bias == model.tokens.norm:
            yield "stem.bias: timm has one exactly where there is no norm before the first layer"
        if len(marks := _marks(model)) > 1:
            yield f"architecture: timm has no model with {' and '.join(marks.values())} in one"
        yield from _pool_faults(model)
        if not isinstance(model.head, LinearHead | NoHead):
            yield f"head: timm has one linear layer, this model {model.head.kind}"
        eps = 1e-5 if model.tokens.norm else 1e-6
        if model.eps != eps:
            yield f"eps: timm has {eps:g} in the norms of this architecture, this model {model.eps:g}"

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        return super().files(bundle, tensors) | {"config.json": json_file(timm_config(bundle, bundle.model))}

    def import_library(self, model: Vit) -> Any:
        return import_module("timm")

    def load_reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        model = code.create_model(f"local-dir:{folder}", pretrained=True).eval()  # as a user of timm would open it

        @torch.no_grad()
        def answers(images: Tensor) -> ModelOutputs:
            return ModelOutputs(model.forward_features(images), model(images) if model.num_classes else None)

        return answers


def _marks(model: Vit) -> dict[str, str]:
    """What only an architecture of its own has in timm, and no argument gives: their names, and what it is."""
    marks = {
        DISTILLED: "a distillation token" if isinstance(model.pool, DistilledPool) else "",
        CLIP: "a norm before the first layer" if model.tokens.norm else "",
        GATED: "a gated MLP" if isinstance(model.mlp, SwiGlu) else "",
    }
    return {name: words for name, words in marks.items() if words}


def _pool_faults(model: Vit) -> Iterator[str]:
    pool, tokens = model.pool, model.tokens
    rows = isinstance(model.position, Learned1d) and model.position.cls
    if not isinstance(pool, ClassPool | DistilledPool | MeanPool | AttentionPool):
        yield f"pool: timm's ViT has no {pool.kind}"
    elif isinstance(pool, DistilledPool) and (tokens.registers != 1 or not rows):
        yield "tokens: timm's DeiT has one distillation token and no registers, all of them with positions"
    elif isinstance(pool, AttentionPool):
        if tokens.cls or tokens.registers:
            yield "pool: timm's query gathers from the patches alone, this model's from its other tokens too"
        if isinstance(model.mlp, SwiGlu) or pool.num_heads(model.context()) != model.context().heads:
            yield "pool: timm's has the heads of the layers, and two layers with GELU"


def timm_config(bundle: Bundle, model: Vit) -> dict[str, Any]:
    """The config.json that timm's hub has: an architecture, and all in which this model differs from it."""
    assert isinstance(model.stem, Patches)
    assert isinstance(model.mixer, Attention)
    needs = bundle.preprocessing
    fraction = needs.crop.fraction if isinstance(needs.crop, CenterCrop) else 1.0
    arguments: dict[str, Any] = {
        "img_size": list(model.image_size),
        "in_chans": model.channels,
        "patch_size": list(model.stem.patch),
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.mixer.heads,
        "mlp_ratio": _ratio(model.mlp.hidden(model.width), model.width),
        "qkv_bias": model.mixer.qkv_bias,
        "qk_norm": model.mixer.qk_norm,
        "class_token": model.tokens.cls,
        "global_pool": POOLS[model.pool.kind],
        "pre_norm": model.tokens.norm,
    }
    if isinstance(model.mlp, Mlp):
        arguments["act_layer"] = GELUS[model.mlp.gelu]
    elif isinstance(model.mlp, SwiGlu):
        arguments |= {"mlp_ratio": _ratio(2 * model.mlp.hidden(model.width), model.width), "init_values": 0.0}
    if not isinstance(model.pool, DistilledPool):
        assert isinstance(model.position, Learned1d)
        arguments |= {"reg_tokens": model.tokens.registers, "no_embed_class": not model.position.cls}
        arguments["fc_norm"] = model.pool.normalizes()
    if needs.image_size != model.image_size:
        arguments["dynamic_img_size"] = True  # else timm refuses images of any size but the table's
    if isinstance(model.block.scale, LayerScale):
        arguments["init_values"] = model.block.scale.init
    each = model.channels if len(needs.normalize.mean) == 1 else 1
    return {
        "architecture": next(iter(_marks(model)), PLAIN),
        "num_classes": len(bundle.classes),
        "label_names": list(bundle.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [model.channels, *needs.image_size],
            "mean": [*needs.normalize.mean] * each,
            "std": [*needs.normalize.std] * each,
            "crop_pct": fraction,
            "crop_mode": "center" if isinstance(needs.crop, CenterCrop) else "squash",
            "interpolation": needs.crop.filter,
        },
    }


def _ratio(hidden: int, width: int) -> float:
    """What timm multiplies the width with, and cuts to a whole number."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width


BACKBONE = "patch_embed.backbone"
DINOV2 = {"mask_token", "register_tokens", "blocks.0.mlp.w12.weight"}  # facebook's files have these, and timm's none
HEADS = {256: 4, 320: 5, 512: 8, 640: 10, 832: 13, 896: 14, 1152: 16}  # of timm's own sizes, by their width


def stem_rules(model: Vit) -> list[Rule]:
    """The stem, plain or hybrid."""
    rules = []
    if isinstance(model.stem, Hybrid):
        rules += resnet_rules(model.stem, "stem.body", BACKBONE)
    rules.append(patch_kernel("stem.project.weight", "patch_embed.proj.weight", model.stem.patch))
    if not isinstance(model.stem, Patches) or model.stem.bias:
        rules.append(same("stem.project.bias", "patch_embed.proj.bias"))
    return rules


def block_rules(model: Vit, ours: str, theirs: str) -> list[Rule]:
    """One layer, in the names that timm and facebook's own repositories share."""
    assert isinstance(model.mixer, Attention)
    rules = [*affine(f"{ours}.mixer_norm", f"{theirs}.norm1"), *affine(f"{ours}.mlp_norm", f"{theirs}.norm2")]
    rules += affine(f"{ours}.mixer.heads.qkv", f"{theirs}.attn.qkv", bias=model.mixer.qkv_bias)
    if model.mixer.qk_norm:
        rules += affine(f"{ours}.mixer.heads.q_norm", f"{theirs}.attn.q_norm")
        rules += affine(f"{ours}.mixer.heads.k_norm", f"{theirs}.attn.k_norm")
    rules += affine(f"{ours}.mixer.project", f"{theirs}.attn.proj")
    rules += affine(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1") + affine(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")
    if isinstance(model.block.scale, LayerScale):
        rules.append(same(f"{ours}.mixer_branch.scale.factor", f"{theirs}.ls1.gamma"))
        rules.append(same(f"{ours}.mlp_branch.scale.factor", f"{theirs}.ls2.gamma"))
    return rules


def pool_rules() -> list[Rule]:
    """The learned query that gathers."""
    names = {
        "q": "q",
        "kv": "kv",
        "project": "proj",
        "norm": "norm",
        "mlp.expand": "mlp.fc1",
        "mlp.contract": "mlp.fc2",
    }
    rules = [same("pool.query", "attn_pool.latent")]
    return rules + [rule for own, other in names.items() for rule in affine(f"pool.{own}", f"attn_pool.{other}")]


def _registers(ckpt: Checkpoint) -> int:
    if "dist_token" in ckpt.tensors:
        return 1
    return tensor_shape(ckpt, "reg_token", 3)[1] if "reg_token" in ckpt.tensors else 0


def _stem(ckpt: Checkpoint) -> tuple[StemConfig, int]:
    """The stem and its channels."""
    _, inputs, height, width = tensor_shape(ckpt, "patch_embed.proj.weight", 4)
    patch = Size(height, width)
    root = f"{BACKBONE}.stem.conv.weight"
    if root not in ckpt.tensors:
        return Patches(patch=patch, bias="norm_pre.weight" not in ckpt.tensors), inputs  # as timm has it
    outputs, channels, *_ = tensor_shape(ckpt, root, 4)
    units = resnet_layers(ckpt.tensors, BACKBONE)
    return Hybrid(layers=units, root=outputs, patch=patch, standardization="variance", group_eps=1e-5), channels


def _heads(ckpt: Checkpoint, width: int, tokens: Tokens, settings: FileSettings, config: TimmConfig) -> int:
    if "blocks.0.attn.q_norm.weight" in ckpt.tensors:
        return width // tensor_shape(ckpt, "blocks.0.attn.q_norm.weight", 1)[0]
    if settings.get("mixer.heads"):
        return settings.infer_heads(width, ckpt)
    if config.heads or width in HEADS:
        return config.heads or HEADS[width]
    if width == 768 and not tokens.cls and not config.architecture and "attn_pool.latent" not in ckpt.tensors:
        message = "does not tell the number of heads: timm has models like this with 12 and with 16"
        hint = setting_hint(ckpt, "mixer.heads=N")
        raise WeightsError(message, code="weights.missing_setting", where=ckpt.path, hint=hint)
    return settings.infer_heads(width, ckpt)


def _mlp(ckpt: Checkpoint, width: int, settings: FileSettings, config: TimmConfig) -> Mlp | SwiGlu:
    hidden = tensor_shape(ckpt, "blocks.0.mlp.fc2.weight", 2)[1]
    if tensor_shape(ckpt, "blocks.0.mlp.fc1.weight", 2)[0] == 2 * hidden:
        return gated_mlp(hidden, width, ckpt)
    return Mlp(ratio=hidden / width, gelu=_gelu(ckpt, settings, config))


def gated_mlp(hidden: int, width: int, ckpt: Checkpoint) -> SwiGlu:
    """A gated MLP with so many hidden numbers."""
    if hidden % 8:
        message = f"a gated MLP with {hidden} hidden numbers has no counterpart: a multiple of 8 is expected"
        raise WeightsError(message, code="weights.unsupported", where=ckpt.path)
    return SwiGlu(ratio=hidden / width)


def _gelu(ckpt: Checkpoint, settings: FileSettings, config: TimmConfig) -> Gelu:
    if settings.get("mlp.gelu"):
        return "erf"  # the setting is applied to what is recognized
    if config.architecture:
        if (found := config.gelu()) is None:
            message = f"its MLP has {config.arguments.get('act_layer')}, expected a kind of GELU"
            raise WeightsError(message, code="weights.unsupported", where=ckpt.path)
        return found
    for mark, kin, other in (("norm_pre.weight", "OpenAI's CLIP", "quick"), ("attn_pool.latent", "a SigLIP", "tanh")):
        if mark in ckpt.tensors:
            message = f"has {mark} and does not tell its kind of GELU, which is {other} in {kin} and erf in others"
            hint = setting_hint(ckpt, f"mlp.gelu={other}")
            raise WeightsError(message, code="weights.missing_setting", where=ckpt.path, hint=hint)
    return "erf"


def _pool(ckpt: Checkpoint, tokens: Tokens, config: TimmConfig) -> PoolConfig:
    normed = "fc_norm.weight" in ckpt.tensors
    if config.pool not in {"", "token", "avg", "map"} or (config.pool == "token" and normed):
        message = f"its pool, {config.pool}{' with a norm after it' * normed}, has no counterpart"
        raise WeightsError(message, code="weights.unsupported", where=ckpt.path)
    if "attn_pool.latent" in ckpt.tensors:
        if tokens.cls or tokens.registers:
            message = "its query gathers from the patches alone, ours from the class token and the registers too"
            raise WeightsError(message, code="weights.unsupported", where=ckpt.path)
        return AttentionPool()
    if "dist_token" in ckpt.tensors:
        return DistilledPool()
    if normed:
        return MeanPool(norm="after")
    return ClassPool() if tokens.cls and config.pool != "avg" else MeanPool()


def _words(given: Preprocessing) -> str:
    mean = ", ".join(f"{number:g}" for number in given.normalize.mean)
    return f"{given.image_size}, mean {mean}"

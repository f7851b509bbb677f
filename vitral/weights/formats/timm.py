"""timm: `vit_*`, `deit_*` and hybrids; a state dict, alone or with the config.json of the hub."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET
from vitral.models.activation import ActivationName
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Hybrid, Patches
from vitral.models.head import LinearHead, NoHead
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.pool import AttentionPool, ClassPool, DistilledPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    ANY_NUMBER,
    CONFIG,
    PLAIN,
    Checkpoint,
    DetectedModel,
    Format,
    ModelOutputs,
    infer_sizes,
    json_file,
)
from vitral.weights.formats.rules import (
    TABLE,
    TOKENS,
    Names,
    Rule,
    averaged_heads,
    count_units,
    layer_names,
    resnet_names,
)
from vitral.weights.formats.timm_config import (
    POOLS,
    TimmConfig,
    check_consistent,
    parse_config,
    parse_preprocessing,
    special_architectures,
    timm_config,
)

# The names that timm and facebook's own repositories share.
SHARED: Names = {
    "stem.project": "patch_embed.proj",
    TABLE: "pos_embed",
    **layer_names(
        "blocks.*.",
        {
            "mixer_norm": "norm1",
            "mixer.heads.qkv": "attn.qkv",
            "mixer.heads.q_norm": "attn.q_norm",
            "mixer.heads.k_norm": "attn.k_norm",
            "mixer.project": "attn.proj",
            "mixer_branch.scale.factor": "ls1.gamma",
            "mlp_norm": "norm2",
            "mlp.expand": "mlp.fc1",
            "mlp.contract": "mlp.fc2",
            "mlp_branch.scale.factor": "ls2.gamma",
        },
    ),
    "norm": "norm",
}
BACKBONE = "patch_embed.backbone"
RESNET = resnet_names(
    (f"{BACKBONE}.stem.conv", f"{BACKBONE}.stem.norm"),
    f"{BACKBONE}.stages.*.blocks.*.",
    {
        "reduce": ("conv1", "norm1"),
        "look": ("conv2", "norm2"),
        "expand": ("conv3", "norm3"),
        "shortcut": ("downsample.conv", "downsample.norm"),
    },
)
UNIT = re.compile(re.escape(BACKBONE) + r"\.stages\.(\d{1,3})\.blocks\.(\d{1,3})\.")
DINOV2 = {"mask_token", "register_tokens", "blocks.0.mlp.w12.weight"}  # only in files of facebook
HEADS = {256: 4, 320: 5, 512: 8, 640: 10, 832: 13, 896: 14, 1152: 16}  # of timm's own sizes, by their width


class Timm(Format):
    """A Vision Transformer of timm."""

    library = package = name = "timm"
    title = "timm's Vision Transformer"
    names: ClassVar[Names] = {
        **SHARED,
        **RESNET,
        TOKENS: ("cls_token", "reg_token"),
        "first_norm": "norm_pre",
        "pool.norm": "fc_norm",
        "pool.query": "attn_pool.latent",
        "pool.q": "attn_pool.q",
        "pool.kv": "attn_pool.kv",
        "pool.project": "attn_pool.proj",
        "pool.mlp.expand": "attn_pool.mlp.fc1",
        "pool.mlp.contract": "attn_pool.mlp.fc2",
        "head.linear": "head",
    }
    supported = PLAIN | {
        "stem.bias": (True, False),
        "tokens.registers": ANY_NUMBER,
        "tokens.norm": (True, False),
        "block.scale.kind": ("none", "layer_scale"),
        "mixer.qk_norm": (True, False),
        "mlp.kind": ("mlp", "swiglu"),
        "pool.kind": tuple(POOLS),
        "head.kind": ("linear", "none"),
    }

    def matches(self, ckpt: Checkpoint) -> bool:
        names = ckpt.tensors.keys()
        return {"patch_embed.proj.weight", "blocks.0.attn.qkv.weight"} <= names and not names & DINOV2

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        names, config, sizes = ckpt.tensors.keys(), parse_config(ckpt), infer_sizes(ckpt, self.names)
        distilled, channels = "dist_token" in names, sizes.channels
        registers = ckpt.shape("reg_token", 3)[1] if "reg_token" in names and not distilled else int(distilled)
        tokens = Tokens(cls="cls_token" in names, registers=registers, norm="norm_pre.weight" in names)
        stem: Patches | Hybrid = Patches(patch=sizes.patch, bias=not tokens.norm)  # as in timm
        if (root := f"{BACKBONE}.stem.conv.weight") in names:
            width, channels, *_ = ckpt.shape(root, 4)
            units = count_units(names, UNIT, 0)
            stem = Hybrid(layers=units, root=width, patch=sizes.patch, standardization="variance", group_eps=1e-5)
        image, rows = _image_size(ckpt, tokens, stem.token_size(), config)
        model = Vit(
            image_size=image,
            channels=channels,
            width=sizes.width,
            depth=sizes.depth,
            stem=stem,
            tokens=tokens,
            position=Learned1d(cls=tokens.cls and rows > 0, resampling="bicubic_antialias"),
            block=PreNorm(scale=LayerScale() if "blocks.0.ls1.gamma" in names else NoScale()),
            mixer=Attention(
                heads=_heads(ckpt, sizes.width, tokens, config),
                qkv_bias="blocks.0.attn.qkv.bias" in names,
                qk_norm="blocks.0.attn.q_norm.weight" in names,
            ),
            mlp=_mlp(ckpt, sizes.width, sizes.hidden, config),
            pool=_pool(ckpt, tokens, config),
            head=LinearHead(num_classes=ckpt.shape("head.weight", 2)[0]) if "head.weight" in names else NoHead(),
            eps=1e-5 if tokens.norm else 1e-6,
        )
        check_consistent(config, model, ckpt)
        preprocessing = parse_preprocessing(config, image, channels, IMAGENET if distilled else CENTERED, ckpt)
        mean = ", ".join(f"{number:g}" for number in preprocessing.normalize.mean)
        assumed = f"timm's defaults: the erf form of GELU, {preprocessing.image_size}, mean {mean}"
        labels = () if isinstance(model.head, NoHead) else config.labels
        return self.detected(ckpt, model, preprocessing, () if config.images else (assumed,), labels)

    def tensor_names(self, model: Vit) -> Names:
        names = dict(super().tensor_names(model))
        if isinstance(model.pool, DistilledPool):
            names[TOKENS] = ("cls_token", "dist_token")
        if isinstance(model.pool, AttentionPool):
            names["pool.norm"] = "attn_pool.norm"
        return names

    def special_rules(self, model: Vit) -> list[Rule]:
        distilled = isinstance(model.pool, DistilledPool) and isinstance(model.head, LinearHead)
        return super().special_rules(model) + averaged_heads("head.linear", ("head", "head_dist")) * distilled

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if isinstance(model.stem, Patches) and model.stem.norm == "none" and model.stem.bias == model.tokens.norm:
            yield "stem.bias: timm has one exactly where there is no norm before the first layer"
        if len(parts := special_architectures(model)) > 1:
            yield f"architecture: timm has no model that combines {' and '.join(parts.values())}"
        pool, tokens, context = model.pool, model.tokens, model.context()
        rows = isinstance(model.position, Learned1d) and model.position.cls
        if isinstance(pool, DistilledPool) and (tokens.registers != 1 or not rows):
            yield "tokens: timm's DeiT has one distillation token, no registers, and a position for each token"
        if isinstance(pool, AttentionPool) and (tokens.cls or tokens.registers):
            yield "pool: timm's query attends to the patches alone, this model's to its other tokens too"
        if isinstance(pool, AttentionPool) and (
            isinstance(model.mlp, SwiGlu) or pool.num_heads(context) != context.heads
        ):
            yield "pool: timm's has the heads of the layers, and two layers with GELU"
        eps = 1e-5 if tokens.norm else 1e-6
        if model.eps != eps:
            yield f"eps: timm has {eps:g} in the norms of this architecture, this model {model.eps:g}"

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        return super().files(bundle, tensors) | {CONFIG: json_file(timm_config(bundle, bundle.model))}

    def import_library(self, model: Vit) -> Any:
        return import_module("timm")

    def load_reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        model = code.create_model(f"local-dir:{folder}", pretrained=True).eval()  # as a user of timm would open it

        @torch.no_grad()
        def outputs(images: Tensor) -> ModelOutputs:
            return ModelOutputs(model.forward_features(images), model(images) if model.num_classes else None)

        return outputs


def _image_size(ckpt: Checkpoint, tokens: Tokens, cell: Size, config: TimmConfig) -> tuple[Size, int]:
    """The image size, and the number of rows of the table that are not for patches."""
    rows = ckpt.shape("pos_embed", 3)[1]
    prefixes = sorted({0, tokens.cls + tokens.registers})
    if not ckpt.setting("image_size"):  # the config has the size of training, which need not be the table's
        cells = [(size, (size.height // cell.height) * (size.width // cell.width)) for size in config.sizes]
        fitting = [f"image_size={size}" for size, count in cells if rows - count in prefixes]
        ckpt = ckpt._replace(settings=(*ckpt.settings, *fitting[:1]))
    return ckpt.infer_image_size(rows, prefixes, cell)


def _heads(ckpt: Checkpoint, width: int, tokens: Tokens, config: TimmConfig) -> int:
    if "blocks.0.attn.q_norm.weight" in ckpt.tensors:
        return width // ckpt.shape("blocks.0.attn.q_norm.weight", 1)[0]
    if not ckpt.setting("mixer.heads"):
        if config.heads or width in HEADS:
            return config.heads or HEADS[width]
        if width == 768 and not tokens.cls and not config.architecture and "attn_pool.latent" not in ckpt.tensors:
            message = "does not record the number of heads: timm has models like this with 12 and with 16"
            raise ckpt.missing_setting(message, "mixer.heads=N")
    return ckpt.infer_heads(width)


def _mlp(ckpt: Checkpoint, width: int, expanded: int, config: TimmConfig) -> Mlp | SwiGlu:
    hidden = ckpt.shape("blocks.0.mlp.fc2.weight", 2)[1]
    if expanded == 2 * hidden:
        return gated_mlp(hidden, width, ckpt)
    return Mlp(ratio=hidden / width, activation=_gelu(ckpt, config))


def gated_mlp(hidden: int, width: int, ckpt: Checkpoint) -> SwiGlu:
    """A gated MLP of this hidden width."""
    if hidden % 8:
        message = f"a gated MLP with a hidden width of {hidden} has no counterpart: a multiple of 8 is expected"
        raise ckpt.error(message, "weights.unsupported")
    return SwiGlu(ratio=hidden / width)


def _gelu(ckpt: Checkpoint, config: TimmConfig) -> ActivationName:
    if ckpt.setting("mlp.activation"):
        return "gelu"  # the setting is applied to the detected model
    if config.architecture:
        if (found := config.gelu()) is None:
            message = f"its MLP has {config.arguments.get('act_layer')}, expected a kind of GELU"
            raise ckpt.error(message, "weights.unsupported")
        return found
    for mark, kin, other in (
        ("norm_pre.weight", "OpenAI's CLIP", "quick_gelu"),
        ("attn_pool.latent", "a SigLIP", "gelu_tanh"),
    ):
        if mark in ckpt.tensors:
            message = f"has {mark} and does not record its activation, which is {other} in {kin} and gelu in others"
            raise ckpt.missing_setting(message, f"mlp.activation={other}")
    return "gelu"


def _pool(ckpt: Checkpoint, tokens: Tokens, config: TimmConfig) -> PoolConfig:
    normed, fault = "fc_norm.weight" in ckpt.tensors, ""
    if config.pool not in {"", *POOLS.values()} or (config.pool == "token" and normed):
        fault = f"its pool, {config.pool}{' with a norm after it' * normed}, has no counterpart"
    elif "attn_pool.latent" in ckpt.tensors and (tokens.cls or tokens.registers):
        fault = "its query attends to the patches alone, ours to the class token and the registers too"
    if fault:
        raise ckpt.error(fault, "weights.unsupported")
    if "attn_pool.latent" in ckpt.tensors:
        return AttentionPool()
    if "dist_token" in ckpt.tensors:
        return DistilledPool()
    if normed:
        return MeanPool(norm="after")
    return ClassPool() if tokens.cls and config.pool != "avg" else MeanPool()

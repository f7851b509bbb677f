"""Facebook's self-supervised backbones as their own repositories save them, and iBOT, whose code began as DINO's.

DINO (arXiv 2104.14294), DINOv2 (2304.07193), DINOv3 (2508.10104), iBOT (2111.07832), MAE (2111.06377) and MoCo v3
(2104.02057). A layer has the names of timm. A training checkpoint wraps the backbone, as `backbone.` of the teacher or
the student, or as the two encoders of MoCo, and adds heads and tokens that only training uses.
"""

import math
import re
from collections.abc import Iterator, Mapping
from math import isqrt
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitral.core.config import Size, override
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Patches
from vitral.models.head import HeadConfig, LinearHead, NoHead
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.norm import LayerNorm, RmsNorm
from vitral.models.pool import ClassPool, MeanPool
from vitral.models.position import Learned1d, PositionConfig, Resampling, Rope2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    Format,
    OracleFiles,
    assumed_preprocessing,
    count_layers,
)
from vitral.weights.formats.rules import TABLE, TIMM_LAYER, TOKENS, Names
from vitral.weights.formats.timm.reader import DINOV2
from vitral.weights.formats.timm.writer import oracle_arguments
from vitral.weights.oracles.oracle import OracleRequest

STEM, QKV, PROJECT = "patch_embed.proj", "blocks.0.attn.qkv", "blocks.0.attn.proj"
LAYERS = {STEM + ".weight", QKV + ".weight", "cls_token"}  # of every backbone here
# What DINO, MAE and MoCo never have, and models of timm with the same layers may.
TIMM_ONLY = {
    "norm_pre.weight",
    "dist_token",
    "reg_token",
    "attn_pool.latent",
    "pre_logits.fc.weight",
    "blocks.0.attn.q_norm.weight",
}
GATED = "blocks.0.mlp.w3.weight"
CONVOLUTIONS = "patch_embed.proj.0.weight"
DECODER = "decoder_pred.weight"
TIPS = "blocks.0.mlp.c_fc.weight"  # of TIPSv2, which transformers has
PERIODS, UNTIED = "rope_embed.periods", "cls_norm.weight"
WRAPPER = re.compile(r"^(module\.)?backbone\.")
CHUNKED_BLOCK = re.compile(r"^blocks\.\d+\.(\d+)\.")  # layers in groups, each with its number among all
PROBE_NORM, PROBE = "head.0.running_mean", "head.1.weight"  # of a linear probe with a batch norm
PROBE_EPS = 1e-6
SIDE = 224  # of the images of models that do not record theirs
SIN_COS_TOLERANCE = 0.01  # a table may be kept in half precision
MASK = "replaces masked patches, in training only"
TRAINING_HEAD = "the head that only its training uses"


class UsedTensors(NamedTuple):
    """The tensors of the backbone by short names, and the names in the file of the others, each with the reason."""

    tensors: dict[str, Tensor]
    unused: dict[str, str]


class Backbone(Format):
    """What all of them share: they are read, not written."""

    library = package = "facebook"
    names: ClassVar[Names] = {
        "stem.project": STEM,
        TOKENS: ("cls_token", "register_tokens"),
        TABLE: "pos_embed",
        **TIMM_LAYER,
        "norm": "norm",
        "pool.norm": "fc_norm",
        "head.linear": "head",
    }
    register_rows = False
    writable = False
    unused: ClassVar[tuple[tuple[str, str], ...]] = ()  # patterns of names, and why the model does not use them
    heads: ClassVar[Mapping[int, int]] = {}  # of published models that differ from others of the same width
    resampling: ClassVar[Resampling] = "bicubic_offset"
    crop: ClassVar[EvalCropConfig] = CenterCrop(fraction=224 / 256, filter="bicubic")
    eps: ClassVar[float] = 1e-6
    remainder: ClassVar[Literal["refuse", "crop"]] = "refuse"  # of an image that the patch does not divide
    preprocessing_text: ClassVar[str] = "preprocessing as in its evaluation: the middle 224 of 256 pixels"

    def used(self, tensors: Mapping[str, Tensor]) -> UsedTensors:
        found = UsedTensors({}, {})
        for name, tensor in tensors.items():
            if reason := next((why for pattern, why in self.unused if re.match(pattern, name)), ""):
                found.unused[name] = reason
            else:
                found.tensors[self.short(name)] = tensor
        return found

    def has_layers(self, ckpt: Checkpoint) -> bool:
        """Whether the names are of such a backbone, or of a model of timm with the same names."""
        names = self.used(ckpt.tensors).tensors.keys()
        return names >= LAYERS and not names & TIMM_ONLY and "architecture" not in ckpt.config

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        found = self.prepare(self.used(ckpt.tensors), ckpt)
        ckpt = ckpt._replace(tensors=found.tensors)
        names, patch = found.tensors.keys(), Size(*ckpt.shape(f"{STEM}.weight", 4)[2:])
        registers = str(self.names[TOKENS][1])
        image, position, assumed = self.places(ckpt, patch)
        layers, heads_text = self.layers(ckpt)
        model = Vit(
            image_size=image,
            stem=Patches(patch=patch, bias=f"{STEM}.bias" in names, remainder=self.remainder),
            tokens=Tokens(registers=ckpt.shape(registers, 3)[1] if registers in names else 0),
            position=position,
            pool=MeanPool(norm="after") if "fc_norm.weight" in names else ClassPool(),
            head=infer_head(ckpt),
            eps=self.eps,
            **layers,
        )
        lines = [*assumed, *heads_text, f"{self.preprocessing_text}, ImageNet's mean"]
        preprocessing = assumed_preprocessing(image, model.channels, self.crop, IMAGENET)
        return self.detected(ckpt, model, preprocessing, lines, unused=found.unused)

    def prepare(self, found: UsedTensors, ckpt: Checkpoint) -> UsedTensors:
        """The tensors once those are combined that one of ours holds."""
        return found

    def places(self, ckpt: Checkpoint, patch: Size) -> tuple[Size, PositionConfig, list[str]]:
        """The image size, the positions, and what is assumed about them."""
        image, _ = ckpt.infer_image_size(ckpt.shape("pos_embed", 3)[1], [1], patch)
        return image, Learned1d(resampling=self.resampling), []

    def layers(self, ckpt: Checkpoint) -> tuple[dict[str, Any], list[str]]:
        """The settings of the layers, and what is assumed about them."""
        names = ckpt.tensors.keys()
        width, channels, *_ = ckpt.shape(f"{STEM}.weight", 4)
        heads, text = self.infer_heads(ckpt, width)
        scale, bias = str(self.names["blocks.*.mixer_branch.scale.factor"]).replace("*", "0"), f"{QKV}.bias" in names
        return {
            "channels": channels,
            "width": width,
            "depth": count_layers(names, "blocks."),
            "block": PreNorm(scale=LayerScale() if scale in names else NoScale()),
            "mixer": Attention(heads=heads, qkv_bias=bias, project_bias=f"{PROJECT}.bias" in names),
            "mlp": infer_mlp(ckpt, width),
            "norm": LayerNorm() if "blocks.0.norm1.bias" in names else RmsNorm(),
        }, text

    def infer_heads(self, ckpt: Checkpoint, width: int) -> tuple[int, list[str]]:
        """The number of heads, and a line where it is that of published models."""
        if ckpt.setting("mixer.heads"):
            return ckpt.infer_heads(width), []
        heads = self.heads.get(width, 0) or ckpt.infer_heads(width)
        return heads, [f"{heads} heads, as in the published model of width {width}"]

    def oracle_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The backbone alone, as timm reads it."""
        return self.used(tensors).tensors

    def oracle_model(self, model: Vit) -> Vit:
        """The model that timm makes of such a file, where its outputs are the same."""
        return model

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        """The repositories are no packages; timm reads their files."""
        arguments = oracle_arguments(self.oracle_model(model))
        return OracleRequest("timm", arguments | {"file": str(files.file), "convert": True}, f"files of {self.title}")

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        yield f"library: {self.title} files can be read, not written; timm's have the same layers"


class Dino(Backbone):
    """A backbone of DINO, alone or in a training checkpoint."""

    name = "dino"
    title = "facebook's DINO"
    gated_names: ClassVar[Names] = {
        "blocks.*.mlp.expand": "blocks.*.mlp.w12",
        "blocks.*.mlp.contract": "blocks.*.mlp.w3",
    }
    heads: ClassVar[Mapping[int, int]] = {1536: 24}
    remainder: ClassVar[Literal["refuse", "crop"]] = "crop"
    unused: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"(module\.)?(head|dino_head|ibot_head)\.(mlp|last_layer|last_norm)", TRAINING_HEAD),
        (r"((module\.)?backbone\.)?(mask_token|masked_embed)$", MASK),
    )

    def short(self, name: str) -> str:
        return CHUNKED_BLOCK.sub(r"blocks.\1.", WRAPPER.sub("", name))

    def matches(self, ckpt: Checkpoint) -> bool:
        names = {self.short(name) for name in ckpt.tensors}
        special = names & {*DINOV2, "masked_embed", "head.weight", "blocks.0.ls1.gamma", "blocks.0.gamma_1"}
        return self.has_layers(ckpt) and {"pos_embed", "norm.weight"} <= names and not special


class Dinov2Facebook(Dino):
    """A backbone of DINOv2, with and without registers, and with the gated MLP of its largest model."""

    name = "dinov2-facebook"
    title = "facebook's DINOv2"
    remainder: ClassVar[Literal["refuse", "crop"]] = "refuse"

    def matches(self, ckpt: Checkpoint) -> bool:
        names = {self.short(name) for name in ckpt.tensors}
        marks = names & DINOV2 if not names & {DECODER, TIPS} else ()
        return self.has_layers(ckpt) and {"pos_embed", "norm.weight"} <= names and bool(marks)

    def certain(self, ckpt: Checkpoint) -> bool:
        return True

    def oracle_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The backbone, and the name by which timm recognizes it, whose tensor it drops."""
        return {**super().oracle_tensors(tensors), "mask_token": torch.zeros(1)}

    def oracle_model(self, model: Vit) -> Vit:
        """Beside registers, timm adds the position of the class token to the token itself."""
        return override(model, {"position.cls": False}) if model.tokens.registers else model

    def places(self, ckpt: Checkpoint, patch: Size) -> tuple[Size, PositionConfig, list[str]]:
        image, position, assumed = super().places(ckpt, patch)
        if "register_tokens" in ckpt.tensors:  # made with newer code
            position = Learned1d(resampling="bicubic_antialias")
            assumed = [*assumed, *["a DINOv2, by its number of registers, and no TIPSv2"] * (GATED in ckpt.tensors)]
        return image, position, assumed


class Ibot(Dino):
    """A backbone of iBOT that its own marks tell from DINO's: the mask, the factors, or the norm of the mean."""

    name = "ibot"
    title = "iBOT"
    names: ClassVar[Names] = {
        **Dino.names,
        "blocks.*.mixer_branch.scale.factor": "blocks.*.gamma_1",
        "blocks.*.mlp_branch.scale.factor": "blocks.*.gamma_2",
    }

    def matches(self, ckpt: Checkpoint) -> bool:
        names = {self.short(name) for name in ckpt.tensors}
        marks = {"masked_embed", "blocks.0.gamma_1"} & names
        return self.has_layers(ckpt) and bool(marks) and {"pos_embed", f"{QKV}.bias"} <= names

    def certain(self, ckpt: Checkpoint) -> bool:
        # The class token has a row in the table; in models of timm with the same names it has none.
        rows = next(tensor.shape[1] for name, tensor in ckpt.tensors.items() if self.short(name) == "pos_embed")
        return any("masked_embed" in name for name in ckpt.tensors) or math.isqrt(rows) ** 2 != rows


class Dinov3Facebook(Dino):
    """A backbone of DINOv3: rotary positions, registers, no bias of keys."""

    name = "dinov3-facebook"
    title = "facebook's DINOv3"
    names: ClassVar[Names] = {**Dino.names, TOKENS: ("cls_token", "storage_tokens")}
    gated_names: ClassVar[Names] = {
        "blocks.*.mlp.expand": ("blocks.*.mlp.w1", "blocks.*.mlp.w2"),
        "blocks.*.mlp.contract": "blocks.*.mlp.w3",
    }
    unused: ClassVar[tuple[tuple[str, str], ...]] = (
        *Dino.unused,
        (r"((module\.)?backbone\.)?local_cls_norm\.", "normalizes small crops, in training only"),
    )
    crop: ClassVar[EvalCropConfig] = Resize(filter="bilinear")
    eps: ClassVar[float] = 1e-5
    preprocessing_text: ClassVar[str] = "eps 1e-5 in the norms, whole images resized"

    def matches(self, ckpt: Checkpoint) -> bool:
        return PERIODS in {self.short(name) for name in ckpt.tensors} and self.has_layers(ckpt)

    def certain(self, ckpt: Checkpoint) -> bool:
        return True

    def prepare(self, found: UsedTensors, ckpt: Checkpoint) -> UsedTensors:
        if UNTIED in found.tensors:
            message = f"{UNTIED}: the class token and the patches have norms of their own, which no model here has"
            raise ckpt.error(message, "weights.unsupported")
        tensors = dict(found.tensors)
        for mask in [name for name in tensors if name.endswith(".bias_mask")]:
            bias = mask.removesuffix("_mask")
            tensors[bias] = tensors[bias] * tensors.pop(mask).to(tensors[bias].dtype)
        return found._replace(tensors=tensors)

    def places(self, ckpt: Checkpoint, patch: Size) -> tuple[Size, PositionConfig, list[str]]:
        given = ckpt.setting("image_size")
        assumed = [] if given else [f"images of {SIDE}x{SIDE}"]
        return Size.parse(given or str(SIDE)), rotary_positions(ckpt), assumed

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        request = super().oracle_request(files, model)
        arguments = request.arguments["arguments"] | {"attn_type": "eva", "swiglu_align_to": 1}
        return request._replace(arguments={**request.arguments, "arguments": arguments})

    def infer_heads(self, ckpt: Checkpoint, width: int) -> tuple[int, list[str]]:
        head_width = 4 * ckpt.shape(PERIODS, 1)[0]
        if width % head_width or ckpt.setting("mixer.heads") not in ("", str(width // head_width)):
            message = f"{PERIODS} is for heads of {head_width} channels, which do not make the given heads of {width}"
            raise ckpt.error(message, "weights.bad_setting", "omit mixer.heads")
        return width // head_width, []

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        found = super().detect(ckpt)
        return found._replace(tensors={name: tensor for name, tensor in found.tensors.items() if name != PERIODS})


class Mae(Backbone):
    """The encoder of MAE, from pre-training, fine-tuning or a linear probe."""

    name = "mae"
    title = "facebook's MAE"
    unused: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"decoder_", "belongs to the decoder, which only pre-training uses"),
        (r"mask_token$", MASK),
    )
    resampling: ClassVar[Resampling] = "bicubic"

    def matches(self, ckpt: Checkpoint) -> bool:
        return self.has_layers(ckpt) and self.certain(ckpt)

    def certain(self, ckpt: Checkpoint) -> bool:
        own = DECODER in ckpt.tensors or PROBE_NORM in ckpt.tensors
        return own or is_sin_cos(ckpt.tensors.get("pos_embed"), columns_first=True)

    def prepare(self, found: UsedTensors, ckpt: Checkpoint) -> UsedTensors:
        """A batch norm before a linear probe is part of it."""
        if PROBE_NORM not in found.tensors or PROBE not in found.tensors:
            return found
        tensors = dict(found.tensors)
        tensors.pop("head.0.num_batches_tracked", None)
        mean, variance = tensors.pop(PROBE_NORM).double(), tensors.pop("head.0.running_var").double()
        weight = tensors.pop(PROBE).double() / (variance + PROBE_EPS).sqrt()
        tensors |= {"head.weight": weight, "head.bias": tensors.pop("head.1.bias").double() - weight @ mean}
        return found._replace(tensors=tensors)


class MocoV3(Backbone):
    """The base encoder of MoCo v3, in a whole checkpoint or alone, whose positions are fixed."""

    name = "moco-v3"
    title = "facebook's MoCo v3"
    heads: ClassVar[Mapping[int, int]] = {384: 12}
    unused: ClassVar[tuple[tuple[str, str], ...]] = (
        (r"(module\.)?momentum_encoder\.", "belongs to the momentum encoder; the base encoder is read"),
        (r"(module\.)?(predictor\.|base_encoder\.head\.)", TRAINING_HEAD),
    )
    resampling: ClassVar[Resampling] = "bicubic"

    def short(self, name: str) -> str:
        return re.sub(r"^(module\.)?base_encoder\.", "", name)

    def matches(self, ckpt: Checkpoint) -> bool:
        stem = CONVOLUTIONS in map(self.short, ckpt.tensors)
        return (stem or self.has_layers(ckpt)) and self.certain(ckpt)

    def prepare(self, found: UsedTensors, ckpt: Checkpoint) -> UsedTensors:
        if CONVOLUTIONS in found.tensors:
            message = f"{CONVOLUTIONS}: its stem of convolutions with batch norms has no counterpart"
            raise ckpt.error(message, "weights.unsupported")
        return found

    def certain(self, ckpt: Checkpoint) -> bool:
        wrapped = any(self.short(name) != name for name in ckpt.tensors)
        return wrapped or is_sin_cos(ckpt.tensors.get("pos_embed"), columns_first=False)


def infer_head(ckpt: Checkpoint) -> HeadConfig:
    return LinearHead(num_classes=ckpt.shape("head.weight", 2)[0]) if "head.weight" in ckpt.tensors else NoHead()


def infer_mlp(ckpt: Checkpoint, width: int) -> Mlp | SwiGlu:
    """The MLP by the shape and the name of its last layer."""
    gated = GATED in ckpt.tensors
    last = GATED if gated else "blocks.0.mlp.fc2.weight"
    ratio, bias = ckpt.shape(last, 2)[1] / width, last.replace("weight", "bias") in ckpt.tensors
    return SwiGlu(ratio=ratio, multiple=1, bias=bias) if gated else Mlp(ratio=ratio, activation="gelu", bias=bias)


def rotary_positions(ckpt: Checkpoint) -> Rope2d:
    """The positions whose periods are powers of one base, perhaps rounded to bfloat16 as in published files."""
    periods = ckpt.tensors[PERIODS].float()
    powers = torch.arange(len(periods)) / len(periods)
    last = float(periods[-1]) ** (len(periods) / max(1, len(periods) - 1))
    for base in (Rope2d().base, float(f"{last:.2g}"), float(f"{last:.7g}")):
        if torch.allclose(periods, base**powers, rtol=1e-6, atol=0):
            return Rope2d(base=base)
        if torch.equal(periods, (base**powers).bfloat16().float()):
            return Rope2d(base=base, precision="bfloat16")
    message = f"{PERIODS} are not the powers of one base, from 1 to {last:g}: no position here has them"
    raise ckpt.error(message, "weights.unsupported")


def is_sin_cos(table: Tensor | None, columns_first: bool) -> bool:
    """Whether a table (1, 1 + N, D) is the fixed one of MAE (columns first) or of MoCo v3; neither trains it."""
    if table is None or table.ndim != 3 or table.shape[2] % 4:
        return False
    side, quarter = isqrt(table.shape[1] - 1), table.shape[2] // 4
    if side * side != table.shape[1] - 1 or side < 2:
        return False
    place = torch.arange(side)[:, None] / 10000 ** (torch.arange(quarter) / quarter)  # (side, D/4)
    wave = torch.cat([place.sin(), place.cos()], dim=1)  # (side, D/2)
    rows, columns = wave[:, None].expand(-1, side, -1), wave.expand(side, -1, -1)  # each (side, side, D/2)
    fixed = torch.cat([columns, rows] if columns_first else [rows, columns], dim=2).flatten(0, 1)  # (N, D)
    found = table[0].float()
    return torch.allclose(found, torch.cat([torch.zeros_like(found[:1]), fixed]), rtol=0, atol=SIN_COS_TOLERANCE)

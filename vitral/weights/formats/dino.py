"""facebook's DINO (arXiv 2104.14294) and DINOv2 (arXiv 2304.07193): backbones, as their own repositories save them.

Their code began as timm's, and a layer has timm's names. A whole checkpoint of training holds the backbone of the
teacher under `backbone.`, or of the student under `module.backbone.`, beside a head for training.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Preprocessing
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Patches
from vitral.models.head import NoHead
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.position import Learned1d, Resampling
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Checkpoint, DetectedModel, FileSettings, Format, count_layers, tensor_shape
from vitral.weights.formats.rules import TABLE, TOKENS, Rule, affine, concat_tokens, patch_kernel, same, split_tokens
from vitral.weights.formats.timm import DINOV2, block_rules, gated_mlp

BACKBONE = re.compile(r"^(module\.)?backbone\.")
TRAINING_HEAD = re.compile(r"^(module\.)?(head|dino_head|ibot_head)\.(mlp|last_layer)\.")
CHUNKED_BLOCK = re.compile(r"^blocks\.\d+\.(\d+)\.")  # layers in groups, each with its number among all
GIANT = {1536: 24}  # DINOv2's largest has a width of its own
HEAD_FOR_TRAINING = "the head that DINO trains with, which no later use reads"
MASK = "stands for hidden patches in training alone"
REQUIRED = {"patch_embed.proj.weight", "pos_embed", "cls_token", "blocks.0.attn.qkv.weight", "norm.weight"}
TIMM_ONLY = (
    "head.weight",
    "norm_pre.weight",
    "dist_token",
    "reg_token",
    "attn_pool.latent",
    "blocks.0.attn.q_norm.weight",
)


class Dino(Format):
    """A backbone of DINO."""

    library: ClassVar[str] = "dino"
    package: ClassVar[str] = "dino"
    name: ClassVar[str] = "dino"
    title: ClassVar[str] = "facebook's DINO"

    def matches(self, ckpt: Checkpoint) -> bool:
        names = backbone_tensors(ckpt.tensors).keys()
        return is_backbone(ckpt) and not names & DINOV2 and "blocks.0.ls1.gamma" not in names

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        dropped = {name: HEAD_FOR_TRAINING for name in ckpt.tensors if TRAINING_HEAD.match(name)}
        dropped |= {name: MASK for name in ckpt.tensors if name.endswith("mask_token")}
        ckpt = ckpt._replace(
            tensors=backbone_tensors({name: ckpt.tensors[name] for name in ckpt.tensors if name not in dropped})
        )
        width, channels, *sides = tensor_shape(ckpt, "patch_embed.proj.weight", 4)
        registers = tensor_shape(ckpt, "register_tokens", 3)[1] if "register_tokens" in ckpt.tensors else 0
        image, _ = settings.infer_image_size(tensor_shape(ckpt, "pos_embed", 3)[1], [1], Size(*sides), ckpt)
        model = Vit(
            image_size=image,
            channels=channels,
            width=width,
            depth=count_layers(ckpt.tensors, "blocks."),
            stem=Patches(patch=Size(*sides)),
            tokens=Tokens(registers=registers),
            position=Learned1d(resampling=resampling(registers)),
            block=PreNorm(scale=LayerScale() if "blocks.0.ls1.gamma" in ckpt.tensors else NoScale()),
            mixer=Attention(heads=_heads(ckpt, width, settings), qkv_bias="blocks.0.attn.qkv.bias" in ckpt.tensors),
            mlp=_mlp(ckpt, width),
            head=NoHead(),
            eps=1e-6,
        )
        preprocessing = Preprocessing(
            image_size=image,
            decoding=Decoding(channels=channels),
            crop=CenterCrop(fraction=224 / 256, filter="bicubic"),
            normalize=IMAGENET if channels == 3 else CENTERED,
        )
        assumed = ("images as in its evaluation: the middle 224 of 256 pixels, ImageNet's mean",)
        return DetectedModel(self.title, model, preprocessing, (), ckpt.tensors, dropped, assumed)

    def rules(self, model: Vit) -> list[Rule]:
        rules = [patch_kernel("stem.project.weight", "patch_embed.proj.weight", model.stem.patch)]
        rules += [same("stem.project.bias", "patch_embed.proj.bias"), *prefix_rules(model)]
        for layer in range(model.depth):
            rules += [swiglu_names(rule, model) for rule in block_rules(model, f"blocks.{layer}", f"blocks.{layer}")]
        return rules + affine("norm", "norm")

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        yield f"library: {self.title} files are read here, not written; timm's have the same layers"


class Dinov2Facebook(Dino):
    """A backbone of DINOv2, with and without registers, and with the gated MLP of its largest."""

    name: ClassVar[str] = "dinov2-facebook"
    title: ClassVar[str] = "facebook's DINOv2"

    def matches(self, ckpt: Checkpoint) -> bool:
        return is_backbone(ckpt) and bool(backbone_tensors(ckpt.tensors).keys() & DINOV2)


def is_backbone(ckpt: Checkpoint) -> bool:
    """Whether the names are of such a backbone, or of one of timm's that has the same ones."""
    names = backbone_tensors(ckpt.tensors).keys()
    return names >= REQUIRED and not any(name in names for name in TIMM_ONLY) and "architecture" not in ckpt.config


def backbone_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names that the backbone has for them when it is saved alone, its layers in one row."""
    return {CHUNKED_BLOCK.sub(r"blocks.\1.", BACKBONE.sub("", name)): tensor for name, tensor in tensors.items()}


def prefix_rules(model: Vit) -> list[Rule]:
    """Tokens and positions; unlike timm's, the registers have no rows where the class token has one."""
    counts = [1, model.tokens.registers] if model.tokens.registers else [1]
    tokens = ("cls_token", "register_tokens")[: len(counts)]
    return [Rule((TOKENS,), tokens, concat_tokens, lambda own: split_tokens(own[0], counts)), same(TABLE, "pos_embed")]


def swiglu_names(rule: Rule, model: Vit) -> Rule:
    """A rule of timm's for a layer, by the names that the gated MLP has here."""
    if not isinstance(model.mlp, SwiGlu):
        return rule
    return replace(rule, theirs=tuple(re.sub("fc1", "w12", re.sub("fc2", "w3", name)) for name in rule.theirs))


def resampling(registers: int) -> Resampling:
    """How positions are stretched for images of another size; DINOv2 with registers was made with newer code."""
    return "bicubic_antialias" if registers else "bicubic_offset"


def _heads(ckpt: Checkpoint, width: int, settings: FileSettings) -> int:
    return GIANT[width] if width in GIANT and not settings.get("mixer.heads") else settings.infer_heads(width, ckpt)


def _mlp(ckpt: Checkpoint, width: int) -> Mlp | SwiGlu:
    if "blocks.0.mlp.w3.weight" in ckpt.tensors:
        return gated_mlp(tensor_shape(ckpt, "blocks.0.mlp.w3.weight", 2)[1], width, ckpt)
    return Mlp(ratio=tensor_shape(ckpt, "blocks.0.mlp.fc1.weight", 2)[0] / width, gelu="erf")

"""facebook's DINO (arXiv 2104.14294) and DINOv2 (arXiv 2304.07193): backbones, as their own repositories save them.

Their code began as timm's, and a layer has timm's names. A whole training checkpoint holds the backbone of the teacher
under `backbone.`, or of the student under `module.backbone.`, and a head that only training uses.
"""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor

from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Patches
from vitral.models.head import NoHead
from vitral.models.mlp import Mlp
from vitral.models.position import Learned1d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    Format,
    assumed_preprocessing,
    infer_sizes,
)
from vitral.weights.formats.rules import TOKENS, Names
from vitral.weights.formats.timm import DINOV2, SHARED, gated_mlp

BACKBONE = re.compile(r"^(module\.)?backbone\.")
TRAINING_HEAD = re.compile(r"^(module\.)?(head|dino_head|ibot_head)\.(mlp|last_layer)\.")
CHUNKED_BLOCK = re.compile(r"^blocks\.\d+\.(\d+)\.")  # layers in groups, each with its number among all
GIANT = {1536: 24}  # heads of DINOv2's largest model, whose width is unusual
REQUIRED = {"patch_embed.proj.weight", "pos_embed", "cls_token", "blocks.0.attn.qkv.weight", "norm.weight"}
TIMM_ONLY = {
    "head.weight",
    "norm_pre.weight",
    "dist_token",
    "reg_token",
    "attn_pool.latent",
    "blocks.0.attn.q_norm.weight",
}


class Dino(Format):
    """A backbone of DINO."""

    library = package = name = "dino"
    title = "facebook's DINO"
    names: ClassVar[Names] = {**SHARED, TOKENS: ("cls_token", "register_tokens")}
    gated_names: ClassVar[Names] = {
        "blocks.*.mlp.expand": "blocks.*.mlp.w12",
        "blocks.*.mlp.contract": "blocks.*.mlp.w3",
    }
    register_rows = False

    def matches(self, ckpt: Checkpoint) -> bool:
        names = backbone_tensors(ckpt.tensors).keys()
        return is_backbone(ckpt) and not names & DINOV2 and "blocks.0.ls1.gamma" not in names

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        heads = [name for name in ckpt.tensors if TRAINING_HEAD.match(name)]
        masks = [name for name in ckpt.tensors if name.endswith("mask_token")]
        unused = dict.fromkeys(heads, "the head that only DINO's training uses")
        unused |= dict.fromkeys(masks, "replaces masked patches, in training only")
        tensors = {name: tensor for name, tensor in ckpt.tensors.items() if name not in unused}
        ckpt = ckpt._replace(tensors=backbone_tensors(tensors))
        gated = "blocks.0.mlp.w3.weight" in ckpt.tensors
        width, channels, patch, depth, hidden = infer_sizes(ckpt, {**self.names, **(self.gated_names if gated else {})})
        registers = ckpt.shape("register_tokens", 3)[1] if "register_tokens" in ckpt.tensors else 0
        image, _ = ckpt.infer_image_size(ckpt.shape("pos_embed", 3)[1], [1], patch)
        usual = GIANT.get(width, 0) if not ckpt.setting("mixer.heads") else 0
        model = Vit(
            image_size=image,
            channels=channels,
            width=width,
            depth=depth,
            stem=Patches(patch=patch),
            tokens=Tokens(registers=registers),
            # DINOv2 with registers was made with newer code.
            position=Learned1d(resampling="bicubic_antialias" if registers else "bicubic_offset"),
            block=PreNorm(scale=LayerScale() if "blocks.0.ls1.gamma" in ckpt.tensors else NoScale()),
            mixer=Attention(heads=usual or ckpt.infer_heads(width), qkv_bias="blocks.0.attn.qkv.bias" in ckpt.tensors),
            mlp=gated_mlp(ckpt.shape("blocks.0.mlp.w3.weight", 2)[1], width, ckpt)
            if gated
            else Mlp(ratio=hidden / width, activation="gelu"),
            head=NoHead(),
            eps=1e-6,
        )
        crop = CenterCrop(fraction=224 / 256, filter="bicubic")
        assumed = "preprocessing as in its evaluation: the middle 224 of 256 pixels, ImageNet's mean"
        preprocessing = assumed_preprocessing(image, channels, crop, IMAGENET)
        return self.detected(ckpt, model, preprocessing, (assumed,), unused=unused)

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        yield f"library: {self.title} files can be read, not written; timm's have the same layers"


class Dinov2Facebook(Dino):
    """A backbone of DINOv2, with and without registers, and with the gated MLP of its largest model."""

    name = "dinov2-facebook"
    title = "facebook's DINOv2"

    def matches(self, ckpt: Checkpoint) -> bool:
        return is_backbone(ckpt) and bool(backbone_tensors(ckpt.tensors).keys() & DINOV2)


def is_backbone(ckpt: Checkpoint) -> bool:
    """Whether the names are of such a backbone, or of a model of timm with the same names."""
    names = backbone_tensors(ckpt.tensors).keys()
    return names >= REQUIRED and not names & TIMM_ONLY and "architecture" not in ckpt.config


def backbone_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of a backbone that is saved alone, without groups of layers."""
    return {CHUNKED_BLOCK.sub(r"blocks.\1.", BACKBONE.sub("", name)): tensor for name, tensor in tensors.items()}

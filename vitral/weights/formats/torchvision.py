"""torchvision: `vit_b_16` to `vit_h_14`, a state dict.

torchvision has the names of classes and the preprocessing in its code, beside each of its published weights.
"""

from typing import ClassVar

from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import HeadConfig, LinearHead, NoHead, TanhHead
from vitral.models.mlp import Mlp
from vitral.models.position import Learned1d
from vitral.models.vit import Vit
from vitral.weights.formats.format import (
    PLAIN,
    Checkpoint,
    DetectedModel,
    Format,
    OracleFiles,
    assumed_preprocessing,
    infer_sizes,
)
from vitral.weights.formats.rules import TABLE, TOKENS, Names
from vitral.weights.oracles.oracle import NoOracleError, OracleRequest

LAYER = "encoder.layers.encoder_layer_*"
EPS = 1e-6
OLDER = {"mlp.linear_1.": "mlp.0.", "mlp.linear_2.": "mlp.3."}  # names before torchvision 0.13


class Torchvision(Format):
    """A Vision Transformer of torchvision."""

    library = package = name = "torchvision"
    title = "torchvision's Vision Transformer"
    names: ClassVar[Names] = {
        "stem.project": "conv_proj",
        TOKENS: ("class_token",),
        TABLE: "encoder.pos_embedding",
        "blocks.*.mixer_norm": f"{LAYER}.ln_1",
        "blocks.*.mixer.heads.qkv.weight": f"{LAYER}.self_attention.in_proj_weight",
        "blocks.*.mixer.heads.qkv.bias": f"{LAYER}.self_attention.in_proj_bias",
        "blocks.*.mixer.project": f"{LAYER}.self_attention.out_proj",
        "blocks.*.mlp_norm": f"{LAYER}.ln_2",
        "blocks.*.mlp.expand": f"{LAYER}.mlp.0",
        "blocks.*.mlp.contract": f"{LAYER}.mlp.3",
        "norm": "encoder.ln",
        "head.hidden": "heads.pre_logits",
        "head.classifier.linear": "heads.head",
        "head.linear": "heads.head",
    }
    supported = PLAIN | {
        "channels": (3,),
        "tokens.cls": (True,),
        "position.cls": (True,),
        "mixer.qkv_bias": (True,),
        "mlp.activation": ("gelu",),
        "pool.kind": ("cls",),
        "head.kind": ("linear", "tanh"),
        "eps": (EPS,),
    }
    squares = True

    def short(self, name: str) -> str:
        return current_name(name)

    def matches(self, ckpt: Checkpoint) -> bool:
        layer = LAYER.replace("*", "0")
        return {"class_token", "encoder.pos_embedding", f"{layer}.ln_1.weight"} <= ckpt.tensors.keys()

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        ckpt = ckpt._replace(tensors={current_name(name): tensor for name, tensor in ckpt.tensors.items()})
        width, channels, patch, depth, hidden = infer_sizes(ckpt, self.names)
        image, _ = ckpt.infer_image_size(ckpt.shape("encoder.pos_embedding", 3)[1], [1], patch)
        model = Vit(
            image_size=image,
            channels=channels,
            width=width,
            depth=depth,
            stem=Patches(patch=patch),
            position=Learned1d(resampling="bicubic_corners"),
            mixer=Attention(heads=ckpt.infer_heads(width)),
            mlp=Mlp(ratio=hidden / width, activation="gelu"),
            head=infer_head(ckpt),
            eps=EPS,
        )
        crop = CenterCrop(fraction=224 / 256, filter="bilinear")
        assumed = "torchvision's default preprocessing: the middle 224 of 256 pixels, ImageNet's mean"
        return self.detected(ckpt, model, assumed_preprocessing(image, channels, crop, IMAGENET), (assumed,))

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        assert isinstance(model.mixer, Attention)
        return (f"mixer.heads={model.mixer.heads}",)

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        assert isinstance(model.mixer, Attention)
        if not isinstance(model.head, LinearHead | TanhHead):
            raise NoOracleError("torchvision's Vision Transformer always has a head, the file has none")
        hidden = None
        if isinstance(model.head, TanhHead):
            hidden = model.width if model.head.hidden == "width" else model.head.hidden
        arguments = {
            "image_size": model.image_size.height,
            "patch_size": model.stem.patch.height,
            "num_layers": model.depth,
            "num_heads": model.mixer.heads,
            "hidden_dim": model.width,
            "mlp_dim": model.mlp.hidden(model.width),
            "num_classes": model.head.num_classes,
            "representation_size": hidden,
        }
        return OracleRequest("torchvision", {"file": str(files.file), "arguments": arguments})


def current_name(name: str) -> str:
    """The name of a tensor in current versions."""
    for old, new in OLDER.items():
        name = name.replace(old, new)
    return name


def infer_head(ckpt: Checkpoint) -> HeadConfig:
    if "heads.head.weight" not in ckpt.tensors:
        return NoHead()
    classes = ckpt.shape("heads.head.weight", 2)[0]
    if "heads.pre_logits.weight" not in ckpt.tensors:
        return LinearHead(num_classes=classes)
    return TanhHead(num_classes=classes, hidden=ckpt.shape("heads.pre_logits.weight", 2)[0])

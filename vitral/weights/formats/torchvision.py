"""torchvision: `vit_b_16` to `vit_h_14`, a state dict.  D width.

torchvision keeps the names of classes and the preprocessing in its code, beside each of its published weights.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Preprocessing
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import HeadConfig, LinearHead, NoHead, TanhHead
from vitral.models.mlp import Mlp
from vitral.models.pool import ClassPool
from vitral.models.position import Learned1d
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    FileSettings,
    Format,
    ModelOutputs,
    count_layers,
    numbered_classes,
    tensor_shape,
    unnamed_classes,
)
from vitral.weights.formats.rules import Rule, affine, patch_kernel, position_rules, same
from vitral.weights.formats.support import Supported

LAYER = "encoder.layers.encoder_layer_"
EPS = 1e-6
OLDER = {"mlp.linear_1.": "mlp.0.", "mlp.linear_2.": "mlp.3."}  # names before torchvision 0.13


class Torchvision(Format):
    """A Vision Transformer of torchvision."""

    library: ClassVar[str] = "torchvision"
    package: ClassVar[str] = "torchvision"
    name: ClassVar[str] = "torchvision"
    title: ClassVar[str] = "torchvision's Vision Transformer"
    supported: ClassVar[Supported] = Supported(
        rectangles=False, channels=3, cls=True, position_cls=True, qkv_bias=True, gelu="erf", eps=EPS
    )

    def matches(self, ckpt: Checkpoint) -> bool:
        return {"class_token", "encoder.pos_embedding", f"{LAYER}0.ln_1.weight"} <= ckpt.tensors.keys()

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        ckpt = ckpt._replace(tensors={current_name(name): tensor for name, tensor in ckpt.tensors.items()})
        width, channels, *sides = tensor_shape(ckpt, "conv_proj.weight", 4)
        stem = Patches(patch=Size(*sides))
        image, _ = settings.infer_image_size(tensor_shape(ckpt, "encoder.pos_embedding", 3)[1], [1], stem.patch, ckpt)
        head = infer_head(ckpt)
        classes = 0 if isinstance(head, NoHead) else head.num_classes
        model = Vit(
            image_size=image,
            channels=channels,
            width=width,
            depth=count_layers(ckpt.tensors, LAYER),
            stem=stem,
            position=Learned1d(resampling="bicubic_corners"),
            mixer=Attention(heads=settings.infer_heads(width, ckpt)),
            mlp=Mlp(ratio=tensor_shape(ckpt, f"{LAYER}0.mlp.0.weight", 2)[0] / width, gelu="erf"),
            head=head,
            eps=EPS,
        )
        preprocessing = Preprocessing(
            image_size=image,
            decoding=Decoding(channels=channels),
            crop=CenterCrop(fraction=224 / 256, filter="bilinear"),
            normalize=IMAGENET if channels == 3 else CENTERED,
        )
        assumed = ["images as torchvision's default has them: the middle 224 of 256 pixels, ImageNet's mean"]
        assumed += unnamed_classes(classes)
        return DetectedModel(
            self.title, model, preprocessing, numbered_classes(classes), ckpt.tensors, {}, tuple(assumed)
        )

    def rules(self, model: Vit) -> list[Rule]:
        rules = [patch_kernel("stem.project.weight", "conv_proj.weight", model.stem.patch)]
        rules += [same("stem.project.bias", "conv_proj.bias")]
        rules += position_rules(model, ["class_token"], "encoder.pos_embedding")
        for layer in range(model.depth):
            rules += block_rules(f"blocks.{layer}", f"{LAYER}{layer}")
        rules += affine("norm", "encoder.ln")
        if isinstance(model.head, LinearHead):
            rules += affine("head.linear", "heads.head")
        elif isinstance(model.head, TanhHead):
            rules += [*affine("head.hidden", "heads.pre_logits"), *affine("head.classifier.linear", "heads.head")]
        return rules

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if not isinstance(model.pool, ClassPool):
            yield f"pool: {self.title} pools the class token, this model has {model.pool.kind}"
        if isinstance(model.head, NoHead):
            yield f"head: {self.title} always has one"

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        assert isinstance(model.mixer, Attention)
        return (f"mixer.heads={model.mixer.heads}",)

    def import_library(self, model: Vit) -> Any:
        return import_module("torchvision.models.vision_transformer")

    def load_reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        config = bundle.model
        assert isinstance(config, Vit)
        assert isinstance(config.mixer, Attention)
        assert isinstance(config.head, LinearHead | TanhHead)
        found = load_file(folder / "model.safetensors")
        hidden = found["heads.pre_logits.bias"].numel() if isinstance(config.head, TanhHead) else None
        model = code.VisionTransformer(
            config.image_size.height, config.stem.patch.height, config.depth, config.mixer.heads, config.width,
            config.mlp.hidden(config.width), num_classes=config.head.num_classes, representation_size=hidden,
        )  # fmt: skip
        model.load_state_dict(found)
        kept: list[Tensor] = []
        model.eval().encoder.register_forward_hook(lambda _part, _given, tokens: kept.append(tokens))

        @torch.no_grad()
        def answers(images: Tensor) -> ModelOutputs:
            logits = model(images)
            return ModelOutputs(kept.pop(), logits)

        return answers


def block_rules(ours: str, theirs: str) -> list[Rule]:
    """One layer."""
    rules = [*affine(f"{ours}.mixer_norm", f"{theirs}.ln_1"), *affine(f"{ours}.mlp_norm", f"{theirs}.ln_2")]
    rules += [
        same(f"{ours}.mixer.heads.qkv.{part}", f"{theirs}.self_attention.in_proj_{part}") for part in ("weight", "bias")
    ]
    rules += affine(f"{ours}.mixer.project", f"{theirs}.self_attention.out_proj")
    return rules + affine(f"{ours}.mlp.expand", f"{theirs}.mlp.0") + affine(f"{ours}.mlp.contract", f"{theirs}.mlp.3")


def current_name(name: str) -> str:
    """The name that a tensor of an older file has today."""
    for old, new in OLDER.items():
        name = name.replace(old, new)
    return name


def infer_head(ckpt: Checkpoint) -> HeadConfig:
    if "heads.head.weight" not in ckpt.tensors:
        return NoHead()
    classes = tensor_shape(ckpt, "heads.head.weight", 2)[0]
    if "heads.pre_logits.weight" not in ckpt.tensors:
        return LinearHead(num_classes=classes)
    return TanhHead(num_classes=classes, hidden=tensor_shape(ckpt, "heads.pre_logits.weight", 2)[0])

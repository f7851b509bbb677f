"""ViT, ViT-MAE (arXiv 2111.06377) and DeiT (arXiv 2012.12877), which share their layers.

`ViTModel`, `ViTForImageClassification`, the encoder of `ViTForMaskedImageModeling`; the encoder of `ViTMAEModel` and
`ViTMAEForPreTraining`; `DeiTModel`, `DeiTForImageClassification`, `DeiTForImageClassificationWithTeacher`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET
from vitral.models.embed import Patches
from vitral.models.head import NoHead
from vitral.models.pool import ClassPool, DistilledPool, PoolConfig
from vitral.models.vit import Tokens, Vit
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.fields import Fields, Shapes
from vitral.weights.formats.huggingface.names import (
    BERT,
    MASK_TOKEN,
    RENAMED_MLP_SINCE_V5,
    RENAMED_SINCE_V5,
    Names,
    TowerTensors,
    layer_rules,
)
from vitral.weights.formats.huggingface.processor import ProcessorDefaults
from vitral.weights.formats.rules import Rule, affine, averaged_heads, patch_kernel, position_rules, same
from vitral.weights.formats.support import Supported

STEM, LAYER = "embeddings.patch_embeddings.projection", "encoder.layer."
TABLE = "embeddings.position_embeddings"
POOLER = (r"pooler\.", "a pooler that no head reads")
DECODER = (r"decoder\.", "draws hidden patches in pre-training")
SHAPES = Shapes(f"{STEM}.weight", "intermediate.dense.weight", LAYER, TABLE, 1)
VIT = Supported(cls=True, position_cls=True)
UNTOLD = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
PARTS = {f"{STEM}.weight", f"{LAYER}0.attention.attention.query.weight", f"{LAYER}0.layernorm_before.weight"}


class HfVit(Family):
    """The paper's model."""

    name: ClassVar[str] = "hf-vit"
    title: ClassVar[str] = "Hugging Face's ViT"
    types: ClassVar[tuple[str, ...]] = ("vit",)
    names: ClassVar[Names] = Names(("vit.",), RENAMED_SINCE_V5 + RENAMED_MLP_SINCE_V5, (POOLER, MASK_TOKEN, DECODER))
    shapes: ClassVar[Shapes] = SHAPES
    default_fields: ClassVar[dict[str, Any]] = UNTOLD
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(Resize(), CENTERED)
    supported = VIT
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        others = {"embeddings.distillation_token", "decoder.decoder_pos_embed"}
        return names >= PARTS and not names & others

    def tower_rules(self, model: Vit) -> list[Rule]:
        return tower_rules(model, ["embeddings.cls_token"])

    def architecture(self, model: Vit) -> str:
        return "ViTModel" if isinstance(model.head, NoHead) else "ViTForImageClassification"

    def load_options(self, model: Vit) -> dict[str, Any]:
        return {"add_pooling_layer": False} if isinstance(model.head, NoHead) else {}


def tower_rules(model: Vit, tokens: list[str]) -> list[Rule]:
    """The rules that ViT, DeiT and MAE share."""
    rules = [*stem_rules(model, STEM), *position_rules(model, tokens, TABLE), *layer_rules(model, BERT, LAYER)]
    return rules + affine("norm", "layernorm")


def stem_rules(model: Vit, stem: str) -> list[Rule]:
    """The map of the patches."""
    weight = patch_kernel("stem.project.weight", f"{stem}.weight", model.stem.patch)
    assert isinstance(model.stem, Patches)
    return [weight, same("stem.project.bias", f"{stem}.bias")] if model.stem.bias else [weight]


class HfMae(Family):
    """A ViT by its tensors; its fixed positions are a table as learned ones are."""

    name: ClassVar[str] = "hf-mae"
    title: ClassVar[str] = "Hugging Face's ViT-MAE"
    types: ClassVar[tuple[str, ...]] = ("vit_mae",)
    names: ClassVar[Names] = Names(("vit.",), RENAMED_SINCE_V5 + RENAMED_MLP_SINCE_V5, (DECODER,))
    shapes: ClassVar[Shapes] = SHAPES
    default_fields: ClassVar[dict[str, Any]] = UNTOLD
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(Resize(), IMAGENET)
    supported = VIT._replace(rectangles=False)
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        others = {"embeddings.distillation_token", "pooler.dense.weight", "classifier.weight", "decoder.0.weight"}
        return names >= PARTS and not names & others

    def tower_rules(self, model: Vit) -> list[Rule]:
        return tower_rules(model, ["embeddings.cls_token"])

    def architecture(self, model: Vit) -> str:
        return "ViTMAEModel"

    def load_options(self, model: Vit) -> dict[str, Any]:
        return {"mask_ratio": 0.0}

    def reference_tokens(self, peer: Any, images: Tensor, ways: Mapping[str, Any]) -> Tensor:
        patches = images.shape[2] * images.shape[3] // peer.config.patch_size**2
        order = torch.arange(patches).expand(len(images), -1)  # it shuffles the patches by the order of such numbers
        tokens: Tensor = peer(images, noise=order, **ways).last_hidden_state
        return tokens


TOKEN = "embeddings.distillation_token"
TEACHER = ("cls_classifier", "distillation_classifier")


class HfDeit(Family):
    """A ViT with a distillation token, which is a register here (arXiv 2012.12877)."""

    name: ClassVar[str] = "hf-deit"
    title: ClassVar[str] = "Hugging Face's DeiT"
    types: ClassVar[tuple[str, ...]] = ("deit",)
    names: ClassVar[Names] = Names(("deit.",), RENAMED_SINCE_V5 + RENAMED_MLP_SINCE_V5, (POOLER, MASK_TOKEN, DECODER))
    shapes: ClassVar[Shapes] = SHAPES._replace(rows=2)
    default_fields: ClassVar[dict[str, Any]] = UNTOLD
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(
        CenterCrop(fraction=0.875, filter="bicubic"), IMAGENET
    )
    supported = VIT._replace(registers=(1, 1))
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear"), ("distilled", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS | {TOKEN}

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=1)

    def pool(self, found: TowerTensors) -> PoolConfig:
        return DistilledPool() if f"{TEACHER[1]}.weight" in found.tensors else ClassPool()

    def tower_rules(self, model: Vit) -> list[Rule]:
        return tower_rules(model, ["embeddings.cls_token", TOKEN])

    def head_rules(self, model: Vit) -> list[Rule]:
        distilled = isinstance(model.pool, DistilledPool)
        return averaged_heads("head.linear", TEACHER) if distilled else affine("head.linear", "classifier")

    def architecture(self, model: Vit) -> str:
        if isinstance(model.head, NoHead):
            return "DeiTModel"
        teacher = "WithTeacher" if isinstance(model.pool, DistilledPool) else ""
        return f"DeiTForImageClassification{teacher}"

    def load_options(self, model: Vit) -> dict[str, Any]:
        return {"add_pooling_layer": False} if isinstance(model.head, NoHead) else {}

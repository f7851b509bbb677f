"""ViT, ViT-MAE (arXiv 2111.06377) and DeiT (arXiv 2012.12877), which share their layers.

`ViTModel`, `ViTForImageClassification`, the encoder of `ViTForMaskedImageModeling`; the encoder of `ViTMAEModel` and
`ViTMAEForPreTraining`; `DeiTModel`, `DeiTForImageClassification`, `DeiTForImageClassificationWithTeacher`.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET
from vitral.models.head import LinearHead
from vitral.models.pool import ClassPool, DistilledPool, PoolConfig
from vitral.models.vit import Vit
from vitral.weights.formats.huggingface.config import ProcessorDefaults
from vitral.weights.formats.huggingface.family import MASK_TOKEN, RENAMED_SINCE_V5, VIT, Family, TowerTensors
from vitral.weights.formats.rules import TABLE, TOKENS, Names, Rule, averaged_heads, layer_names

STEM, LAYER = "embeddings.patch_embeddings.projection", "encoder.layer.*."
ATTENTION = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
POOLER = (r"pooler\.", "a pooler that no head reads")
DECODER = (r"decoder\.", "reconstructs masked patches, in pre-training only")
DISTILLATION_TOKEN = "embeddings.distillation_token"
TEACHER = ("cls_classifier", "distillation_classifier")
FIRST = LAYER.replace("*", "0")
PARTS = {f"{STEM}.weight", f"{FIRST}attention.attention.query.weight", f"{FIRST}layernorm_before.weight"}


class HfVit(Family):
    """The paper's model."""

    name = "hf-vit"
    title = "Hugging Face's ViT"
    types = ("vit",)
    architectures: ClassVar[tuple[str, ...]] = ("ViTModel", "ViTForImageClassification")
    towers = ("vit.",)
    renamed = (
        *RENAMED_SINCE_V5,
        (r"\bmlp\.fc1\.", "intermediate.dense."),
        (r"\bmlp\.fc2\.", "output.dense."),
    )
    unused: ClassVar[tuple[tuple[str, str], ...]] = (POOLER, MASK_TOKEN, DECODER)
    names: ClassVar[Names] = {
        "stem.project": STEM,
        TOKENS: ("embeddings.cls_token",),
        TABLE: "embeddings.position_embeddings",
        **layer_names(
            LAYER,
            {
                "mixer_norm": "layernorm_before",
                "mixer.heads.qkv": ATTENTION,
                "mixer.project": "attention.output.dense",
                "mlp_norm": "layernorm_after",
                "mlp.expand": "intermediate.dense",
                "mlp.contract": "output.dense",
            },
        ),
        "norm": "layernorm",
        "head.linear": "classifier",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    processor_defaults = ProcessorDefaults(Resize(), CENTERED)
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS and not names & {DISTILLATION_TOKEN, "decoder.decoder_pos_embed"}


class HfMae(HfVit):
    """A ViT by its tensors; its fixed positions are a table as learned ones are."""

    name = "hf-mae"
    title = "Hugging Face's ViT-MAE"
    types = ("vit_mae",)
    architectures = ("ViTMAEModel",)
    unused = (DECODER,)
    processor_defaults = ProcessorDefaults(Resize(), IMAGENET)
    squares = True
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        others = {DISTILLATION_TOKEN, "pooler.dense.weight", "classifier.weight", "decoder.0.weight"}
        return names >= PARTS and not names & others


class HfDeit(HfVit):
    """A ViT with a distillation token, which is a register here (arXiv 2012.12877)."""

    name = "hf-deit"
    title = "Hugging Face's DeiT"
    types = ("deit",)
    architectures = ("DeiTModel", "DeiTForImageClassification")
    towers = ("deit.",)
    names: ClassVar[Names] = {**HfVit.names, TOKENS: ("embeddings.cls_token", DISTILLATION_TOKEN)}
    processor_defaults = ProcessorDefaults(CenterCrop(fraction=0.875, filter="bicubic"), IMAGENET)
    supported = VIT | {"tokens.registers": (1,)}
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear"), ("distilled", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS | {DISTILLATION_TOKEN}

    def pool(self, found: TowerTensors) -> PoolConfig:
        return DistilledPool() if f"{TEACHER[1]}.weight" in found.tensors else ClassPool()

    def special_rules(self, model: Vit) -> list[Rule]:
        distilled = isinstance(model.pool, DistilledPool) and isinstance(model.head, LinearHead)
        return super().special_rules(model) + averaged_heads("head.linear", TEACHER) * distilled

    def architecture(self, model: Vit) -> str:
        return super().architecture(model) + "WithTeacher" * isinstance(model.pool, DistilledPool)

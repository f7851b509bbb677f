"""The vision towers of CLIP (arXiv 2103.00020) and SigLIP (arXiv 2303.15343), and of SigLIP 2 with a fixed resolution.

`CLIPVisionModel`, with or without its projection, or within a `CLIPModel`; `SiglipVisionModel`, within a `SiglipModel`,
or with a classifier.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED, Normalize
from vitral.models.head import NoHead
from vitral.models.pool import AttentionPool, MeanPool, PoolConfig
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.huggingface.config import Fields, ProcessorDefaults
from vitral.weights.formats.huggingface.family import VIT, Family, TowerTensors
from vitral.weights.formats.rules import TABLE, TOKENS, Names, Rule, layer_names, split

STEM, LAYER, TOWER = "embeddings.patch_embedding", "encoder.layers.*.", "vision_model."
FIRST_QUERY = "encoder.layers.0.self_attn.q_proj.weight"
TEXT = (
    (r"text_model\.", "belongs to the text tower"),
    (r"text_projection\.", "projects texts to the shared embedding"),
    (r"logit_(scale|bias)$", "scales the similarity of images and texts"),
    (r"embeddings\.position_ids$", "numbers the positions"),
)


class VisionTower(Family):
    """What both towers share."""

    towers = (TOWER,)
    names: ClassVar[Names] = {
        "stem.project": STEM,
        TABLE: "embeddings.position_embedding.weight",
        **layer_names(
            LAYER,
            {
                "mixer_norm": "layer_norm1",
                "mixer.heads.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "mixer.project": "self_attn.out_proj",
                "mlp_norm": "layer_norm2",
                "mlp.expand": "mlp.fc1",
                "mlp.contract": "mlp.fc2",
            },
        ),
        "norm": "post_layernorm",
    }
    flat_positions = True
    squares = True
    # Fields that the config of a whole model omits where they have these values.
    vision_defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 32,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    }

    def vision_fields(self, fields: Fields) -> Fields:
        whole = fields.data.get("model_type") == self.types[1]
        return fields.part("vision_config", self.vision_defaults) if whole else fields

    def prefix(self, model: Vit) -> str:
        return TOWER


class HfClip(VisionTower):
    """A ViT that normalizes its tokens before the first layer."""

    name = "hf-clip"
    title = "Hugging Face's CLIP vision tower"
    types = ("clip_vision_model", "clip")
    architectures = ("CLIPVisionModel",)
    unused = (*TEXT, (r"visual_projection\.", "projects images to the shared embedding"))
    names: ClassVar[Names] = {
        **VisionTower.names,
        TOKENS: ("embeddings.class_embedding",),
        "first_norm": "pre_layrnorm",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-5}  # published models have two kinds of GELU
    processor_defaults = ProcessorDefaults(
        CenterCrop(fraction=1.0, filter="bicubic"),
        Normalize(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)),
        shortest_edge=True,
    )
    supported = VIT | {"stem.bias": (False,), "tokens.norm": (True,), "mixer.qkv_bias": (True,)}
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        return {"pre_layrnorm.weight", f"{STEM}.weight", FIRST_QUERY} <= names

    def fields(self, ckpt: Checkpoint, found: TowerTensors) -> tuple[Fields, tuple[str, ...]]:
        if "classifier.weight" in found.tensors:
            message = "classifier.weight reads patches before the last norm, which no model here does"
            raise ckpt.error(message, "weights.unsupported", "give the vision tower without its classifier")
        return super().fields(ckpt, found)


class HfSiglip(VisionTower):
    """A ViT without a class token, whose patches a learned query pools."""

    name = "hf-siglip"
    title = "Hugging Face's SigLIP vision tower"
    types = ("siglip_vision_model", "siglip")
    architectures = ("SiglipVisionModel", "SiglipForImageClassification")
    unused = TEXT
    names: ClassVar[Names] = {
        **VisionTower.names,
        "pool.query": "head.probe",
        "pool.project": "head.attention.out_proj",
        "pool.norm": "head.layernorm",
        "pool.mlp.expand": "head.mlp.fc1",
        "pool.mlp.contract": "head.mlp.fc2",
        "head.linear": "classifier",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
    vision_defaults: ClassVar[Mapping[str, Any]] = {**VisionTower.vision_defaults, "patch_size": 16, **default_fields}
    processor_defaults = ProcessorDefaults(Resize(filter="bicubic"), CENTERED)
    supported = VIT | {"tokens.cls": (False,), "mixer.qkv_bias": (True,)}
    pools_and_heads = frozenset({("attention", "none"), ("mean", "none"), ("mean", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        parts = {f"{STEM}.bias", str(self.names[TABLE]), FIRST_QUERY, "post_layernorm.weight"}
        return parts <= names and "pre_layrnorm.weight" not in names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        if "classifier.weight" in found.tensors:
            for name in [name for name in found.tensors if name.startswith("head.")]:
                del found.tensors[name]
                found.unused[TOWER + name] = "pools the patches in another way than the classifier does"
        return found

    def pool(self, found: TowerTensors) -> PoolConfig:
        return AttentionPool() if any(name.startswith("head.") for name in found.tensors) else MeanPool()

    def special_rules(self, model: Vit) -> list[Rule]:
        """In theirs, the map of the query is concatenated with those of keys and values."""
        rules, width = super().special_rules(model), model.width
        for part in ("weight", "bias") if isinstance(model.pool, AttentionPool) else ():
            ours = (f"pool.q.{part}", f"pool.kv.{part}")
            rules.append(split(ours, f"head.attention.in_proj_{part}", (width, 2 * width)))
        return rules

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model) | {"vision_use_head": isinstance(model.pool, AttentionPool)}
        return fields if isinstance(model.head, NoHead) else {"model_type": self.types[1], "vision_config": fields}

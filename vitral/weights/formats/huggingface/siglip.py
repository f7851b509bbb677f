"""SigLIP's vision tower: `SiglipVisionModel`, within a `SiglipModel`, or with a classifier; fixed SigLIP 2 as well."""

from typing import Any, ClassVar

from vitral.data.transforms.crop import Resize
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.head import NoHead
from vitral.models.pool import AttentionPool, MeanPool, PoolConfig
from vitral.models.vit import Vit
from vitral.weights.formats.huggingface.clip import DEFAULTS as CLIP_DEFAULTS
from vitral.weights.formats.huggingface.clip import LAYER, STEM, TABLE, TEXT, TOWER, vision_config
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.fields import Fields, Shapes
from vitral.weights.formats.huggingface.names import CLIP, Names, TowerTensors, affine_rules, layer_rules, unsqueezed
from vitral.weights.formats.huggingface.processor import ProcessorDefaults
from vitral.weights.formats.huggingface.vit import VIT, stem_rules
from vitral.weights.formats.rules import Rule, same, split

DEFAULTS = CLIP_DEFAULTS | {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
UNREAD = "gathers the patches in another way than the classifier does"


class HfSiglip(Family):
    """A ViT without a class token, whose patches a learned query gathers (arXiv 2303.15343)."""

    name: ClassVar[str] = "hf-siglip"
    title: ClassVar[str] = "Hugging Face's SigLIP vision tower"
    types: ClassVar[tuple[str, ...]] = ("siglip_vision_model", "siglip")
    names: ClassVar[Names] = Names((TOWER,), (), TEXT)
    shapes: ClassVar[Shapes] = Shapes(f"{STEM}.weight", "mlp.fc1.weight", LAYER, TABLE, 0, 2)
    default_fields: ClassVar[dict[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(Resize(filter="bicubic"), CENTERED)
    supported = VIT._replace(rectangles=False, cls=False, qkv_bias=True)
    pools_and_heads = frozenset({("attention", "none"), ("mean", "none"), ("mean", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        parts = {f"{STEM}.bias", TABLE, f"{LAYER}0.self_attn.q_proj.weight", "post_layernorm.weight"}
        return parts <= names and "pre_layrnorm.weight" not in names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        if "classifier.weight" in found.tensors:
            for name in [name for name in found.tensors if name.startswith("head.")]:
                del found.tensors[name]
                found.dropped[TOWER + name] = UNREAD
        return found

    def vision_fields(self, fields: Fields) -> Fields:
        return vision_config(fields, "siglip", DEFAULTS)

    def pool(self, found: TowerTensors) -> PoolConfig:
        return AttentionPool() if any(name.startswith("head.") for name in found.tensors) else MeanPool()

    def prefix(self, model: Vit) -> str:
        return TOWER

    def tower_rules(self, model: Vit) -> list[Rule]:
        return [
            *stem_rules(model, STEM),
            unsqueezed("position.table", TABLE),
            *layer_rules(model, CLIP, LAYER),
            *affine_rules({"norm": "post_layernorm"}),
            *(pool_rules(model.width) if isinstance(model.pool, AttentionPool) else []),
        ]

    def architecture(self, model: Vit) -> str:
        return "SiglipVisionModel" if isinstance(model.head, NoHead) else "SiglipForImageClassification"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model) | {"vision_use_head": isinstance(model.pool, AttentionPool)}
        return fields if isinstance(model.head, NoHead) else {"model_type": self.types[1], "vision_config": fields}


def pool_rules(width: int) -> list[Rule]:
    """The learned query: its map and those of keys and values stand above one another in their files."""
    parts = {
        "pool.project": "head.attention.out_proj",
        "pool.norm": "head.layernorm",
        "pool.mlp.expand": "head.mlp.fc1",
        "pool.mlp.contract": "head.mlp.fc2",
    }
    rules = [
        split([f"pool.q.{part}", f"pool.kv.{part}"], f"head.attention.in_proj_{part}", [width, 2 * width])
        for part in ("weight", "bias")
    ]
    return [same("pool.query", "head.probe"), *rules, *affine_rules(parts)]

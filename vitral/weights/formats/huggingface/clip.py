"""CLIP's vision tower: `CLIPVisionModel`, with or without its projection, or within a whole `CLIPModel`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Normalize
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint, FileSettings
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.fields import Fields, Shapes
from vitral.weights.formats.huggingface.names import CLIP, Names, TowerTensors, affine_rules, layer_rules, unsqueezed
from vitral.weights.formats.huggingface.processor import ProcessorDefaults
from vitral.weights.formats.huggingface.vit import VIT, stem_rules
from vitral.weights.formats.rules import Rule

STEM, TABLE, LAYER = "embeddings.patch_embedding", "embeddings.position_embedding.weight", "encoder.layers."
TOWER = "vision_model."
TEXT = (
    (r"text_model\.", "of the text tower"),
    (r"text_projection\.", "takes texts to the space that images are compared with them in"),
    (r"logit_(scale|bias)$", "scales comparisons of images with texts"),
    (r"embeddings\.position_ids$", "numbers the positions"),
)
PROJECTION = (r"visual_projection\.", "takes images to the space that texts are compared with them in")
SCALING = Normalize(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))
DEFAULTS = {
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


class HfClip(Family):
    """A ViT that normalizes its tokens before the first layer (arXiv 2103.00020)."""

    name: ClassVar[str] = "hf-clip"
    title: ClassVar[str] = "Hugging Face's CLIP vision tower"
    types: ClassVar[tuple[str, ...]] = ("clip_vision_model", "clip")
    names: ClassVar[Names] = Names((TOWER,), (), (*TEXT, PROJECTION))
    shapes: ClassVar[Shapes] = Shapes(f"{STEM}.weight", "mlp.fc1.weight", LAYER, TABLE, 1, 2)
    default_fields: ClassVar[dict[str, Any]] = {"layer_norm_eps": 1e-5}  # two kinds of GELU are published
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(
        CenterCrop(fraction=1.0, filter="bicubic"), SCALING, shortest_edge=True
    )
    supported = VIT._replace(rectangles=False, stem_bias=False, pre_norm=True, qkv_bias=True)
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        return {"pre_layrnorm.weight", f"{STEM}.weight", f"{LAYER}0.self_attn.q_proj.weight"} <= names

    def fields(self, ckpt: Checkpoint, found: TowerTensors, settings: FileSettings) -> tuple[Fields, tuple[str, ...]]:
        if "classifier.weight" in found.tensors:
            message = "classifier.weight reads patches before the last norm, which no model here does"
            hint = "give the vision tower without its classifier"
            raise WeightsError(message, code="weights.unsupported", where=ckpt.path, hint=hint)
        return super().fields(ckpt, found, settings)

    def vision_fields(self, fields: Fields) -> Fields:
        return vision_config(fields, "clip", DEFAULTS)

    def prefix(self, model: Vit) -> str:
        return TOWER

    def tower_rules(self, model: Vit) -> list[Rule]:
        return [
            *stem_rules(model, STEM),
            unsqueezed("prefix.tokens", "embeddings.class_embedding"),
            unsqueezed("position.table", TABLE),
            *layer_rules(model, CLIP, LAYER),
            *affine_rules({"first_norm": "pre_layrnorm", "norm": "post_layernorm"}),
        ]

    def architecture(self, model: Vit) -> str:
        return "CLIPVisionModel"

    def reference_tokens(self, peer: Any, images: Tensor, ways: Mapping[str, Any]) -> Tensor:
        tokens: Tensor = peer.post_layernorm(peer(images, **ways).last_hidden_state)
        return tokens


def vision_config(fields: Fields, model: str, defaults: Mapping[str, Any]) -> Fields:
    """The fields of the vision tower; those of a whole model leave out what is as usual."""
    return fields.part("vision_config", defaults) if fields.data.get("model_type") == model else fields

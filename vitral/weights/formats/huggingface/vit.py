"""ViT: `ViTModel`, `ViTForImageClassification`, and the tower of `ViTForMaskedImageModeling`."""

from typing import Any, ClassVar

from vitral.data.transforms.scaling import CENTRED
from vitral.data.transforms.view import PlainResize
from vitral.model.head import NoHead
from vitral.model.patches import Patches
from vitral.model.vit import Vit
from vitral.weights.formats.huggingface.counterpart import Holds
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.layers import BERT, layer_rules
from vitral.weights.formats.huggingface.names import MASK_TOKEN, RENAMED, RENAMED_MLP, Names
from vitral.weights.formats.huggingface.processor import Custom
from vitral.weights.formats.huggingface.shapes import Shapes
from vitral.weights.formats.places import place_rules
from vitral.weights.formats.rule import Rule, affine, kernel, same

STEM, LAYER = "embeddings.patch_embeddings.projection", "encoder.layer."
TABLE = "embeddings.position_embeddings"
POOLER = (r"pooler\.", "a pooler that no head reads")
DECODER = (r"decoder\.", "draws hidden patches in pre-training")
SHAPES = Shapes(f"{STEM}.weight", "intermediate.dense.weight", LAYER, TABLE, 1)
UNTOLD = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
PARTS = {f"{STEM}.weight", f"{LAYER}0.attention.attention.query.weight", f"{LAYER}0.layernorm_before.weight"}


class HfVit(Family):
    """The paper's model."""

    name: ClassVar[str] = "hf-vit"
    title: ClassVar[str] = "Hugging Face's ViT"
    types: ClassVar[tuple[str, ...]] = ("vit",)
    names: ClassVar[Names] = Names(("vit.",), RENAMED + RENAMED_MLP, (POOLER, MASK_TOKEN, DECODER))
    shapes: ClassVar[Shapes] = SHAPES
    untold: ClassVar[dict[str, Any]] = UNTOLD
    custom: ClassVar[Custom] = Custom(PlainResize(), CENTRED)
    holds: ClassVar[Holds] = Holds(frozenset({("cls", "none"), ("cls", "linear")}), rectangles=True)

    def known(self, names: set[str]) -> bool:
        others = {"embeddings.distillation_token", "decoder.decoder_pos_embed"}
        return names >= PARTS and not names & others

    def tower_rules(self, model: Vit) -> list[Rule]:
        return tower_rules(model, ["embeddings.cls_token"])

    def architecture(self, model: Vit) -> str:
        return "ViTModel" if isinstance(model.head, NoHead) else "ViTForImageClassification"

    def options(self, model: Vit) -> dict[str, Any]:
        return {"add_pooling_layer": False} if isinstance(model.head, NoHead) else {}


def tower_rules(model: Vit, tokens: list[str]) -> list[Rule]:
    """The rules that ViT, DeiT and MAE share."""
    rules = [*stem_rules(model, STEM), *place_rules(model, tokens, TABLE), *layer_rules(model, BERT, LAYER)]
    return rules + affine("norm", "layernorm")


def stem_rules(model: Vit, stem: str) -> list[Rule]:
    """The map of the patches."""
    weight = kernel("stem.project.weight", f"{stem}.weight", model.stem.patch)
    assert isinstance(model.stem, Patches)
    return [weight, same("stem.project.bias", f"{stem}.bias")] if model.stem.bias else [weight]

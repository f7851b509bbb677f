"""DeiT: `DeiTModel`, `DeiTForImageClassification`, and `DeiTForImageClassificationWithTeacher` with its two heads."""

from typing import Any, ClassVar

from vitral.data.transforms.scaling import IMAGENET
from vitral.data.transforms.view import CentreCrop
from vitral.model.head import NoHead
from vitral.model.pool import ClassPool, DistilledPool, PoolConfig
from vitral.model.vit import Tokens, Vit
from vitral.weights.formats.huggingface.counterpart import Holds
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.fields import Fields
from vitral.weights.formats.huggingface.names import MASK_TOKEN, RENAMED, RENAMED_MLP, Found, Names
from vitral.weights.formats.huggingface.processor import Custom
from vitral.weights.formats.huggingface.shapes import Shapes
from vitral.weights.formats.huggingface.vit import DECODER, PARTS, POOLER, SHAPES, UNTOLD, tower_rules
from vitral.weights.formats.places import halved_heads
from vitral.weights.formats.rule import Rule, affine

TOKEN = "embeddings.distillation_token"
TEACHER = ("cls_classifier", "distillation_classifier")
ANSWERS = frozenset({("cls", "none"), ("cls", "linear"), ("distilled", "linear")})


class HfDeit(Family):
    """A ViT with a distillation token, which is a register here (arXiv 2012.12877)."""

    name: ClassVar[str] = "hf-deit"
    title: ClassVar[str] = "Hugging Face's DeiT"
    types: ClassVar[tuple[str, ...]] = ("deit",)
    names: ClassVar[Names] = Names(("deit.",), RENAMED + RENAMED_MLP, (POOLER, MASK_TOKEN, DECODER))
    shapes: ClassVar[Shapes] = SHAPES._replace(rows=2)
    untold: ClassVar[dict[str, Any]] = UNTOLD
    custom: ClassVar[Custom] = Custom(CentreCrop(fraction=0.875, filter="bicubic"), IMAGENET)
    holds: ClassVar[Holds] = Holds(ANSWERS, registers=(1, 1), rectangles=True)

    def known(self, names: set[str]) -> bool:
        return names >= PARTS | {TOKEN}

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=1)

    def pool(self, found: Found) -> PoolConfig:
        return DistilledPool() if f"{TEACHER[1]}.weight" in found.tensors else ClassPool()

    def tower_rules(self, model: Vit) -> list[Rule]:
        return tower_rules(model, ["embeddings.cls_token", TOKEN])

    def head_rules(self, model: Vit) -> list[Rule]:
        distilled = isinstance(model.pool, DistilledPool)
        return halved_heads("head.linear", TEACHER) if distilled else affine("head.linear", "classifier")

    def architecture(self, model: Vit) -> str:
        if isinstance(model.head, NoHead):
            return "DeiTModel"
        teacher = "WithTeacher" if isinstance(model.pool, DistilledPool) else ""
        return f"DeiTForImageClassification{teacher}"

    def options(self, model: Vit) -> dict[str, Any]:
        return {"add_pooling_layer": False} if isinstance(model.head, NoHead) else {}

"""DINOv2, with registers and without: `Dinov2Model`, `Dinov2ForImageClassification`, and their likes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models.head import NoHead
from vitral.models.mlp import Mlp, MlpConfig, SwiGlu
from vitral.models.pool import ClassMeanPool, ClassPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Checkpoint, tensor_shape
from vitral.weights.formats.huggingface.family import ADD_CONFIG, Family, common_fields
from vitral.weights.formats.huggingface.fields import Fields, Shapes
from vitral.weights.formats.huggingface.names import (
    DINO,
    MASK_TOKEN,
    RENAMED_SINCE_V5,
    Names,
    TowerTensors,
    layer_rules,
)
from vitral.weights.formats.huggingface.processor import ProcessorDefaults
from vitral.weights.formats.huggingface.vit import LAYER, STEM, TABLE, VIT, stem_rules
from vitral.weights.formats.rules import Rule, affine, concat_tokens, same, split_tokens
from vitral.weights.formats.support import ANY_NUMBER

REGISTERS = "embeddings.register_tokens"
GATES = ("mlp.gate_proj.", "mlp.up_proj.")  # inside the library since version 5; one map in published files
RATIOS = range(1, 101)


class HfDinov2(Family):
    """A ViT with LayerScale, whose head reads the class token beside the mean of the patches (arXiv 2304.07193)."""

    name: ClassVar[str] = "hf-dinov2"
    title: ClassVar[str] = "Hugging Face's DINOv2"
    types: ClassVar[tuple[str, ...]] = ("dinov2", "dinov2_with_registers")
    names: ClassVar[Names] = Names(
        ("dinov2.", "dinov2_with_registers."),
        (*RENAMED_SINCE_V5, (r"\bmlp\.down_proj\.", "mlp.weights_out.")),
        (MASK_TOKEN,),
    )
    shapes: ClassVar[Shapes] = Shapes(f"{STEM}.weight", "mlp.fc1.weight", LAYER, TABLE, 1)
    default_fields: ClassVar[dict[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu"}
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(
        CenterCrop(fraction=0.875, filter="bicubic"), IMAGENET, shortest_edge=True
    )
    supported = VIT._replace(rectangles=False, registers=ANY_NUMBER, scale=True, swiglu=True)
    pools_and_heads = frozenset({("cls", "none"), ("cls_mean", "linear")})
    resizes: ClassVar[bool] = False

    def matches_names(self, names: set[str]) -> bool:
        return {f"{STEM}.weight", f"{LAYER}0.layer_scale1.lambda1"} <= names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """The two halves of a gated MLP's first map, where they stand apart, as one."""
        for name in [name for name in found.tensors if GATES[0] in name]:
            gate, value = found.tensors.pop(name), found.tensors.pop(name.replace(*GATES), None)
            parts = [gate] if value is None or value.shape[1:] != gate.shape[1:] else [gate, value]
            found.tensors[name.replace(GATES[0], "mlp.weights_in.")] = torch.cat(parts)
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        if any(DINO.gated[0] in name for name in ckpt.tensors):
            message = "does not tell the size of its gated MLP"
            raise WeightsError(message, code="weights.missing_setting", where=ckpt.path, hint=ADD_CONFIG)
        return {"num_register_tokens": tensor_shape(ckpt, REGISTERS, 3)[1]} if REGISTERS in ckpt.tensors else {}

    def tokens(self, fields: Fields) -> Tokens:
        told = fields.has("num_register_tokens") or fields.data.get("model_type") == self.types[1]
        return Tokens(registers=fields.count("num_register_tokens") if told else 0)

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(resampling="bicubic_antialias" if self.tokens(fields).registers else "bicubic")

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        if not fields.has("mlp_ratio") and fields.has("intermediate_size"):  # as the shapes show it
            return super().mlp(fields, width)
        hidden = int(width * fields.number("mlp_ratio"))
        if fields.flag("use_swiglu_ffn", False):
            return SwiGlu(ratio=gated_hidden(hidden) / width)
        return Mlp(ratio=hidden / width, gelu=fields.gelu())

    def pool(self, found: TowerTensors) -> PoolConfig:
        return ClassMeanPool() if "classifier.weight" in found.tensors else ClassPool()

    def prefix(self, model: Vit) -> str:
        if isinstance(model.head, NoHead):
            return ""
        return "dinov2_with_registers." if model.tokens.registers else "dinov2."

    def tower_rules(self, model: Vit) -> list[Rule]:
        return [
            *stem_rules(model, STEM),
            token_rule(model, ["embeddings.cls_token"] + [REGISTERS] * bool(model.tokens.registers)),
            same("position.table", TABLE),
            *layer_rules(model, DINO, LAYER),
            *affine("norm", "layernorm"),
        ]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if not _ratio(model):
            yield f"mlp.ratio: {self.title} has an integer ratio of hidden to outer width, this model {model.mlp}"

    def architecture(self, model: Vit) -> str:
        kind = "Dinov2WithRegisters" if model.tokens.registers else "Dinov2"
        return f"{kind}Model" if isinstance(model.head, NoHead) else f"{kind}ForImageClassification"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = common_fields(model)
        del fields["intermediate_size"]
        fields |= {"mlp_ratio": _ratio(model), "use_swiglu_ffn": isinstance(model.mlp, SwiGlu), "layerscale_value": 1.0}
        if isinstance(model.mlp, SwiGlu):
            fields["hidden_act"] = "gelu"  # it stands there and is not used
        if not model.tokens.registers:
            return {"model_type": self.types[0]} | fields
        return {"model_type": self.types[1]} | fields | {"num_register_tokens": model.tokens.registers}

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        unused = {f"{self.prefix(bundle.model)}embeddings.mask_token": torch.zeros(1, bundle.model.width)}
        return super().files(bundle, {**tensors, **unused})


def token_rule(model: Vit, names: Sequence[str]) -> Rule:
    """The class token and the registers, which have no rows among the positions."""
    counts = [1, model.tokens.registers][: len(names)]
    return Rule(("prefix.tokens",), tuple(names), concat_tokens, lambda own: split_tokens(own[0], counts))


def gated_hidden(hidden: int) -> int:
    """Two thirds of an MLP's hidden width, rounded up to 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _ratio(model: Vit) -> int:
    """The whole number that the library gets a hidden width from, or 0 where there is none."""
    hidden = model.mlp.hidden(model.width)
    gated = isinstance(model.mlp, SwiGlu)
    fits = (each for each in RATIOS if (gated_hidden(model.width * each) if gated else model.width * each) == hidden)
    return next(fits, 0)

"""DINOv2 (arXiv 2304.07193), with registers and without, and DINOv3 (arXiv 2508.10104).

`Dinov2Model`, `Dinov2ForImageClassification`, the same `WithRegisters`; `DINOv3ViTModel`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models.head import NoHead
from vitral.models.mlp import Mlp, MlpConfig, SwiGlu
from vitral.models.pool import ClassMeanPool, ClassPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, Rope2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import ANY_NUMBER, Checkpoint
from vitral.weights.formats.huggingface.config import Fields, ProcessorDefaults
from vitral.weights.formats.huggingface.family import (
    ADD_CONFIG,
    MASK_TOKEN,
    RENAMED_SINCE_V5,
    VIT,
    Family,
    TowerTensors,
)
from vitral.weights.formats.huggingface.vit import ATTENTION, FIRST, LAYER, STEM
from vitral.weights.formats.rules import TABLE, TOKENS, Names, layer_names

REGISTERS = "embeddings.register_tokens"
NORMS_AND_SCALES = {
    "mixer_norm": "norm1",
    "mixer_branch.scale.factor": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp_branch.scale.factor": "layer_scale2.lambda1",
}
GATES = ("mlp.gate_proj.", "mlp.up_proj.")  # inside the library since version 5; one map in published files
RATIOS = range(1, 101)


class HfDinov2(Family):
    """A ViT with LayerScale, whose head reads the class token and the mean of the patches."""

    name = "hf-dinov2"
    title = "Hugging Face's DINOv2"
    types = ("dinov2", "dinov2_with_registers")
    architectures = ("Dinov2Model", "Dinov2ForImageClassification")
    towers = ("dinov2.", "dinov2_with_registers.")
    renamed = (*RENAMED_SINCE_V5, (r"\bmlp\.down_proj\.", "mlp.weights_out."))
    unused = (MASK_TOKEN,)
    names: ClassVar[Names] = {
        "stem.project": STEM,
        TOKENS: ("embeddings.cls_token", REGISTERS),
        TABLE: "embeddings.position_embeddings",
        **layer_names(
            LAYER,
            {
                **NORMS_AND_SCALES,
                "mixer.heads.qkv": ATTENTION,
                "mixer.project": "attention.output.dense",
                "mlp.expand": "mlp.fc1",
                "mlp.contract": "mlp.fc2",
            },
        ),
        "norm": "layernorm",
        "head.linear": "classifier",
    }
    gated_names: ClassVar[Names] = layer_names(
        LAYER, {"mlp.expand": "mlp.weights_in", "mlp.contract": "mlp.weights_out"}
    )
    register_rows = False
    mask_dims = 2
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu"}
    processor_defaults = ProcessorDefaults(CenterCrop(fraction=0.875, filter="bicubic"), IMAGENET, shortest_edge=True)
    squares = True
    supported = VIT | {
        "tokens.registers": ANY_NUMBER,
        "block.scale.kind": ("layer_scale",),
        "mlp.kind": ("mlp", "swiglu"),
    }
    pools_and_heads = frozenset({("cls", "none"), ("cls_mean", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        return {f"{STEM}.weight", f"{FIRST}layer_scale1.lambda1"} <= names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Concatenate the two halves of a gated MLP's first map, where they are separate."""
        for name in [name for name in found.tensors if GATES[0] in name]:
            gate, value = found.tensors.pop(name), found.tensors.pop(name.replace(*GATES), None)
            parts = [gate] if value is None or value.shape[1:] != gate.shape[1:] else [gate, value]
            found.tensors[name.replace(GATES[0], "mlp.weights_in.")] = torch.cat(parts)
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        if any("mlp.weights_in" in name for name in ckpt.tensors):
            raise ckpt.error("does not record the size of its gated MLP", "weights.missing_setting", ADD_CONFIG)
        return _registers(ckpt) | super().fields_from_tensors(ckpt)

    def tokens(self, fields: Fields) -> Tokens:
        given = fields.has("num_register_tokens") or fields.data.get("model_type") == self.types[1]
        return Tokens(registers=fields.whole("num_register_tokens", least=0) if given else 0)

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(resampling="bicubic_antialias" if self.tokens(fields).registers else "bicubic")

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        if not fields.has("mlp_ratio") and fields.has("intermediate_size"):  # from the shapes
            return super().mlp(fields, width)
        hidden = int(width * fields.number("mlp_ratio"))
        if fields.flag("use_swiglu_ffn", False):
            return SwiGlu(ratio=gated_hidden(hidden) / width)
        return Mlp(ratio=hidden / width, activation=fields.gelu())

    def pool(self, found: TowerTensors) -> PoolConfig:
        return ClassMeanPool() if "classifier.weight" in found.tensors else ClassPool()

    def prefix(self, model: Vit) -> str:
        return "" if isinstance(model.head, NoHead) else self.towers[bool(model.tokens.registers)]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if not _ratio(model):
            yield f"mlp.ratio: {self.title} has an integer ratio of hidden to outer width, this model {model.mlp}"

    def architecture(self, model: Vit) -> str:
        plain = super().architecture(model)
        return plain.replace("Dinov2", "Dinov2WithRegisters") if model.tokens.registers else plain

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields, registers = super().config_fields(model), model.tokens.registers
        del fields["intermediate_size"]
        fields |= {"mlp_ratio": _ratio(model), "use_swiglu_ffn": isinstance(model.mlp, SwiGlu), "layerscale_value": 1.0}
        if isinstance(model.mlp, SwiGlu):
            fields["hidden_act"] = "gelu"  # which is not used
        return fields | ({"model_type": self.types[1], "num_register_tokens": registers} if registers else {})


class HfDinov3(Family):
    """A ViT with LayerScale, registers and rotary positions. Its keys have no bias: here that is a bias of zeros."""

    name = "hf-dinov3"
    title = "Hugging Face's DINOv3"
    types = ("dinov3_vit",)
    architectures = ("DINOv3ViTModel",)
    towers = ("model.",)
    unused = (MASK_TOKEN,)
    names: ClassVar[Names] = {
        "stem.project": "embeddings.patch_embeddings",
        TOKENS: ("embeddings.cls_token", REGISTERS),
        **layer_names(
            "layer.*.",
            {
                **NORMS_AND_SCALES,
                "mixer.heads.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
                "mixer.project": "attention.o_proj",
                "mlp.expand": "mlp.up_proj",
                "mlp.contract": "mlp.down_proj",
            },
        ),
        "norm": "norm",
    }
    gated_names: ClassVar[Names] = {"blocks.*.mlp.expand": ("layer.*.mlp.gate_proj", "layer.*.mlp.up_proj")}
    mask_dims = 3
    default_fields: ClassVar[Mapping[str, Any]] = {
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "rope_theta": 100.0,
        "image_size": 224,
    }
    processor_defaults = ProcessorDefaults(Resize(), IMAGENET)
    squares = True
    supported = HfDinov2.supported | {"position.kind": ("rope2d",)}
    pools_and_heads = frozenset({("cls", "none")})
    biases = ("query_bias", "key_bias", "value_bias")

    def matches_names(self, names: set[str]) -> bool:
        stem = f"{self.names['stem.project']}.weight"
        return {stem, "layer.0.layer_scale1.lambda1", "layer.0.attention.q_proj.weight"} <= names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Zeros for missing biases, in layers that have one of the three."""
        for name in [name for name in found.tensors if re.fullmatch(r"layer\.\d+\.attention\.[qkv]_proj\.bias", name)]:
            for each in "qkv":
                other = re.sub(r"[qkv]_proj", f"{each}_proj", name)
                found.tensors.setdefault(other, torch.zeros_like(found.tensors[name]))
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        gated = any("mlp.gate_proj" in name for name in ckpt.tensors)
        found = {"num_register_tokens": 0, "use_gated_mlp": gated} | _registers(ckpt)
        return found | super().fields_from_tensors(ckpt)

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.whole("num_register_tokens", least=0))

    def position(self, fields: Fields) -> PositionConfig:
        return Rope2d(base=fields.number("rope_theta"))

    def qkv_bias(self, fields: Fields) -> bool:
        return any(fields.flag(name, name != "key_bias") for name in self.biases)

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        for name in ("proj_bias", "mlp_bias"):
            if not fields.flag(name, True):
                raise fields.wrong(name, "true", "weights.unsupported")
        if not fields.flag("use_gated_mlp", False):
            return super().mlp(fields, width)
        if fields.whole("intermediate_size") % 8:
            raise fields.wrong("intermediate_size", "a multiple of 8, for a gated MLP", "weights.unsupported")
        return SwiGlu(ratio=fields.whole("intermediate_size") / width)

    def config_fields(self, model: Vit) -> dict[str, Any]:
        assert isinstance(model.position, Rope2d)
        fields = super().config_fields(model)
        biased = fields.pop("qkv_bias")
        return fields | {
            "num_register_tokens": model.tokens.registers,
            "rope_theta": model.position.base,
            "use_gated_mlp": isinstance(model.mlp, SwiGlu),
            **dict.fromkeys(self.biases, biased),
        }


def _registers(ckpt: Checkpoint) -> dict[str, Any]:
    return {"num_register_tokens": ckpt.shape(REGISTERS, 3)[1]} if REGISTERS in ckpt.tensors else {}


def gated_hidden(hidden: int) -> int:
    """Two thirds of an MLP's hidden width, rounded up to 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _ratio(model: Vit) -> int:
    """The integer from which the library computes the hidden width, or 0 where there is none."""
    hidden = model.mlp.hidden(model.width)
    gated = isinstance(model.mlp, SwiGlu)
    fits = (each for each in RATIOS if (gated_hidden(model.width * each) if gated else model.width * each) == hidden)
    return next(fits, 0)

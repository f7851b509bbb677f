"""DINOv2 (arXiv 2304.07193), with registers and without, DINOv3 (arXiv 2508.10104), and the vision tower of TIPSv2.

`Dinov2Model`, `Dinov2ForImageClassification`, the same `WithRegisters`; `DINOv3ViTModel`; `Tipsv2VisionModel`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import IMAGENET, Normalize
from vitral.models.activation import ActivationName
from vitral.models.attention import Attention
from vitral.models.head import NoHead
from vitral.models.mlp import Mlp, MlpConfig, SwiGlu
from vitral.models.pool import ClassMeanPool, ClassPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, Resampling, Rope2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import ANY_NUMBER, Checkpoint
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.family import (
    ADD_CONFIG,
    MASK_TOKEN,
    RENAMED_SINCE_V5,
    VIT,
    Family,
    TowerTensors,
)
from vitral.weights.formats.huggingface.vit import ATTENTION, FIRST, LAYER, STEM
from vitral.weights.formats.rules import TABLE, TIMM_LAYER, TOKENS, Names, layer_names

REGISTERS = "embeddings.register_tokens"
NORMS_AND_SCALES = {
    "mixer_norm": "norm1",
    "mixer_branch.scale.factor": "layer_scale1.lambda1",
    "mlp_norm": "norm2",
    "mlp_branch.scale.factor": "layer_scale2.lambda1",
}
GATES = ("mlp.gate_proj.", "mlp.up_proj.")  # inside the library since version 5; one map in published files
# Separate inside the library of TIPSv2, one tensor in published files.
SEPARATE_QKV = (("attention.q_proj.", "attention.k_proj.", "attention.v_proj."), "attn.qkv.")
SEPARATE_GATES = (GATES, "mlp.w12.")
REGISTERS_IN_TIPS = 1  # of every published TIPSv2; DINOv2 has 4
RATIOS = range(1, 101)


class HfDinov2(Family):
    """A ViT with LayerScale, whose head reads the class token and the mean of the patches."""

    name = "hf-dinov2"
    title = "Hugging Face's DINOv2"
    types: ClassVar[tuple[str, ...]] = ("dinov2", "dinov2_with_registers")
    architectures: ClassVar[tuple[str, ...]] = ("Dinov2Model", "Dinov2ForImageClassification")
    towers: ClassVar[tuple[str, ...]] = ("dinov2.", "dinov2_with_registers.")
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (*RENAMED_SINCE_V5, (r"\bmlp\.down_proj\.", "mlp.weights_out."))
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
    processor = "Bit"
    assumed_images: ClassVar[tuple[EvalCropConfig, Normalize]] = (
        CenterCrop(fraction=0.875, filter="bicubic", rounding="down"),
        IMAGENET,
    )
    squares = True
    supported = VIT | {
        "tokens.registers": ANY_NUMBER,
        "block.scale.kind": ("layer_scale",),
        "mlp.kind": ("mlp", "swiglu"),
    }
    pools_and_heads = frozenset({("cls", "none"), ("cls_mean", "linear")})
    layer_dropout = False
    drop_path = "constant"

    def matches_names(self, names: set[str]) -> bool:
        return {f"{STEM}.weight", f"{FIRST}layer_scale1.lambda1"} <= names

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        """Published files have older names than the library; with its own names it may attend in windows."""
        own = any(name.endswith("attention.q_proj.weight") for name in ckpt.tensors)
        told = "model_type" in ckpt.config or "classifier.weight" in ckpt.tensors or REGISTERS in ckpt.tensors
        return ("the backbone of RF-DETR",) if own and not told else ()

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Concatenate the two halves of a gated MLP's first map, where they are separate."""
        drop_empty_registers(found)
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
        several = fields.data.get("model_type") == self.types[-1]  # which may have no registers
        return Learned1d(resampling=self.resampling_with(self.tokens(fields).registers or several))

    def resampling_with(self, registers: int) -> Resampling:
        """Positions are resampled without aliasing by the class with registers."""
        return "bicubic_antialias" if registers else "bicubic"

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        if not fields.has("mlp_ratio") and fields.has("intermediate_size"):  # from the shapes
            return super().mlp(fields, width)
        hidden = int(width * fields.number("mlp_ratio"))
        if fields.flag("use_swiglu_ffn", False):
            return SwiGlu(ratio=gated_hidden(hidden) / width)
        return Mlp(ratio=hidden / width, activation=fields.activation())

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return ClassMeanPool() if "classifier.weight" in found.tensors else ClassPool()

    def prefix(self, model: Vit) -> str:
        return "" if isinstance(model.head, NoHead) else self.towers[bool(model.tokens.registers)]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if isinstance(model.mlp, SwiGlu) and model.mlp.activation != "silu":
            yield f"mlp.activation: {self.title} gates with silu, this model with {model.mlp.activation}"
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
        return fields | ({"model_type": self.types[-1], "num_register_tokens": registers} if registers else {})


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
    processor = "DINOv3ViT"
    assumed_images = (Resize(), IMAGENET)
    squares = True
    supported = HfDinov2.supported | {
        "position.kind": ("rope2d",),
        "mixer.project_bias": (True, False),
        "mlp.bias": (True, False),
    }
    pools_and_heads = frozenset({("cls", "none")})
    dropout, attention_dropout, drop_path = "", "attention_dropout", "constant"
    biases = ("query_bias", "key_bias", "value_bias")

    def matches_names(self, names: set[str]) -> bool:
        stem = f"{self.names['stem.project']}.weight"
        layer = {f"layer.0.{name}" for name in ("layer_scale1.lambda1", "attention.q_proj.weight", "norm1.bias")}
        return {stem} | layer <= names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Zeros for missing biases, in layers that have one of the three."""
        drop_empty_registers(found)
        for name in [name for name in found.tensors if re.fullmatch(r"layer\.\d+\.attention\.[qkv]_proj\.bias", name)]:
            for each in "qkv":
                other = re.sub(r"[qkv]_proj", f"{each}_proj", name)
                found.tensors.setdefault(other, torch.zeros_like(found.tensors[name]))
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        gated = any("mlp.gate_proj" in name for name in ckpt.tensors)
        biased = any(_is_nonzero(tensor) for name, tensor in ckpt.tensors.items() if name.endswith(".k_proj.bias"))
        found = {"num_register_tokens": 0, "use_gated_mlp": gated, "key_bias": biased} | _registers(ckpt)
        return found | super().fields_from_tensors(ckpt)

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        check_biases(fields, found, {"key_bias": ".attention.k_proj.bias"}, default=False)
        check_biases(fields, found, {f"{p}_bias": f".attention.{p[0]}_proj.bias" for p in ("query", "value")}, True)
        return super().model(fields, found)

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.whole("num_register_tokens", least=0))

    def position(self, fields: Fields) -> PositionConfig:
        return Rope2d(base=fields.number("rope_theta"))

    def qkv_bias(self, fields: Fields) -> bool:
        return any(fields.flag(name, name != "key_bias") for name in self.biases)

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        hidden, bias = fields.whole("intermediate_size"), fields.flag("mlp_bias", True)
        if not fields.flag("use_gated_mlp", False):
            return Mlp(ratio=hidden / width, activation=fields.activation(), bias=bias)
        return gated_mlp(hidden, width, fields.activation(), bias)

    def mixer(self, fields: Fields, heads: int, dropout: float) -> Attention:
        bias = fields.flag("proj_bias", True)
        return super().mixer(fields, heads, dropout).model_copy(update={"project_bias": bias})

    def config_fields(self, model: Vit) -> dict[str, Any]:
        assert isinstance(model.position, Rope2d)
        assert isinstance(model.mixer, Attention)
        fields = super().config_fields(model)
        biased = fields.pop("qkv_bias")
        return fields | {
            "num_register_tokens": model.tokens.registers,
            "rope_theta": model.position.base,
            "use_gated_mlp": isinstance(model.mlp, SwiGlu),
            "mlp_bias": model.mlp.bias,
            "proj_bias": model.mixer.project_bias,
            **dict.fromkeys(self.biases, biased),
        }


class HfTipsv2(HfDinov2):
    """A DINOv2 with other names, whose positions are resampled in another way."""

    name = "hf-tipsv2"
    title = "Hugging Face's TIPSv2 vision tower"
    types = ("tipsv2_vision_model",)
    architectures = ("Tipsv2VisionModel",)
    towers = ()
    renamed = (  # inside the library, as in its DINOv2
        (r"^embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
        (r"^embeddings\.position_embeddings$", "pos_embed"),
        (r"^embeddings\.", ""),
        (r"^encoder\.layer\.(\d+)\.", r"blocks.\1."),
        (r"\blayer_scale([12])\.lambda1$", r"ls\1.gamma"),
        (r"\battention\.o_proj\.", "attn.proj."),
        (r"\bmlp\.fc1\.", "mlp.c_fc."),
        (r"\bmlp\.fc2\.", "mlp.c_proj."),
        (r"\bmlp\.down_proj\.", "mlp.w3."),
        (r"^layernorm\.", "norm."),
    )
    unused = ((r"mask_token$", MASK_TOKEN[1]),)
    names: ClassVar[Names] = {
        "stem.project": "patch_embed.proj",
        TOKENS: ("cls_token", "register_tokens"),
        TABLE: "pos_embed",
        **TIMM_LAYER,
        **layer_names("blocks.*.", {"mlp.expand": "mlp.c_fc", "mlp.contract": "mlp.c_proj"}),
        "norm": "norm",
    }
    gated_names: ClassVar[Names] = layer_names("blocks.*.", {"mlp.expand": "mlp.w12", "mlp.contract": "mlp.w3"})
    mask_name = "mask_token"
    marks: ClassVar[set[str]] = {"blocks.0.mlp.c_fc.weight", "blocks.0.mlp.w12.weight"}
    supported = HfDinov2.supported | {"tokens.registers": ANY_NUMBER[1:]}
    processor = "ViT"
    assumed_images = (Resize(), Normalize(mean=(0.0,), std=(1.0,)))
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        inside = {"blocks.0.attention.q_proj.weight", "blocks.0.ls1.gamma"} <= names
        published = {"blocks.0.attn.qkv.weight", "blocks.0.ls1.gamma"} <= names and bool(self.marks & names)
        return {"patch_embed.proj.weight", "register_tokens"} <= names and (inside or published)

    def matches(self, ckpt: Checkpoint) -> bool:
        """Its files with a gated MLP have the names of facebook's DINOv2, which has other numbers of registers."""
        if not super().matches(ckpt) or "blocks.0.mlp.w12.weight" not in ckpt.tensors or ckpt.config:
            return super().matches(ckpt)
        return ckpt.tensors["register_tokens"].shape[1:2] == (REGISTERS_IN_TIPS,)

    def certain(self, ckpt: Checkpoint) -> bool:
        return bool(self.marks & ckpt.tensors.keys())  # a published file, and not the names inside the library

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        return ()

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Concatenate what is separate inside the library."""
        for parts, whole in (SEPARATE_QKV, SEPARATE_GATES):
            for name in [name for name in found.tensors if parts[0] in name]:
                pieces = [found.tensors.pop(name.replace(parts[0], part), None) for part in parts]
                found.tensors[name.replace(parts[0], whole)] = torch.cat([each for each in pieces if each is not None])
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        count = {"num_register_tokens": ckpt.shape("register_tokens", 3)[1]}
        if "blocks.0.mlp.w12.weight" in ckpt.tensors:
            raise ckpt.error("does not record the size of its gated MLP", "weights.missing_setting", ADD_CONFIG)
        return super().fields_from_tensors(ckpt) | count

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.whole("num_register_tokens"))

    def resampling_with(self, registers: int) -> Resampling:
        return "bilinear_antialias"

    def prefix(self, model: Vit) -> str:
        return ""

    def architecture(self, model: Vit) -> str:
        return self.architectures[0]

    def config_fields(self, model: Vit) -> dict[str, Any]:
        return super().config_fields(model) | {"model_type": self.types[0]}


def check_biases(fields: Fields, found: TowerTensors, endings: Mapping[str, str], default: bool) -> None:
    """Refuse biases in a file whose config says that the model has none: the library ignores them."""
    for field, ending in endings.items():
        if fields.flag(field, default):
            continue
        for name, tensor in found.tensors.items():
            if name.endswith(ending) and _is_nonzero(tensor):
                raise fields.wrong(field, f"true, since the file has {name}")


def _is_nonzero(tensor: Tensor) -> bool:
    return not tensor.is_meta and bool(tensor.any())


def drop_empty_registers(found: TowerTensors) -> None:
    """The library writes a tensor of no registers too."""
    if REGISTERS in found.tensors and not found.tensors[REGISTERS].numel():
        del found.tensors[REGISTERS]


def _registers(ckpt: Checkpoint) -> dict[str, Any]:
    return {"num_register_tokens": ckpt.shape(REGISTERS, 3)[1]} if REGISTERS in ckpt.tensors else {}


def gated_mlp(hidden: int, width: int, activation: ActivationName, bias: bool) -> SwiGlu:
    """A gated MLP of this hidden width."""
    return SwiGlu(ratio=hidden / width, activation=activation, bias=bias, multiple=1 if hidden % 8 else 8)


def gated_hidden(hidden: int) -> int:
    """Two thirds of an MLP's hidden width, rounded up to 8."""
    return (int(hidden * 2 / 3) + 7) // 8 * 8


def _ratio(model: Vit) -> int:
    """The integer from which the library computes the hidden width, or 0 where there is none."""
    hidden = model.mlp.hidden(model.width)
    gated = isinstance(model.mlp, SwiGlu)
    fits = (each for each in RATIOS if (gated_hidden(model.width * each) if gated else model.width * each) == hidden)
    return next(fits, 0)

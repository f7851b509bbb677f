"""DINOv3: `DINOv3ViTModel`, whose positions turn queries and keys (arXiv 2508.10104)."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.data.transforms.crop import Resize
from vitral.data.transforms.preprocessing import IMAGENET
from vitral.models.mlp import MlpConfig, SwiGlu
from vitral.models.position import PositionConfig, Rope2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Checkpoint, tensor_shape
from vitral.weights.formats.huggingface.dinov2 import REGISTERS, token_rule
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.fields import Fields, Shapes
from vitral.weights.formats.huggingface.names import DINO3, MASK_TOKEN, Names, TowerTensors, layer_rules
from vitral.weights.formats.huggingface.processor import ProcessorDefaults
from vitral.weights.formats.huggingface.vit import VIT, stem_rules
from vitral.weights.formats.rules import Rule, affine
from vitral.weights.formats.support import ANY_NUMBER

STEM = "embeddings.patch_embeddings"
BIASES = ("query_bias", "key_bias", "value_bias")


class HfDinov3(Family):
    """A ViT with LayerScale, registers and rotary positions. Its keys have no bias: here that is a bias of zeros."""

    name: ClassVar[str] = "hf-dinov3"
    title: ClassVar[str] = "Hugging Face's DINOv3"
    types: ClassVar[tuple[str, ...]] = ("dinov3_vit",)
    names: ClassVar[Names] = Names(("model.",), (), (MASK_TOKEN,))
    shapes: ClassVar[Shapes] = Shapes(f"{STEM}.weight", "mlp.up_proj.weight", "layer.")
    default_fields: ClassVar[dict[str, Any]] = {
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "rope_theta": 100.0,
        "image_size": 224,
    }
    processor_defaults: ClassVar[ProcessorDefaults] = ProcessorDefaults(Resize(), IMAGENET)
    supported = VIT._replace(rectangles=False, registers=ANY_NUMBER, positions=("rope2d",), scale=True, swiglu=True)
    pools_and_heads = frozenset({("cls", "none")})
    resizes: ClassVar[bool] = False

    def matches_names(self, names: set[str]) -> bool:
        return {f"{STEM}.weight", "layer.0.layer_scale1.lambda1", "layer.0.attention.q_proj.weight"} <= names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Zeros for the biases that are not there, in layers that have one of the three."""
        given = [name for name in found.tensors if re.fullmatch(r"layer\.\d+\.attention\.[qkv]_proj\.bias", name)]
        for name in given:
            for each in DINO3.qkv:
                other = f"{name.partition('.attention.')[0]}.{each}.bias"
                found.tensors.setdefault(other, torch.zeros_like(found.tensors[name]))
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        registers = tensor_shape(ckpt, REGISTERS, 3)[1] if REGISTERS in ckpt.tensors else 0
        gated = any(DINO3.gated[0] in name for name in ckpt.tensors)
        return {"num_register_tokens": registers, "use_gated_mlp": gated}

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.count("num_register_tokens"))

    def position(self, fields: Fields) -> PositionConfig:
        return Rope2d(base=fields.number("rope_theta"))

    def qkv_bias(self, fields: Fields) -> bool:
        return any(fields.flag(name, name != "key_bias") for name in BIASES)

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        for name in ("proj_bias", "mlp_bias"):
            if not fields.flag(name, True):
                raise fields.wrong(name, "true", "weights.unsupported")
        if not fields.flag("use_gated_mlp", False):
            return super().mlp(fields, width)
        if fields.whole("intermediate_size") % 8:
            raise fields.wrong("intermediate_size", "a multiple of 8, for a gated MLP", "weights.unsupported")
        return SwiGlu(ratio=fields.whole("intermediate_size") / width)

    def tower_rules(self, model: Vit) -> list[Rule]:
        return [
            *stem_rules(model, STEM),
            token_rule(model, ["embeddings.cls_token", REGISTERS]),
            *layer_rules(model, DINO3, "layer."),
            *affine("norm", "norm"),
        ]

    def architecture(self, model: Vit) -> str:
        return "DINOv3ViTModel"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        assert isinstance(model.position, Rope2d)
        fields = super().config_fields(model)
        biased = fields.pop("qkv_bias")
        return fields | {
            "num_register_tokens": model.tokens.registers,
            "rope_theta": model.position.base,
            "use_gated_mlp": isinstance(model.mlp, SwiGlu),
            **dict.fromkeys(BIASES, biased),
        }

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        unused = {"embeddings.mask_token": torch.zeros(1, 1, bundle.model.width)}
        return super().files(bundle, {**tensors, **unused})

    def reference_tokens(self, peer: Any, images: Tensor, ways: Mapping[str, Any]) -> Tensor:
        tokens: Tensor = peer(images).last_hidden_state  # what it has as `model` is the layers alone
        return tokens

"""The vision tower of AIMv2 (arXiv 2411.14402): `Aimv2VisionModel`, alone or within an `Aimv2Model`."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import HeadConfig, ProjectionHead
from vitral.models.mlp import MlpConfig
from vitral.models.norm import NormConfig, RmsNorm
from vitral.models.pool import AttentionPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, SinCos2d
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.huggingface.clip import PROJECTION, TEXT
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.defaults import DEFAULTS
from vitral.weights.formats.huggingface.dino import gated_mlp
from vitral.weights.formats.huggingface.family import VIT, Family, TowerTensors
from vitral.weights.formats.huggingface.processor import CLIP_NORMALIZE
from vitral.weights.formats.rules import TABLE, Names, Rule, constant, layer_names

FIRST = "encoder.layers.0."


class HfAimv2(Family):
    """A ViT with RMSNorm and SwiGLU, without a class token; a learned query pools the patches."""

    name = "hf-aimv2"
    title = "Hugging Face's AIMv2 vision tower"
    types = ("aimv2_vision_model", "aimv2")
    architectures = ("Aimv2VisionModel",)
    towers = ("vision_model.",)
    unused = TEXT
    names: ClassVar[Names] = {
        "stem.project": "embeddings.patch_embed",
        "stem.after": "embeddings.rms_norm",
        TABLE: "embeddings.position_embedding.weight",
        **layer_names(
            "encoder.layers.*.",
            {
                "mixer_norm": "rms_norm1",
                "mixer.heads.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
                "mixer.project": "attention.out_proj",
                "mlp_norm": "rms_norm2",
                "mlp.expand": ("ffn.gate_proj", "ffn.up_proj"),
                "mlp.contract": "ffn.down_proj",
            },
        ),
        "norm": "rms_norm",
        "pool.query": "head.cls_token",
        "pool.kv": ("head.k_proj", "head.v_proj"),
        "pool.project": "head.output_proj",
        "head.linear": PROJECTION,
    }
    flat_positions = True
    eps_field = "rms_norm_eps"
    published_heads: ClassVar[Mapping[int, int]] = {1024: 8, 1536: 12, 2048: 16, 3072: 24}
    default_fields: ClassVar[Mapping[str, Any]] = {"rms_norm_eps": 1e-5, "hidden_act": "silu"}
    # Fields that the config of a whole model omits where they have these values.
    vision_defaults: ClassVar[Mapping[str, Any]] = DEFAULTS["aimv2_vision_model"]
    processor = "CLIP"
    assumed_images = (CenterCrop(fraction=1.0, filter="bicubic", rounding="down"), CLIP_NORMALIZE)
    supported = VIT | {
        "stem.norm": ("after",),
        "tokens.cls": (False,),
        "position.kind": ("learned1d", "sincos2d"),
        "position.endpoint": (False,),
        "norm.kind": ("rms_norm",),
        "mixer.project_bias": (True, False),
        "mlp.kind": ("swiglu",),
        "mlp.bias": (True, False),
        "pool.project_query": (False,),
        "pool.mlp_ratio": ("none",),
    }
    pools_and_heads = frozenset({("attention", "none"), ("mean", "none")})
    squares = True
    dropout, attention_dropout = "", "attention_dropout"

    def matches_names(self, names: set[str]) -> bool:
        return names >= {"embeddings.patch_embed.weight", "embeddings.rms_norm.weight", f"{FIRST}rms_norm1.weight"}

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        names = ckpt.tensors.keys()
        return super().fields_from_tensors(ckpt) | {
            "is_native": self.names[TABLE] not in names,
            "qkv_bias": f"{FIRST}attention.q_proj.bias" in names,
            "mlp_bias": f"{FIRST}ffn.gate_proj.bias" in names,
        }

    def table_image_size(self, ckpt: Checkpoint, patch: Size) -> Size:
        if self.names[TABLE] in ckpt.tensors:
            return super().table_image_size(ckpt, patch)
        if not (given := ckpt.setting("image_size")):
            message = "computes its positions, and does not record the image size"
            raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH")
        return Size.parse(given)

    def vision_fields(self, fields: Fields) -> Fields:
        return fields.part("vision_config", self.vision_defaults) if "vision_config" in fields.data else fields

    def stem(self, patch: Size) -> Patches:
        return Patches(patch=patch, norm="after")

    def position(self, fields: Fields) -> PositionConfig:
        native = fields.flag("is_native", False)
        return SinCos2d(endpoint=False) if native else Learned1d(cls=False, resampling=self.resampling)

    def qkv_bias(self, fields: Fields) -> bool:
        return fields.flag("qkv_bias", False)

    def mixer(self, fields: Fields, heads: int, dropout: float) -> Attention:
        return super().mixer(fields, heads, dropout).model_copy(update={"project_bias": self.qkv_bias(fields)})

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        hidden, bias = fields.whole("intermediate_size"), fields.flag("mlp_bias", False)
        return gated_mlp(hidden, width, fields.activation(), bias)

    def norm(self, fields: Fields) -> NormConfig:
        return RmsNorm()

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        pooled = any(name.startswith("head.") for name in found.tensors)
        return AttentionPool(project_query=False, mlp_ratio="none") if pooled else MeanPool()

    def head(self, fields: Fields, found: TowerTensors) -> HeadConfig:
        width = found.rows(f"{PROJECTION}.weight")
        return super().head(fields, found) if width is None else ProjectionHead(width=width)

    def special_rules(self, model: Vit) -> list[Rule]:
        assert isinstance(model.mixer, Attention)
        rules = super().special_rules(model)
        if isinstance(model.pool, AttentionPool) and not model.mixer.qkv_bias:
            rules.append(constant("pool.kv.bias", (2 * model.width,), 0.0, "the bias of pooled keys and values"))
        return rules

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        mixer = model.mixer
        if isinstance(mixer, Attention) and mixer.qkv_bias != mixer.project_bias:
            yield f"mixer.project_bias: {self.title} has it where queries, keys and values have a bias"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        return super().config_fields(model) | {
            "mlp_bias": model.mlp.bias,
            "is_native": isinstance(model.position, SinCos2d),
            "use_head": isinstance(model.pool, AttentionPool),
        }

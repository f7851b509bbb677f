"""BEiT (arXiv 2106.08254) and Data2VecVision (arXiv 2202.03555), of one layout, and InternVL's vision tower.

`BeitModel`, `BeitForImageClassification`, the encoders of `BeitForMaskedImageModeling` and
`BeitForSemanticSegmentation`, and the same of `Data2VecVision`; `InternVLVisionModel`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.data.transforms.crop import Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.norm import LayerNorm, NormConfig, RmsNorm
from vitral.models.pool import ClassPool, MeanPool, PoolConfig
from vitral.models.position import (
    BasePosition,
    Combined,
    Learned1d,
    NoPosition,
    PositionConfig,
    RelativeBias,
    inside_attention,
    learned_table,
)
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.family import MASK_TOKEN, VIT, Family, TowerTensors
from vitral.weights.formats.huggingface.vit import BEIT, BIASES, FIRST, LAYER, PARTS, HfVit
from vitral.weights.formats.rules import TABLE, TOKENS, Names, Rule, layer_names

SHARED = f"encoder.{BIASES}"
SCALES = {"mixer_branch.scale.factor": "lambda_1", "mlp_branch.scale.factor": "lambda_2"}
HEAD_NORM = "layernorm."
QK_NORM = ("rms_norm", 1e-6)  # of InternVL's queries and keys, whatever the other norms are


class HfBeit(Family):
    """A ViT with LayerScale and biases for relative positions. Its keys have no bias: here that is a bias of zeros."""

    name = "hf-beit"
    title = "Hugging Face's BEiT"
    types = ("beit", "data2vec-vision")  # of one layout; the first is written
    architectures = ("BeitModel", "BeitForImageClassification")
    towers = ("beit.", "data2vec_vision.")
    renamed = (
        *HfVit.renamed,
        (
            r"^encoder\.layer\.(\d+)\.relative_position_bias\.",
            r"encoder.layer.\1.attention.attention.relative_position_bias.",
        ),
        (r"^shared_position_bias\.", "encoder.relative_position_bias."),
    )
    unused = (
        MASK_TOKEN,
        (r".*relative_position_index$", "numbers the offsets"),
        (r"lm_head\.", "predicts visual tokens, in pre-training only"),
        (r"(decode_head|auxiliary_head|fpn\d)\.", "predicts the classes of pixels"),
    )
    names: ClassVar[Names] = {
        **HfVit.names,
        **layer_names(LAYER, {**SCALES, "mixer.heads.relation.table": f"attention.attention.{BIASES}"}),
        "pool.norm": "pooler.layernorm",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    processor = "Beit"
    assumed_images = (Resize(filter="bicubic"), CENTERED)
    squares = True
    supported = VIT | {
        "position.kind": ("none", "learned1d", "relative_bias", "combined"),
        "block.scale.kind": ("none", "layer_scale"),
        "mixer.qkv_bias": (True,),
    }
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear"), ("mean", "none"), ("mean", "linear")})
    pool_norms: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {
        ("mean", "none"): ("after", "none"),
        ("mean", "linear"): ("after",),
    }
    drop_path = "linear"

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS | {f"{FIRST}attention.output.dense.weight"} and bool(names & BEIT)

    def tower_tensors(self, ckpt: Checkpoint) -> TowerTensors:
        """The norm of the head for visual tokens is that of the encoder, unless the encoder has its own."""
        inner = any(name.startswith(tuple(tower + HEAD_NORM for tower in self.towers)) for name in ckpt.tensors)
        if not inner or not any(name.startswith("lm_head.") for name in ckpt.tensors):
            return super().tower_tensors(ckpt)
        rest = {name: tensor for name, tensor in ckpt.tensors.items() if not name.startswith(HEAD_NORM)}
        found = super().tower_tensors(ckpt._replace(tensors=rest))
        left = (name for name in ckpt.tensors if name.startswith(HEAD_NORM))
        found.unused.update(dict.fromkeys(left, "normalizes for the head that predicts visual tokens"))
        return found

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Where there is a table in each layer beside a shared one, their sums."""
        layers = [name for name in found.tensors if name.endswith(f"attention.attention.{BIASES}")]
        if SHARED in found.tensors and layers:
            shared = found.tensors.pop(SHARED)
            for name in layers:
                if found.tensors[name].shape != shared.shape:
                    message = f"{name} has another shape than {SHARED}, {tuple(shared.shape)}"
                    raise WeightsError(message, code="weights.shape_mismatch")
                found.tensors[name] = found.tensors[name] + shared
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        message, hint = "does not record its image size and pooling", "put the model's config.json beside it"
        raise ckpt.error(message, "weights.missing_setting", hint)

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        model = super().model(fields, found)
        if isinstance(inside_attention(model.position), RelativeBias) and len(set(model.image_size)) > 1:
            expected = "a square: the library mixes up the sides of its table"
            raise fields.wrong("image_size", expected, "weights.unsupported")
        return model

    def position(self, fields: Fields) -> PositionConfig:
        added = (
            Learned1d(resampling=self.resampling) if fields.flag("use_absolute_position_embeddings", False) else None
        )
        each = fields.flag("use_relative_position_bias", False)
        if not each and not fields.flag("use_shared_relative_position_bias", False):
            return added or NoPosition()
        inside = RelativeBias(shared=not each, resampling="bilinear_centers")
        return Combined(added=added, inside=inside) if added else inside

    def block(self, fields: Fields) -> PreNorm:
        scaled = fields.number("layer_scale_init_value") if fields.data.get("layer_scale_init_value") else 0.0
        scale = LayerScale(init=scaled) if scaled else NoScale()
        return super().block(fields).model_copy(update={"scale": scale})

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        if not fields.flag("use_mean_pooling", True):
            return ClassPool()
        if "pooler.layernorm.weight" in found.tensors:
            return MeanPool(norm="after")
        if f"{HEAD_NORM}weight" not in found.tensors:
            return MeanPool(norm="none")
        if not any(name.startswith("lm_head.") for name in found.unused):
            raise fields.wrong("use_mean_pooling", f"false, since the file has {HEAD_NORM}weight")
        return ClassPool()

    def special_rules(self, model: Vit) -> list[Rule]:
        inside, rules = inside_attention(model.position), super().special_rules(model)
        if isinstance(inside, RelativeBias) and inside.shared:
            rules.append(shared_table(model.depth))
        for layer in range(model.depth):
            theirs = f"{LAYER.replace('*', str(layer))}attention.attention."
            rules.append(no_key_bias(f"blocks.{layer}.mixer.heads.qkv.bias", theirs))
        return rules

    def config_fields(self, model: Vit) -> dict[str, Any]:
        inside, scale = inside_attention(model.position), model.block.scale
        fields = super().config_fields(model)
        del fields["qkv_bias"]
        return fields | {
            "use_absolute_position_embeddings": learned_table(model.position) is not None,
            "use_relative_position_bias": _is_relative(inside, shared=False),
            "use_shared_relative_position_bias": _is_relative(inside, shared=True),
            "layer_scale_init_value": scale.init if isinstance(scale, LayerScale) else 0.0,
            "use_mean_pooling": isinstance(model.pool, MeanPool),
            "use_mask_token": False,
        }


def _is_relative(inside: BasePosition, shared: bool) -> bool:
    return isinstance(inside, RelativeBias) and inside.shared is shared


def shared_table(depth: int) -> Rule:
    """One table of biases, which ours name in every layer."""
    ours = tuple(f"blocks.{layer}.mixer.heads.relation.table" for layer in range(depth))
    return Rule(ours, (SHARED,), lambda found: [found[0]] * depth, lambda own: own[:1])


def no_key_bias(ours: str, theirs: str) -> Rule:
    """Biases of queries and values alone; those of the keys are zeros in ours."""

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([found[0], torch.zeros_like(found[0]), found[1]])]

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        query, key, value = own[0].chunk(3)
        if not key.is_meta and bool(key.any()):
            message = "the bias of the keys, which is not 0 in this model, has no counterpart"
            raise WeightsError(message, code="weights.no_counterpart", where=ours)
        return [query, value]

    return Rule((ours,), (f"{theirs}query.bias", f"{theirs}value.bias"), read, write)


class HfInternvl(Family):
    """A ViT with LayerScale and without a last norm."""

    name = "hf-internvl"
    title = "Hugging Face's InternVL vision tower"
    types = ("internvl_vision",)
    architectures = ("InternVLVisionModel",)
    towers = ()
    unused = (MASK_TOKEN,)
    names: ClassVar[Names] = {
        "stem.project": "embeddings.patch_embeddings.projection",
        TOKENS: ("embeddings.cls_token",),
        TABLE: "embeddings.position_embeddings",
        **layer_names(
            LAYER,
            {
                **SCALES,
                "mixer_norm": "layernorm_before",
                "mixer.heads.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
                "mixer.heads.q_norm": "attention.q_norm",
                "mixer.heads.k_norm": "attention.k_norm",
                "mixer.project": "attention.projection_layer",
                "mlp_norm": "layernorm_after",
                "mlp.expand": "mlp.fc1",
                "mlp.contract": "mlp.fc2",
            },
        ),
        "norm": "layernorm",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {}
    processor = "ViT"
    assumed_images = (Resize(filter="bicubic"), IMAGENET)
    supported = VIT | {
        "position.kind": ("none", "learned1d"),
        "block.scale.kind": ("layer_scale",),
        "norm.kind": ("layer_norm", "rms_norm"),
        "mixer.qk_norm": (False, True),
        "mixer.qk_norm_over": ("head", "width"),
    }
    pools_and_heads = frozenset({("cls", "none"), ("mean", "none")})
    pool_norms: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {("mean", "none"): ("none",)}
    attention_dropout = "attention_dropout"
    squares = True

    def matches_names(self, names: set[str]) -> bool:
        return False  # no tensor shows the pooling

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if fields.flag("use_qk_norm", False) and (fields.given("norm_type"), fields.number(self.eps_field)) != QK_NORM:
            expected = "false, or an RMSNorm with eps 1e-6 as the other norms: it normalizes queries and keys with it"
            raise fields.wrong("use_qk_norm", expected, "weights.unsupported")
        return super().model(fields, found)

    def position(self, fields: Fields) -> PositionConfig:
        absolute = fields.flag("use_absolute_position_embeddings", True)
        return Learned1d(resampling=self.resampling) if absolute else NoPosition()

    def qkv_bias(self, fields: Fields) -> bool:
        return fields.flag("attention_bias", False)

    def mixer(self, fields: Fields, heads: int, dropout: float) -> Attention:
        normed = fields.flag("use_qk_norm", False)
        made = super().mixer(fields, heads, fields.rate("projection_dropout"))
        return made.model_copy(update={"qk_norm": True, "qk_norm_over": "width"}) if normed else made

    def norm(self, fields: Fields) -> NormConfig:
        kinds: dict[str, NormConfig] = {"layer_norm": LayerNorm(), "rms_norm": RmsNorm()}
        if fields.given("norm_type") not in kinds:
            raise fields.wrong("norm_type", "layer_norm or rms_norm", "weights.unsupported")
        kind: NormConfig = kinds[fields.data["norm_type"]]
        if isinstance(kind, RmsNorm) and not fields.flag("use_mean_pooling", True):
            expected = "true: its last norm is of another kind than the others"
            raise fields.wrong("use_mean_pooling", expected, "weights.unsupported")
        return kind

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return MeanPool(norm="none") if fields.flag("use_mean_pooling", True) else ClassPool()

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if isinstance(model.norm, RmsNorm) and isinstance(model.pool, ClassPool):
            yield f"norm: the last norm of {self.title} is a LayerNorm, that of this model {model.norm.kind}"
        mixer = model.mixer
        if isinstance(mixer, Attention) and mixer.qk_norm:
            if mixer.qk_norm_over != "width":
                yield f"mixer.qk_norm_over: {self.title} needs width, this model has {mixer.qk_norm_over}"
            if (model.norm.kind, model.eps) != QK_NORM:
                yield f"norm: {self.title} normalizes queries and keys with RMSNorm and eps 1e-6"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        assert isinstance(model.mixer, Attention)
        fields = super().config_fields(model)
        return fields | {
            "attention_bias": fields.pop("qkv_bias"),
            "norm_type": model.norm.kind,
            "use_qk_norm": model.mixer.qk_norm,
            "use_mean_pooling": isinstance(model.pool, MeanPool),
            "use_absolute_position_embeddings": learned_table(model.position) is not None,
            "image_size": list(model.image_size),
            "patch_size": list(model.stem.patch),
        }

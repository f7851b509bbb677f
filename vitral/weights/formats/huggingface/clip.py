"""The vision towers of CLIP (arXiv 2103.00020), BLIP (2201.12086), MLCD (2407.17331), SigLIP (2303.15343), SigLIP 2.

`CLIPVisionModel`, with or without its projection, within a `CLIPModel`, or with a classifier, and models of the same
layout: MetaCLIP 2, AltCLIP, Chinese-CLIP, the towers of CLIPSeg, GIT, OWL-ViT and OWLv2; `BlipVisionModel` and those of
BLIP-2 and InstructBLIP; `MLCDVisionModel`; `SiglipVisionModel` and `Siglip2VisionModel`, within a whole model, or with
a classifier.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.data.transforms.crop import CenterCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.head import HeadConfig, NoHead, ProjectionHead
from vitral.models.pool import AttentionPool, ClassPool, MeanPool, PoolConfig
from vitral.models.position import PositionConfig, RopeCls
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.counterpart import setting_value
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.defaults import DEFAULTS
from vitral.weights.formats.huggingface.family import ADD_CONFIG, VIT, Family, TowerTensors
from vitral.weights.formats.huggingface.processor import CLIP_NORMALIZE
from vitral.weights.formats.rules import TABLE, TOKENS, Names, Rule, layer_names, mapped, split

STEM, LAYER, TOWER = "embeddings.patch_embedding", "encoder.layers.*.", "vision_model."
FIRST, PROJECTION = LAYER.replace("*", "0"), "visual_projection"
FIRST_QUERY, OUT_PROJECTION = f"{FIRST}self_attn.q_proj.weight", f"{FIRST}self_attn.out_proj.weight"
CLASS_ANGLES = "class_pos_emb"
PACKING = tuple(f"the vision tower of {name}" for name in ("Idefics2", "Idefics3", "SmolVLM", "PaddleOCR-VL"))
TEXT = (
    (r"text_model\.", "belongs to the text tower"),
    (r"text_projection\.", "projects texts to the shared embedding"),
    (r"logit_(scale|bias)$", "scales the similarity of images and texts"),
    (r"embeddings\.position_ids$", "numbers the positions"),
)


class VisionTower(Family):
    """What both towers share."""

    towers = (TOWER,)
    names: ClassVar[Names] = {
        "stem.project": STEM,
        TABLE: "embeddings.position_embedding.weight",
        **layer_names(
            LAYER,
            {
                "mixer_norm": "layer_norm1",
                "mixer.heads.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "mixer.project": "self_attn.out_proj",
                "mlp_norm": "layer_norm2",
                "mlp.expand": "mlp.fc1",
                "mlp.contract": "mlp.fc2",
            },
        ),
        "norm": "post_layernorm",
    }
    flat_positions = True
    squares = True
    # Fields that the config of a whole model omits where they have these values.
    vision_defaults: ClassVar[Mapping[str, Any]] = DEFAULTS["clip_vision_model"]

    dropout, attention_dropout = "", "attention_dropout"

    def vision_fields(self, fields: Fields) -> Fields:
        return fields.part("vision_config", self.vision_defaults) if "vision_config" in fields.data else fields

    def prefix(self, model: Vit) -> str:
        return TOWER


class HfClip(VisionTower):
    """A ViT that normalizes its tokens before the first layer."""

    name = "hf-clip"
    title = "Hugging Face's CLIP vision tower"
    # Of one layout; the first two are written.
    types: ClassVar[tuple[str, ...]] = (
        "clip_vision_model",
        "clip",
        "metaclip_2_vision_model",
        "metaclip_2",
        "altclip_vision_model",
        "altclip",
        "chinese_clip_vision_model",
        "chinese_clip",
        "clipseg_vision_model",
        "git_vision_model",
        "owlvit_vision_model",
        "owlv2_vision_model",
    )
    architectures: ClassVar[tuple[str, ...]] = ("CLIPVisionModel", "CLIPForImageClassification")
    renamed = ((r"^pre_layernorm\.", "pre_layrnorm."),)  # of OWL-ViT
    unused: ClassVar[tuple[tuple[str, str], ...]] = TEXT
    names: ClassVar[Names] = {
        **VisionTower.names,
        TOKENS: ("embeddings.class_embedding",),
        "first_norm": "pre_layrnorm",
        "head.linear": "classifier",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-5}  # published models have two kinds of GELU
    processor = "CLIP"
    assumed_images = (CenterCrop(fraction=1.0, filter="bicubic", rounding="down"), CLIP_NORMALIZE)
    supported = VIT | {"stem.bias": (False,), "tokens.norm": (True,), "mixer.qkv_bias": (True,)}
    pools_and_heads = frozenset({("cls", "none"), ("cls", "projection"), ("mean", "linear")})
    pool_norms: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {("mean", "linear"): ("none",)}

    def matches_names(self, names: set[str]) -> bool:
        return {"pre_layrnorm.weight", f"{STEM}.weight", FIRST_QUERY} <= names and CLASS_ANGLES not in names

    def prepare(self, found: TowerTensors) -> TowerTensors:
        if "classifier.weight" in found.tensors:
            found.ignore("post_layernorm.", "normalizes the class token, which the classifier does not read")
        return found

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        """The library's classifier reads the mean of the patches before the last norm."""
        return MeanPool(norm="none") if "classifier.weight" in found.tensors else ClassPool()

    def head(self, fields: Fields, found: TowerTensors) -> HeadConfig:
        width = found.rows(f"{PROJECTION}.weight")
        return super().head(fields, found) if width is None else ProjectionHead(width=width)

    def tensor_names(self, model: Vit) -> Names:
        return {**self.names, "head.linear": PROJECTION} if isinstance(model.head, ProjectionHead) else self.names

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if isinstance(model.head, ProjectionHead) and (model.head.bias or model.head.activation != "identity"):
            yield f"head: the projection of {self.title} is a linear map without a bias"

    def architecture(self, model: Vit) -> str:
        projects = isinstance(model.head, ProjectionHead)
        return "CLIPVisionModelWithProjection" if projects else super().architecture(model)

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model)
        if isinstance(model.head, ProjectionHead):
            return fields | {"projection_dim": model.head.width}
        return fields if isinstance(model.head, NoHead) else {"model_type": self.types[1], "vision_config": fields}

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        """The library expects the norm of the class token beside a classifier that does not read it."""
        assert isinstance(bundle.model, Vit)
        if not isinstance(bundle.model.head, NoHead):
            width, norm = bundle.model.width, f"{TOWER}post_layernorm"
            tensors = {**tensors, f"{norm}.weight": torch.ones(width), f"{norm}.bias": torch.zeros(width)}
        return super().files(bundle, tensors)


class HfMlcd(HfClip):
    """A CLIP tower whose positions are rotations; that of the class token is learned."""

    name = "hf-mlcd"
    title = "Hugging Face's MLCD vision tower"
    types = ("mlcd_vision_model",)
    architectures = ("MLCDVisionModel",)
    unused = ((r"embeddings\.position_ids$", "numbers the positions"),)
    names: ClassVar[Names] = {
        ours: theirs for ours, theirs in HfClip.names.items() if ours != TABLE and not ours.startswith("head.")
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-5, "hidden_act": "gelu"}
    supported = HfClip.supported | {"position.kind": ("rope_cls",)}
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        return {CLASS_ANGLES, "pre_layrnorm.weight", f"{STEM}.weight", FIRST_QUERY} <= names

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        if not ckpt.setting("image_size"):
            raise ckpt.missing_setting("does not record its image size", "image_size=HEIGHTxWIDTH")
        return super().fields_from_tensors(ckpt) | {"image_size": list(Size.parse(ckpt.setting("image_size")))}

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if fields.has("num_key_value_groups") and fields.whole("num_key_value_groups") != 1:
            raise fields.wrong("num_key_value_groups", "1", "weights.unsupported")
        return super().model(fields, found)

    def position(self, fields: Fields) -> PositionConfig:
        """Older configs have `rope_scaling`, or the base beside it; a type of `default` is the model's own."""
        name = "rope_scaling" if fields.has("rope_scaling") else "rope_parameters"
        base = fields.data["rope_theta"] if fields.has("rope_theta") else 10_000.0
        rope = fields.part(name, {"rope_type": "axial", "rope_theta": base})
        if rope.data["rope_type"] not in ("axial", "default"):
            raise rope.wrong("rope_type", "axial", "weights.unsupported")
        return RopeCls(base=rope.number("rope_theta"))

    def prefix(self, model: Vit) -> str:
        return ""

    def special_rules(self, model: Vit) -> list[Rule]:
        """One row of angles, which ours name in every layer."""
        ours = tuple(f"blocks.{layer}.mixer.heads.relation.cls_angles" for layer in range(model.depth))

        def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
            return [found[0][0]] * model.depth

        return [*super().special_rules(model), Rule(ours, (CLASS_ANGLES,), read, lambda own: [own[0][None]])]

    def config_fields(self, model: Vit) -> dict[str, Any]:
        assert isinstance(model.position, RopeCls)
        fields = super().config_fields(model)
        del fields["qkv_bias"]  # there is always one
        return fields | {"rope_parameters": {"rope_type": "axial", "rope_theta": model.position.base}}


class HfBlip(VisionTower):
    """A ViT that normalizes its class token twice."""

    name = "hf-blip"
    title = "Hugging Face's BLIP vision tower"
    types = ("blip_vision_model", "blip_2_vision_model", "instructblip_vision_model")  # the first is written
    architectures = ("BlipVisionModel",)
    names: ClassVar[Names] = {
        **VisionTower.names,
        TABLE: "embeddings.position_embedding",
        TOKENS: ("embeddings.class_embedding",),
        **layer_names(LAYER, {"mixer.heads.qkv": "self_attn.qkv", "mixer.project": "self_attn.projection"}),
    }
    flat_positions = False
    default_fields: ClassVar[Mapping[str, Any]] = {"hidden_act": "gelu"}  # BLIP and BLIP-2 have another eps
    processor = "Blip"
    assumed_images = (Resize(filter="bicubic"), CLIP_NORMALIZE)
    pools_and_heads = frozenset({("cls", "none")})
    pool_norms: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {("cls", "none"): ("both",)}

    def matches_names(self, names: set[str]) -> bool:
        return {"embeddings.class_embedding", "embeddings.position_embedding", f"{FIRST}self_attn.qkv.weight"} <= names

    def vision_fields(self, fields: Fields) -> Fields:
        return fields._replace(data={"num_channels": 3, **fields.data})

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return ClassPool(norm="both")

    def prefix(self, model: Vit) -> str:
        return ""

    def special_rules(self, model: Vit) -> list[Rule]:
        norms = [twice((f"norm.{part}", f"pool.norm.{part}"), f"post_layernorm.{part}") for part in ("weight", "bias")]
        return super().special_rules(model) + norms

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if model.channels != 3:
            yield f"channels: {self.title} has 3, this model {model.channels}"
        if not setting_value(model, "mixer.qkv_bias"):
            yield f"mixer.qkv_bias: {self.title} has one"


def twice(ours: tuple[str, str], theirs: str) -> Rule:
    """A tensor that theirs use in two places."""

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        if not own[0].is_meta and not torch.equal(own[0], own[1]):
            message = f"{ours[0]} differs from it in this model, and has no counterpart"
            raise WeightsError(message, code="weights.no_counterpart", where=ours[1])
        return own[:1]

    return Rule(ours, (theirs,), lambda found: [found[0], found[0].clone()], write)


class HfSiglip(VisionTower):
    """A ViT without a class token, whose patches a learned query pools."""

    name = "hf-siglip"
    title = "Hugging Face's SigLIP vision tower"
    types: ClassVar[tuple[str, ...]] = ("siglip_vision_model", "siglip")
    architectures: ClassVar[tuple[str, ...]] = ("SiglipVisionModel", "SiglipForImageClassification")
    unused = TEXT
    stem_dims: ClassVar[int] = 4  # of the patch embedding's weight
    names: ClassVar[Names] = {
        **VisionTower.names,
        "pool.query": "head.probe",
        "pool.project": "head.attention.out_proj",
        "pool.norm": "head.layernorm",
        "pool.mlp.expand": "head.mlp.fc1",
        "pool.mlp.contract": "head.mlp.fc2",
        "head.linear": "classifier",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh"}
    vision_defaults: ClassVar[Mapping[str, Any]] = DEFAULTS["siglip_vision_model"]
    processor = "Siglip"
    assumed_images = (Resize(filter="bicubic"), CENTERED)
    supported = VIT | {"tokens.cls": (False,), "mixer.qkv_bias": (True,)}
    pools_and_heads = frozenset({("attention", "none"), ("mean", "none"), ("mean", "linear")})

    def matches(self, ckpt: Checkpoint) -> bool:
        stem = next((tensor for name, tensor in ckpt.tensors.items() if self.short(name) == f"{STEM}.weight"), None)
        return super().matches(ckpt) and ("model_type" in ckpt.config or stem is None or stem.ndim == self.stem_dims)

    def matches_names(self, names: set[str]) -> bool:
        parts = {f"{STEM}.bias", str(self.names[TABLE]), FIRST_QUERY, "post_layernorm.weight"}
        return parts <= names and "pre_layrnorm.weight" not in names and OUT_PROJECTION in names

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        """Towers that place their positions by the aspect ratio, where only the tower is in the file."""
        names = {self.short(name) for name in ckpt.tensors}
        if "model_type" in ckpt.config or "classifier.weight" in names or any(re.match(TEXT[0][0], n) for n in names):
            return ()
        return ("Phi-4 multimodal",) if "head.probe" in names else PACKING

    def prepare(self, found: TowerTensors) -> TowerTensors:
        if "classifier.weight" in found.tensors:
            found.ignore("head.", "pools the patches in another way than the classifier does")
        return found

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return AttentionPool() if any(name.startswith("head.") for name in found.tensors) else MeanPool()

    def special_rules(self, model: Vit) -> list[Rule]:
        """In theirs, the map of the query is concatenated with those of keys and values."""
        rules, width = super().special_rules(model), model.width
        for part in ("weight", "bias") if isinstance(model.pool, AttentionPool) else ():
            ours = (f"pool.q.{part}", f"pool.kv.{part}")
            rules.append(split(ours, f"head.attention.in_proj_{part}", (width, 2 * width)))
        return rules

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model) | {"vision_use_head": isinstance(model.pool, AttentionPool)}
        return fields if isinstance(model.head, NoHead) else {"model_type": self.types[1], "vision_config": fields}


class HfSiglip2(HfSiglip):
    """SigLIP 2 for images of any aspect ratio ("NaFlex"), which takes patches; those of one size are a `siglip`."""

    name = "hf-siglip2"
    title = "Hugging Face's SigLIP 2 vision tower"
    types = ("siglip2_vision_model", "siglip2")
    stem_dims = 2
    architectures = ("Siglip2VisionModel", "Siglip2ForImageClassification")
    vision_defaults: ClassVar[Mapping[str, Any]] = DEFAULTS["siglip2_vision_model"]
    resampling = "bilinear_antialias"
    processor = "Siglip2"
    assumed_images = (Resize(), CENTERED)

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        return () if "model_type" in ckpt.config else ("the vision tower of Cosmos 3",)

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        raise ckpt.error("does not record the size of its patches", "weights.missing_setting", ADD_CONFIG)

    def vision_fields(self, fields: Fields) -> Fields:
        """The image size is that of its table, which is square."""
        found = super().vision_fields(fields)
        side = isqrt(found.whole("num_patches"))
        if side**2 != found.data["num_patches"]:
            raise found.wrong("num_patches", "a square number")
        patch = found.size("patch_size")
        return found._replace(data={**found.data, "image_size": [side * patch.height, side * patch.width]})

    def special_rules(self, model: Vit) -> list[Rule]:
        """Theirs is a linear map of patches whose channels come last."""
        patch = model.stem.patch

        def read(weight: Tensor) -> Tensor:
            return weight.unflatten(1, (*patch, -1)).permute(0, 3, 1, 2).flatten(1)  # (D, C P P)

        def write(weight: Tensor) -> Tensor:
            return weight.unflatten(1, (-1, *patch)).permute(0, 2, 3, 1).flatten(1)  # (D, P P C)

        stem = mapped("stem.project.weight", f"{STEM}.weight", read, write)
        return [stem, *super().special_rules(model)[1:]]

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model)
        inner = fields.get("vision_config", fields)
        del inner["image_size"]
        inner["num_patches"] = model.layout(model.image_size).grid.cells()
        return fields

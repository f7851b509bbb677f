"""Vision towers that are plain ViTs: Janus (arXiv 2410.13848), MGP-STR (2209.03592), ViTPose (2204.12484) and others.

`JanusVisionModel`; `MgpstrModel`, without its heads for text; `Sapiens2Model`; `PixioModel`; `VitPoseBackbone`, alone
or in a `VitPoseForPoseEstimation`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.data.transforms.crop import Resize
from vitral.data.transforms.preprocessing import IMAGENET, Normalize
from vitral.models.attention import Attention
from vitral.models.embed import OverlappingPatches, StemConfig
from vitral.models.mlp import Mlp, MlpConfig
from vitral.models.norm import NormConfig, RmsNorm
from vitral.models.pool import ClassPool, MeanPool, PoolConfig, PrefixPool
from vitral.models.position import Learned1d, PositionConfig, Rope2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import ANY_NUMBER, Checkpoint, OracleFiles
from vitral.weights.formats.huggingface.clip import LAYER as CLIP_LAYER
from vitral.weights.formats.huggingface.clip import HfSiglip
from vitral.weights.formats.huggingface.config import Fields
from vitral.weights.formats.huggingface.defaults import DEFAULTS
from vitral.weights.formats.huggingface.dino import check_biases, gated_mlp
from vitral.weights.formats.huggingface.family import ADD_CONFIG, VIT, Family, TowerTensors
from vitral.weights.formats.huggingface.vit import BEIT, CLASS_TOKEN, DISTILLATION_TOKEN, LAYER, STEM, HfVit
from vitral.weights.formats.rules import (
    TABLE,
    TOKENS,
    Names,
    Rule,
    concat,
    constant,
    layer_names,
    mapped,
    patch_kernel,
    same,
)
from vitral.weights.oracles.oracle import OracleRequest

MARGIN = 2  # pixels of zeros around the images of ViTPose
PROJECTION = f"{CLIP_LAYER}self_attn.projection_layer"
GATES = ("mlp.gate_proj.", "mlp.up_proj.")  # inside the library; one map in published files


class RatioFamily(Family):
    """A family whose config has the ratio of the MLP's widths instead of its hidden width."""

    whole_ratio: ClassVar[bool] = False  # whether it is an integer

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        if not fields.has("mlp_ratio") and fields.has("intermediate_size"):  # from the shapes
            return super().mlp(fields, width)
        return Mlp(ratio=int(width * fields.number("mlp_ratio")) / width, activation=self.activation(fields))

    def activation(self, fields: Fields) -> Any:
        return fields.activation()

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        hidden = model.mlp.hidden(model.width)
        if int(model.width * (hidden / model.width)) != hidden or (self.whole_ratio and hidden % model.width):
            yield f"mlp.ratio: no ratio of {self.title} gives {hidden} hidden values of {model.width}"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model)
        ratio = fields.pop("intermediate_size") / model.width
        return fields | {"mlp_ratio": int(ratio) if self.whole_ratio else ratio}


class HfJanus(RatioFamily, HfSiglip):
    """A SigLIP tower with other names and without its pool."""

    name = "hf-janus"
    title = "Hugging Face's Janus vision tower"
    types = ("janus_vision_model",)
    architectures = ("JanusVisionModel",)
    names: ClassVar[Names] = {
        **{ours: theirs for ours, theirs in HfSiglip.names.items() if not ours.startswith(("pool.", "head."))},
        "blocks.*.mixer.project": PROJECTION,
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu"}
    supported = VIT | {"tokens.cls": (False,)}
    pools_and_heads = frozenset({("mean", "none")})

    def matches_names(self, names: set[str]) -> bool:
        return {"post_layernorm.weight", f"{PROJECTION.replace('*', '0')}.weight"} <= names

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        return ()

    def fields(self, ckpt: Checkpoint, found: TowerTensors) -> tuple[Fields, tuple[str, ...]]:
        fields, assumed = super().fields(ckpt, found)
        line = "pooled to the mean of the patches; the library's pooled output, its first patch, is used by no model"
        return fields, (*assumed, line)

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        biased = f"{CLIP_LAYER.replace('*', '0')}self_attn.q_proj.bias" in ckpt.tensors
        return super().fields_from_tensors(ckpt) | {"attention_bias": biased}

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if fields.flag("use_qk_norm", False):
            raise fields.wrong("use_qk_norm", "false: it normalizes what its heads do not have", "weights.unsupported")
        return super().model(fields, found)

    def qkv_bias(self, fields: Fields) -> bool:
        return fields.flag("attention_bias", True)

    def prefix(self, model: Vit) -> str:
        return ""

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model)
        del fields["vision_use_head"]
        return fields | {"attention_bias": fields.pop("qkv_bias"), "use_qk_norm": False}

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        request = super().oracle_request(files, model)
        return request._replace(arguments={**request.arguments, "logits": False})  # its pooled output is not ours


class HfMgpstr(RatioFamily):
    """The ViT that reads scene text, without a last norm, and without the heads that decode the text."""

    name = "hf-mgp-str"
    title = "the encoder of Hugging Face's MGP-STR"
    types = ("mgp-str",)
    architectures = ("MgpstrModel",)
    towers = ("mgp_str.",)
    unused = ((r"(char|bpe|wp)_(a3_module|head)\.", "decodes text"),)
    names: ClassVar[Names] = {
        "stem.project": "embeddings.proj",
        TOKENS: ("embeddings.cls_token",),
        TABLE: "embeddings.pos_embed",
        **layer_names(
            "encoder.blocks.*.",
            {
                "mixer_norm": "norm1",
                "mixer.heads.qkv": "attn.qkv",
                "mixer.project": "attn.proj",
                "mlp_norm": "norm2",
                "mlp.expand": "mlp.fc1",
                "mlp.contract": "mlp.fc2",
            },
        ),
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-5}
    assumed_images = (Resize(filter="bicubic"), Normalize(mean=(0.0,), std=(1.0,)))
    supported = VIT | {"mlp.activation": ("gelu",)}
    pools_and_heads = frozenset({("cls", "none")})
    pool_norms: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {("cls", "none"): ("none",)}
    dropout, attention_dropout, drop_path = "drop_rate", "attn_drop_rate", "linear"

    def matches_names(self, names: set[str]) -> bool:
        return {"embeddings.proj.weight", "embeddings.pos_embed", "encoder.blocks.0.attn.qkv.weight"} <= names

    def table_image_size(self, ckpt: Checkpoint, patch: Size) -> Size:
        """As given: the published model has a grid that is not square."""
        rows = ckpt.shape("embeddings.pos_embed", 3)[1]
        if not ckpt.setting("image_size"):
            message = f"does not record the image size of its {rows - 1} positions"
            raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH")
        return ckpt.infer_image_size(rows, (1,), patch)[0]

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if fields.flag("distilled", False):
            expected = "false: it has a position for a token that is not there"
            raise fields.wrong("distilled", expected, "weights.unsupported")
        return super().model(fields, found)

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        ratio = fields.number("mlp_ratio") if fields.has("mlp_ratio") else fields.whole("intermediate_size") / width
        return Mlp(ratio=int(width * ratio) / width, activation="gelu")

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return ClassPool(norm="none")

    def config_fields(self, model: Vit) -> dict[str, Any]:
        fields = super().config_fields(model)
        del fields["hidden_act"]
        return fields | {"image_size": list(model.image_size)}


class HfSapiens2(Family):
    """A ViT with RMSNorm, SwiGLU, rotary positions and registers, whose attention branch alone is scaled."""

    name = "hf-sapiens2"
    title = "Hugging Face's Sapiens2"
    types = ("sapiens2",)
    architectures = ("Sapiens2Model",)
    towers = ()
    renamed = (  # inside the library
        (r"^embeddings\.cls_token$", "cls_token"),
        (r"^embeddings\.register_tokens$", "storage_tokens"),
        (r"^embeddings\.patch_embeddings\.", "patch_embed.projection."),
        (r"^model\.layer\.(\d+)\.", r"blocks.\1."),
        (r"\battention\.([qkv])_proj\.", r"attn.w\1."),
        (r"\battention\.o_proj\.", "attn.proj."),
        (r"\battention\.([qk])_norm\.", r"attn.\1_norm."),
        (r"\blayer_scale1\.lambda1$", "attn.gamma.weight"),
        (r"\bmlp\.down_proj\.", "ffn.w3."),
        (r"\.norm([12])\.", r".ln\1."),
        (r"^norm\.", "ln1."),
    )
    unused = ((r".*mask_token$", "replaces masked patches, in pre-training only"), (r".*periods$", "computed"))
    names: ClassVar[Names] = {
        "stem.project": "patch_embed.projection",
        TOKENS: ("cls_token", "storage_tokens"),
        **layer_names(
            "blocks.*.",
            {
                "mixer_norm": "ln1",
                "mixer.heads.qkv": ("attn.wq", "attn.wk", "attn.wv"),
                "mixer.heads.q_norm": "attn.q_norm",
                "mixer.heads.k_norm": "attn.k_norm",
                "mixer.project": "attn.proj",
                "mixer_branch.scale.factor": "attn.gamma.weight",
                "mlp_norm": "ln2",
                "mlp.expand": "ffn.w12",
                "mlp.contract": "ffn.w3",
            },
        ),
        "norm": "ln1",
    }
    eps_field = "rms_norm_eps"
    default_fields: ClassVar[Mapping[str, Any]] = {}
    assumed_images = (Resize(), IMAGENET)
    supported = VIT | {
        "tokens.registers": ANY_NUMBER,
        "position.kind": ("rope2d",),
        "block.scale.kind": ("layer_scale",),
        "norm.kind": ("rms_norm",),
        "mixer.qk_norm": (True, False),
        "mixer.project_bias": (True, False),
        "mlp.kind": ("swiglu",),
        "mlp.bias": (True, False),
    }
    pools_and_heads = frozenset({("cls", "none")})
    dropout, attention_dropout, drop_path = "", "attention_dropout", "constant"
    biases = ("query_bias", "key_bias", "value_bias")

    def matches_names(self, names: set[str]) -> bool:
        parts = {"storage_tokens", "blocks.0.attn.wq.weight", "blocks.0.ln1.weight"}
        return parts <= names and "blocks.0.ln1.bias" not in names  # which DINOv3 has

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """Repeat keys and values that several heads share, and join the halves of a gated MLP's first map."""
        tensors = found.tensors
        for name in [name for name in tensors if GATES[0] in name]:
            gate, value = tensors.pop(name), tensors.pop(name.replace(*GATES))
            tensors[name.replace(GATES[0], "ffn.w12.")] = torch.cat([gate, value])
        for name in [name for name in tensors if ".attn.wk." in name or ".attn.wv." in name]:
            rows = len(tensors[f"{name.partition('attn.')[0]}attn.wq.weight"])
            if (groups := rows // len(tensors[name])) == 1:
                continue
            norm = tensors.get(f"{name.partition('attn.')[0]}attn.q_norm.weight")
            if norm is None:
                message = f"{name} is shared by heads of a width that no tensor shows"
                raise WeightsError(message, code="weights.unsupported")
            heads = tensors[name].unflatten(0, (-1, len(norm)))
            tensors[name] = heads.repeat_interleave(groups, dim=0).flatten(0, 1)
        for name in [name for name in tensors if name.endswith((".attn.wq.bias", ".attn.wk.bias", ".attn.wv.bias"))]:
            for part in "qkv":
                tensors.setdefault(f"{name[:-6]}{part}.bias", torch.zeros_like(tensors[name]))
        if "storage_tokens" in tensors and not tensors["storage_tokens"].numel():
            del tensors["storage_tokens"]
        return found

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        raise ckpt.error("does not record the size of its images", "weights.missing_setting", ADD_CONFIG)

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if not fields.flag("use_gated_mlp", True):
            raise fields.wrong("use_gated_mlp", "true: published models have it", "weights.unsupported")
        check_biases(fields, found, {name: f".attn.w{name[0]}.bias" for name in self.biases}, default=True)
        return super().model(fields, found)

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.whole("num_register_tokens", least=0))

    def position(self, fields: Fields) -> PositionConfig:
        return Rope2d(base=fields.number("rope_theta"))

    def norm(self, fields: Fields) -> NormConfig:
        return RmsNorm()

    def qkv_bias(self, fields: Fields) -> bool:
        return any(fields.flag(name, True) for name in self.biases)

    def mixer(self, fields: Fields, heads: int, dropout: float) -> Attention:
        more = {"qk_norm": fields.flag("use_qk_norm", True), "project_bias": fields.flag("proj_bias", True)}
        return super().mixer(fields, heads, dropout).model_copy(update=more)

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        hidden, bias = fields.whole("intermediate_size"), fields.flag("mlp_bias", True)
        return gated_mlp(hidden, width, fields.activation(), bias)

    def prefix(self, model: Vit) -> str:
        return ""

    def special_rules(self, model: Vit) -> list[Rule]:
        ours = [f"blocks.{layer}.mlp_branch.scale.factor" for layer in range(model.depth)]
        ones = [constant(name, (model.width,), 1.0, "the scale of the MLP's branch") for name in ours]
        return super().special_rules(model) + ones

    def config_fields(self, model: Vit) -> dict[str, Any]:
        assert isinstance(model.position, Rope2d)
        assert isinstance(model.mixer, Attention)
        fields = super().config_fields(model)
        return fields | {
            **dict.fromkeys(self.biases, fields.pop("qkv_bias")),
            "num_register_tokens": model.tokens.registers,
            "rope_theta": model.position.base,
            "use_gated_mlp": True,
            "mlp_bias": model.mlp.bias,
            "proj_bias": model.mixer.project_bias,
            "use_qk_norm": model.mixer.qk_norm,
            "num_key_value_heads_per_layer": [model.mixer.heads] * model.depth,
        }


class HfPixio(RatioFamily, HfVit):
    """A ViT with several class tokens, whose mean it pools: one class token and registers with positions here."""

    name = "hf-pixio"
    title = "Hugging Face's Pixio"
    types = ("pixio",)
    architectures = ("PixioModel",)
    towers = ("pixio.",)
    renamed = (
        (r"^(layers\.\d+\.)layernorm_before\.", r"\1norm1."),
        (r"^(layers\.\d+\.)layernorm_after\.", r"\1norm2."),
        *HfVit.renamed,
    )
    names: ClassVar[Names] = {
        **{ours: theirs for ours, theirs in HfVit.names.items() if ours != "head.linear"},
        **layer_names(LAYER, {"mixer_norm": "norm1", "mlp_norm": "norm2"}),
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu"}
    assumed_images = (Resize(filter="bicubic"), IMAGENET)
    supported = VIT | {"tokens.registers": ANY_NUMBER, "position.register_rows": (True, False)}
    pools_and_heads = frozenset({("prefix", "none")})
    drop_path = "constant"
    whole_ratio = True
    squares = True

    def matches_names(self, names: set[str]) -> bool:
        layer = LAYER.replace("*", "0")
        parts = {f"{STEM}.weight", CLASS_TOKEN, f"{layer}norm1.weight", f"{layer}attention.attention.query.weight"}
        others = {f"{layer}layer_scale1.lambda1", "classifier.weight", "pooler.dense.weight", DISTILLATION_TOKEN}
        return parts <= names and not names & (others | BEIT)

    def certain(self, ckpt: Checkpoint) -> bool:
        published = any(name.endswith(f"{LAYER.replace('*', '0')}norm1.weight") for name in ckpt.tensors)
        tokens = next(tensor for name, tensor in ckpt.tensors.items() if self.short(name) == CLASS_TOKEN)
        return published or tokens.shape[1:2] != (1,)

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        return super().fields_from_tensors(ckpt) | {"n_cls_tokens": ckpt.shape(CLASS_TOKEN, 3)[1]}

    def table_image_size(self, ckpt: Checkpoint, patch: Size) -> Size:
        rows = ckpt.shape(str(self.names[TABLE]), 3)[1]
        return ckpt.infer_image_size(rows, (ckpt.shape(CLASS_TOKEN, 3)[1],), patch)[0]

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.whole("n_cls_tokens") - 1)

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(register_rows=fields.whole("n_cls_tokens") > 1, resampling=self.resampling)

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return PrefixPool()

    def special_rules(self, model: Vit) -> list[Rule]:
        kernel = patch_kernel("stem.project.weight", f"{STEM}.weight", model.stem.patch)
        tokens = Rule((TOKENS,), (CLASS_TOKEN,), lambda found: [found[0][0]], lambda own: [own[0][None]])
        return [kernel, tokens, same(TABLE, str(self.names[TABLE]))]

    def prefix(self, model: Vit) -> str:
        return ""

    def config_fields(self, model: Vit) -> dict[str, Any]:
        return super().config_fields(model) | {"n_cls_tokens": 1 + model.tokens.registers}


class HfVitpose(RatioFamily, HfVit):
    """A ViT without a class token, whose convolution has a margin of two pixels: overlapping patches here.

    The kernel is that of the library with four more rows and columns of zeros, so that its cell is in the middle.
    """

    name = "hf-vitpose"
    title = "the encoder of Hugging Face's ViTPose"
    types = ("vitpose_backbone", "vitpose")  # the first is written
    architectures = ("VitPoseBackbone",)
    towers = ("backbone.",)
    renamed = ()
    unused = ((r"head\.", "finds the keypoints"),)
    names: ClassVar[Names] = {
        **{ours: theirs for ours, theirs in HfVit.names.items() if ours not in (TOKENS, "head.linear")},
        **layer_names(LAYER, {"mlp.expand": "mlp.fc1", "mlp.contract": "mlp.fc2"}),
    }
    processor = "VitPose"
    assumed_images = (Resize(), IMAGENET)
    supported = VIT | {"stem.kind": ("overlapping_patches",), "tokens.cls": (False,)}
    pools_and_heads = frozenset({("mean", "none")})
    layer_dropout = False
    whole_ratio = True

    def matches_names(self, names: set[str]) -> bool:
        first = LAYER.replace("*", "0")
        parts = {f"{STEM}.weight", f"{first}attention.attention.query.weight", f"{first}layernorm_before.weight"}
        return parts | {f"{first}mlp.fc1.weight"} <= names and CLASS_TOKEN not in names

    def fields(self, ckpt: Checkpoint, found: TowerTensors) -> tuple[Fields, tuple[str, ...]]:
        fields, assumed = super().fields(ckpt, found)
        return fields, (*assumed, "pooled to the mean of the patches; the library pools nothing")

    def table_image_size(self, ckpt: Checkpoint, patch: Size) -> Size:
        """As given: published models have grids that are not square."""
        rows = ckpt.shape(str(self.names[TABLE]), 3)[1]
        if not ckpt.setting("image_size"):
            message = f"does not record the image size of its {rows - 1} positions"
            raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH")
        return ckpt.infer_image_size(rows, (1,), patch)[0]

    def vision_fields(self, fields: Fields) -> Fields:
        return (
            fields.part("backbone_config", DEFAULTS["vitpose_backbone"]) if "backbone_config" in fields.data else fields
        )

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if fields.has("num_experts") and fields.whole("num_experts") != 1:
            raise fields.wrong("num_experts", "1: its experts have no counterpart", "weights.unsupported")
        return super().model(fields, found)

    def mixer(self, fields: Fields, heads: int, dropout: float) -> Attention:
        return super().mixer(fields, heads, fields.rate(self.dropout))  # which its MLP does not have

    def stem(self, patch: Size) -> StemConfig:
        return OverlappingPatches(patch=Size(*(side + 2 * MARGIN for side in patch)), stride=patch)

    def stem_settings(self, patch: Sequence[int]) -> dict[str, Any]:
        return {"stem.patch": [side + 2 * MARGIN for side in patch], "stem.stride": list(patch)}

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return MeanPool()

    def prefix(self, model: Vit) -> str:
        return ""

    def special_rules(self, model: Vit) -> list[Rule]:
        """Every patch has the position of the class token added to its own: ours are the sums."""
        weight, table = f"{STEM}.weight", str(self.names[TABLE])
        positions = mapped(
            TABLE,
            table,
            lambda found: found[:, 1:] + found[:, :1],
            lambda own: concat([own.new_zeros(1, 1, own.shape[2]), own], dim=1),
        )
        return [mapped("stem.project.weight", weight, centered_kernel, margin_kernel), positions]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        stem = model.stem
        if isinstance(stem, OverlappingPatches) and stem != self.stem(stem.stride):
            yield f"stem.patch: {self.title} has four pixels more than the stride, this model {stem.patch}"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        return super().config_fields(model) | {"image_size": list(model.image_size)}


def centered_kernel(kernel: Tensor) -> Tensor:
    """A kernel that begins two pixels before its cell, with zeros after it, so that the cell is in the middle."""
    return F.pad(kernel, (0, 2 * MARGIN, 0, 2 * MARGIN))


def margin_kernel(kernel: Tensor) -> Tensor:
    """The kernel without these zeros."""
    inner = kernel[..., : -2 * MARGIN, : -2 * MARGIN]
    if not kernel.is_meta and not torch.equal(centered_kernel(inner), kernel):
        message = "the last four rows and columns of the kernel, which are not 0 in this model, have no counterpart"
        raise WeightsError(message, code="weights.no_counterpart", where="stem.project.weight")
    return inner

"""Our model as timm's: a name of its registry, and the arguments in which this model differs from it.

Arguments are found for one class of timm after the other and read back: what gives the same model can be written.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from vitral.core.config import override
from vitral.core.errors import ConfigError
from vitral.data.transforms.crop import CenterCrop
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, Parallel
from vitral.models.embed import Hybrid, Patches
from vitral.models.head import BaseHead, LinearHead, NoHead
from vitral.models.mlp import SwiGlu
from vitral.models.pool import AttentionPool, ClassPool, DistilledPool, MeanAllPool, MeanPool
from vitral.models.position import (
    RelativeBias,
    RelativeMlp,
    Rope2d,
    RopeAxial,
    RopeMixed,
    inside_attention,
    learned_table,
)
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.counterpart import nearest_value
from vitral.weights.formats.timm.architectures import Architecture, architectures
from vitral.weights.formats.timm.arguments import ACTIVATIONS, Arguments
from vitral.weights.formats.timm.candidates import TRAINING_ONLY, flat
from vitral.weights.formats.timm.layout import TensorLayout
from vitral.weights.formats.timm.resolve import MODELS
from vitral.weights.oracles.oracle import NoOracleError

# What a config.json cannot give, so that an architecture must have it.
INHERITED = ("norm_layer", "embed_norm_layer", "block_fn", "mlp_layer", "embed_layer")
FIRST = ("vit_base_patch16_224", "deit_base_distilled_patch16_224", "vit_base_patch16_clip_224",
         "vit_giant_patch14_dinov2")  # fmt: skip
# Settings that timm cannot hold. The certificate reports the resampling of positions as missing from the files.
UNRECORDED = ("any_size", "head.bias", "position.resampling", "position.added.resampling", "position.inside.resampling",
              "stem.remainder")  # fmt: skip
NAMES = {name: theirs for theirs, name in reversed(ACTIVATIONS.items())}


class WrittenModel(NamedTuple):
    """A model in timm's words."""

    architecture: str
    arguments: Mapping[str, Any]
    layout: TensorLayout


class NoWay(NamedTuple):
    """The settings that keep a model from being written, each as a sentence."""

    faults: tuple[str, ...]
    nearest: Vit | None  # that can be written in its place


@lru_cache(maxsize=16)
def timm_form(text: str) -> WrittenModel | NoWay:
    """How timm holds a model, given as JSON."""
    model = Vit.from_json(text)
    closest, nearest = list[str](), list[Vit]()
    for arch in bases():
        arguments = {key: value for key, value in KINDS[arch.kind](model, arch).items() if value is not None}
        try:
            found = MODELS[arch.kind](Arguments({**arch.arguments, **arguments}))
        except ConfigError:
            continue
        differing = list(unlike(model, found.model))
        if not differing:
            return WrittenModel(arch.name, arguments, replace(found.layout, averaged_head=averaged_head(model)))
        if all(nearest_value(path, ours, (theirs,)) == theirs for path, ours, theirs in differing):
            nearest.append(override(model, {path: theirs for path, _, theirs in differing}))
        faults = [describe_fault(*each) for each in differing]
        closest = faults if not closest or len(faults) < len(closest) else closest
    missing = ["model: timm has no such Vision Transformer"]
    return NoWay(tuple(closest or missing), next(iter(nearest), None))


def oracle_arguments(model: Vit) -> dict[str, Any]:
    """The timm architecture that opens such a model from another library's file; NoOracleError if there is none."""
    written = timm_form(model.to_json())
    if isinstance(written, NoWay):
        raise NoOracleError(f"timm, which reads such files, has another model for them: {written.faults[0]}")
    return {"arch": written.architecture, "arguments": dict(written.arguments)}


def bases() -> Iterator[Architecture]:
    """An architecture for each combination of what no argument gives, the plain ones first."""
    known, seen = architectures(), set[str]()
    for arch in (*(known[name] for name in FIRST), *known.values()):
        inherited = repr([arch.kind, *(arch.arguments.get(key) for key in INHERITED)])
        fixed = repr([key for key in ("init_values", "ref_feat_shape") if key in arch.arguments])
        if arch.kind in KINDS and inherited + fixed not in seen:
            seen.add(inherited + fixed)
            yield arch


def unlike(model: Vit, other: Vit) -> Iterator[tuple[str, Any, Any]]:
    """The settings that differ, and both values, whatever training uses."""
    ours, theirs = dict(flat(model.model_dump())), dict(flat(other.model_dump()))
    told: list[str] = []
    for path, value in ours.items():
        part = path.removesuffix(".kind")
        if path.startswith((*TRAINING_ONLY, *UNRECORDED, *told)) or theirs.get(path) == value:
            continue
        if path in ("mlp.ratio", "mlp.multiple") and model.mlp.hidden(model.width) == other.mlp.hidden(other.width):
            continue
        if path.endswith("cls") and path.startswith("position.") and not (model.tokens.cls or model.tokens.registers):
            continue
        if path.endswith("register_rows") and model.tokens.registers and not value:
            continue  # rows of zeros
        if path == "mixer.head_width" and same_heads(model, other):
            continue
        if path == "head.kind" and averaged_head(model) and other.head.kind == "distilled":
            continue
        if path == "pool.heads" and same_pool_heads(model, other):
            continue
        if part != path:
            told.append(f"{part}.")
        yield path, value, theirs.get(path, "no such setting")


def describe_fault(path: str, ours: object, theirs: object) -> str:
    """A difference as a sentence that begins with the setting."""
    return f"{path.removesuffix('.kind')}: timm has {str(theirs).lower()} here, this model {str(ours).lower()}"


def averaged_head(model: Vit) -> bool:
    """Whether one head on both tokens stands for DeiT's two, as in older bundles."""
    return isinstance(model.pool, DistilledPool) and isinstance(model.head, LinearHead)


def same_heads(model: Vit, other: Vit) -> bool:
    """Whether the heads have the same width, by number or by name."""
    mixers = [each.mixer for each in (model, other) if isinstance(each.mixer, Attention)]
    return len(mixers) == 2 and len({each.head_width_for(model.width) for each in mixers}) == 1


def same_pool_heads(model: Vit, other: Vit) -> bool:
    """Whether the attention pools have as many heads, by number or by name."""
    pools = model.pool, other.pool
    counts = [pool.num_heads(model.context()) for pool in pools if isinstance(pool, AttentionPool)]
    return len(counts) == 2 and counts[0] == counts[1]


def common_arguments(model: Vit) -> dict[str, Any]:
    """What all classes take."""
    mixer, head = model.mixer, model.head
    drop: dict[str, Any] = {"pos_drop_rate": model.tokens.dropout, "proj_drop_rate": model.mlp.dropout}
    drop |= {"drop_path_rate": model.block.drop_path_rate}
    arguments: dict[str, Any] = {
        "img_size": list(model.image_size),
        "patch_size": list(model.stem.patch),
        "in_chans": model.channels,
        "num_classes": head.num_classes if isinstance(head, BaseHead) and not isinstance(head, NoHead) else 0,
        "embed_dim": model.width,
        "depth": model.depth,
    }
    if isinstance(mixer, Attention):
        drop["attn_drop_rate"] = mixer.attention_dropout
        arguments |= {"num_heads": mixer.heads, "qkv_bias": mixer.qkv_bias}
    return arguments | {name: rate for name, rate in drop.items() if rate}


def pool_name(model: Vit) -> str:
    names = {ClassPool: "token", DistilledPool: "token", MeanPool: "avg", MeanAllPool: "avg", AttentionPool: "map"}
    return names.get(type(model.pool), "")


def norm_places(model: Vit) -> tuple[bool, bool]:
    """Whether there is a norm before the pool, and one after it."""
    place = getattr(model.pool, "norm", "before")
    return place in ("before", "both"), place in ("after", "both")


def ratio(hidden: int, width: int) -> float:
    """The number that timm multiplies the width with, and truncates to a whole number."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width


def scale_init(model: Vit) -> float | None:
    return model.block.scale.init if isinstance(model.block.scale, LayerScale) else None


def vit_arguments(model: Vit, arch: Architecture) -> dict[str, Any]:
    """Arguments of VisionTransformer and its distilled form."""
    mixer, mlp, learned = model.mixer, model.mlp, learned_table(model.position)
    before, after = norm_places(model)
    packed = isinstance(mlp, SwiGlu) and arch.arguments.get("mlp_layer") != "SwiGLU"
    init = scale_init(model)
    arguments = common_arguments(model) | {
        "mlp_ratio": ratio((1 + packed) * mlp.hidden(model.width), model.width),
        "act_layer": NAMES.get(mlp.activation),
        "class_token": model.tokens.cls,
        "pre_norm": model.tokens.norm,
        "proj_bias": mlp.bias,
        "scale_mlp_norm": mlp.norm or None,
        "init_values": 0.0 if init is None and not isinstance(model.block, Parallel) else init,
        "pos_embed": None if learned else "none",
        "dynamic_img_pad": (isinstance(model.stem, Patches) and model.stem.remainder == "pad") or None,
    }
    if isinstance(mixer, Attention):
        arguments |= {"qk_norm": mixer.qk_norm, "scale_attn_norm": mixer.output_norm or None}
        arguments |= {"proj_bias": mixer.project_bias}
    if isinstance(model.stem, Hybrid):
        del arguments["proj_bias"]
    if arch.kind == "distilled":
        return arguments
    return arguments | {
        "global_pool": pool_name(model),
        "reg_tokens": model.tokens.registers,
        "no_embed_class": not (learned and learned.cls) if model.tokens.cls or model.tokens.registers else None,
        "final_norm": before or after,
        "fc_norm": after,
        "pool_include_prefix": prefix_pooled(model) or None,
    }


def prefix_pooled(model: Vit) -> bool:
    return isinstance(model.pool, MeanAllPool) or (isinstance(model.pool, AttentionPool) and model.pool.tokens == "all")


def eva_arguments(model: Vit, arch: Architecture) -> dict[str, Any]:
    """Arguments of Eva."""
    mixer, mlp, inside = model.mixer, model.mlp, inside_attention(model.position)
    learned, (before, after) = learned_table(model.position), norm_places(model)
    arguments = common_arguments(model) | {
        "mlp_ratio": ratio(mlp.hidden(model.width), model.width),
        "swiglu_mlp": isinstance(mlp, SwiGlu),
        "swiglu_align_to": 0,
        "scale_mlp": mlp.norm,
        "attn_type": "rope",
        "qkv_fused": True,
        "attn_only_layer_scale": False,
        "class_token": model.tokens.cls,
        "num_reg_tokens": model.tokens.registers,
        "use_pre_transformer_norm": model.tokens.norm,
        "use_post_norm": model.block.kind == "residual_post",
        "init_values": scale_init(model),
        "use_abs_pos_emb": learned is not None,
        "no_embed_class": not (learned and learned.cls) if model.tokens.cls or model.tokens.registers else None,
        "global_pool": pool_name(model),
        "use_fc_norm": after,
        "use_post_transformer_norm": before,
        **rope_arguments(inside),
    }
    if isinstance(mixer, Attention):
        arguments |= {"qk_norm": mixer.qk_norm, "scale_attn_inner": mixer.output_norm}
        if arch.arguments.get("num_kv_heads"):
            arguments["num_kv_heads"] = mixer.heads
    if isinstance(model.pool, AttentionPool):
        heads, share = model.pool.heads, model.pool.mlp_ratio
        arguments |= {"attn_pool_num_heads": heads if isinstance(heads, int) else None}
        arguments |= {"attn_pool_mlp_ratio": share if isinstance(share, float) else None}
    return arguments


def rope_arguments(inside: object) -> dict[str, Any]:
    if not isinstance(inside, Rope2d | RopeAxial | RopeMixed):
        return {"use_rot_pos_emb": False}
    names = {"rope2d": "dinov3", "rope_axial": "cat", "rope_mixed": "mixed"}
    found: dict[str, Any] = {"use_rot_pos_emb": True, "rope_type": names[inside.kind], "rope_temperature": inside.base}
    found |= {"rope_rotate_half": isinstance(inside, Rope2d), "rope_grid_offset": 0.0}
    if not isinstance(inside, Rope2d):
        found["rope_grid_indexing"] = "xy" if inside.order == "columns_first" else "ij"
    if isinstance(inside, RopeAxial):
        reference = None if inside.reference == "none" else list(inside.reference)
        found |= {"rope_grid_offset": inside.offset, "ref_feat_shape": reference}
    return found


def beit_arguments(model: Vit, arch: Architecture) -> dict[str, Any]:
    """Arguments of Beit."""
    inside = inside_attention(model.position)
    shared = isinstance(inside, RelativeBias) and inside.shared
    return common_arguments(model) | {
        "mlp_ratio": ratio(model.mlp.hidden(model.width), model.width),
        "swiglu_mlp": isinstance(model.mlp, SwiGlu),
        "scale_mlp": model.mlp.norm,
        "init_values": scale_init(model) or 0.0,
        "use_abs_pos_emb": learned_table(model.position) is not None,
        "use_rel_pos_bias": isinstance(inside, RelativeBias) and not shared,
        "use_shared_rel_pos_bias": shared,
        "global_pool": pool_name(model),
    }


def relpos_arguments(model: Vit, arch: Architecture) -> dict[str, Any]:
    """Arguments of VisionTransformerRelPos."""
    inside, mixer = inside_attention(model.position), model.mixer
    arguments = common_arguments(model) | {
        "mlp_ratio": ratio(model.mlp.hidden(model.width), model.width),
        "act_layer": None if NAMES.get(model.mlp.activation) == "gelu" else NAMES.get(model.mlp.activation),
        "init_values": scale_init(model) or 0.0,
        "class_token": model.tokens.cls,
        "global_pool": pool_name(model),
        "fc_norm": norm_places(model)[1],
        "shared_rel_pos": isinstance(inside, RelativeBias | RelativeMlp) and inside.shared,
        "rel_pos_type": "bias" if isinstance(inside, RelativeBias) else "mlp",
        "rel_pos_dim": inside.hidden if isinstance(inside, RelativeMlp) else None,
    }
    return arguments | ({"qk_norm": mixer.qk_norm} if isinstance(mixer, Attention) else {})


KINDS: dict[str, Callable[[Vit, Architecture], dict[str, Any]]] = {
    "vit": vit_arguments,
    "distilled": vit_arguments,
    "eva": eva_arguments,
    "beit": beit_arguments,
    "relpos": relpos_arguments,
}


def hub_config(bundle: Bundle, written: WrittenModel) -> dict[str, Any]:
    """The config.json of a model: an architecture, and everything in which this model differs from it."""
    preprocessing, model = bundle.preprocessing, bundle.model
    crop, normalize = preprocessing.crop, preprocessing.normalize.per_channel(model.channels)
    arguments = {key: value for key, value in written.arguments.items() if key != "num_classes"}
    if preprocessing.image_size != model.image_size and architectures()[written.architecture].kind in ("vit", "eva"):
        arguments["dynamic_img_size"] = True  # else timm refuses images of any size but the table's
    squash = not isinstance(crop, CenterCrop) or crop.aspect == "squash"
    return {
        "architecture": written.architecture,
        "num_classes": written.arguments["num_classes"],
        "label_names": list(bundle.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [model.channels, *preprocessing.image_size],
            "num_classes": written.arguments["num_classes"],
            "mean": list(normalize.mean),
            "std": list(normalize.std),
            "crop_pct": crop.fraction if isinstance(crop, CenterCrop) else 1.0,
            "crop_mode": "squash" if squash else "center",
            "interpolation": crop.filter,
        },
    }

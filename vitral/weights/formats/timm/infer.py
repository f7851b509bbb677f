"""A VisionTransformer that no name of timm has, read from its tensors; what they do not show is asked for or stated."""

import re
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.weights.formats.format import HEADS as PUBLISHED_HEADS
from vitral.weights.formats.format import Checkpoint, parse_positive_int
from vitral.weights.formats.rules import count_units
from vitral.weights.formats.timm.resolve import plausible_grids, token_size

HEADS = PUBLISHED_HEADS | {256: 4, 320: 5, 512: 8, 640: 10, 832: 13, 896: 14, 1152: 16}  # of timm's own sizes
UNIT = re.compile(r"patch_embed\.backbone\.stages\.(\d{1,3})\.blocks\.(\d{1,3})\.")
LAYER = "blocks.0."
# Whose activation may be another than GELU, by a tensor that their files have.
OTHER_ACTIVATIONS = (("norm_pre.weight", "OpenAI's CLIP", "quick_gelu"), ("attn_pool.latent", "a SigLIP", "gelu_tanh"))


class Inferred(NamedTuple):
    """A class of timm, the arguments of its constructor, and what was assumed."""

    kind: str
    arguments: dict[str, Any]
    assumptions: tuple[str, ...]


def infer_arguments(ckpt: Checkpoint) -> Inferred:
    """The arguments that give a model with these tensors."""
    names = ckpt.tensors.keys()
    if f"{LAYER}attn.qkv.weight" not in names or f"{LAYER}attn.q_bias" in names or "embeds.proj.weight" in names:
        message = "no architecture of timm that is known here has tensors of these shapes"
        raise ckpt.missing_setting(message, "", "weights.missing_setting")
    width, _, *patch = ckpt.shape("patch_embed.proj.weight", 4)
    distilled, pre_norm = "dist_token" in names, "norm_pre.weight" in names
    rms = "norm1.bias" not in {name.removeprefix(LAYER) for name in names}
    arguments: dict[str, Any] = {
        "embed_dim": width,
        "patch_size": patch,
        "class_token": "cls_token" in names,
        "reg_tokens": ckpt.shape("reg_token", 3)[1] if "reg_token" in names else 0,
        "pre_norm": pre_norm,
        "fc_norm": "fc_norm.weight" in names,
        "init_values": 1e-5 if f"{LAYER}ls1.gamma" in names else None,
        "qkv_bias": f"{LAYER}attn.qkv.bias" in names,
        "qk_norm": f"{LAYER}attn.q_norm.weight" in names,
        "scale_attn_norm": f"{LAYER}attn.norm.weight" in names,
        "scale_mlp_norm": f"{LAYER}mlp.norm.weight" in names,
        "proj_bias": f"{LAYER}attn.proj.bias" in names,
        "norm_layer": {"kind": "rms_norm" if rms else "layer_norm", "eps": 1e-5 if pre_norm else 1e-6},
    }
    if any(name.startswith("patch_embed.backbone.stem.") for name in names):
        root = ckpt.shape("patch_embed.backbone.stem.conv.weight", 4)[0]
        arguments["embed_layer"] = {"name": "resnetv2", "layers": list(count_units(names, UNIT, 0)), "root": root}
    elif "patch_embed.backbone.conv.weight" in names:
        arguments["embed_layer"] = {"name": "resnetv2", "layers": []}
    assumptions = [f"eps {arguments['norm_layer']['eps']:g} of the norms"]
    for settle in (settle_heads, settle_mlp, settle_pool):
        assumptions += settle(ckpt, arguments)
    arguments["no_embed_class"] = not distilled and rows_are_patches(ckpt, arguments)
    if distilled:
        arguments |= {"fc_norm": None, "no_embed_class": False}
    return Inferred("distilled" if distilled else "vit", arguments, tuple(assumptions))


def settle_heads(ckpt: Checkpoint, arguments: dict[str, Any]) -> list[str]:
    """The number of heads: from the norm of q, from a setting, or that of published models of this width."""
    width = arguments["embed_dim"]
    if arguments["qk_norm"]:
        arguments["num_heads"] = width // ckpt.shape(f"{LAYER}attn.q_norm.weight", 1)[0]
        return []
    if given := ckpt.setting("mixer.heads"):
        arguments["num_heads"] = parse_positive_int(given, "mixer.heads")
        return []
    if width not in HEADS:
        message = f"does not record the number of heads, and no published model has a width of {width}"
        raise ckpt.missing_setting(message, "mixer.heads=N")
    if width == 768 and not arguments["class_token"] and "attn_pool.latent" not in ckpt.tensors:
        message = "does not record the number of heads: timm has models like this with 12 and with 16"
        raise ckpt.missing_setting(message, "mixer.heads=N")
    arguments["num_heads"] = HEADS[width]
    return [f"{HEADS[width]} heads, as published models of width {width} have"]


def settle_mlp(ckpt: Checkpoint, arguments: dict[str, Any]) -> list[str]:
    """The hidden width and the activation."""
    width = arguments["embed_dim"]
    if f"{LAYER}mlp.fc1_g.weight" in ckpt.tensors:
        hidden = ckpt.shape(f"{LAYER}mlp.fc2.weight", 2)[1]
        arguments |= {"mlp_layer": "SwiGLU", "mlp_ratio": (hidden + 0.5) / width, "act_layer": "silu"}
        return ["SiLU in the gated MLP"]
    expanded, hidden = ckpt.shape(f"{LAYER}mlp.fc1.weight", 2)[0], ckpt.shape(f"{LAYER}mlp.fc2.weight", 2)[1]
    arguments["mlp_ratio"] = (expanded + 0.5) / width  # timm multiplies and truncates
    if expanded == 2 * hidden:
        arguments |= {"mlp_layer": {"name": "GluMlp", "gate_last": False}, "act_layer": "silu"}
        return ["SiLU in the gated MLP"]
    if ckpt.setting("mlp.activation"):
        return []  # the setting is applied to the detected model
    for mark, kin, other in OTHER_ACTIVATIONS:
        if mark in ckpt.tensors:
            message = f"has {mark} and does not record its activation, which is {other} in {kin} and gelu in others"
            raise ckpt.missing_setting(message, f"mlp.activation={other}")
    return ["the erf form of GELU"]


def settle_pool(ckpt: Checkpoint, arguments: dict[str, Any]) -> list[str]:
    """What is pooled; a file without a head has the pool too."""
    if "attn_pool.latent" in ckpt.tensors:
        arguments |= {"global_pool": "map", "fc_norm": False}
        return ["the attention pool attends to patches alone"] if arguments["class_token"] else []
    if "dist_token" in ckpt.tensors:
        return []
    cls = arguments["class_token"] and not arguments["fc_norm"]
    arguments["global_pool"] = "token" if cls else "avg"
    if ckpt.setting("pool"):
        return []
    return ["the class token is pooled, not the mean of patches" if cls else "the mean of patches is pooled"]


def rows_are_patches(ckpt: Checkpoint, arguments: dict[str, Any]) -> bool:
    """Whether class token and registers have no rows in the table of positions."""
    prefix = int(arguments["class_token"]) + arguments["reg_tokens"]
    if not prefix or "pos_embed" not in ckpt.tensors:
        return False
    rows = ckpt.shape("pos_embed", 3)[1]
    if given := ckpt.setting("image_size"):
        return rows_for(given, arguments) == rows
    if round((rows - prefix) ** 0.5) ** 2 == rows - prefix:
        return False  # which `fit_image` states
    square = round(rows**0.5) ** 2 == rows
    if not square or any(plausible_grids(rows - prefix)):
        message = f"{rows} positions do not make one square of patches"
        raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH")
    return True


def rows_for(given: str, arguments: dict[str, Any]) -> int:
    """The patches of an image of a given size."""
    image, cell = Size.parse(given), token_size(arguments)
    return (image.height // cell.height) * (image.width // cell.width)

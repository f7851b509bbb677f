"""Models: the keys and shapes of their weights, what they start from and what they then answer."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.golden_facts.names import config_data, public, refused

BASE = ("image=[32, 48]", "width=32", "depth=2")
STEM = ("stem:patches.patch=[8, 8]",)
MIXER = ("mixer:attention.heads=2",)
HEAD = ("head:linear.classes=4",)
NO_CLASS = ("tokens.cls=false", "pool:mean")
# What a variant sets; a part of BASE of the same field gives way to it.
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "stem hybrid": ("stem:hybrid.layers=[1, 1]", "stem:hybrid.root=32"),
    "stem hybrid of patches": ("stem:hybrid.layers=[]", "stem:hybrid.patch=[2, 2]", "stem:hybrid.root=32"),
    "stem hybrid unprojected": (
        "width=128", "stem:hybrid.layers=[1]", "stem:hybrid.root=32", "stem:hybrid.project=false",
    ),
    "stem hybrid variance": (
        "stem:hybrid.layers=[1]", "stem:hybrid.root=32", "stem:hybrid.patch=[2, 2]",
        'stem:hybrid.standardisation="variance"',
    ),
    "patch norms": ("stem:patches.patch=[8, 8]", 'stem:patches.norm="both"'),
    "patches without bias": ("stem:patches.patch=[8, 8]", "stem:patches.bias=false", "tokens.norm=true"),
    "gray rectangles": ("channels=1", "stem:patches.patch=[8, 4]"),
    **{f"position {kind}": (f"position:{kind}",) for kind in (
        "none", "learned1d", "learned2d", "sincos1d", "sincos2d", "relative1d", "relative2d", "rope2d",
    )},
    **{f"learned1d {where}": (f'position:learned1d.where="{where}"',) for where in ("layers", "shared")},
    **{f"learned2d {where}": (f'position:learned2d.where="{where}"',) for where in ("layers", "shared")},
    "learned1d patches only": ("position:learned1d.cls=false",),
    "block post": ("block:post",),
    "layer scale": ("block:pre.scale:layer_scale.initial=0.5",),
    "drop path": ("block:pre.drop_path=0.2",),
    "mixer axial": ("mixer:axial.heads=2",),
    "mixer axial rope registers": ("mixer:axial.heads=2", "position:rope2d", "tokens.registers=2"),
    "mixer local": ("mixer:local.heads=2", "mixer:local.rows=2", "mixer:local.columns=2"),
    "mixer local relative": (
        "mixer:local.heads=2", "mixer:local.rows=2", "mixer:local.columns=2", "position:relative2d",
    ),
    "mixer token_mlp": ("mixer:token_mlp.hidden=24",),
    "mixer pooling": ("mixer:pooling", *NO_CLASS),
    "mixer identity": ("mixer:identity", *NO_CLASS),
    "wide heads": ("mixer:attention.heads=3", "mixer:attention.head_width=20"),
    "no projection": ("mixer:attention.heads=1", "mixer:attention.project=false"),
    "no qkv bias": ("mixer:attention.heads=2", "mixer:attention.qkv_bias=false"),
    "query key norm": ("mixer:attention.heads=2", "mixer:attention.qk_norm=true"),
    "mlp swiglu": ("mlp:swiglu",),
    **{f"gelu {name}": (f'mlp:mlp.gelu="{name}"',) for name in ("erf", "tanh", "quick")},
    "no class token": NO_CLASS,
    "registers": ("tokens.registers=3",),
    "registers alone": ("tokens.registers=2", *NO_CLASS),
    "pool distilled": ("tokens.registers=1", "pool:distilled"),
    "pool cls_mean": ("pool:cls_mean",),
    "pool mean_all": ("pool:mean_all",),
    "pool attention": ("pool:attention.heads=2",),
    "mean then norm": ("tokens.cls=false", 'pool:mean.norm="after"'),
    "head tanh": ("head:tanh.classes=4",),
    "head none": ("head:none",),
    **{f"initial {kind}": (f"initial:{kind}",) for kind in ("original", "big_vision", "zeros", "normal")},
    "memory recompute": ("memory:recompute", "position:relative2d"),
    "one layer": ("depth=1",),
}  # fmt: skip
RESNET = ("image=[32, 48]", "layers=[1, 1]", "root=32", "head:linear.classes=4")


def models() -> dict[str, Any]:
    """For each variant the shapes of its weights, and hashes of fresh weights and of what they answer."""
    found: dict[str, Any] = {}
    for name, settings in VARIANTS.items():
        taken = {text.partition("=")[0].partition(".")[0].partition(":")[0] for text in settings}
        base = [text for text in (*BASE, *STEM, *MIXER, *HEAD) if field_of(text) not in taken]
        found |= about("Vit", [*base, *settings], name)
    return found | about("Resnet", RESNET, "resnet")


def field_of(text: str) -> str:
    return text.partition("=")[0].partition(".")[0].partition(":")[0]


def about(root: str, settings: tuple[str, ...] | list[str], name: str) -> dict[str, Any]:
    """The facts of one model."""
    try:
        config = public(root).model_validate_json(json.dumps(config_data(root, settings)))
    except Exception as error:  # a kind that this tree does not have is a fact too
        return {f"{name} | refused": refused(error)}
    torch.manual_seed(0)
    model = config.build().eval()
    weights = model.state_dict()
    images = torch.rand(2, config_channels(settings), 32, 48, generator=torch.Generator().manual_seed(1))
    enlarge(model)
    with torch.no_grad():
        answer = model(images)
    return {
        **{f"{name} | {key}": list(tensor.shape) for key, tensor in weights.items()},
        f"{name} | fresh weights": hash_of({key: tensor.numpy() for key, tensor in weights.items()}),
        f"{name} | answer": hash_of({"answer": answer.numpy()}),
    }


def config_channels(settings: tuple[str, ...] | list[str]) -> int:
    return next((int(text.partition("=")[2]) for text in settings if text.startswith("channels=")), 3)


def enlarge(model: torch.nn.Module) -> None:
    """Give every weight a value, so that no answer is zero and every part has a say."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.state_dict().values():
            if weight.is_floating_point():
                weight.copy_(drawn(weight, generator))


def drawn(weight: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(weight.shape, generator=generator) * 0.2 + (0.5 if weight.ndim == 1 else 0.0)


def hash_of(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """One hash of arrays by name, their types and their shapes."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return found.hexdigest()

"""What timm reads beside the tensors, and timm itself where it is installed."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.data.transforms.view import CentreCrop
from vitral.model.attention import Attention
from vitral.model.block import LayerScale, PreNorm
from vitral.model.head import LinearHead, NoHead
from vitral.model.mlp import Mlp, SwiGlu
from vitral.model.patches import Patches
from vitral.model.pool import AttentionPool, ClassPool, DistilledPool, MeanPool
from vitral.model.position import Learned1d
from vitral.model.stem import Hybrid
from vitral.model.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Answers, Format, as_json
from vitral.weights.formats.timm_notes import GELUS

POOLS = {"cls": "token", "distilled": "token", "mean": "avg", "attention": "map"}
PLAIN, DISTILLED = "vit_base_patch16_224", "deit_base_distilled_patch16_224"
CLIP, GATED = "vit_base_patch16_clip_224", "vit_giant_patch14_dinov2"  # the only ones with eps 1e-5, and with SwiGLU


class TimmFiles(Format):
    """The writing half of timm's format."""

    library: ClassVar[str] = "timm"
    package: ClassVar[str] = "timm"
    name: ClassVar[str] = "timm"

    def without_counterpart(self, bundle: Bundle) -> Iterator[str]:
        model = bundle.model
        if not isinstance(model, Vit):
            yield "kind: timm's files of a ResNet are not written"
            return
        if isinstance(model.stem, Hybrid):
            yield "stem: timm builds a hybrid from code of its own, which no file of it describes"
        elif model.stem.norm != "none":
            yield "stem.norm: timm's stem has one norm at the most, after the map"
        elif model.stem.bias == model.tokens.norm:
            yield "stem.bias: timm's map has one exactly where no norm stands before the first layer"
        if not isinstance(model.position, Learned1d) or model.position.where != "stem":
            yield f"position: timm's ViT has one learned table at the stem, this model {model.position.kind}"
        if not isinstance(model.block, PreNorm):
            yield "block: timm's ViT normalises before each branch"
        if not isinstance(model.mixer, Attention):
            yield f"mixer: timm's ViT has attention over all tokens, this model {model.mixer.kind}"
        elif model.mixer.width_of_head(model.width) * model.mixer.heads != model.width or not model.mixer.project:
            yield "mixer: timm's heads share the width evenly, and are projected"
        if len(marks := _marks(model)) > 1:
            yield f"architecture: timm describes no model with {' and '.join(marks.values())} in one"
        yield from _unlike_in_the_pool(model)
        if not isinstance(model.head, LinearHead | NoHead):
            yield f"head: timm's ViT has one linear layer, this model {model.head.kind}"
        usual = 1e-5 if model.tokens.norm else 1e-6
        if model.eps != usual:
            yield f"eps: timm's norms have {usual:g} here, this model {model.eps:g}"

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        return super().files(bundle, tensors) | {"config.json": as_json(described(bundle, bundle.model))}

    def code(self, model: Vit) -> Any:
        return import_module("timm")

    def reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], Answers]:
        model = code.create_model(f"local-dir:{folder}", pretrained=True).eval()  # as a user of timm would open it

        @torch.no_grad()
        def answers(images: Tensor) -> Answers:
            return Answers(model.forward_features(images), model(images) if model.num_classes else None)

        return answers


def _marks(model: Vit) -> dict[str, str]:
    """What only an architecture of its own has in timm, and no argument gives: their names, and what it is."""
    marks = {
        DISTILLED: "a distillation token" if isinstance(model.pool, DistilledPool) else "",
        CLIP: "a norm before the first layer" if model.tokens.norm else "",
        GATED: "a gated MLP" if isinstance(model.mlp, SwiGlu) else "",
    }
    return {name: words for name, words in marks.items() if words}


def _unlike_in_the_pool(model: Vit) -> Iterator[str]:
    pool, tokens = model.pool, model.tokens
    rows = isinstance(model.position, Learned1d) and model.position.cls
    if not isinstance(pool, ClassPool | DistilledPool | MeanPool | AttentionPool):
        yield f"pool: timm's ViT has no {pool.kind}"
    elif isinstance(pool, DistilledPool) and (tokens.registers != 1 or not rows):
        yield "tokens: timm's DeiT has one distillation token and no registers, all of them with positions"
    elif isinstance(pool, AttentionPool):
        if tokens.cls or tokens.registers:
            yield "pool: timm's query gathers from the patches alone, this model's from its other tokens too"
        if isinstance(model.mlp, SwiGlu) or pool.count(model.whole()) != model.whole().heads:
            yield "pool: timm's has the heads of the layers, and two layers with GELU"


def described(bundle: Bundle, model: Vit) -> dict[str, Any]:
    """The config.json that timm's hub has: an architecture, and all in which this model differs from it."""
    assert isinstance(model.stem, Patches)
    assert isinstance(model.mixer, Attention)
    needs = bundle.preprocessing
    fraction = needs.view.fraction if isinstance(needs.view, CentreCrop) else 1.0
    arguments: dict[str, Any] = {
        "img_size": list(model.image),
        "in_chans": model.channels,
        "patch_size": list(model.stem.patch),
        "embed_dim": model.width,
        "depth": model.depth,
        "num_heads": model.mixer.heads,
        "mlp_ratio": _ratio(model.mlp.hidden(model.width), model.width),
        "qkv_bias": model.mixer.qkv_bias,
        "qk_norm": model.mixer.qk_norm,
        "class_token": model.tokens.cls,
        "global_pool": POOLS[model.pool.kind],
        "pre_norm": model.tokens.norm,
    }
    if isinstance(model.mlp, Mlp):
        arguments["act_layer"] = GELUS[model.mlp.gelu]
    elif isinstance(model.mlp, SwiGlu):
        arguments |= {"mlp_ratio": _ratio(2 * model.mlp.hidden(model.width), model.width), "init_values": 0.0}
    if not isinstance(model.pool, DistilledPool):
        assert isinstance(model.position, Learned1d)
        arguments |= {"reg_tokens": model.tokens.registers, "no_embed_class": not model.position.cls}
        arguments["fc_norm"] = model.pool.normalises()
    if needs.image != model.image:
        arguments["dynamic_img_size"] = True  # else timm refuses images of any size but the table's
    if isinstance(model.block.scale, LayerScale):
        arguments["init_values"] = model.block.scale.initial
    each = model.channels if len(needs.scaling.mean) == 1 else 1
    return {
        "architecture": next(iter(_marks(model)), PLAIN),
        "num_classes": len(bundle.classes),
        "label_names": list(bundle.classes),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [model.channels, *needs.image],
            "mean": [*needs.scaling.mean] * each,
            "std": [*needs.scaling.deviation] * each,
            "crop_pct": fraction,
            "crop_mode": "center" if isinstance(needs.view, CentreCrop) else "squash",
            "interpolation": needs.view.filter,
        },
    }


def _ratio(hidden: int, width: int) -> float:
    """What timm multiplies the width with, and cuts to a whole number."""
    exact = hidden / width
    return exact if int(width * exact) == hidden else (hidden + 0.5) / width

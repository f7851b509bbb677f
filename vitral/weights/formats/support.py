"""Which models a format can hold: one declaration for each format, one check for all."""

from collections.abc import Iterator
from typing import NamedTuple

from vitral.models.attention import Attention
from vitral.models.block import LayerScale, PreNorm
from vitral.models.embed import Patches
from vitral.models.mlp import Mlp
from vitral.models.position import Learned1d
from vitral.models.vit import Vit

ANY_NUMBER = (0, 1_000)  # of registers


class Supported(NamedTuple):
    """The parts of the models that a format can hold. None means that either is fine."""

    hybrid: bool = False
    stem_norm: str = "none"
    stem_bias: bool | None = True
    rectangles: bool = True  # whether images and patches need not be square
    channels: int | None = None
    cls: bool | None = None
    registers: tuple[int, int] = (0, 0)  # the fewest and the most
    pre_norm: bool | None = False  # a norm before the first layer
    positions: tuple[str, ...] = ("learned1d",)
    position_cls: bool | None = None  # whether the table has a row for the class token
    resampling: str | None = None
    scale: bool | None = False  # LayerScale
    even_heads: bool = True  # whether heads split the width evenly and are projected
    qkv_bias: bool | None = None
    qk_norm: bool = False  # whether it may be
    swiglu: bool = False  # whether the MLP may be gated
    gelu: str | None = None
    eps: float | None = None


def unsupported_parts(model: Vit, supported: Supported, library: str) -> Iterator[str]:
    """The parts of a model that a format cannot hold, each as a sentence that begins with the field."""
    for faults in (_stem_faults, _token_faults, _layer_faults):
        yield from (f"{field}: {library} {fault}" for field, fault in faults(model, supported))


def _differs(value: object, expected: object) -> bool:
    return expected is not None and value != expected


def _has(expected: bool | None, part: str) -> str:
    return f"has {'a' if expected else 'no'} {part}"


def _stem_faults(model: Vit, supported: Supported) -> Iterator[tuple[str, str]]:
    stem = model.stem
    if not isinstance(stem, Patches):
        if not supported.hybrid:
            yield "stem", f"embeds patches linearly, this model has a {stem.kind} stem"
    elif stem.norm != supported.stem_norm:
        yield "stem.norm", f"needs {supported.stem_norm}, this model has {stem.norm}"
    elif _differs(stem.bias, supported.stem_bias):
        yield "stem.bias", _has(supported.stem_bias, "bias")
    elif not supported.rectangles and (len(set(model.image_size)) > 1 or len(set(stem.patch)) > 1):
        yield "image_size", f"needs squares, this model has {model.image_size} in patches of {stem.patch}"
    if _differs(model.channels, supported.channels):
        yield "channels", f"has {supported.channels}, this model {model.channels}"


def _token_faults(model: Vit, supported: Supported) -> Iterator[tuple[str, str]]:
    tokens, position = model.tokens, model.position
    if _differs(tokens.cls, supported.cls):
        yield "tokens.cls", _has(supported.cls, "class token")
    fewest, most = supported.registers
    if not fewest <= tokens.registers <= most:
        count = str(fewest) if fewest == most else f"{fewest} or more"
        yield "tokens.registers", f"has {count}, this model {tokens.registers}"
    if _differs(tokens.norm, supported.pre_norm):
        yield "tokens.norm", _has(supported.pre_norm, "norm before the first layer")
    if position.kind not in supported.positions:
        yield "position", f"has {' or '.join(supported.positions)}, this model {position.kind}"
    elif isinstance(position, Learned1d):
        if position.where != "stem":
            yield "position.where", f"adds positions at the stem, this model at {position.where}"
        if _differs(position.resampling, supported.resampling):
            yield "position.resampling", f"has {supported.resampling}, this model {position.resampling}"
        if tokens.cls and _differs(position.cls, supported.position_cls):
            yield "position.cls", _has(supported.position_cls, "row for the class token in its table")


def _layer_faults(model: Vit, supported: Supported) -> Iterator[tuple[str, str]]:
    mixer = model.mixer
    if not isinstance(model.block, PreNorm):
        yield "block", "normalizes before each branch"
    if _differs(isinstance(model.block.scale, LayerScale), supported.scale):
        yield "block.scale", f"has {'' if supported.scale else 'no '}LayerScale"
    if not isinstance(mixer, Attention):
        yield "mixer", f"has global attention, this model {mixer.kind}"
    else:
        even = mixer.head_width_for(model.width) * mixer.heads == model.width and mixer.project
        if supported.even_heads and not even:
            yield "mixer", "splits the width evenly among heads, and projects their output"
        if mixer.qk_norm and not supported.qk_norm:
            yield "mixer.qk_norm", "has none"
        if _differs(mixer.qkv_bias, supported.qkv_bias):
            yield "mixer.qkv_bias", _has(supported.qkv_bias, "bias for queries, keys and values")
    if not isinstance(model.mlp, Mlp):
        if not supported.swiglu:
            yield "mlp", f"has two layers with GELU, this model {model.mlp.kind}"
    elif _differs(model.mlp.gelu, supported.gelu):
        yield "mlp.gelu", f"has the {supported.gelu} form, this model {model.mlp.gelu}"
    if _differs(model.eps, supported.eps):
        yield "eps", f"has {supported.eps:g} in its norms, this model {model.eps:g}"

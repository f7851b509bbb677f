"""Which models a family of the library can hold."""

from collections.abc import Iterator
from typing import NamedTuple

from vitral.data.transforms.view import CentreCrop
from vitral.model.attention import Attention
from vitral.model.block import LayerScale, PreNorm
from vitral.model.mlp import Mlp
from vitral.model.patches import Patches
from vitral.model.pool import AttentionPool, MeanPool
from vitral.model.position import Learned1d
from vitral.model.vit import Vit
from vitral.weights.bundle import Bundle

ANY = 1_000  # registers


class Holds(NamedTuple):
    """What the models of a family are made of."""

    answers: frozenset[tuple[str, str]]  # the kinds of pool and head that go together
    cls: bool = True
    registers: tuple[int, int] = (0, 0)  # the fewest and the most
    stem_bias: bool = True
    first_norm: bool = False
    position: str = "learned1d"
    scale: bool = False  # LayerScale
    gated: bool = False  # whether an MLP may be
    free_bias: bool = True  # whether queries, keys and values may have none
    rectangles: bool = False  # whether images and patches may be no squares


def gaps(bundle: Bundle, holds: Holds, who: str) -> Iterator[str]:
    """What a family cannot hold of a model, each as a sentence that begins with the field."""
    model = bundle.model
    if not isinstance(model, Vit):
        yield f"kind: {who} is a Vision Transformer, this model a {model.kind}"
        return
    yield from _stem_gaps(model, holds, who)
    yield from _layer_gaps(model, holds, who)
    if (model.pool.kind, model.head.kind) not in holds.answers:
        known = " or ".join(f"{pool} with {head}" for pool, head in sorted(holds.answers))
        yield f"head: {who} has pool {known}, this model {model.pool.kind} with {model.head.kind}"
    if isinstance(model.pool, MeanPool) and model.pool.normalises():
        yield f"pool.norm: {who} normalises before the mean"
    if isinstance(model.pool, AttentionPool) and model.pool.heads not in ("mixer", model.whole().heads):
        yield f"pool.heads: {who} has as many as its mixer"
    image = bundle.preprocessing.image
    if isinstance(bundle.preprocessing.view, CentreCrop) and image.height != image.width:
        yield f"preprocessing.view: the library crops squares out of resized pictures, this model needs {image}"


def _stem_gaps(model: Vit, holds: Holds, who: str) -> Iterator[str]:
    stem, tokens = model.stem, model.tokens
    if not isinstance(stem, Patches) or stem.norm != "none":
        yield f"stem: {who} has patches through one map and no norm"
    elif stem.bias != holds.stem_bias:
        yield f"stem.bias: {who} has {'a bias' if holds.stem_bias else 'no bias'}"
    elif not holds.rectangles and (len(set(model.image)) > 1 or len(set(stem.patch)) > 1):
        yield f"image: {who} has squares, this model {model.image} in {stem.patch}"
    if tokens.cls != holds.cls:
        yield f"tokens.cls: {who} has {'a class token' if holds.cls else 'no class token'}"
    fewest, most = holds.registers
    if not fewest <= tokens.registers <= most:
        count = str(fewest) if fewest == most else f"{fewest} or more"
        yield f"tokens.registers: {who} has {count}, this model {tokens.registers}"
    if tokens.norm != holds.first_norm:
        yield f"tokens.norm: {who} has {'a' if holds.first_norm else 'no'} norm before the first layer"
    if model.position.kind != holds.position:
        yield f"position: {who} has {holds.position}, this model {model.position.kind}"
    elif isinstance(model.position, Learned1d):
        if model.position.where != "stem":
            yield f"position.where: {who} adds it at the stem"
        if holds.cls and not model.position.cls:
            yield f"position.cls: {who}'s table has a row for the class token"


def _layer_gaps(model: Vit, holds: Holds, who: str) -> Iterator[str]:
    if not isinstance(model.block, PreNorm):
        yield f"block: {who} normalises before each branch"
    if isinstance(model.block.scale, LayerScale) != holds.scale:
        yield f"block.scale: {who} has {'LayerScale' if holds.scale else 'none'}"
    mixer = model.mixer
    if not isinstance(mixer, Attention):
        yield f"mixer: {who} has attention over all tokens, this model {mixer.kind}"
    else:
        if mixer.width_of_head(model.width) * mixer.heads != model.width or not mixer.project:
            yield f"mixer: {who}'s heads share the width evenly, and are projected"
        if mixer.qk_norm:
            yield f"mixer.qk_norm: {who} has none"
        if not mixer.qkv_bias and not holds.free_bias:
            yield f"mixer.qkv_bias: {who}'s is always there"
    if not isinstance(model.mlp, Mlp) and not holds.gated:
        yield f"mlp: {who} has two layers with GELU between, this model {model.mlp.kind}"

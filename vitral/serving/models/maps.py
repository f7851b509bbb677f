"""Maps for one image: attention of every layer and head, rollout, and relevance for a class.

L layers, H heads, T tokens, D width, N = R x S patches, K classes.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from vitral.core.errors import ConfigError, format_choices
from vitral.explanation import relevance
from vitral.explanation.explanation import Array
from vitral.explanation.trace import has_attention, require_vit, run_layers, to_array
from vitral.models.base import Grid, Layout, Model
from vitral.models.hooks import AttentionRecord, eval_mode

ServedMap = Literal["attention", "rollout", "relevance"]
SERVED_MAPS: tuple[ServedMap, ...] = get_args(ServedMap)
Query = int | Literal["cls"]  # a patch, or the token that the prediction is read from


class MapRequest(NamedTuple):
    """Which maps of an image are asked for."""

    maps: tuple[ServedMap, ...] = SERVED_MAPS
    query: Query = "cls"
    label: int | Literal["predicted"] = "predicted"


class Maps(NamedTuple):
    """Maps over the patches, row by row; those that were not asked for are empty."""

    grid: Grid
    attention: Array  # (L, H, N), of the query
    rollout: Array  # (N,), from the query
    relevance: Array  # (N,), for the label
    label: int | None  # none without classes


EMPTY = np.empty(0, np.float32)


def no_attention() -> ConfigError:
    """The error of a model that cannot be explained by maps of its attention."""
    message, hint = "this model has no attention", "ask for its predictions, or use a Vision Transformer"
    return ConfigError(message, code="config.no_attention", where="model", hint=hint)


def parse_maps(text: str) -> tuple[ServedMap, ...]:
    """The maps of a list such as `attention,rollout`."""
    found: list[ServedMap] = []
    for name in text.split(","):
        known = next((each for each in SERVED_MAPS if each == name.strip()), None)
        if known is None:
            message = f"expected {format_choices(SERVED_MAPS)}, or several with commas, got {name[:40]!r}"
            raise ConfigError(message, code="config.unknown_name", where="maps")
        found.append(known)
    return tuple(dict.fromkeys(found))


def parse_query(text: str, patches: int) -> Query:
    """The query of a request: `cls` or the index of a patch."""
    if text == "cls":
        return "cls"
    if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < patches:
        return int(text)
    message = f"expected cls or the index of a patch, from 0 to {patches - 1}, got {text[:40]!r}"
    raise ConfigError(message, code="config.out_of_range", where="query")


def compute_maps(model: Model, image: Tensor, request: MapRequest, use_head: bool) -> Maps:
    """The maps of one image (1, C, H, W). A head that was not trained is left out."""
    if not has_attention(model):
        raise no_attention()
    vit = require_vit(model)
    layout = vit.layout(image)
    needs_gradient = use_head and "relevance" in request.maps
    rows: list[Array] = []
    records: list[tuple[AttentionRecord, ...]] = []
    joint = relevance.identity_rollout(layout.length(), image)  # (1, T, T)
    with eval_mode(model), torch.inference_mode(False), torch.set_grad_enabled(needs_gradient):
        tokens = relevance.embed_with_grad(vit, image, layout)  # (1, T, D)
        for step in run_layers(vit, tokens, layout):
            with torch.no_grad():
                attention = step.attention()  # (1, H, T, T)
                if "attention" in request.maps:
                    rows.append(to_array(attention_of(attention[0], request.query, layout)))  # (H, N)
                if "rollout" in request.maps:
                    joint = relevance.extend_rollout(joint, attention)
            records.append(step.recordings)
        readout = relevance.read_out(vit, step.after, layout)
        label = int(readout.logits.argmax()) if request.label == "predicted" else request.label
        relevant = EMPTY
        if needs_gradient:
            relevant = to_array(relevance.propagate_relevance(records, readout, [label], layout)[0]).ravel()
        rollout = EMPTY
        if "rollout" in request.maps:
            read = readout.shares if request.query == "cls" else one_hot(request.query, layout, image)  # (1, T)
            rollout = to_array(relevance.rollout_to_patches(read, joint, layout)[0]).ravel()
    return Maps(layout.grid, np.stack(rows) if rows else EMPTY, rollout, relevant, label if use_head else None)


def attention_of(attention: Tensor, query: Query, layout: Layout) -> Tensor:
    """The attention (H, N) of a token to the patches; `cls` is the mean of the patches where no class token is."""
    prefix = layout.prefix()
    if query != "cls":
        return attention[:, prefix + query, prefix:]
    return attention[:, 0, prefix:] if layout.cls else attention[:, prefix:, prefix:].mean(dim=1)


def one_hot(query: int, layout: Layout, like: Tensor) -> Tensor:
    """All weight (1, T) on one patch."""
    read = torch.zeros(1, layout.length(), dtype=like.dtype, device=like.device)
    read[0, layout.prefix() + query] = 1
    return read

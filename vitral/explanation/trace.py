"""The forward pass layer by layer: inputs, attention, outputs and logit lens of each layer.

B images, C channels, N patches, T or L tokens, D width, H heads, K classes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitral.core.activation import probabilities
from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.explanation.explanation import Array, Photo
from vitral.models.attention import BaseAttention
from vitral.models.base import Layout, Model
from vitral.models.block import block_branches
from vitral.models.embed import PatchStem
from vitral.models.head import NoHead
from vitral.models.hooks import AttentionRecord, eval_mode, record_attention
from vitral.models.vit import VisionTransformer


class LayerStep(NamedTuple):
    """The input, output and attention of one layer."""

    layer: int  # counts from 1, as in the paper
    before: Tensor  # (B, T, D), the input
    after: Tensor  # (B, T, D), the output
    layout: Layout
    recordings: tuple[AttentionRecord, ...]  # empty for a layer without attention

    def attention(self) -> Tensor:
        """The attention weights (B, H, T, T); rows sum to one; no heads without attention."""
        images, tokens, _ = self.before.shape
        none = self.before.new_empty(images, 0, tokens, tokens)
        found = [recording.attention_weights() for recording in self.recordings]  # of branches side by side
        return torch.cat(found, dim=1) if len(found) > 1 else next(iter(found), none)


def iterate_layers(model: Model, images: Tensor) -> Iterator[LayerStep]:
    """Run images through one layer after the other, in the model's current mode, with the memory of one layer."""
    vit = require_vit(model)
    layout = vit.layout(images)
    return run_layers(vit, vit.embed(images, layout), layout)


def run_layers(model: VisionTransformer, tokens: Tensor, layout: Layout) -> Iterator[LayerStep]:
    """Run the input tokens of the first layer (B, T, D) through all layers, keeping every token."""
    for layer, block in enumerate(model.blocks):
        given = model.position(tokens, layout, layer) if layer else tokens  # (B, T, D)
        with record_attention(block) as recordings:
            tokens = block(given, layout, layout.length())  # (B, T, D)
        yield LayerStep(layer + 1, given, tokens, layout, tuple(recordings))


def has_attention(model: Model) -> bool:
    """Whether the model is a Vision Transformer with attention, not another mixer."""
    return isinstance(model, VisionTransformer) and isinstance(model.config.mixer, BaseAttention)


def require_vit(model: Model) -> VisionTransformer:
    """The model, if it is a Vision Transformer; a ResNet is refused."""
    if isinstance(model, VisionTransformer):
        return model
    hint = "use a Vision Transformer"
    raise ConfigError("this model has no layers of tokens", code="config.unsupported", where="model", hint=hint)


def check_class(model: Model, target: int) -> None:
    """Raise if the model does not have this class."""
    head = model.config.head
    if isinstance(head, NoHead):
        hint = "pass a model with a head"
        raise ConfigError("this model has no classes", code="config.unsupported", where="target", hint=hint)
    if not 0 <= target < head.num_classes:
        message = f"expected a class from 0 to {head.num_classes - 1}, got {target}"
        raise ConfigError(message, code="config.out_of_range", where="target")


@torch.no_grad()
def logit_lens(model: Model, images: Tensor) -> Tensor:
    """The probability of every class after each layer (L, B, K); no classes without a head."""
    vit = require_vit(model)
    with eval_mode(model):
        return torch.stack([lens_probabilities(vit, step.after, step.layout) for step in iterate_layers(vit, images)])


def lens_probabilities(model: VisionTransformer, tokens: Tensor, layout: Layout) -> Tensor:
    """Norm, pool and head applied to tokens (B, T, D) as if they came from the last layer: probabilities (B, K)."""
    if isinstance(model.config.head, NoHead):
        return tokens.new_empty(len(tokens), 0)
    read = model.norm(tokens[:, : model.pool.keep(layout)])  # (B, keep, D)
    logits = model.head(model.pool(read, layout))  # (B, K)
    return probabilities(logits.to(torch.promote_types(tokens.dtype, torch.float32)), model.activation)


class LayerChange(NamedTuple):
    """The effect of one layer on the tokens; norms are means over all tokens."""

    before: float  # norm of a token
    mixer: float  # norm of what the mixer adds
    mlp: float  # norm of what the MLP adds
    after: float
    change: float  # norm of the change of a token, relative to its norm before
    summary: Tensor  # (D,), the class token after the layer, or the mean of the patches


class Trace(NamedTuple):
    """One image on its way through a Vision Transformer."""

    layout: Layout
    patches: Tensor  # (N, D), embedded
    tokens: Tensor  # (L, D), the input of the first layer
    layers: tuple[LayerChange, ...]
    attention: Tensor  # (H, L, L) of the first layer; no heads without attention
    last: Tensor  # (L, D), after the last layer and norm
    pooled: Tensor  # (D,), or (2 D,) of a pool that concatenates two vectors
    logits: Tensor  # (K,), or the pooled vector without a head


@torch.no_grad()
def trace_image(model: VisionTransformer, image: Tensor) -> Trace:
    """Trace one image (1, C, H, W) through a model in eval mode."""
    layout = model.layout(image)
    patches = model.stem(image)  # (1, N, D)
    tokens = model.embed_patches(patches, layout)  # (1, L, D)
    layers, last, attention = [], tokens, tokens
    branches = [block_branches(block) for block in model.blocks]
    with record_outputs([module for pair in branches for part in pair for module in part]) as outputs:
        for step in run_layers(model, tokens, layout):
            parts = [[outputs.pop(0) for _ in part] for part in branches[step.layer - 1]]
            mixer, mlp = (mean_norm(torch.stack(part).sum(dim=0)) for part in parts)
            change = (step.after - step.before).norm(dim=-1) / step.before.norm(dim=-1).clamp_min(1e-12)  # (1, L)
            norms = mean_norm(step.before), mixer, mlp, mean_norm(step.after)
            layers.append(LayerChange(*norms, change.mean().item(), summary_token(step.after[0], layout)))
            last = step.after  # (1, L, D)
            attention = step.attention()[0] if step.layer == 1 else attention  # (H, L, L)
    last = model.norm(last)
    pooled = model.pool(last, layout)  # (1, D)
    logits = model.head(pooled)  # (1, K)
    return Trace(layout, patches[0], tokens[0], tuple(layers), attention, last[0], pooled[0], logits[0])


def fit_to_patches(model: Model, photo: Photo, image: Tensor) -> tuple[Photo, Tensor]:
    """The photo and its tensor (1, C, H, W) as the patches cover them, which changes no output of the model.

    A stem may crop the remainder of an image that the patch does not divide, or pad it with zeros.
    """
    stem, (height, width) = getattr(model, "stem", None), photo.crop.shape[:2]
    if not isinstance(stem, PatchStem) or stem.config.covered(Size(height, width)) == (height, width):
        return photo, image
    rows, columns = stem.config.covered(Size(height, width))
    padded = np.pad(photo.crop, ((0, max(0, rows - height)), (0, max(0, columns - width)), (0, 0)))
    shown = photo._replace(
        crop=padded[:rows, :columns], height=photo.height * rows / height, width=photo.width * columns / width
    )
    return shown, stem.fit(image)


def to_array(tensor: Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()


def mean_norm(tokens: Tensor) -> float:
    """The mean norm of tokens (..., D)."""
    return tokens.norm(dim=-1).mean().item()


def summary_token(tokens: Tensor, layout: Layout) -> Tensor:
    """The class token of tokens (L, D), or the mean of the patches where there is none."""
    return tokens[0] if layout.cls else tokens[layout.prefix() :].mean(dim=0)  # (D,)


@contextmanager
def record_outputs(parts: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the outputs of modules inside the `with`, in the order in which they run."""
    outputs: list[Tensor] = []

    def record(_: nn.Module, inputs: object, output: Tensor) -> None:
        outputs.append(output)

    hooks = [part.register_forward_hook(record) for part in parts]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()

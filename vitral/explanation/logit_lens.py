"""The logit lens: norm, pool and head applied to the tokens after each layer.

L layers, B images, T tokens, D width, K classes.
"""

import torch
from torch import Tensor

from vitral.core.activation import probabilities
from vitral.explanation.trace import iterate_layers, require_vit
from vitral.models.base import Layout, Model
from vitral.models.head import NoHead
from vitral.models.hooks import eval_mode
from vitral.models.vit import VisionTransformer


@torch.no_grad()
def logit_lens(model: Model, images: Tensor) -> Tensor:
    """The probability of every class after each layer (L, B, K); no classes without a head."""
    reader = require_vit(model)
    with eval_mode(model):
        return torch.stack(
            [lens_probabilities(reader, step.after, step.layout) for step in iterate_layers(model, images)]
        )


def lens_probabilities(model: VisionTransformer, tokens: Tensor, layout: Layout) -> Tensor:
    """The probabilities (B, K) if these tokens (B, T, D) came from the last layer."""
    if isinstance(model.config.head, NoHead):
        return tokens.new_empty(len(tokens), 0)
    exact = torch.promote_types(tokens.dtype, torch.float32)
    return probabilities(lens_logits(model, tokens, layout).to(exact), model.activation)


def lens_logits(model: VisionTransformer, tokens: Tensor, layout: Layout) -> Tensor:
    """The logits (B, K) if these tokens (B, T, D) came from the last layer."""
    read = model.norm(tokens[:, : model.pool.keep(layout)])  # (B, keep, D)
    return model.head(model.pool(read, layout))  # (B, K)

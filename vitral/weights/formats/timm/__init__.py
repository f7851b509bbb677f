"""timm's Vision Transformers."""

from vitral.models.mlp import SwiGlu
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.timm.arguments import gated_config
from vitral.weights.formats.timm.reader import DINOV2, SHARED, Timm


def gated_mlp(hidden: int, width: int, ckpt: Checkpoint) -> SwiGlu:
    """A gated MLP of this hidden width."""
    return gated_config(hidden, width)


__all__ = ["DINOV2", "SHARED", "Timm", "gated_mlp"]

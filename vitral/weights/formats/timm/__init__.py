"""timm's Vision Transformers."""

from vitral.weights.formats.timm.reader import Timm

__all__ = ["Timm"]

"""Normalization of tokens: LayerNorm as in the paper, or RMSNorm."""

from typing import Annotated, Literal

from torch import nn

from vitral.core.config import Config, OpenUnion


class LayerNorm(Config):
    """LayerNorm (arXiv 1607.06450): mean 0 and variance 1, then a weight and a bias."""

    kind: Literal["layer_norm"] = "layer_norm"

    def build(self, width: int, eps: float) -> nn.Module:
        return nn.LayerNorm(width, eps)


class RmsNorm(Config):
    """RMSNorm (arXiv 1910.07467): mean square 1, then a weight."""

    kind: Literal["rms_norm"] = "rms_norm"

    def build(self, width: int, eps: float) -> nn.Module:
        return nn.RMSNorm(width, eps)


NormConfig = Annotated[LayerNorm | RmsNorm, OpenUnion()]

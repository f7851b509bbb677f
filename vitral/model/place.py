"""The two ways in which places enter a model, and what a kind of position has to say of itself.

N patches, D width, H heads, d head width.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vitral.config import Config
from vitral.errors import ConfigError
from vitral.model.initial import Initialised
from vitral.model.shapes import Grid, Layout, Whole

Acts = Literal["nowhere", "tokens", "attention"]


class Placed(Initialised):
    """A part that knows places. By default its weights are the same for every grid."""

    def regridded(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        """Its weights by name, made from those that the same part has in a model of another grid."""
        return dict(weights)


class Position(Placed):
    """What is added to the tokens before a layer. By default nothing is."""

    def forward(self, tokens: Tensor, layout: Layout, layer: int) -> Tensor:
        return tokens


class Relation(Placed):
    """What attention knows of places. By default it knows nothing."""

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        """Queries or keys (B, H, tokens, d), turned by their place."""
        return x

    def bias(self, q: Tensor, grid: Grid, group: Grid) -> Tensor | None:
        """Logits (..., n, n) to add among the n patches of a group that is part of the grid, if there are any."""
        return None


class PositionKind(Config):
    """A way of telling places; the hooks of a kind that does nothing."""

    acts: ClassVar[Acts] = "tokens"

    def check(self, width: int, head_width: int) -> None:
        """Refuse widths that this kind cannot serve."""

    def build(self, whole: Whole) -> Position:
        return Position()

    def relate(self, whole: Whole, head_width: int) -> Relation:
        return Relation()


def refuse_width(field: str, found: int, divisor: int, why: str) -> None:
    if found % divisor:
        remedy = f"use a multiple of {divisor}, say {(found // divisor + 1) * divisor}"
        raise ConfigError(f"{why}, but {field} is {found}", code="config.indivisible", where=field, remedy=remedy)


Where = Literal["stem", "layers", "shared"]  # added once; in every layer; in every layer with the same weights


class Added(Position):
    """Adds rows to the class token and the patches, at the stem or before every layer."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self.where = where

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the class token (0 or 1, D) and of the patches (N, D)."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, layout: Layout, layer: int) -> Tensor:
        if layer and self.where == "stem":
            return tokens
        cls, patches = self.rows(layout, layer if self.where == "layers" else 0, tokens)
        none = patches.new_zeros(layout.prefix() - len(cls), patches.shape[1])
        return tokens + torch.cat([cls, none, patches])  # (B, prefix + N, D)

"""Embeddings that are added to the tokens: learned (appendix D.4) and sine-cosine.

R x S patches, N = R S, D width.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from vitral.core.errors import ConfigError
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.init import BaseInit
from vitral.models.position.base import BasePosition, Position, check_divisible
from vitral.models.position.resample import Resampling, resample_axis, resample_grid


def sincos_1d(count: int, width: int, like: Tensor) -> Tensor:
    """Row p holds sin and cos of p / 10000^(2i/D), interleaved (arXiv 1706.03762, section 3.5)."""
    positions = torch.arange(count, device=like.device, dtype=torch.float32)
    rates = 10000 ** -(torch.arange(0, width, 2, device=like.device) / width)  # (D/2)
    angles = positions[:, None] * rates  # (count, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like.dtype)  # (count, D)


def sincos_2d(grid: Grid, width: int, like: Tensor, endpoint: bool = True) -> Tensor:
    """Sines then cosines of the column, sines then cosines of the row, a quarter of the width each, as big_vision."""
    quarter = width // 4
    powers = torch.linspace(0, 1, quarter, device=like.device)  # (D/4)
    rates = 10000 ** -(powers if endpoint else torch.arange(quarter, device=like.device) / quarter)  # (D/4)
    right = torch.arange(grid.columns, device=like.device)[:, None] * rates  # (S, D/4)
    down = torch.arange(grid.rows, device=like.device)[:, None] * rates  # (R, D/4)
    x = torch.cat([right.sin(), right.cos()], dim=-1).expand(grid.rows, -1, -1)  # (R, S, D/2)
    y = torch.cat([down.sin(), down.cos()], dim=-1)[:, None].expand(-1, grid.columns, -1)  # (R, S, D/2)
    return torch.cat([x, y], dim=-1).flatten(0, 1).to(like.dtype)  # (N, D)


Where = Literal["stem", "layers", "shared"]  # once; before every layer; before every layer with shared weights


class AdditivePosition(Position):
    """Adds embeddings to the class token and the patches, once or before every layer."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self.where = where

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings of the class token (0 or 1, D) and of the patches (N, D)."""
        raise NotImplementedError

    def forward(self, tokens: Tensor, layout: Layout, layer: int) -> Tensor:
        if layer and self.where == "stem":
            return tokens
        cls, patches = self.rows(layout, layer if self.where == "layers" else 0, tokens)
        none = patches.new_zeros(layout.prefix() - len(cls), patches.shape[1])
        return tokens + torch.cat([cls, none, patches])  # (B, prefix + N, D)


class Learned1d(BasePosition):
    """A learned embedding for each token: the paper's default."""

    kind: Literal["learned1d"] = "learned1d"
    where: Where = "stem"
    cls: bool = True  # big_vision has none for the class token
    register_rows: bool = False  # for the registers, as for the detection tokens of YOLOS (arXiv 2106.00666)
    resampling: Resampling = "bilinear"

    def prefix_rows(self, layout: Layout) -> int:
        """The rows before those of the patches."""
        return self.cls * layout.cls + self.register_rows * layout.registers

    def build(self, context: BuildContext) -> Position:
        if self.register_rows and not self.cls and context.layout.cls:
            message, hint = "registers with positions need a class token with one", "set position.cls=true"
            raise ConfigError(message, code="config.conflict", where="position.register_rows", hint=hint)
        return LearnedPosition1d(self, context)


class LearnedPosition1d(AdditivePosition):
    def __init__(self, config: Learned1d, context: BuildContext) -> None:
        super().__init__(config.where)
        self.resampling, self.grid = config.resampling, context.layout.grid
        self.cls = config.prefix_rows(context.layout)  # and the registers, if they have rows
        copies = context.depth if config.where == "layers" else 1
        self.table = nn.Parameter(torch.empty(copies, self.cls + self.grid.cells(), context.width))

    def initialize(self, init: BaseInit) -> None:
        init.position_table(self.table)

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        table = self.table[layer]  # (cls + N, D)
        return table[: self.cls], resample_grid(table[self.cls :], self.grid, layout.grid, self.resampling)

    def resample_weights(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        cls, patches = weights["table"].tensor_split([self.cls], dim=1)  # (copies, cls, D), (copies, N, D)
        return {"table": torch.cat([cls, resample_grid(patches, old, self.grid, self.resampling)], dim=1)}


class Learned2d(BasePosition):
    """Learned embeddings of columns and rows, half the width each (X and Y of appendix D.4)."""

    kind: Literal["learned2d"] = "learned2d"
    where: Where = "stem"
    resampling: Resampling = "bilinear"

    def check(self, width: int, head_width: int) -> None:
        check_divisible("width", width, 2, "learned2d gives half the width to each axis")

    def build(self, context: BuildContext) -> Position:
        return LearnedPosition2d(self, context)


class LearnedPosition2d(AdditivePosition):
    def __init__(self, config: Learned2d, context: BuildContext) -> None:
        super().__init__(config.where)
        self.resampling = config.resampling
        copies = context.depth if config.where == "layers" else 1
        self.x = nn.Parameter(torch.empty(copies, context.layout.grid.columns, context.width // 2))
        self.y = nn.Parameter(torch.empty(copies, context.layout.grid.rows, context.width // 2))

    def initialize(self, init: BaseInit) -> None:
        init.position_table(self.x)
        init.position_table(self.y)

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = layout.grid
        x = resample_axis(self.x[layer], columns, self.resampling).expand(rows, -1, -1)  # (R, S, D/2)
        y = resample_axis(self.y[layer], rows, self.resampling)[:, None].expand(-1, columns, -1)  # (R, S, D/2)
        patches = torch.cat([x, y], dim=-1).flatten(0, 1)  # (N, D)
        return patches[:0], patches

    def resample_weights(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        counts = {"x": self.x.shape[1], "y": self.y.shape[1]}
        return {axis: resample_axis(weights[axis], count, self.resampling) for axis, count in counts.items()}


class SinCos1d(BasePosition):
    """Fixed sine-cosine embeddings of the token index (arXiv 1706.03762); the class token is index 0."""

    kind: Literal["sincos1d"] = "sincos1d"

    def check(self, width: int, head_width: int) -> None:
        check_divisible("width", width, 2, "sincos1d pairs sines with cosines")

    def build(self, context: BuildContext) -> Position:
        return SinCosPosition1d("stem")


class SinCosPosition1d(AdditivePosition):
    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        table = sincos_1d(layout.cls + layout.grid.cells(), like.shape[-1], like)  # (cls + N, D)
        return table[: layout.cls], table[layout.cls :]


class SinCos2d(BasePosition):
    """Fixed sine-cosine embeddings of column and row, as in big_vision's plain ViT; none for the class token."""

    kind: Literal["sincos2d"] = "sincos2d"
    endpoint: bool = True  # the slowest rate is 1/10000; false: one step faster, as in MAE and AIMv2

    def check(self, width: int, head_width: int) -> None:
        check_divisible("width", width, 4, "sincos2d pairs sines with cosines on two axes")

    def build(self, context: BuildContext) -> Position:
        return SinCosPosition2d(self.endpoint)


class SinCosPosition2d(AdditivePosition):
    def __init__(self, endpoint: bool) -> None:
        super().__init__("stem")
        self.endpoint = endpoint

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        patches = sincos_2d(layout.grid, like.shape[-1], like, self.endpoint)  # (N, D)
        return patches[:0], patches

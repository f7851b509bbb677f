"""Position embeddings: learned and relative (appendix D.4), sine-cosine, and rotary; resampling to other grids.

R x S patches, N = R S, D width, H heads, d head width.
A position embedding is added to the tokens (`Position`) or acts inside attention (`AttentionPosition`).
"""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.init import BaseInit, InitModule

Resampling = Literal["bilinear", "bicubic", "bicubic_antialias", "bicubic_corners", "bicubic_offset"]
OFFSET = 0.1  # of a patch, as in DINO


def resample_grid(table: Tensor, old: Grid, new: Grid, how: Resampling = "bilinear") -> Tensor:
    """Resample a table of one row per patch (..., rows * columns, D) from the old grid to the new one."""
    if old == new:
        return table
    image = table.unflatten(-2, old).movedim(-1, -3)  # (..., D, rows, columns)
    exact = image if image.dtype == torch.float64 else image.float()  # not every kernel takes half precision
    resized = interpolate(exact.reshape(1, -1, *old), new, how).to(table.dtype)  # every channel by itself
    return resized.reshape(*image.shape[:-2], *new).movedim(-3, -1).flatten(-3, -2)  # (..., new rows * columns, D)


def interpolate(stack: Tensor, new: Grid, how: Resampling) -> Tensor:
    """Resize (1, channels, rows, columns) to another grid."""
    if how in ("bilinear", "bicubic_corners"):
        return F.interpolate(stack, size=new, mode=how.removesuffix("_corners"), align_corners=True)
    if how == "bicubic":
        return F.interpolate(stack, size=new, mode="bicubic", align_corners=False)
    if how == "bicubic_offset":
        factors = [(side + OFFSET) / before for side, before in zip(new, stack.shape[-2:], strict=True)]
        return F.interpolate(stack, scale_factor=factors, mode="bicubic", align_corners=False)
    if new.columns == 1:  # torch 2.13 gets a single anti-aliased column wrong, and a single row right
        return F.interpolate(stack.mT, size=new[::-1], mode="bicubic", align_corners=False, antialias=True).mT
    return F.interpolate(stack, size=new, mode="bicubic", align_corners=False, antialias=True)


def resample_axis(table: Tensor, new: int, how: Resampling = "bilinear") -> Tensor:
    """Resample a table of one row per index along one axis (..., count, D)."""
    return resample_grid(table, Grid(table.shape[-2], 1), Grid(new, 1), how)


def sincos_1d(count: int, width: int, like: Tensor) -> Tensor:
    """Row p holds sin and cos of p / 10000^(2i/D), interleaved (arXiv 1706.03762, section 3.5)."""
    positions = torch.arange(count, device=like.device, dtype=torch.float32)
    rates = 10000 ** -(torch.arange(0, width, 2, device=like.device) / width)  # (D/2)
    angles = positions[:, None] * rates  # (count, D/2)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(like.dtype)  # (count, D)


def sincos_2d(grid: Grid, width: int, like: Tensor) -> Tensor:
    """Sines then cosines of the column, sines then cosines of the row, a quarter of the width each, as big_vision."""
    rates = 10000 ** -torch.linspace(0, 1, width // 4, device=like.device)  # (D/4)
    right = torch.arange(grid.columns, device=like.device)[:, None] * rates  # (S, D/4)
    down = torch.arange(grid.rows, device=like.device)[:, None] * rates  # (R, D/4)
    x = torch.cat([right.sin(), right.cos()], dim=-1).expand(grid.rows, -1, -1)  # (R, S, D/2)
    y = torch.cat([down.sin(), down.cos()], dim=-1)[:, None].expand(-1, grid.columns, -1)  # (R, S, D/2)
    return torch.cat([x, y], dim=-1).flatten(0, 1).to(like.dtype)  # (N, D)


def rotary_angles(grid: Grid, head_width: int, base: float, like: Tensor) -> Tensor:
    """The rotation angle of every patch in every plane; coordinates run from -1 to 1 on both axes for any grid."""
    quarter = head_width // 4
    periods = base ** (torch.arange(quarter, device=like.device) / quarter)  # (d/4)
    down = (torch.arange(grid.rows, device=like.device) + 0.5) / grid.rows * 2 - 1  # (R), patch centers
    right = (torch.arange(grid.columns, device=like.device) + 0.5) / grid.columns * 2 - 1  # (S)
    rows = (2 * math.pi * down[:, None] / periods)[:, None].expand(-1, grid.columns, -1)  # (R, S, d/4)
    columns = (2 * math.pi * right[:, None] / periods).expand(grid.rows, -1, -1)  # (R, S, d/4)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)  # (N, d/2)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate each pair (x_i, x_{i + d/2}) by its angle."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # each (N, d/2)
    first, second = x.chunk(2, dim=-1)  # each (..., N, d/2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)  # (..., N, d)


AppliesTo = Literal["nowhere", "tokens", "attention"]


class GridDependent(InitModule):
    """A module whose weights may depend on the patch grid. By default they do not."""

    def resample_weights(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        """Its weights by name, resampled from those of the same module for another grid."""
        return dict(weights)


class Position(GridDependent):
    """Added to the tokens before a layer; nothing by default."""

    def forward(self, tokens: Tensor, layout: Layout, layer: int) -> Tensor:
        return tokens


class AttentionPosition(GridDependent):
    """Position information inside attention; none by default."""

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        """Queries or keys (B, H, tokens, d), rotated by their position."""
        return x

    def bias(self, q: Tensor, grid: Grid, window: Grid) -> Tensor | None:
        """The bias (..., n, n) to add to the attention logits among the n patches of a window, if any."""
        return None


class BasePosition(Config):
    """A kind of position embedding; the defaults do nothing."""

    applies_to: ClassVar[AppliesTo] = "tokens"

    def check(self, width: int, head_width: int) -> None:
        """Raise ConfigError for widths that this kind does not support."""

    def build(self, context: BuildContext) -> Position:
        return Position()

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return AttentionPosition()


def check_divisible(field: str, value: int, divisor: int, reason: str) -> None:
    if value % divisor:
        hint = f"use a multiple of {divisor} such as {(value // divisor + 1) * divisor}"
        raise ConfigError(f"{reason}, but {field} is {value}", code="config.indivisible", where=field, hint=hint)


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


class NoPosition(BasePosition):
    """No position information: a bag of patches."""

    kind: Literal["none"] = "none"
    applies_to: ClassVar[AppliesTo] = "nowhere"


class Learned1d(BasePosition):
    """A learned embedding for each token: the paper's default."""

    kind: Literal["learned1d"] = "learned1d"
    where: Where = "stem"
    cls: bool = True  # big_vision has none for the class token
    resampling: Resampling = "bilinear"

    def build(self, context: BuildContext) -> Position:
        return LearnedPosition1d(self, context)


class LearnedPosition1d(AdditivePosition):
    def __init__(self, config: Learned1d, context: BuildContext) -> None:
        super().__init__(config.where)
        self.resampling, self.grid = config.resampling, context.layout.grid
        self.cls = context.layout.cls if config.cls else 0
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

    def check(self, width: int, head_width: int) -> None:
        check_divisible("width", width, 4, "sincos2d pairs sines with cosines on two axes")

    def build(self, context: BuildContext) -> Position:
        return SinCosPosition2d("stem")


class SinCosPosition2d(AdditivePosition):
    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        patches = sincos_2d(layout.grid, like.shape[-1], like)  # (N, D)
        return patches[:0], patches


class BaseRelative(BasePosition):
    """Relative attention of Table 8, with an embedding for each offset."""

    applies_to: ClassVar[AppliesTo] = "attention"

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return RelativePosition(self, context.layout.grid, head_width)

    def offset_grid(self, grid: Grid) -> Grid:
        """The number of offsets of a grid, down and right."""
        raise NotImplementedError

    def offset_index(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        """The row of the grid's table for an offset down and right."""
        raise NotImplementedError


class Relative1d(BaseRelative):
    """Relative attention of Table 8: the query times an embedding of the index offset is added to the logits."""

    kind: Literal["relative1d"] = "relative1d"

    def offset_grid(self, grid: Grid) -> Grid:
        return Grid(2 * grid.cells() - 1, 1)

    def offset_index(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        return down * grid.columns + right + grid.cells() - 1


class Relative2d(BaseRelative):
    """As relative1d, with an embedding for each pair of row and column offsets."""

    kind: Literal["relative2d"] = "relative2d"

    def offset_grid(self, grid: Grid) -> Grid:
        return Grid(2 * grid.rows - 1, 2 * grid.columns - 1)

    def offset_index(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        return (down + grid.rows - 1) * self.offset_grid(grid).columns + right + grid.columns - 1


class RelativePosition(AttentionPosition):
    """Relative attention among patches; prefix tokens have no position and get no bias."""

    def __init__(self, config: BaseRelative, grid: Grid, head_width: int) -> None:
        super().__init__()
        self.config, self.offset_grid = config, config.offset_grid(grid)
        self.table = nn.Parameter(torch.empty(self.offset_grid.cells(), head_width))  # one per offset

    def initialize(self, init: BaseInit) -> None:
        init.position_table(self.table)

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[-2] > layout.prefix():
            return x
        return x + 0 * self.table.sum()  # offsets are unused for the class token alone, but DDP needs every weight

    def resample_weights(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        return {"table": resample_grid(weights["table"], self.config.offset_grid(old), self.offset_grid)}

    def bias(self, q: Tensor, grid: Grid, window: Grid) -> Tensor:
        index = torch.arange(window.cells(), device=q.device)
        row, column = index // window.columns, index % window.columns  # each (n)
        offset = self.config.offset_index(row[:, None] - row, column[:, None] - column, grid)  # (n, n)
        table = resample_grid(self.table, self.offset_grid, self.config.offset_grid(grid))  # (offsets, d)
        logits = q @ table.mT * q.shape[-1] ** -0.5  # (..., n, offsets)
        return logits.gather(-1, offset.expand(*q.shape[:-2], -1, -1))  # (..., n, n)


class Rope2d(BasePosition):
    """Rotary embedding: half of the angles follow the row, half the column (as in DINOv3, arXiv 2508.10104)."""

    kind: Literal["rope2d"] = "rope2d"
    base: float = Field(default=100.0, gt=0)
    applies_to: ClassVar[AppliesTo] = "attention"

    def check(self, width: int, head_width: int) -> None:
        check_divisible("mixer.head_width", head_width, 4, "rope2d turns pairs on two axes")

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return RotaryPosition2d(self.base)


class RotaryPosition2d(AttentionPosition):
    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = base

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        prefix = layout.prefix()
        if x.shape[-2] <= prefix:  # the class token only, which has no position
            return x
        angles = rotary_angles(layout.grid, x.shape[-1], self.base, x)  # (N, d/2)
        return torch.cat([x[..., :prefix, :], rotate(x[..., prefix:, :], angles)], dim=-2)  # (B, H, prefix + N, d)


PositionConfig = Annotated[
    NoPosition | Learned1d | Learned2d | SinCos1d | SinCos2d | Relative1d | Relative2d | Rope2d,
    OpenUnion(),
]

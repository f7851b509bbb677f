"""Positions of patches relative to each other, inside attention.  R x S patches, N = R S, H heads, d head width."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.init import BaseInit
from vitral.models.position.base import AppliesTo, AttentionPosition, BasePosition
from vitral.models.position.resample import Resampling, resample_grid


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
        return offset_pairs(grid)

    def offset_index(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        return offset_pair_index(down, right, grid)


def offset_pairs(grid: Grid) -> Grid:
    """The number of row offsets and of column offsets in a grid."""
    return Grid(2 * grid.rows - 1, 2 * grid.columns - 1)


def offset_pair_index(down: Tensor, right: Tensor, grid: Grid) -> Tensor:
    """The row of a table with an entry for each pair of row and column offsets."""
    return (down + grid.rows - 1) * offset_pairs(grid).columns + right + grid.columns - 1


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


class BaseRelativeBias(BasePosition):
    """A learned bias for each head and offset is added to the attention logits, whatever the query."""

    applies_to: ClassVar[AppliesTo] = "attention"
    shared: bool = False  # the same bias in every layer

    def shares_layers(self) -> bool:
        return self.shared


class RelativeBias(BaseRelativeBias):
    """A table of biases, one for each head and pair of row and column offsets, as in BEiT (arXiv 2106.08254)."""

    kind: Literal["relative_bias"] = "relative_bias"
    resampling: Resampling | Literal["geometric"] = "bilinear"  # geometric: denser near offset 0, as in BEiT and timm

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return RelativeBiasTable(self, context)


class RelativeBiasTable(AttentionPosition):
    """The last three rows are for the class token: as query, as key, and to itself. Registers get no bias."""

    def __init__(self, config: RelativeBias, context: BuildContext) -> None:
        super().__init__()
        self.resampling, self.cls = config.resampling, context.layout.cls
        self.offset_grid = offset_pairs(context.layout.grid)
        self.table = nn.Parameter(torch.empty(self.offset_grid.cells() + 3 * self.cls, context.heads))

    def initialize(self, init: BaseInit) -> None:
        init.position_table(self.table)

    def resample_weights(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        return {"table": self.resampled(weights["table"], offset_pairs(old), self.offset_grid)}

    def resampled(self, table: Tensor, old: Grid, new: Grid) -> Tensor:
        """The table for the offsets of another grid; rows for the class token stay."""
        patches, cls = table.tensor_split([old.cells()])
        if self.resampling != "geometric":
            return torch.cat([resample_grid(patches, old, new, self.resampling), cls])
        down, right = (geometric_weights(*sides).to(table) for sides in zip(old, new, strict=True))
        offsets = torch.einsum("ar,bs,rsh->abh", down, right, patches.unflatten(0, old)).flatten(0, 1)
        return torch.cat([patches if old == new else offsets, cls])

    def bias(self, q: Tensor, grid: Grid, window: Grid) -> Tensor:
        index = torch.arange(window.cells(), device=q.device)
        row, column = index // window.columns, index % window.columns  # each (n)
        offset = offset_pair_index(row[:, None] - row, column[:, None] - column, grid)  # (n, n)
        return self.resampled(self.table, self.offset_grid, offset_pairs(grid))[offset].movedim(-1, 0)  # (H, n, n)

    def token_bias(self, q: Tensor, layout: Layout) -> Tensor:
        prefix, queries = layout.prefix(), q.shape[-2]
        bias = F.pad(self.bias(q, layout.grid, layout.grid), (prefix, 0, prefix, 0))  # (H, L, L)
        if self.cls:
            as_query, as_key, itself = (rows[:, None] for rows in self.table[-3:])  # each (H, 1)
            first = torch.cat([itself, bias[:, 0, 1:prefix], as_query.expand(-1, layout.grid.cells())], dim=1)  # (H, L)
            column = torch.cat([bias[:, 1:prefix, 0], as_key.expand(-1, layout.grid.cells())], dim=1)  # (H, L - 1)
            rest = torch.cat([column[:, :, None], bias[:, 1:, 1:]], dim=2)  # (H, L - 1, L)
            bias = torch.cat([first[:, None], rest], dim=1)
        return bias[:, :queries]  # (H, queries, L)


def geometric_weights(old: int, new: int) -> Tensor:
    """Linear interpolation (new, old) of offsets -n ... n from knots that are spaced ever wider away from 0.

    The knots 0, 1, 1 + q, 1 + q + q^2, ... reach the last offset of the new grid; q is found by bisection.
    """
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        reach = (1 - ratio ** (old // 2)) / (1 - ratio)
        low, high = (low, ratio) if reach > new // 2 else (ratio, high)
    steps = torch.cumsum(torch.tensor([0.0, *(ratio**power for power in range(old // 2))], dtype=torch.float64), dim=0)
    knots = torch.cat([-steps[1:].flip(0), steps])  # (old)
    wanted = torch.arange(new, dtype=torch.float64) - new // 2  # (new)
    right = torch.searchsorted(knots, wanted).clamp(1, old - 1)
    part = ((wanted - knots[right - 1]) / (knots[right] - knots[right - 1])).clamp(0, 1)  # (new)
    weights = torch.zeros(new, old, dtype=torch.float64)
    rows = torch.arange(new)
    weights[rows, right - 1] = 1 - part
    weights[rows, right] = part
    return weights


class RelativeMlp(BaseRelativeBias):
    """The biases are an MLP of the logarithms of the offsets (Swin v2, arXiv 2111.09883)."""

    kind: Literal["relative_mlp"] = "relative_mlp"
    hidden: int = Field(default=512, ge=1, le=100_000)

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return RelativeBiasMlp(self.hidden, context.heads)


class RelativeBiasMlp(AttentionPosition):
    """Prefix tokens get no bias."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.expand, self.contract = nn.Linear(2, hidden), nn.Linear(hidden, heads)

    def initialize(self, init: BaseInit) -> None:
        init.mlp(self.expand)
        init.mlp(self.contract)

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[-2] > layout.prefix():
            return x
        return x + 0 * self.contract(self.expand.weight.sum() * self.expand.bias).sum()  # DDP needs every weight

    def bias(self, q: Tensor, grid: Grid, window: Grid) -> Tensor:
        like = self.expand.weight
        row, column = torch.meshgrid(*(torch.arange(side, device=like.device) for side in window), indexing="ij")
        places = torch.stack([row.flatten(), column.flatten()], dim=-1).to(like.dtype)  # (n, 2)
        offsets = places[:, None] - places  # (n, n, 2)
        logs = offsets.sign() * offsets.abs().log1p()  # (n, n, 2)
        return self.contract(F.relu(self.expand(logs))).movedim(-1, 0)  # (H, n, n)

"""Rotary position embeddings: queries and keys are rotated by their place.  R x S patches, N = R S, d head width."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.init import BaseInit
from vitral.models.position.base import AppliesTo, AttentionPosition, BasePosition, check_divisible

Precision = Literal["float32", "bfloat16"]


def rotary_angles(grid: Grid, head_width: int, base: float, like: Tensor, precision: Precision = "float32") -> Tensor:
    """The rotation angle of every patch in every plane; coordinates run from -1 to 1 on both axes for any grid."""
    quarter = head_width // 4
    periods = base ** (torch.arange(quarter, device=like.device) / quarter)  # (d/4)
    if precision == "bfloat16":
        periods = periods.bfloat16().float()
    down = (torch.arange(grid.rows, device=like.device) + 0.5) / grid.rows * 2 - 1  # (R), patch centers
    right = (torch.arange(grid.columns, device=like.device) + 0.5) / grid.columns * 2 - 1  # (S)
    rows = (2 * math.pi * down[:, None] / periods)[:, None].expand(-1, grid.columns, -1)  # (R, S, d/4)
    columns = (2 * math.pi * right[:, None] / periods).expand(grid.rows, -1, -1)  # (R, S, d/4)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)  # (N, d/2)


Pairs = Literal["half", "interleaved"]  # which channels a plane has: i and i + d/2, or 2i and 2i + 1
AxisOrder = Literal["rows_first", "columns_first"]


def rotate(x: Tensor, angles: Tensor, pairs: Pairs = "half") -> Tensor:
    """Rotate each pair of channels by its angle (..., N, d/2)."""
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)  # each (..., N, d/2)
    first, second = x.chunk(2, dim=-1) if pairs == "half" else x.unflatten(-1, (-1, 2)).unbind(-1)  # (..., N, d/2)
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, dim=-1) if pairs == "half" else torch.stack(turned, dim=-1).flatten(-2)  # (..., N, d)


class RotaryPosition(AttentionPosition):
    """Rotates the queries and keys of patches; prefix tokens have no position."""

    pairs: Pairs = "interleaved"

    def angles(self, grid: Grid, head_width: int, like: Tensor) -> Tensor:
        """The rotation angle of every patch in every plane (N, d/2), or (H, N, d/2) if heads differ."""
        raise NotImplementedError

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        prefix = layout.prefix()
        if x.shape[-2] <= prefix:
            return self.touched(x)
        turned = rotate(x[..., prefix:, :], self.angles(layout.grid, x.shape[-1], x), self.pairs)
        return torch.cat([x[..., :prefix, :], turned], dim=-2)  # (B, H, prefix + N, d)

    def touched(self, x: Tensor) -> Tensor:
        """Prefix tokens, unchanged; with learned angles, still part of the graph."""
        return x


class Rope2d(BasePosition):
    """Rotary embedding: half of the angles follow the row, half the column (as in DINOv3, arXiv 2508.10104)."""

    kind: Literal["rope2d"] = "rope2d"
    base: float = Field(default=100.0, gt=0)
    precision: Precision = "float32"  # of the periods; DINOv3's own files round them
    applies_to: ClassVar[AppliesTo] = "attention"

    def check(self, width: int, head_width: int) -> None:
        check_divisible("mixer.head_width", head_width, 4, "rope2d turns pairs on two axes")

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return RotaryPosition2d(self)


class RotaryPosition2d(RotaryPosition):
    pairs = "half"

    def __init__(self, config: Rope2d) -> None:
        super().__init__()
        self.config = config

    def angles(self, grid: Grid, head_width: int, like: Tensor) -> Tensor:
        return rotary_angles(grid, head_width, self.config.base, like, self.config.precision)


class RopeAxial(BasePosition):
    """Rotary embedding by row and column index (EVA-02, arXiv 2303.11331; RoPE-ViT, arXiv 2403.13298)."""

    kind: Literal["rope_axial"] = "rope_axial"
    base: float = Field(default=10_000.0, gt=0)
    offset: float = 0.0  # of the first row and column
    # Indices of other grids are scaled to this one; "none" counts patches on every grid.
    reference: Literal["none"] | Size = "none"
    order: AxisOrder = "rows_first"  # which half of the planes is for which axis
    applies_to: ClassVar[AppliesTo] = "attention"

    def check(self, width: int, head_width: int) -> None:
        check_divisible("mixer.head_width", head_width, 4, "rope_axial turns pairs on two axes")

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return AxialRotary(self)


class AxialRotary(RotaryPosition):
    def __init__(self, config: RopeAxial) -> None:
        super().__init__()
        self.config = config

    def angles(self, grid: Grid, head_width: int, like: Tensor) -> Tensor:
        return axial_angles(self.config, grid, head_width, like)


def axial_angles(config: RopeAxial, grid: Grid, head_width: int, like: Tensor) -> Tensor:
    """The rotation angle of every patch in every plane: its row or column index by the plane's frequency."""
    quarter = head_width // 4
    bands = 1.0 / config.base ** (torch.arange(quarter, device=like.device) / quarter)  # (d/4)
    axes = [torch.arange(side, device=like.device).float() + config.offset for side in grid]  # (R), (S)
    if config.reference != "none":
        sides = zip(axes, grid, config.reference, strict=True)
        axes = [axis / side * reference for axis, side, reference in sides]
    rows = (axes[0][:, None] * bands)[:, None].expand(-1, grid.columns, -1)  # (R, S, d/4)
    columns = (axes[1][:, None] * bands).expand(grid.rows, -1, -1)  # (R, S, d/4)
    halves = [rows, columns] if config.order == "rows_first" else [columns, rows]
    return torch.cat(halves, dim=-1).flatten(0, 1)  # (N, d/2)


class RopeCls(BasePosition):
    """Rotary embedding by row and column index, with learned angles of the class token (MLCD, arXiv 2407.17331).

    the planes k and d/4 + k of a patch in row i and column j turn by i / base^(4k/d) and j / base^(4k/d);
    those of the class token turn by angles that all heads and layers share
    """

    kind: Literal["rope_cls"] = "rope_cls"
    base: float = Field(default=10_000.0, gt=0)
    applies_to: ClassVar[AppliesTo] = "attention"

    def shares_layers(self) -> bool:
        return True

    def check(self, width: int, head_width: int) -> None:
        check_divisible("mixer.head_width", head_width, 4, "rope_cls turns pairs on two axes")

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        if not context.layout.cls:
            message, hint = "rope_cls turns the class token, and there is none", "use rope_axial, or tokens.cls=true"
            raise ConfigError(message, code="config.conflict", where="position", hint=hint)
        return ClassRotary(self, head_width)


class ClassRotary(RotaryPosition):
    pairs = "half"

    def __init__(self, config: RopeCls, head_width: int) -> None:
        super().__init__()
        self.axial = RopeAxial(base=config.base)
        self.cls_angles = nn.Parameter(torch.empty(head_width // 2))

    def initialize(self, init: BaseInit) -> None:
        nn.init.normal_(self.cls_angles, std=len(self.cls_angles) ** -0.5)  # as in transformers

    def angles(self, grid: Grid, head_width: int, like: Tensor) -> Tensor:
        return axial_angles(self.axial, grid, head_width, like)

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        cls = rotate(x[..., :1, :], self.cls_angles.float(), self.pairs)  # (B, H, 1, d)
        return torch.cat([cls, super().rotate(x, layout)[..., 1:, :]], dim=-2)  # (B, H, tokens, d)


class RopeMixed(BasePosition):
    """Rotary embedding with learned frequencies on both axes for each head and plane (RoPE-ViT, arXiv 2403.13298)."""

    kind: Literal["rope_mixed"] = "rope_mixed"
    base: float = Field(default=10.0, gt=0)  # of the initial frequencies
    order: AxisOrder = "columns_first"  # the axis of the first frequency
    applies_to: ClassVar[AppliesTo] = "attention"

    def check(self, width: int, head_width: int) -> None:
        check_divisible("mixer.head_width", head_width, 4, "rope_mixed turns pairs on two axes")

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return MixedRotary(self, context.heads, head_width)


class MixedRotary(RotaryPosition):
    def __init__(self, config: RopeMixed, heads: int, head_width: int) -> None:
        super().__init__()
        self.config = config
        self.frequencies = nn.Parameter(torch.empty(2, heads, head_width // 2))

    def initialize(self, init: BaseInit) -> None:
        """Two perpendicular waves of each magnitude, in a random direction for each head."""
        heads, planes = self.frequencies.shape[1:]
        magnitude = self.config.base ** -(torch.arange(0, 2 * planes, 4) / (2 * planes))  # (d/4)
        direction = torch.rand(heads, 1) * 2 * math.pi  # (H, 1)
        turned = torch.cat(
            [direction.expand(-1, planes // 2), (direction + math.pi / 2).expand(-1, planes // 2)], dim=1
        )
        self.frequencies.copy_(magnitude.repeat(2) * torch.stack([turned.cos(), turned.sin()]))

    def touched(self, x: Tensor) -> Tensor:
        return x + 0 * self.frequencies.sum()  # DDP needs every weight

    def angles(self, grid: Grid, head_width: int, like: Tensor) -> Tensor:
        index = torch.arange(grid.cells(), device=like.device)
        row, column = (index // grid.columns).float(), (index % grid.columns).float()  # each (N)
        places = torch.stack([column, row] if self.config.order == "columns_first" else [row, column])  # (2, N)
        return torch.einsum("an,ahp->hnp", places, self.frequencies.float())  # (H, N, d/2)

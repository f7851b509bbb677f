"""Where a patch is: the position embeddings of the paper (appendix D.4), the fixed ones and the rotary one.

R x S patches, N = R S, D width, H heads, d head width.
To add a kind, write it here and name it in `PositionConfig`: that is all.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vitral.model.initial import Initial
from vitral.model.place import Acts, Added, Position, PositionKind, Relation, Where, refuse_width
from vitral.model.resample import Resampling, resample_grid, resample_line
from vitral.model.shapes import Grid, Layout, Whole
from vitral.model.waves import rotary_angles, rotate, sincos_1d, sincos_2d


class NoPosition(PositionKind):
    """The patches are a bag: their order means nothing."""

    kind: Literal["none"] = "none"
    acts: ClassVar[Acts] = "nowhere"


class Learned1d(PositionKind):
    """One learned row for each token in reading order: the paper's default."""

    kind: Literal["learned1d"] = "learned1d"
    where: Where = "stem"
    cls: bool = True  # big_vision gives the class token no row of its own
    resampling: Resampling = "bilinear"

    def build(self, whole: Whole) -> Position:
        return LearnedRows(self, whole)


class LearnedRows(Added):
    def __init__(self, config: Learned1d, whole: Whole) -> None:
        super().__init__(config.where)
        self.resampling, self.grid = config.resampling, whole.layout.grid
        self.cls = whole.layout.cls if config.cls else 0
        copies = whole.depth if config.where == "layers" else 1
        self.table = nn.Parameter(torch.empty(copies, self.cls + self.grid.cells(), whole.width))

    def initialise(self, initial: Initial) -> None:
        initial.table(self.table)

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        table = self.table[layer]  # (cls + N, D)
        return table[: self.cls], resample_grid(table[self.cls :], self.grid, layout.grid, self.resampling)

    def regridded(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        cls, patches = weights["table"].tensor_split([self.cls], dim=1)  # (copies, cls, D), (copies, N, D)
        return {"table": torch.cat([cls, resample_grid(patches, old, self.grid, self.resampling)], dim=1)}


class Learned2d(PositionKind):
    """A learned half-row for each column beside one for each row of the grid (X and Y of appendix D.4)."""

    kind: Literal["learned2d"] = "learned2d"
    where: Where = "stem"
    resampling: Resampling = "bilinear"

    def check(self, width: int, head_width: int) -> None:
        refuse_width("width", width, 2, "learned2d gives half the width to each axis")

    def build(self, whole: Whole) -> Position:
        return LearnedAxes(self, whole)


class LearnedAxes(Added):
    def __init__(self, config: Learned2d, whole: Whole) -> None:
        super().__init__(config.where)
        self.resampling = config.resampling
        copies = whole.depth if config.where == "layers" else 1
        self.x = nn.Parameter(torch.empty(copies, whole.layout.grid.columns, whole.width // 2))
        self.y = nn.Parameter(torch.empty(copies, whole.layout.grid.rows, whole.width // 2))

    def initialise(self, initial: Initial) -> None:
        initial.table(self.x)
        initial.table(self.y)

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = layout.grid
        x = resample_line(self.x[layer], columns, self.resampling).expand(rows, -1, -1)  # (R, S, D/2)
        y = resample_line(self.y[layer], rows, self.resampling)[:, None].expand(-1, columns, -1)  # (R, S, D/2)
        patches = torch.cat([x, y], dim=-1).flatten(0, 1)  # (N, D)
        return patches[:0], patches

    def regridded(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        places = {"x": self.x.shape[1], "y": self.y.shape[1]}
        return {axis: resample_line(weights[axis], count, self.resampling) for axis, count in places.items()}


class SinCos1d(PositionKind):
    """Fixed sines over the reading order (arXiv 1706.03762); the class token comes first."""

    kind: Literal["sincos1d"] = "sincos1d"

    def check(self, width: int, head_width: int) -> None:
        refuse_width("width", width, 2, "sincos1d pairs sines with cosines")

    def build(self, whole: Whole) -> Position:
        return SineRows("stem")


class SineRows(Added):
    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        table = sincos_1d(layout.cls + layout.grid.cells(), like.shape[-1], like)  # (cls + N, D)
        return table[: layout.cls], table[layout.cls :]


class SinCos2d(PositionKind):
    """Fixed sines over columns and rows, as in big_vision's plain ViT; the class token has none."""

    kind: Literal["sincos2d"] = "sincos2d"

    def check(self, width: int, head_width: int) -> None:
        refuse_width("width", width, 4, "sincos2d pairs sines with cosines on two axes")

    def build(self, whole: Whole) -> Position:
        return SineGrid("stem")


class SineGrid(Added):
    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        patches = sincos_2d(layout.grid, like.shape[-1], like)  # (N, D)
        return patches[:0], patches


class Relative1d(PositionKind):
    """Table 8's: the query meets an embedding of the offset in reading order, and the logits are added."""

    kind: Literal["relative1d"] = "relative1d"
    acts: ClassVar[Acts] = "attention"

    def relate(self, whole: Whole, head_width: int) -> Relation:
        return OffsetsInOrder(whole.layout.grid, head_width)


class OffsetLogits(Relation):
    """Content-to-offset attention among patches; the class token and registers have no place and get no logits."""

    def __init__(self, grid: Grid, head_width: int) -> None:
        super().__init__()
        self.spread = self.spread_of(grid)
        self.table = nn.Parameter(torch.empty(self.spread.cells(), head_width))  # an embedding for each possible offset

    def initialise(self, initial: Initial) -> None:
        initial.table(self.table)

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[-2] > layout.prefix():
            return x
        return x + 0 * self.table.sum()  # the class token alone uses no offset, but DDP wants every weight in the graph

    def regridded(self, weights: Mapping[str, Tensor], old: Grid) -> dict[str, Tensor]:
        return {"table": resample_grid(weights["table"], self.spread_of(old), self.spread)}

    def spread_of(self, grid: Grid) -> Grid:
        """How many offsets a grid has, down and right."""
        raise NotImplementedError

    def offsets(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        """Which row of the grid's table belongs to a step down and right."""
        raise NotImplementedError

    def bias(self, q: Tensor, grid: Grid, group: Grid) -> Tensor:
        place = torch.arange(group.cells(), device=q.device)
        row, column = place // group.columns, place % group.columns  # each (n)
        index = self.offsets(row[:, None] - row, column[:, None] - column, grid)  # (n, n)
        table = resample_grid(self.table, self.spread, self.spread_of(grid))  # (offsets, d)
        logits = q @ table.mT * q.shape[-1] ** -0.5  # (..., n, offsets)
        return logits.gather(-1, index.expand(*q.shape[:-2], -1, -1))  # (..., n, n)


class OffsetsInOrder(OffsetLogits):
    def spread_of(self, grid: Grid) -> Grid:
        return Grid(2 * grid.cells() - 1, 1)

    def offsets(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        return down * grid.columns + right + grid.cells() - 1


class Relative2d(PositionKind):
    """As relative1d, with an embedding for each pair of steps down and right."""

    kind: Literal["relative2d"] = "relative2d"
    acts: ClassVar[Acts] = "attention"

    def relate(self, whole: Whole, head_width: int) -> Relation:
        return OffsetsInPlane(whole.layout.grid, head_width)


class OffsetsInPlane(OffsetLogits):
    def spread_of(self, grid: Grid) -> Grid:
        return Grid(2 * grid.rows - 1, 2 * grid.columns - 1)

    def offsets(self, down: Tensor, right: Tensor, grid: Grid) -> Tensor:
        return (down + grid.rows - 1) * self.spread_of(grid).columns + right + grid.columns - 1


class Rope2d(PositionKind):
    """Rotary embedding: half the angles follow the row, half the column (as DINOv3, arXiv 2508.10104)."""

    kind: Literal["rope2d"] = "rope2d"
    base: float = Field(default=100.0, gt=0)
    acts: ClassVar[Acts] = "attention"

    def check(self, width: int, head_width: int) -> None:
        refuse_width("mixer.head_width", head_width, 4, "rope2d turns pairs on two axes")

    def relate(self, whole: Whole, head_width: int) -> Relation:
        return Rotation(self.base)


class Rotation(Relation):
    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = base

    def rotate(self, x: Tensor, layout: Layout) -> Tensor:
        prefix = layout.prefix()
        if x.shape[-2] <= prefix:  # only the class token was asked for, and it has no place
            return x
        angles = rotary_angles(layout.grid, x.shape[-1], self.base, x)  # (N, d/2)
        return torch.cat([x[..., :prefix, :], rotate(x[..., prefix:, :], angles)], dim=-2)  # (B, H, prefix + N, d)


PositionConfig = Annotated[
    NoPosition | Learned1d | Learned2d | SinCos1d | SinCos2d | Relative1d | Relative2d | Rope2d,
    Field(discriminator="kind"),
]

"""The joints of the model: how an image becomes a grid, a grid a sequence, a sequence features.

B images, N patches, D width.
"""

from typing import NamedTuple

from torch import Tensor

from vitral.config import Size
from vitral.errors import ConfigError

LONGEST_SIDE = 100_000  # pixels; far beyond use, it catches slips of a finger


class Grid(NamedTuple):
    """Rows and columns of patches."""

    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"

    def cells(self) -> int:
        return self.rows * self.columns


class Layout(NamedTuple):
    """What stands where in a sequence: class token, registers, then the patches row by row."""

    cls: int
    registers: int
    grid: Grid

    def prefix(self) -> int:
        return self.cls + self.registers

    def length(self) -> int:
        return self.cls + self.registers + self.grid.cells()


class Whole(NamedTuple):
    """What a part needs to know of the model it is built into."""

    width: int
    depth: int
    layout: Layout
    eps: float
    heads: int = 0  # of the mixer, if it has any


class Features(NamedTuple):
    """What a model sees in a batch. Without a class token or registers there are zero of them, not None."""

    cls: Tensor  # (B, 0 or 1, D)
    registers: Tensor  # (B, registers, D)
    patches: Tensor  # (B, N, D)
    grid: Grid


def split_tokens(tokens: Tensor, layout: Layout) -> Features:
    """A sequence (B, prefix + N, D) taken apart into what its tokens are."""
    sizes = (layout.cls, layout.registers, layout.grid.cells())
    cls, registers, patches = tokens.split(sizes, dim=1)
    return Features(cls, registers, patches, layout.grid)


def divide(image: Size, patch: Size, what: str = "patches") -> Grid:
    """The grid of patches that covers the image exactly."""
    if max(image) > LONGEST_SIDE:
        what, remedy = f"a {image} image is beyond reason", f"use at most {LONGEST_SIDE} a side"
        raise ConfigError(what, code="config.out_of_range", where="image", remedy=remedy)
    rows, columns = image.height // patch.height, image.width // patch.width
    if image.height % patch.height or image.width % patch.width or not rows or not columns:
        near = Size(*(max(1, round(side / step)) * step for side, step in zip(image, patch, strict=True)))
        told = f"a {image} image does not divide into {patch} {what}"
        raise ConfigError(told, code="config.indivisible", where="image", remedy=f"use {near}")
    return Grid(rows, columns)


def check_heads(width: int, heads: int, where: str) -> None:
    """Refuse heads that cannot share the width evenly."""
    if width % heads:
        remedy = f"use one of {', '.join(str(count) for count in range(1, 2 * heads) if width % count == 0)}"
        what = f"width {width} does not divide among {heads} heads"
        raise ConfigError(what, code="config.indivisible", where=where, remedy=remedy)

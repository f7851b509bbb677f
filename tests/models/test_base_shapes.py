"""Grids, sequences and features fit together."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from vitral.core.config import Size
from vitral.models import Grid, Layout
from vitral.models.base import MAX_SIDE, patch_grid, split_tokens

sides = st.integers(1, 40)
sizes = st.builds(Size, sides, sides)
grids = st.builds(Grid, st.integers(1, 6), st.integers(1, 6))


@given(grid=grids, patch=sizes)
def test_an_image_made_of_patches_divides_into_them(grid: Grid, patch: Size) -> None:
    assert patch_grid(Size(grid.rows * patch.height, grid.columns * patch.width), patch) == grid


@given(image=sizes, patch=sizes)
def test_an_image_divides_or_is_refused_with_a_size_that_does(image: Size, patch: Size) -> None:
    if image.height % patch.height == 0 and image.width % patch.width == 0:
        assert patch_grid(image, patch) == (image.height // patch.height, image.width // patch.width)
        return
    with raises("config.indivisible", image, patch) as caught:
        patch_grid(image, patch)
    advised = Size.parse(caught.value.hint.split()[-1])
    assert min(patch_grid(advised, patch)) >= 1
    assert all(abs(new - old) < step for new, old, step in zip(advised, image, patch, strict=True))


def test_a_refusal_names_the_field_both_sizes_and_one_that_divides() -> None:
    with raises("config.indivisible", "30x32", "8x8", "32x32") as caught:
        patch_grid(Size(30, 32), Size(8, 8))
    assert caught.value.where == "image_size"


def test_an_image_beyond_the_longest_side_is_refused() -> None:
    assert patch_grid(Size(MAX_SIDE, 8), Size(8, 8)) == (MAX_SIDE // 8, 1)
    with raises("config.out_of_range", "image", MAX_SIDE + 8, MAX_SIDE):
        patch_grid(Size(MAX_SIDE + 8, 8), Size(8, 8))


@given(cls=st.integers(0, 1), registers=st.integers(0, 4), grid=grids)
def test_a_sequence_is_class_token_then_registers_then_patches(cls: int, registers: int, grid: Grid) -> None:
    layout = Layout(cls, registers, grid)
    assert layout.prefix() == cls + registers
    assert layout.length() == layout.prefix() + grid.rows * grid.columns
    tokens = torch.randn(2, layout.length(), 3)
    features = split_tokens(tokens, layout)
    assert features.cls.shape == (2, cls, 3)
    assert features.registers.shape == (2, registers, 3)
    assert features.patches.shape == (2, grid.cells(), 3)
    assert features.grid == grid
    assert torch.cat([features.cls, features.registers, features.patches], dim=1).equal(tokens)


def test_the_papers_image_is_197_tokens() -> None:
    layout = Layout(1, 0, patch_grid(Size(224, 224), Size(16, 16)))
    assert layout.grid == Grid(14, 14)
    assert layout.length() == 197


def test_a_grid_is_written_as_people_write_it() -> None:
    assert str(Grid(14, 20)) == "14x20"

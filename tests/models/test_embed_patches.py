"""Patches through a linear map are a strided convolution, and nothing of the image is lost."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.errors import raises
from vitral.core.config import Size
from vitral.models import Grid, Layout, Patches, Vit
from vitral.models.base import BuildContext
from vitral.models.embed import PatchStem, cut_patches, join_patches, kernel_to_linear, linear_to_kernel

CHANNELS = pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
SIZES = pytest.mark.parametrize(
    ("image", "patch"),
    [
        (Size(8, 8), Size(2, 2)),
        (Size(8, 12), Size(4, 4)),
        (Size(16, 8), Size(8, 8)),
        (Size(28, 42), Size(14, 14)),
        (Size(32, 16), Size(16, 16)),
        (Size(32, 32), Size(32, 32)),
        (Size(6, 6), Size(2, 3)),
        (Size(10, 6), Size(5, 2)),
        (Size(7, 9), Size(1, 9)),
    ],
    ids=str,
)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@CHANNELS
@SIZES
def test_a_linear_map_of_patches_is_a_strided_convolution(image: Size, patch: Size, channels: int) -> None:
    images, kernel, bias = random(2, channels, *image), random(5, channels, *patch), random(5)
    expected = F.conv2d(images, kernel, bias, stride=patch).flatten(2).mT
    found = F.linear(cut_patches(images, patch), kernel_to_linear(kernel), bias)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@CHANNELS
@SIZES
def test_weights_go_from_convolution_to_linear_and_back_exactly(image: Size, patch: Size, channels: int) -> None:
    kernel, weight = random(5, channels, *patch), random(5, channels * patch.height * patch.width)
    assert linear_to_kernel(kernel_to_linear(kernel), patch).equal(kernel)
    assert kernel_to_linear(linear_to_kernel(weight, patch)).equal(weight)


def test_patches_come_row_by_row_and_pixels_channel_by_channel() -> None:
    images, patch, grid = random(2, 3, 6, 8), Size(3, 2), Grid(2, 4)
    patches = cut_patches(images, patch)
    assert patches.shape == (2, 8, 18)
    for place in range(grid.cells()):
        top, left = place // 4 * 3, place % 4 * 2
        tile = images[:, :, top : top + 3, left : left + 2]
        pixels = [tile[:, c, p, q] for c in range(3) for p in range(3) for q in range(2)]
        assert patches[:, place].equal(torch.stack(pixels, dim=1))


@given(
    grid=st.builds(Grid, st.integers(1, 5), st.integers(1, 5)),
    patch=st.builds(Size, st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 5),
)
def test_patches_joined_again_are_the_image(grid: Grid, patch: Size, channels: int) -> None:
    images = random(2, channels, grid.rows * patch.height, grid.columns * patch.width)
    patches = cut_patches(images, patch)
    assert patches.shape == (2, grid.cells(), channels * patch.height * patch.width)
    assert join_patches(patches, grid, patch).equal(images)


@pytest.mark.parametrize("side", [2, 4, 8, 14, 16, 32])
def test_every_patch_of_the_paper_and_of_small_images_tiles_224_pixels(side: int) -> None:
    config = Patches(patch=Size(side, side))
    assert config.grid(Size(224, 224)) == Grid(224 // side, 224 // side)
    assert config.grid(Size(2 * side, 3 * side)) == Grid(2, 3)


def layer_norm(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
    centered = x - x.mean(dim=-1, keepdim=True)
    return centered / (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt() * scale + shift


def test_the_stem_with_both_norms_is_that_of_vit_pytorch() -> None:
    patch, channels, width, eps = Size(2, 4), 3, 6, 1e-5
    whole = BuildContext(width, 1, Layout(0, 0, Grid(3, 2)), eps)
    stem = PatchStem(Patches(patch=patch, norm="both"), channels, whole).double()
    with torch.no_grad():
        for weight in stem.parameters():
            weight.normal_()
    scale, shift, after_scale, after_shift = (
        getattr(norm, part).detach() for norm in (stem.before, stem.after) for part in ("weight", "bias")
    )
    images = random(2, channels, 6, 8)
    # "b c (h p1) (w p2) -> b (h w) (p1 p2 c)", and our weights in that order of pixels
    tiles = images.reshape(2, channels, 3, 2, 2, 4).permute(0, 2, 4, 3, 5, 1).reshape(2, 6, 24)
    order = torch.arange(24).reshape(channels, *patch).permute(1, 2, 0).flatten()
    normed = layer_norm(tiles, scale[order], shift[order], eps)
    mapped = normed @ stem.project.weight[:, order].T + stem.project.bias
    torch.testing.assert_close(stem(images), layer_norm(mapped, after_scale, after_shift, eps), rtol=0, atol=1e-10)


@pytest.mark.parametrize("image", [Size(30, 32), Size(32, 30), Size(30, 30), Size(4, 32)], ids=str)
def test_a_size_that_does_not_divide_is_refused_with_both_sizes_named(image: Size) -> None:
    with raises("config.indivisible", "image", image, "8x8"):
        cut_patches(torch.zeros(1, 3, *image), Size(8, 8))
    with raises("config.indivisible", "image", image, "8x8"):
        Patches(patch=Size(8, 8)).grid(image)
    with raises("config.indivisible", "image", image, "8x8"):
        Vit(image_size=image, stem=Patches(patch=Size(8, 8)))

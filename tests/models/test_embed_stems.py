"""Stems that see beyond their patch: convolutions, overlapping and shifted patches."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import VITS, small
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Convolutions, Grid, Hybrid, OverlappingPatches, Palette, Patches, RmsNorm, ShiftedPatches, Vit
from vitral.models.embed import (
    PaletteStem,
    StemConfig,
    cut_patches,
    describe_stem,
    projected_values,
    shift_images,
    spread_colors,
)
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.weights.adapt import adapt_channels

NEW = ["stem-convolutions", "stem-overlapping_patches", "stem-shifted_patches", "stem-palette"]
WIDE: dict[str, StemConfig] = {
    "convolutions": Convolutions(widths=(4, 5, 6)),
    "two": Convolutions(widths=(4, 5)),
    "one": Convolutions(widths=(4,)),
    "further": Convolutions(widths=(4, 5), same_size=1),
    "overlapping": OverlappingPatches(patch=Size(14, 12), stride=Size(8, 8)),
    "odd": OverlappingPatches(patch=Size(11, 8), stride=Size(8, 8)),
    "shifted": ShiftedPatches(patch=Size(8, 8)),
}


def seen_pixels(stem: StemConfig, row: int, column: int) -> tuple[slice, slice]:
    """The rows and columns of the pixels that a token of an 80x80 image depends on."""
    config = small(stem=stem, image_size=Size(80, 80))
    model, grid = config.build().double(), stem.grid(Size(80, 80))
    images = torch.rand(1, 3, 80, 80, dtype=torch.float64, requires_grad=True)
    model.stem(images)[0, row * grid.columns + column].square().sum().backward()
    assert images.grad is not None
    where = images.grad[0].abs().sum(dim=0).nonzero()  # (pixels, 2)
    (top, left), (bottom, right) = where.min(dim=0).values.tolist(), where.max(dim=0).values.tolist()
    return slice(top, bottom + 1), slice(left, right + 1)


@pytest.mark.parametrize("name", WIDE)
def test_the_cell_of_a_token_is_in_the_middle_of_what_it_sees(name: str) -> None:
    stem = WIDE[name]
    cell = stem.token_size()
    for row, column in ((4, 3), (5, 6)):
        sides = zip(seen_pixels(stem, row, column), (row * cell.height, column * cell.width), cell, strict=True)
        for seen, start, side in sides:
            assert abs((seen.start + seen.stop) / 2 - (start + side / 2)) <= 0.5
            assert seen.start <= start < start + side <= seen.stop


@pytest.mark.parametrize(
    ("name", "sides"),
    [("convolutions", (15, 15)), ("further", (15, 15)), ("overlapping", (14, 12)), ("shifted", (16, 16))],
)
def test_a_token_sees_beyond_its_cell(name: str, sides: tuple[int, int]) -> None:
    rows, columns = seen_pixels(WIDE[name], 4, 4)
    assert (rows.stop - rows.start, columns.stop - columns.start) == sides


def test_convolutions_are_those_of_the_equation() -> None:
    """With padding above and left, but for the last below and right, in float64 pixel by pixel."""
    model = small(stem=Convolutions(widths=(4, 5)), image_size=Size(16, 24)).build().double()
    stem, images = model.stem, torch.randn(2, 3, 16, 24, dtype=torch.float64)
    x = images
    for index, pad in enumerate([1, 0]):
        kernel = stem.get_parameter(f"layers.{index}.conv.weight")  # (out, in, 3, 3)
        scale, shift = (stem.get_parameter(f"layers.{index}.norm.{name}") for name in ("weight", "bias"))
        nn.init.uniform_(scale)
        nn.init.uniform_(shift)
        rows, columns = x.shape[2] // 2, x.shape[3] // 2
        padded = torch.zeros(2, x.shape[1], x.shape[2] + 1, x.shape[3] + 1, dtype=torch.float64)
        padded[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]] = x
        y = torch.empty(2, kernel.shape[0], rows, columns, dtype=torch.float64)
        for row in range(rows):
            for column in range(columns):
                window = padded[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]  # (2, in, 3, 3)
                value = torch.einsum("bikl,oikl->bo", window, kernel)
                spread = (value.var(dim=1, correction=0, keepdim=True) + 1e-6).sqrt()
                normed = (value - value.mean(dim=1, keepdim=True)) / spread * scale + shift
                y[:, :, row, column] = normed.clamp_min(0)
        x = y
    expected = x.flatten(2).mT @ stem.get_parameter("project.weight").mT + stem.get_parameter("project.bias")
    torch.testing.assert_close(stem(images), expected, atol=1e-12, rtol=1e-12)


def test_convolutions_of_stride_1_follow_and_need_no_norm() -> None:
    """The whole stem in float64, by torch's convolutions: a bias in each, and padding all around the last."""
    stem = small(stem=Convolutions(widths=(4, 5), same_size=1, norm=False)).build().double().stem
    images = torch.randn(2, 3, 32, 48, dtype=torch.float64)
    x = images
    for index, (stride, margin) in enumerate([(2, (1, 0, 1, 0)), (2, (0, 1, 0, 1)), (1, (1, 1, 1, 1))]):
        kernel, bias = (stem.get_parameter(f"layers.{index}.conv.{name}") for name in ("weight", "bias"))
        nn.init.uniform_(bias)
        x = F.conv2d(F.pad(x, margin), kernel, bias, stride).relu()
    expected = x.flatten(2).mT @ stem.get_parameter("project.weight").mT + stem.get_parameter("project.bias")
    torch.testing.assert_close(stem(images), expected, atol=1e-12, rtol=1e-12)
    assert not any("norm" in name for name in stem.state_dict())


def test_convolutions_without_a_norm_start_with_the_variance_of_he() -> None:
    torch.manual_seed(0)
    stem = small(stem=Convolutions(widths=(64, 64), norm=False)).build().stem
    kernel = stem.get_parameter("layers.1.conv.weight")  # 64 x 9 inputs
    assert kernel.var().item() == pytest.approx(2 / (64 * 9), rel=0.03)
    assert not stem.get_parameter("layers.1.conv.bias").any()


def test_the_widths_are_the_channels_and_their_number_the_stride() -> None:
    config = Vit(stem=Convolutions())
    model = config.build_empty()
    shapes = [tuple(model.get_parameter(f"stem.layers.{index}.conv.weight").shape[:2]) for index in range(4)]
    assert shapes == [(48, 3), (96, 48), (192, 96), (384, 192)]
    assert config.layout(Size(224, 224)).grid == Grid(14, 14)
    assert model.get_parameter("stem.project.weight").shape == (768, 384)


def test_the_norm_of_convolutions_is_that_of_the_model() -> None:
    model = small(norm=RmsNorm(), stem=Convolutions(widths=(4, 5, 6))).build_empty()
    assert isinstance(model.get_submodule("stem.layers.2.norm"), nn.RMSNorm)


def test_overlapping_patches_are_the_pixels_around_their_cells() -> None:
    model = small(stem=OverlappingPatches(patch=Size(12, 11), stride=Size(8, 8)), image_size=Size(16, 24)).build()
    images = torch.randn(2, 3, 16, 24)
    kernel, bias = model.get_parameter("stem.project.weight"), model.get_parameter("stem.project.bias")
    nn.init.uniform_(bias)
    padded = F.pad(images, (1, 2, 2, 2))  # 12 - 8 rows and 11 - 8 columns more, the odd one on the right
    for cell in range(6):
        top, left = cell // 3 * 8, cell % 3 * 8
        patch = padded[:, :, top : top + 12, left : left + 11]  # (2, 3, 12, 11)
        expected = torch.einsum("bchw,dchw->bd", patch, kernel) + bias
        torch.testing.assert_close(model.stem(images)[:, cell], expected, atol=1e-5, rtol=1e-4)


def test_overlapping_patches_without_an_overlap_are_plain_ones() -> None:
    plain = small(stem=Patches(patch=Size(8, 8))).build()
    other = small(stem=OverlappingPatches(patch=Size(8, 8), stride=Size(8, 8))).build()
    state = plain.state_dict()
    state["stem.project.weight"] = state["stem.project.weight"].unflatten(1, (3, 8, 8))
    other.load_state_dict(state)
    images = torch.randn(2, 3, 32, 48)
    torch.testing.assert_close(other(images), plain(images), atol=1e-5, rtol=1e-4)


def shifted_by_hand(images: Tensor, down: int, right: int) -> Tensor:
    """Each pixel moved, with zeros where none comes from."""
    result = torch.zeros_like(images)
    rows, columns = images.shape[2:]
    for row in range(rows):
        for column in range(columns):
            if 0 <= row - down < rows and 0 <= column - right < columns:
                result[:, :, row, column] = images[:, :, row - down, column - right]
    return result


def test_shifted_patches_are_normed_and_projected_with_four_shifts() -> None:
    model = small(stem=ShiftedPatches(patch=Size(8, 4)), image_size=Size(16, 12)).build()
    images = torch.randn(2, 3, 16, 12)
    moves = [(0, 0), (-4, -2), (-4, 2), (4, -2), (4, 2)]
    every = torch.cat([shifted_by_hand(images, *move) for move in moves], dim=1)  # (2, 15, 16, 12)
    assert shift_images(images, Size(8, 4)).equal(every)
    patches = cut_patches(every, Size(8, 4))  # (2, 6, 480)
    normed = F.layer_norm(patches, (480,), eps=1e-6)
    expected = F.linear(normed, model.get_parameter("stem.project.weight"), model.get_parameter("stem.project.bias"))
    torch.testing.assert_close(model.stem(images), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_pixel_is_the_embedding_of_the_nearest_color(channels: int) -> None:
    """Oracle: every distance by itself. Of two colors that are equally near, the first counts."""
    model = small(stem=Palette(colors=11), image_size=Size(4, 6), channels=channels).build()
    stem = model.stem
    assert isinstance(stem, PaletteStem)
    assert not stem.is_fitted()
    with torch.no_grad():
        stem.palette.normal_()
        stem.palette[7] = stem.palette[3]
    assert stem.is_fitted()
    images = torch.randn(2, channels, 4, 6)
    tokens, codes = stem(images), stem.codes(images)
    for image in range(2):
        for place in range(24):
            pixel = images[image, :, place // 6, place % 6]
            distances = [sum((pixel - color) ** 2).item() for color in stem.palette]
            nearest = min(range(11), key=distances.__getitem__)
            assert codes[image, place] == nearest
            assert torch.equal(tokens[image, place], stem.embed.weight[nearest])
    assert 7 not in codes
    assert torch.equal(stem.codes(stem.colors(codes, Grid(4, 6))), codes)
    assert torch.equal(stem.codes(images.double()), codes)


def test_the_first_palette_is_spread_evenly() -> None:
    grays = spread_colors(32, 1)[:, 0].sort().values
    assert (grays.diff() - 2 / 32).abs().max() < 2 / 32
    colors = spread_colors(512, 3)
    assert colors.abs().max() <= 1
    assert torch.cdist(colors, colors).fill_diagonal_(9).min() > 0.1
    torch.testing.assert_close(colors.mean(dim=0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.02)


def test_a_palette_keeps_its_channels() -> None:
    config = small(stem=Palette(colors=8), image_size=Size(4, 6))
    with raises("config.unsupported", "palette") as caught:
        adapt_channels(config.build().state_dict(), config, 1)
    assert caught.value.where == "channels"


@pytest.mark.parametrize("name", NEW)
def test_a_masked_task_refuses_a_token_that_sees_its_neighbors(name: str) -> None:
    with raises("config.unsupported", "task", VITS[name].stem.kind):
        MaskedPatches().build(VITS[name].build(), 0, (), CENTERED)


@pytest.mark.parametrize(
    ("fields", "code", "where"),
    [
        ({"kind": "overlapping_patches", "patch": 8, "stride": 12}, "config.conflict", "stem.stride"),
        ({"kind": "convolutions", "widths": []}, "config.out_of_range", "stem.widths"),
        ({"kind": "convolutions", "widths": [0]}, "config.out_of_range", "stem.widths.0"),
        ({"kind": "convolutions", "widths": [1] * 9}, "config.out_of_range", "stem.widths"),
        ({"kind": "convolutions", "widths": [4, 4, 4, 4]}, "config.indivisible", "image_size"),
    ],
)
def test_a_stem_that_leaves_out_pixels_is_refused(fields: dict[str, object], code: str, where: str) -> None:
    with raises(code) as caught:
        Vit.parse({"stem": fields, "image_size": 24})
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("stem", "values"),
    [
        (Patches(patch=Size(8, 4)), 96),
        (Hybrid(layers=(1,), root=32), 128),
        (Convolutions(widths=(4, 7)), 7),
        (OverlappingPatches(), 3 * 24 * 24),
        (ShiftedPatches(patch=Size(8, 8)), 5 * 3 * 64),
    ],
)
def test_the_numbers_of_a_token_are_those_of_the_projection(stem: StemConfig, values: int) -> None:
    model = Vit(stem=stem, image_size=Size(64, 64)).build_empty()
    assert projected_values(stem, 3) == values == model.get_parameter("stem.project.weight")[0].numel()
    assert str(stem.patch) in describe_stem(stem)

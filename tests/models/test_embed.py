"""The hybrid: tokens from a residual network's map."""

import pytest
import torch
from torch import nn

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import Size
from vitral.models import Attention, Grid, Hybrid, Patches, Vit, model_config

FOLDED, FULL = Hybrid(layers=(3, 4, 9)), Hybrid(layers=(3, 4, 6, 3))


@pytest.mark.parametrize(
    ("stem", "side", "channels"), [(FOLDED, 14, 1024), (FULL, 7, 2048), (Hybrid(layers=(), patch=Size(8, 8)), 7, 4096)]
)
def test_the_forms_of_the_paper_give_their_grids_at_224_pixels(stem: Hybrid, side: int, channels: int) -> None:
    """R50 /16 with the fourth stage folded into the third, R50 /32 with all four, and the root alone of R+Ti/16."""
    model = Vit(stem=stem).build_empty()
    features = model.forward_features(torch.empty(2, 3, 224, 224, device="meta"))
    assert features.grid == Grid(side, side)
    assert features.patches.shape == (2, side * side, 768)
    assert model.get_parameter("stem.project.weight").shape == (768, channels)


def test_both_forms_have_as_many_units() -> None:
    assert sum(FOLDED.layers) == sum(FULL.layers) == 16
    folded, full = model_config("R50+B/16"), model_config("R50+L/32")
    assert isinstance(folded, Vit)
    assert isinstance(full, Vit)
    assert (folded.stem, full.stem) == (FOLDED, FULL)


def test_tokens_are_the_places_of_the_map_in_reading_order() -> None:
    config = small(stem=Hybrid(layers=(1,), root=32, patch=Size(2, 3)), image_size=Size(16, 24))
    model = config.build()
    images = torch.randn(2, 3, 16, 24)
    stem = model.stem
    features = stem.get_submodule("body")(images)  # (2, 128, 4, 6)
    assert features.shape == (2, 128, 4, 6)
    weight, bias = stem.get_parameter("project.weight"), stem.get_parameter("project.bias")
    kernel = weight.unflatten(1, (128, 2, 3))
    expected = nn.functional.conv2d(features, kernel, bias, stride=(2, 3)).flatten(2).mT
    torch.testing.assert_close(stem(images), expected, rtol=1e-4, atol=1e-5)


def test_the_map_may_serve_as_it_is_where_the_widths_match() -> None:
    config = small(width=128, stem=Hybrid(layers=(1,), root=32, project=False, patch=Size(1, 1)))
    model, images = config.build(), torch.randn(2, 3, 32, 48)
    stem = model.stem
    assert isinstance(stem.get_submodule("project"), nn.Identity)
    assert stem(images).equal(stem.get_submodule("body")(images).flatten(2).mT)


@pytest.mark.parametrize(
    ("stem", "found"), [(Hybrid(layers=(1,), root=32, project=False), 128), (Hybrid(layers=(), project=False), 64)]
)
def test_a_map_of_another_width_is_refused_with_both_numbers(stem: Hybrid, found: int) -> None:
    with raises("config.conflict", found, 96, f"width={found}") as caught:
        small(width=96, mixer=Attention(heads=2), stem=stem)
    assert caught.value.where == "stem.project"
    assert small(width=found, stem=stem).width == stem.pixels()


def test_an_image_that_the_map_does_not_cover_is_refused_with_both_sizes() -> None:
    with raises("config.indivisible", "image", "100x96", "32x32", "96x96"):
        Vit(stem=FULL, image_size=Size(100, 96))
    with raises("config.indivisible", "image", "24x32", "16x16"):
        Vit(stem=FOLDED, image_size=Size(96, 96)).build_empty()(torch.empty(1, 3, 24, 32, device="meta"))


@pytest.mark.parametrize("stem", [Patches(patch=Size(8, 8)), Hybrid(layers=(1, 1), root=32)])
def test_a_stem_takes_any_number_of_channels(stem: Patches | Hybrid) -> None:
    for channels in (1, 4):
        model = small(stem=stem, channels=channels).build()
        assert model(torch.randn(2, channels, 32, 48)).shape == (2, 4)


@pytest.mark.parametrize("layers", [(0,), (3, -1)])
def test_a_stage_without_units_is_refused(layers: tuple[int, ...]) -> None:
    with raises("config.out_of_range", "layers", layers[-1]):
        Hybrid(layers=layers)

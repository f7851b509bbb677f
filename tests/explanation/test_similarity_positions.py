"""What is shown of positions is what the model does with them."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.models.variants import VARIANTS, small
from vitral.core.config import Size
from vitral.explanation.explanation import Array
from vitral.explanation.similarity import position_similarity
from vitral.models import Attention, Layout, Learned1d, Learned2d, NoPosition, Relative2d, Resnet, Rope2d, SinCos2d, Vit
from vitral.models.base import Grid
from vitral.models.position import sincos_1d

GRIDS = [Size(32, 48), Size(40, 40), Size(8, 56)]


def shown(config: Vit | Resnet) -> Array:
    return position_similarity(config.build(), config.layout(config.image_size)).values


def steps_apart(values: Array) -> dict[tuple[int, int], list[float]]:
    """The similarities of all pairs of places by how many rows and columns lie between them."""
    found: dict[tuple[int, int], list[float]] = {}
    for place in itertools.product(*map(range, values.shape)):
        apart = (abs(place[0] - place[2]), abs(place[1] - place[3]))
        found.setdefault(apart, []).append(float(values[place]))
    return found


@pytest.mark.parametrize("image", GRIDS)
@pytest.mark.parametrize("position", [SinCos2d(), Rope2d()])
def test_similarity_of_waves_depends_on_the_rows_and_columns_between_alone(
    position: SinCos2d | Rope2d, image: Size
) -> None:
    config = small(position=position, image_size=image)
    values = shown(config)
    assert values.shape == (*config.stem.grid(image), *config.stem.grid(image))
    for same in steps_apart(values).values():
        np.testing.assert_allclose(same, same[0], atol=1e-5)
    np.testing.assert_allclose(values, values.transpose(2, 3, 0, 1), atol=1e-6)
    places = values.reshape(values.shape[0] * values.shape[1], -1)
    np.testing.assert_allclose(np.diag(places), 1, atol=1e-6)
    assert places[~np.eye(len(places), dtype=bool)].max() < 0.999


def test_sine_positions_have_their_closed_form() -> None:
    values = shown(small(position=SinCos2d(), width=32))
    rates = 10000.0 ** -(np.arange(8) / 7)
    for (down, right), same in steps_apart(values).items():
        np.testing.assert_allclose(same, np.mean([np.cos(down * rates), np.cos(right * rates)]), atol=1e-5)


def test_rotary_positions_say_what_becomes_of_a_query_that_meets_an_equal_key() -> None:
    config = small(position=Rope2d(base=30.0), mixer=Attention(heads=2, head_width=20))
    values = shown(config)
    frequencies = 2 * np.pi / 30.0 ** (np.arange(5) / 5)  # an image is 2 across
    for (down, right), same in steps_apart(values).items():
        angles = (2 * down / 4 * frequencies, 2 * right / 6 * frequencies)
        np.testing.assert_allclose(same, np.mean(np.cos(angles)), atol=1e-5)


@pytest.mark.parametrize(
    "position", [Learned1d(), Learned1d(cls=False), Learned1d(where="layers"), Learned2d(), Learned2d(where="layers")]
)
def test_learned_positions_are_what_the_first_layer_adds_to_patches(position: Learned1d | Learned2d) -> None:
    config = small(position=position)
    model, layout = config.build(), config.layout(config.image_size)
    tokens = torch.zeros(1, layout.length(), config.width)
    added = model.position(tokens, layout, 0)[0, layout.prefix() :]  # (N, D)
    expected = [[F.cosine_similarity(one, other, dim=0).item() for other in added] for one in added]
    found = position_similarity(model, layout).values
    np.testing.assert_allclose(found.reshape(24, 24), expected, atol=1e-5)


def test_another_layout_has_positions_of_its_own_size() -> None:
    model = small().build()
    assert position_similarity(model, Layout(1, 0, Grid(3, 9))).values.shape == (3, 9, 3, 9)


def test_sines_in_reading_order_begin_after_the_class_token() -> None:
    values = shown(VARIANTS["position-sincos1d"])
    rows: Tensor = sincos_1d(25, 32, torch.empty(0))[1:]
    np.testing.assert_allclose(values[1, 2, 3, 4], F.cosine_similarity(rows[8], rows[22], dim=0), atol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_has_positions_to_compare_or_says_why_not(name: str) -> None:
    config = VARIANTS[name]
    found = position_similarity(config.build(), config.layout(config.image_size))
    assert bool(found.values.size) != bool(found.reason)
    assert found.values.dtype == np.float32
    if isinstance(config, Vit) and config.position.applies_to == "tokens":
        grid = config.stem.grid(config.image_size)
        assert found.values.shape == (*grid, *grid)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (small(position=NoPosition()), "no position"),
        (small(position=Relative2d()), "relative"),
        (Resnet(layers=(1,), root=32, image_size=Size(32, 48)), "ResNet"),
    ],
)
def test_the_reason_names_what_the_model_has_instead(config: Vit | Resnet, word: str) -> None:
    found = position_similarity(config.build(), config.layout(config.image_size))
    assert found.values.shape == (0, 0, 0, 0)
    assert word in found.reason

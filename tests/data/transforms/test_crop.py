"""Views: boxes within the picture, distributed as they should be, and the same as the usual libraries'."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from vitral.core.config import Size, union_members
from vitral.data.transforms.crop import (
    Box,
    CenterCrop,
    CropConfig,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)

sides = st.integers(8, 3000)
sizes = st.builds(Size, sides, sides)
images = st.builds(Size, st.integers(1, 384), st.integers(1, 384))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("view", [view for view in union_members(CropConfig) if view is not RandomCrop])
@given(whole=sizes, image=images, seed=st.integers(0, 2**32))
def test_every_crop_lies_within_the_picture(view: type[Resize], whole: Size, image: Size, seed: int) -> None:
    chosen = view()
    plan = chosen.plan(whole, image, rng(seed))
    assert Size(*plan.window[2:]) == image
    for box, frame in ((plan.box, whole), (plan.window, plan.resize_to)):
        assert min(box.top, box.left) >= 0
        assert min(box.height, box.width) >= 1
        assert box.top + box.height <= frame.height
        assert box.left + box.width <= frame.width


@pytest.mark.parametrize("view", union_members(CropConfig))
def test_the_same_seed_gives_the_same_crop_and_another_seed_another(view: type[Resize]) -> None:
    first, again, other = (view().plan(Size(375, 500), Size(224, 224), rng(seed)) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) is (view in union_members(Resize | CenterCrop))


def test_every_shift_up_to_the_padding_and_every_flip_is_equally_likely() -> None:
    generator = rng()
    plans = [RandomCrop(padding=1).plan(Size(9, 7), Size(6, 6), generator) for _ in range(7_200)]
    assert {(plan.box, plan.resize_to, plan.padding_mode) for plan in plans} == {
        (Box(0, 0, 9, 7), Size(6, 6), "constant")
    }
    counts = Counter((*plan.window[:2], plan.flip) for plan in plans)
    assert sorted(counts) == [(top, left, flip) for top in (-1, 0, 1) for left in (-1, 0, 1) for flip in (False, True)]
    assert all(abs(count - 400) < 100 for count in counts.values())  # five deviations
    assert not any(RandomCrop(flip=False).plan(Size(9, 7), Size(6, 6), generator).flip for _ in range(50))


def test_a_padding_that_could_hide_the_whole_image_is_refused() -> None:
    with raises("config.out_of_range", "padding"):
        RandomCrop(padding=6).plan(Size(32, 32), Size(6, 8), rng())


def test_areas_shapes_places_and_flips_are_as_in_the_paper() -> None:
    generator = rng()
    view, whole = RandomResizedCrop(), Size(1000, 1000)
    plans = [view.plan(whole, Size(224, 224), generator) for _ in range(20_000)]
    parts = np.array([plan.box for plan in plans])
    area = parts[:, 2] * parts[:, 3] / 1e6
    shape = np.log(parts[:, 3] / parts[:, 2])
    # On a square the large areas are drawn again more often the less their shape is square; below half none are.
    small = area[area < 0.5]
    assert np.quantile(small, [0.0, 0.25, 0.5, 0.75, 1.0]) == pytest.approx(
        [0.05, 0.1625, 0.275, 0.3875, 0.5], abs=0.01
    )
    assert np.quantile(shape[area < 0.5], [0.0, 0.25, 0.5, 0.75, 1.0]) == pytest.approx(
        np.log(4 / 3) * np.array([-1, -0.5, 0, 0.5, 1]), abs=0.02
    )
    room = 1000 - parts[area < 0.5][:, :2] / 1
    assert (parts[:, 0] / (1000 - parts[:, 2] + 1e-9))[area < 0.5].mean() == pytest.approx(0.5, abs=0.01)
    assert room.min() > 0
    assert np.mean([plan.flip for plan in plans]) == pytest.approx(0.5, abs=0.02)
    assert not any(RandomResizedCrop(flip=False).plan(whole, whole, generator).flip for _ in range(50))


def part(view: RandomResizedCrop, whole: Size, seed: int = 0) -> Box:
    return view.plan(whole, Size(8, 8), rng(seed)).box


def test_a_part_may_lie_at_any_edge() -> None:
    view = RandomResizedCrop(area=(0.81, 0.81), aspect=(1.0, 1.0))
    corners = {part(view, Size(10, 10), seed) for seed in range(50)}
    assert corners == {Box(top, left, 9, 9) for top in (0, 1) for left in (0, 1)}


def test_a_long_strip_falls_back_to_the_largest_part_in_its_middle() -> None:
    view = RandomResizedCrop(area=(0.9, 1.0))
    assert part(view, Size(10, 400)) == Box(0, 193, 10, 13)
    assert part(view, Size(400, 10)) == Box(193, 0, 13, 10)


@pytest.mark.parametrize("view", [RandomResizedCrop(), RandomResizedCrop(area=(0.85, 1.0), flip=False), Resize()])
def test_many_crops_are_those_of_each_picture_alone(view: RandomResizedCrop | Resize) -> None:
    uniforms = rng(3).random((200, view.draws))
    boxes, mirrored = view.plan_batch(Size(28, 33), uniforms)
    alone = [view.plan_batch(Size(28, 33), row[None]) for row in uniforms]
    assert len(boxes) == 200
    assert [box.tolist() for box in boxes] == [each.boxes[0].tolist() for each in alone]
    assert mirrored.tolist() == [bool(each.flips[0]) for each in alone]


def test_the_first_attempt_that_fits_is_taken() -> None:
    """On a square a whole area of another shape never fits; half of the area, in the third attempt, does."""
    view = RandomResizedCrop(area=(0.5, 1.0), aspect=(0.5, 2.0))
    too_wide, half, other = (1.0, 1.0, 0.0, 0.0), (0.0, 0.5, 0.5, 0.0), (0.1, 0.5, 0.0, 0.0)
    uniforms = np.array([[0.9, *too_wide, *too_wide, *half, *other * 7]])
    assert view.plan_batch(Size(20, 20), uniforms).boxes.tolist() == [[3, 0, 14, 14]]


# Whole picture, image, fraction: what torchvision's Resize(int(image / fraction)) and CenterCrop(image) arrive at.
CENTERS = [
    (Size(375, 500), 224, 0.875, Size(256, 341), Box(16, 58, 224, 224)),
    (Size(500, 375), 224, 0.875, Size(341, 256), Box(58, 16, 224, 224)),
    (Size(300, 301), 224, 0.9, Size(248, 248), Box(12, 12, 224, 224)),
    (Size(100, 103), 384, 1.0, Size(384, 395), Box(0, 6, 384, 384)),
]


@pytest.mark.parametrize(("whole", "side", "fraction", "resized", "window"), CENTERS)
def test_the_middle_is_where_others_find_it(
    whole: Size, side: int, fraction: float, resized: Size, window: Box
) -> None:
    found = CenterCrop(fraction=fraction).plan(whole, Size(side, side))
    assert (found.box, found.resize_to, found.window) == (Box(0, 0, *whole), resized, window)


def test_a_rectangle_is_filled_by_the_middle_without_distortion() -> None:
    found = CenterCrop(fraction=1.0).plan(Size(400, 800), Size(100, 300))
    assert (found.resize_to, found.window) == (Size(150, 300), Box(25, 0, 100, 300))


@given(whole=sizes, image=images, seed=st.integers(0, 99))
def test_a_picture_of_the_needed_size_never_has_its_part_enlarged(whole: Size, image: Size, seed: int) -> None:
    plan = RandomResizedCrop().plan(whole, image, rng(seed))
    need = plan.min_size(whole)
    assert plan.box.height * need.height >= image.height * whole.height
    assert plan.box.width * need.width >= image.width * whole.width


@given(whole=sizes, scale=st.sampled_from([1, 2, 4, 8]), seed=st.integers(0, 99))
def test_a_part_stays_within_a_picture_at_a_smaller_scale(whole: Size, scale: int, seed: int) -> None:
    stored = Size(-(-whole.height // scale), -(-whole.width // scale))
    drawn = part(RandomResizedCrop(), whole, seed)
    found = drawn.scaled(whole, stored)
    assert found == drawn or scale > 1
    assert found.top + found.height <= stored.height
    assert found.left + found.width <= stored.width


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"area": (0.0, 1.0)}, "config.out_of_range"),
        ({"area": (0.5, 1.5)}, "config.out_of_range"),
        ({"aspect": (0.0, 1.0)}, "config.out_of_range"),
        ({"area": (0.5, 0.2)}, "config.wrong_order"),
        ({"aspect": (2.0, 0.5)}, "config.wrong_order"),
    ],
)
def test_impossible_crops_are_refused(settings: dict[str, tuple[float, float]], code: str) -> None:
    with raises(code, *settings):
        RandomResizedCrop(**settings)  # type: ignore[arg-type]


def test_a_box_within_an_image_is_what_of_it_lies_inside() -> None:
    assert Box(-3, 5, 7, 85).clip(10, 20) == Box(0, 5, 4, 15)
    assert Box(12, 1, 2, 1).clip(10, 20) == Box(10, 1, 0, 1)
    assert np.zeros((10, 20))[Box(2, 5, 4, 15).slices].shape == (4, 15)

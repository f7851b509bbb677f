"""The pictures of the walk-through show the very numbers, in their order."""

import numpy as np
import pytest

from vitral.data.decoding.pixels import Pixels
from vitral.explanation.page.pictures import GAP_GRAY
from vitral.explanation.walkthrough.steps import (
    GAP,
    LENGTH,
    MARKS,
    SIDE,
    TAG,
    THICK,
    draw_heat_grid,
    draw_patches,
    draw_pixel_strips,
    draw_vector_strips,
    example_patches,
    heat_cells,
)
from vitral.models.base import Grid


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_without_its_gaps_a_cut_picture_is_the_picture(channels: int) -> None:
    seen = noise(400, 600, channels)
    found = draw_patches(seen, Grid(4, 6))
    gap = (found.shape[0] - 400) // 5
    rows = [row for row in range(found.shape[0]) if row % (100 + gap) >= gap]
    columns = [column for column in range(found.shape[1]) if column % (100 + gap) >= gap]
    assert np.array_equal(found[np.ix_(rows, columns)], seen if channels == 3 else seen.repeat(3, axis=2))
    assert (found[:gap] == GAP_GRAY).all()
    assert (found[:, -gap:] == GAP_GRAY).all()


def test_a_small_picture_is_enlarged_and_marks_frame_their_patches() -> None:
    found = draw_patches(noise(28, 28, 1), Grid(2, 2), [3, 0])
    assert found.shape[0] >= SIDE * 0.9
    assert tuple(found[0, 0]) == MARKS[1]
    assert tuple(found[-1, -1]) == MARKS[0]
    assert tuple(found[0, -1]) == (GAP_GRAY, GAP_GRAY, GAP_GRAY)


def test_examples_are_the_richest_a_middling_and_the_plainest_patch() -> None:
    seen = np.zeros((20, 30, 3), np.uint8)
    seen[:10, 10:20] = noise(10, 10, 3)  # patch 1
    seen[10:, 20:, 0] = noise(10, 10) // 8  # patch 5
    found = example_patches(seen, Grid(2, 3))
    assert found[0] == 1
    assert found[-1] not in {1, 5}
    assert len(set(found)) == 3
    assert example_patches(seen, Grid(1, 1)) == [0]


def test_a_strip_is_the_patch_one_channel_after_the_other() -> None:
    patch = noise(4, 5, 3)
    found = draw_pixel_strips([patch, patch])
    assert found.shape[0] == 2 * THICK + GAP
    assert tuple(found[0, 0]) == MARKS[0]
    assert tuple(found[-1, 0]) == MARKS[1]
    times = LENGTH // 60
    line = found[0, TAG + GAP :: times]  # (60, 3)
    for channel in range(3):
        part = line[20 * channel : 20 * (channel + 1)]
        assert part[:, channel].tolist() == patch[:, :, channel].ravel().tolist()
        assert part.sum(axis=1).tolist() == part[:, channel].tolist()  # nothing of the other two colors


def test_gray_and_many_channels_are_strips_of_gray() -> None:
    for channels in (1, 5):
        found = draw_pixel_strips([noise(4, 4, channels)])[0, TAG + GAP :]
        assert (found == found[:, :1]).all()


def test_a_line_that_is_too_long_is_made_shorter() -> None:
    assert draw_pixel_strips([noise(64, 64, 3)]).shape[1] <= 2 * LENGTH


def test_numbers_above_nothing_are_warm_and_those_below_cold() -> None:
    found = draw_vector_strips(np.array([[1.0, 0.0, -1.0]], np.float32))
    third = found.shape[1] // 3
    warm, none, cold = (found[0, place * third + third // 2].astype(int) for place in range(3))
    assert warm[0] > warm[2]
    assert cold[2] > cold[0]
    assert none.max() < 8
    assert draw_vector_strips(np.zeros((2, 3), np.float32)).max() == GAP_GRAY  # nothing but the line between


def test_panes_lie_as_the_patches_do() -> None:
    found = draw_heat_grid(np.array([0, 0, 0, 0, 0, 1], np.float32), Grid(2, 3))
    bright = found.sum(axis=2) > 300
    assert bright.any()
    assert bright[found.shape[0] // 2 :, 2 * found.shape[1] // 3 :].all()
    assert bright.sum() == bright.size // 6
    panes = draw_patches(heat_cells(np.array([0, 0, 0, 0, 0, 1], np.float32), Grid(2, 3)), Grid(2, 3), [3])
    assert tuple(panes[-1, 0]) == MARKS[0]
    assert panes[panes.shape[0] * 3 // 4, panes.shape[1] * 5 // 6].sum() > 300
    assert panes[panes.shape[0] // 4, panes.shape[1] // 6].sum() < 30

"""Images that judge an export."""

import numpy as np
import pytest

from tests.inference.exports import album, loaded, plan
from vitral.core.config import Size
from vitral.data.samples import Item
from vitral.data.transforms.crop import CenterCrop
from vitral.exporters.export import incoming_sizes
from vitral.exporters.verify import PORTION, SMALL, Sitting, mixed, seen, spread


@pytest.mark.parametrize(("have", "most", "places"), [(10, 5, [0, 2, 4, 6, 8]), (3, 5, [0, 1, 2]), (0, 5, [])])
def test_some_are_taken_from_all_over(have: int, most: int, places: list[int]) -> None:
    items = [Item(str(number), 0, "test") for number in range(have)]
    assert [int(item.name) for item in spread(items, most)] == places


def test_what_comes_in_is_what_the_model_sees_where_nothing_is_resized() -> None:
    needs, sitting = loaded().bundle.preprocessing, Sitting(album(), loaded().bundle.preprocessing, ())
    portions = list(sitting)
    assert [len(portion.seen) for portion in portions] == [PORTION, 40 - PORTION, PORTION]
    assert all(portion.incoming is portion.seen for portion in portions)
    assert np.array_equal(portions[1].seen, seen(album().samples, album().judging[PORTION:], needs))
    assert np.array_equal(portions[0].seen, next(iter(sitting)).seen)  # as often as one likes


def test_sizes_come_in_turns_and_the_model_sees_each_as_its_view_has_it() -> None:
    needs = loaded(view=CenterCrop()).bundle.preprocessing
    first, second, third, _ = Sitting(album(), needs, (Size(50, 40), Size(24, 32)))
    assert first.incoming.shape == (SMALL, 50, 40, 3)
    assert second.incoming.shape == (SMALL, 24, 32, 3)
    assert third.incoming.shape == (40 - 2 * SMALL, 50, 40, 3)
    assert first.seen.shape[1:] == second.seen.shape[1:] == (24, 32, 3)
    assert not np.array_equal(second.incoming, second.seen)  # the middle of it, enlarged


@pytest.mark.parametrize(
    ("count", "lengths"), [(1, [1]), (3, [1, 1, 1]), (10, [3, 3, 3, 1]), (32, [8] * 4), (100, [8, 8, 8, 8, 32, 32, 4])]
)
def test_few_images_meet_every_size(count: int, lengths: list[int]) -> None:
    needs = loaded(channels=1).bundle.preprocessing
    sizes = incoming_sizes(plan(loaded(channels=1), incoming="dynamic"))
    portions = list(Sitting(album(count), needs, sizes))
    assert [len(portion.incoming) for portion in portions] == lengths
    assert [Size(*portion.incoming.shape[1:3]) for portion in portions] == [*sizes, *sizes][: len(lengths)]
    assert sizes[0] != needs.image_size  # one image alone is resized
    for portion in portions[3:4]:  # of the model's own size: the images are in their order, as labels are
        items = album(count).judging[sum(lengths[:3]) : sum(lengths[:4])]
        assert np.array_equal(portion.seen, seen(album(count).samples, items, needs))


def test_gray_images_come_once_more_in_colors_where_the_model_sees_colors() -> None:
    sitting = Sitting(album(), loaded().bundle.preprocessing, ())
    gray, mixture = (list(sitting)[place].seen for place in (0, -1))
    assert sitting.words() == "40 bundled images, 32 of them once more in mixed colors"
    assert [np.array_equal(mixture[5, ..., channel], gray[5 - channel, ..., 0]) for channel in range(3)] == [True] * 3
    alone = Sitting(album(), loaded(channels=1).bundle.preprocessing, ())
    assert [len(portion.seen) for portion in alone] == [PORTION, 40 - PORTION]
    assert alone.words() == "40 bundled images"


def test_a_channel_is_that_of_the_image_before() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
    assert np.array_equal(mixed(colors)[1], np.stack([colors[1, ..., 0], colors[0, ..., 1], colors[3, ..., 2]], -1))

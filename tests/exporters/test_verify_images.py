"""Images that judge an export."""

import numpy as np
import pytest

from tests.inference.exports import export_images, loaded, plan
from vitral.core.config import Size
from vitral.data.samples import Item
from vitral.data.transforms.crop import CenterCrop
from vitral.exporters.export import verification_sizes
from vitral.exporters.verify import CHUNK, FIRST_CHUNK, VerificationImages, load_pixels, mix_channels, sample_evenly


@pytest.mark.parametrize(("have", "most", "places"), [(10, 5, [0, 2, 4, 6, 8]), (3, 5, [0, 1, 2]), (0, 5, [])])
def test_some_are_taken_from_all_over(have: int, most: int, places: list[int]) -> None:
    items = [Item(str(number), 0, "test") for number in range(have)]
    assert [int(item.name) for item in sample_evenly(items, most)] == places


def test_what_comes_in_is_what_the_model_sees_where_nothing_is_resized() -> None:
    needs, images = (
        loaded().bundle.preprocessing,
        VerificationImages(export_images(), loaded().bundle.preprocessing, ()),
    )
    batches = list(images)
    assert [len(batch.model_pixels) for batch in batches] == [CHUNK, 40 - CHUNK, CHUNK]
    assert all(batch.inputs is batch.model_pixels for batch in batches)
    assert np.array_equal(
        batches[1].model_pixels, load_pixels(export_images().samples, export_images().verification[CHUNK:], needs)
    )
    assert np.array_equal(batches[0].model_pixels, next(iter(images)).model_pixels)  # as often as one likes


def test_sizes_come_in_turns_and_the_model_sees_each_as_its_view_has_it() -> None:
    needs = loaded(view=CenterCrop()).bundle.preprocessing
    first, second, third, _ = VerificationImages(export_images(), needs, (Size(50, 40), Size(24, 32)))
    assert first.inputs.shape == (FIRST_CHUNK, 50, 40, 3)
    assert second.inputs.shape == (FIRST_CHUNK, 24, 32, 3)
    assert third.inputs.shape == (40 - 2 * FIRST_CHUNK, 50, 40, 3)
    assert first.model_pixels.shape[1:] == second.model_pixels.shape[1:] == (24, 32, 3)
    assert not np.array_equal(second.inputs, second.model_pixels)  # the middle of it, enlarged


@pytest.mark.parametrize(
    ("count", "lengths"), [(1, [1]), (3, [1, 1, 1]), (10, [3, 3, 3, 1]), (32, [8] * 4), (100, [8, 8, 8, 8, 32, 32, 4])]
)
def test_few_images_meet_every_size(count: int, lengths: list[int]) -> None:
    needs = loaded(channels=1).bundle.preprocessing
    sizes = verification_sizes(plan(loaded(channels=1), input_size="dynamic"))
    batches = list(VerificationImages(export_images(count), needs, sizes))
    assert [len(batch.inputs) for batch in batches] == lengths
    assert [Size(*batch.inputs.shape[1:3]) for batch in batches] == [*sizes, *sizes][: len(lengths)]
    assert sizes[0] != needs.image_size  # one image alone is resized
    for batch in batches[3:4]:  # of the model's own size: the images are in their order, as labels are
        items = export_images(count).verification[sum(lengths[:3]) : sum(lengths[:4])]
        assert np.array_equal(batch.model_pixels, load_pixels(export_images(count).samples, items, needs))


def test_gray_images_come_once_more_in_colors_where_the_model_sees_colors() -> None:
    images = VerificationImages(export_images(), loaded().bundle.preprocessing, ())
    gray, mixture = (list(images)[place].model_pixels for place in (0, -1))
    assert images.describe() == "40 bundled images, 32 of them repeated with mixed channels"
    assert [np.array_equal(mixture[5, ..., channel], gray[5 - channel, ..., 0]) for channel in range(3)] == [True] * 3
    alone = VerificationImages(export_images(), loaded(channels=1).bundle.preprocessing, ())
    assert [len(batch.model_pixels) for batch in alone] == [CHUNK, 40 - CHUNK]
    assert alone.describe() == "40 bundled images"


def test_a_channel_is_that_of_the_image_before() -> None:
    colors = np.random.default_rng(0).integers(0, 256, (4, 6, 6, 3), dtype=np.uint8)
    assert np.array_equal(
        mix_channels(colors)[1], np.stack([colors[1, ..., 0], colors[0, ..., 1], colors[3, ..., 2]], -1)
    )

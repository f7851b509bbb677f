import numpy as np
import pytest
import torch

from tests.data.transforms.scene import gray_scene, scene
from tests.errors import raises
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.image_ops import check_channels, from_pillow, to_pillow


@pytest.mark.parametrize("pixels", [scene(), gray_scene(), scene()[::-1, ::2], scene()[..., 1:2]])
def test_pixels_come_back_as_they_went(pixels: Pixels) -> None:
    back = from_pillow(to_pillow(pixels))
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, pixels)


def test_torch_takes_what_comes_back_without_a_warning() -> None:
    taken = torch.from_numpy(from_pillow(to_pillow(scene()))).add_(1)  # warnings are errors
    np.testing.assert_array_equal(taken.numpy(), scene() + np.uint8(1))


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_other_channels_than_gray_and_color_are_refused(channels: int) -> None:
    pixels = np.zeros((4, 6, channels), dtype=np.uint8)
    for use in (to_pillow, check_channels):
        with raises("config.unsupported", "augment", channels, "random_erasing"):
            use(pixels)

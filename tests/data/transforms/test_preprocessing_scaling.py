"""Scaling: the paper's numbers, ImageNet's, and what is refused."""

import pytest
import torch

from tests.errors import raises
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize

LEVELS = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)


def test_bytes_become_minus_one_to_one() -> None:
    scaled = CENTERED.apply(LEVELS.expand(2, 3, 16, 16))
    assert scaled.shape == (2, 3, 16, 16)
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled[1, 2].flatten(), (torch.arange(256) - 127.5) / 127.5, rtol=0, atol=0)


def test_each_channel_has_its_own_mean_and_deviation() -> None:
    scaled = IMAGENET.apply(LEVELS.expand(1, 3, 16, 16)).double()
    unit = LEVELS.double()[0, 0] / 255
    for channel, (mean, deviation) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        torch.testing.assert_close(scaled[0, channel], (unit - mean) / deviation, rtol=1e-6, atol=1e-6)


def test_numbers_that_are_scaled_already_are_not_scaled_again() -> None:
    with pytest.raises(AssertionError, match="in place"):
        CENTERED.apply(LEVELS.float())


def test_channels_last_in_memory_become_contiguous() -> None:
    images = torch.zeros(2, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)
    assert CENTERED.apply(images).is_contiguous()


@pytest.mark.parametrize(
    ("wrong", "code", "values"),
    [
        ({"mean": (0.5, 0.5)}, "config.bad_value", (2, 1)),
        ({"mean": ()}, "config.bad_value", (0, 1)),
        ({"mean": (), "std": ()}, "config.bad_value", (0,)),
        ({"std": (0.0,)}, "config.out_of_range", ("std", 0)),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(
    wrong: dict[str, tuple[float, ...]], code: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values):
        Normalize(**wrong)


@pytest.mark.parametrize("scaling", [CENTERED, IMAGENET], ids=["centered", "imagenet"])
def test_every_byte_comes_back_exactly(scaling: Normalize) -> None:
    images = LEVELS.expand(2, 3, 16, 16)
    restored = scaling.restore(scaling.apply(images))
    torch.testing.assert_close(restored, images.float(), rtol=0, atol=0)
    patches = scaling.apply(images).view(1, 2, 3, 16, 16)
    torch.testing.assert_close(scaling.restore(patches), images.float()[None], rtol=0, atol=0)

"""The real size of an AVIF."""

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encoded, noise
from vitral.core.config import Size
from vitral.data.decoding.avif import read_sizes


@pytest.mark.parametrize("size", [(8, 8), (93, 121), (64, 301)])
@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_the_size_in_the_stream_is_that_of_the_image(size: tuple[int, int], mode: str) -> None:
    picture = noise(*size, len(mode)).astype(np.uint8)
    found = read_sizes(encoded(Image.fromarray(picture, mode), "AVIF", quality=60))
    assert set(found.declared) == set(found.coded) == {Size(*size)}
    assert len(found.coded) == (2 if mode == "RGBA" else 1)  # alpha is a stream of its own


def test_an_animation_has_its_size() -> None:
    frames = [Image.fromarray(noise(32, 48, 3).astype(np.uint8)) for _ in range(3)]
    data = encoded(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    assert set(read_sizes(data).coded) <= {Size(32, 48)}


def test_damaged_boxes_are_a_value_error_or_a_size() -> None:
    data = encoded(noise(16, 16, 3).astype(np.uint8), "AVIF")
    refused, others = 0, 0
    for place in range(300):
        for value in (0, 1, 255):
            try:
                found = read_sizes(data[:place] + bytes([value]) + data[place + 1 :])
            except ValueError:
                refused += 1
            else:
                others += {*found.declared, *found.coded} != {Size(16, 16)}
    assert refused > 20  # boxes that lie about their length
    assert others > 5  # boxes that are gone or declare another size


def test_a_file_without_boxes_has_no_sizes() -> None:
    assert read_sizes(b"") == ([], [])
    with pytest.raises(ValueError, match="box"):
        read_sizes(b"\0\0\0\7meta")

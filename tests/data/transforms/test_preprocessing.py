"""Preprocessing: a file becomes what the model sees, the same way from a record."""

import numpy as np
import torch
from PIL import Image

from tests.data.pictures import encoded, noise
from tests.errors import raises
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET, Normalize, Preprocessing

PHOTO = Image.fromarray(noise(30, 40, 3).astype(np.uint8)).resize((400, 300), Image.Resampling.BICUBIC)


def test_the_default_is_the_papers_plain_resize_to_minus_one_to_one() -> None:
    data = encoded(PHOTO, "PNG")
    expected = np.asarray(PHOTO.resize((224, 224), Image.Resampling.BILINEAR)).astype(np.float32) / 127.5 - 1
    found = Preprocessing().tensor(data, "photo.png")
    assert found.shape == (1, 3, 224, 224)
    assert np.abs(found[0].permute(1, 2, 0).numpy() - expected).max() <= 1.01 / 127.5


def test_a_record_gives_the_same_pixels() -> None:
    gray = Normalize(mean=(0.45,), std=(0.22,))
    chosen = Preprocessing(image_size=Size(96, 64), decoding=Decoding(channels=1), crop=CenterCrop(), normalize=gray)
    again = Preprocessing.from_json(chosen.to_json())
    data = encoded(PHOTO, "JPEG")
    assert again == chosen
    assert chosen.pixels(data, "photo.jpg").shape == (96, 64, 1)
    assert chosen.tensor(data, "photo.jpg").shape == (1, 1, 96, 64)
    assert torch.equal(chosen.tensor(data, "photo.jpg"), again.tensor(data, "photo.jpg"))


def test_a_scaling_for_other_channels_is_refused() -> None:
    assert Preprocessing(normalize=IMAGENET).tensor(encoded(PHOTO, "JPEG"), "photo.jpg").shape == (1, 3, 224, 224)
    with raises("config.bad_value", "normalize.mean", 1, 3):
        Preprocessing(decoding=Decoding(channels=1), normalize=IMAGENET)

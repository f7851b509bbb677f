"""The bundled images are those of Fashion-MNIST, and the tool that made them is deterministic."""

import gzip
import hashlib
import lzma
import pickle
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from tools.make_sample import pack, selection
from vitral.data.datasets.arrays import Array, load_once
from vitral.data.datasets.named import CLASSES, EACH, FOLDER, BundledReader, open_sample
from vitral.data.samples import Split

ORIGINALS = Path("/usr/share/datasets/fashion-mnist")
FILES = {
    "train.npy.xz": "e8912c94837e3254c4626e9560042c129b278917e9676f0d9ee5b9a2ceb04b2e",
    "test.npy.xz": "cc1327f0a042f09742dddcd09decb161c13132b656f6a55a7744d8c9db9453fd",
}


def images(split: Split) -> Array:
    return load_once(BundledReader(), split).images


def test_there_are_five_thousand_images_to_train_on_and_a_thousand_to_test_with() -> None:
    samples = open_sample()
    assert samples.classes == CLASSES
    assert samples.counts("train") == (500,) * 10
    assert samples.counts("val") == (0,) * 10
    assert samples.counts("test") == (100,) * 10


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_the_ones_that_were_made(name: str) -> None:
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == FILES[name]


def test_the_files_are_small_and_have_their_license_beside_them() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 3_000_000
    license = (FOLDER / "LICENSE").read_text(encoding="utf-8")
    assert license.startswith("The MIT License (MIT) Copyright © 2017 Zalando SE")
    assert {path.name for path in FOLDER.iterdir()} == {*FILES, "LICENSE"}


def test_an_image_is_read_as_an_array_of_gray_pixels() -> None:
    samples = open_sample()
    item = samples.of("test")[417]
    image = np.load(BytesIO(samples.read(item)), allow_pickle=False)
    assert (item.name, item.label) == ("test/0417.npy", 4)
    assert (image.shape, image.dtype) == ((28, 28), np.uint8)
    assert np.array_equal(image, images("test")[417])
    assert samples.store.size(item.name) == len(samples.read(item))


def test_the_images_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        images("test")[0] = 0


def test_no_image_is_there_twice() -> None:
    both = np.concatenate([images("train"), images("test")]).reshape(6000, -1)
    assert len(np.unique(both, axis=0)) == 6000


def test_trousers_have_two_legs_and_boots_a_shaft() -> None:
    """The labels belong to the images: some classes can be told by where they are dark."""
    mean = images("train").reshape(10, 500, 28, 28).mean(axis=1)  # (class, row, column)
    names = dict(zip(CLASSES, mean, strict=True))
    assert names["Trouser"][20:, 13:15].mean() < names["Dress"][20:, 13:15].mean() - 30
    assert names["Ankle boot"][:8].mean() > names["Sneaker"][:8].mean() + 10


def test_the_samples_go_to_another_process_without_the_images() -> None:
    samples = open_sample()
    samples.read(samples.items[0])
    assert len(pickle.dumps(samples)) < 200_000


def test_the_tool_takes_the_first_of_every_class_in_the_original_order(tmp_path: Path) -> None:
    size = 1200
    labels = np.arange(size - 1, -1, -1) % 10
    pixels = np.arange(size, dtype=">u4").view(np.uint8).reshape(size, 2, 2)  # every image says its number
    for message, array in (("images-idx3", pixels), ("labels-idx1", labels.astype(np.uint8))):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        (tmp_path / f"t10k-{message}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
    numbers = selection(tmp_path, "test").reshape(-1, 4).view(">u4").reshape(10, 100)
    assert numbers.tolist() == [list(range(9 - label, size, 10))[:100] for label in range(10)]


def test_the_tool_packs_the_same_bytes_every_time_and_loses_nothing() -> None:
    some = images("test")[::50]
    packed = pack(some)
    assert packed == pack(some.copy())
    assert np.array_equal(np.load(BytesIO(lzma.decompress(packed)), allow_pickle=False), some)


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="needs the Debian package dataset-fashion-mnist")
@pytest.mark.parametrize("split", EACH)
def test_the_images_are_the_original_ones(split: Split) -> None:
    assert np.array_equal(selection(ORIGINALS, split), images(split))

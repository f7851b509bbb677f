"""Each kind of place gives its bytes, or says what is wrong."""

from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.named import open_sample
from vitral.inference.inputs import ByteRange, DatasetImage, FileSource, MissingImage, UnlistedImages


def test_every_place_gives_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"0123456789")
    samples = open_sample()
    assert FileSource(str(path)).read() == b"0123456789"
    assert ByteRange(str(path), 2, 3).read() == b"234"
    assert DatasetImage(samples.store, samples.items[0].name).read() == samples.read(samples.items[0])


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "a.jpg")
    with raises("data.not_found", path):
        FileSource(path).read()
    (tmp_path / "a.jpg").write_bytes(b"0123456789")
    with raises("data.changed", path, 3, 8, 2):
        ByteRange(path, 8, 3).read()


@pytest.mark.parametrize("kind", [MissingImage, UnlistedImages])
def test_what_was_refused_says_why_to_whoever_reads_it(kind: type[MissingImage] | type[UnlistedImages]) -> None:
    error = DataError("no images in it", code="data.empty")
    with pytest.raises(DataError) as caught:
        kind(error).read()
    assert caught.value is error


@pytest.mark.parametrize("path", ["a.jpg\0b.jpg", "\ud800.jpg"], ids=ascii)
def test_a_path_that_no_file_can_have_is_told(path: str) -> None:
    with raises("data.bad_path", path):
        FileSource(path).read()

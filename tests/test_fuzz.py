"""Inputs that the fuzzer of `benchmarks.fuzz` found are refused by a code, and its valid files are read."""

from pathlib import Path

import pytest

from benchmarks.fuzz import KEPT, TARGETS, valid
from tests.errors import raises

CODES = {
    "decoder/jpeg-sampling-factors-of-0": "data.corrupt_image",
    "decoder/jpeg-without-components": "data.corrupt_image",
    "decoder/tiff-directory-beyond-2-to-the-63": "data.corrupt_image",
    "weights/timm-embed-dim-0": "weights.bad_config",
}
UNKNOWN = 2  # the pickle among the weights has one tensor


def test_every_kept_input_has_its_code() -> None:
    assert {str(path.relative_to(KEPT)) for path in KEPT.glob("*/*")} == set(CODES)


@pytest.mark.parametrize("name", CODES)
def test_a_kept_input_is_refused_by_its_code(name: str, tmp_path: Path) -> None:
    read = TARGETS[name.partition("/")[0]](tmp_path)
    with raises(CODES[name]):
        read((KEPT / name).read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_the_files_that_fuzzing_begins_with_are_read(target: str, tmp_path: Path) -> None:
    read = TARGETS[target](tmp_path)
    for number, data in enumerate(valid(target)):
        if (target, number) == ("weights", UNKNOWN):
            with raises("weights.unknown_format"):
                read(data)
        else:
            read(data)

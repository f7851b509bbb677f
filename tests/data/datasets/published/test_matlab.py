"""Files of MATLAB that SciPy wrote, and damaged ones."""

from typing import Any

import numpy as np
import pytest

from tests.data.datasets.published.downloads import SYNSETS, matlab, meta_mat
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.published.matlab import read_matlab


@pytest.mark.parametrize("compressed", [True, False])
def test_what_scipy_writes_is_read(compressed: bool) -> None:
    given: dict[str, Any] = {
        "bytes": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "floats": np.array([[0.5, -2.0]]),
        "wide": np.array([[2**40]]),
        "text": "Rosa café",
        "cell": np.array([[1.0], ["two"]], dtype=object),
    }
    found = read_matlab(matlab(compressed, **given), "x.mat")
    assert found["text"] == "Rosa café"
    assert [found["cell"][0].item(), found["cell"][1]] == [1.0, "two"]
    for name in ("bytes", "floats", "wide"):
        assert np.array_equal(found[name], given[name]), name


def test_a_struct_is_a_list_of_its_rows() -> None:
    rows = read_matlab(meta_mat(), "meta.mat")["synsets"]
    assert [(int(row["ILSVRC2012_ID"].item()), row["WNID"]) for row in rows] == list(SYNSETS.items())
    assert rows[3]["children"].ravel().tolist() == [1.0, 2.0]


def test_a_damaged_file_is_an_error_or_another_value_and_never_another_exception() -> None:
    whole = matlab(compressed=False, labels=np.arange(9), s={"a": 1.0})
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole[: rng.integers(100, len(whole) + 1)])
        damaged[rng.integers(0, len(damaged))] ^= 1 << rng.integers(0, 8)
        try:
            read_matlab(bytes(damaged), "x.mat")
        except DataError as error:
            refused += error.code == "data.bad_archive"
    assert refused > 100


def test_complex_numbers_hdf5_and_bombs_are_refused() -> None:
    for data in (matlab(z=np.array([1j])), b"\x89HDF\r\n" + bytes(200), b"", matlab(x=np.zeros(2**24))):
        with raises("data.bad_archive", "x.mat"):
            read_matlab(data, "x.mat")

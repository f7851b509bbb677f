import os
import pickle
import pickletools
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.archives import planes, python2_pickle, some
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.cifar import read_pickle

TRUTH = some(3, 32, 32, 3)
CONTENT = {
    "batch_label": "training batch 1 of 5",
    "labels": TRUTH.labels.tolist(),
    "data": planes(TRUTH.images),
    "filenames": ["camion_s_000148.png", "camion_s_001895.png", "camion_s_000148.png"],
}
GOOD = python2_pickle(CONTENT)

# As Python 2.7 and numpy 1.6 write {"labels": [6, 9, 300], "data": array of 2 x 3 bytes}, opcode by opcode.
BY_HAND = (
    b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03(K\x06K\x09M\x2c\x01eU\x04dataq\x04"
    b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85q\x07U\x01bq\x08\x87q\x09Rq\x0a"
    b"(K\x01K\x02\x8a\x01\x03\x86q\x0bcnumpy\ndtype\nq\x0cU\x02u1q\x0dK\x00K\x01\x87q\x0eRq\x0f"
    b"(K\x03U\x01|q\x10NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x11b\x89T\x06\x00\x00\x00\x00\x01\x7f\x80\xfe\xfftq\x12bu."
)


def new(data: bytes) -> bytes:
    """The pickle with the name that numpy 2 has for the module of arrays."""
    return data.replace(b"numpy.core.multiarray", b"numpy._core.multiarray")


def test_the_pickles_of_these_tests_have_the_form_of_the_originals() -> None:
    names = {opcode.name for opcode, _, _ in pickletools.genops(GOOD)}
    assert names >= {"SHORT_BINSTRING", "BINSTRING", "GLOBAL", "REDUCE", "BUILD", "APPENDS", "SETITEMS", "BINPUT"}
    assert not [name for name in names if "UNICODE" in name or "BYTES" in name]
    assert b"cnumpy.core.multiarray\n_reconstruct\n" in GOOD


@pytest.mark.parametrize("data", [GOOD, BY_HAND])
@pytest.mark.parametrize("module", [bytes, new])
def test_what_is_read_is_what_pickle_itself_would_give(data: bytes, module: Any) -> None:
    found, truth = read_pickle(module(data), "batch"), pickle.loads(new(data), encoding="latin1")
    assert list(found) == list(truth)
    assert found["data"].dtype == np.uint8
    assert np.array_equal(found.pop("data"), truth.pop("data"))
    assert found == truth


def test_lists_of_any_length_are_read() -> None:
    """Pickle appends in thousands, and one alone with another opcode; beyond 256 memos it takes longer numbers."""
    content = {
        "one": [1],
        "many": [f"{number}.png" for number in range(2345)],
        "sizes": [0, 255, 256, 65535, 65536, -1],
    }
    assert read_pickle(python2_pickle(content), "batch") == content


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.command = f"touch '{path}'"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self.command,)


def test_nothing_in_a_pickle_is_run(tmp_path: Path) -> None:
    path = tmp_path / "made"
    data = python2_pickle({"data": Touch(path)})
    with raises("data.bad_archive", "GLOBAL posix system"):
        read_pickle(data, "batch")
    assert not path.exists()
    pickle.loads(data, encoding="latin1")
    assert path.exists()  # so the test would have shown it


def edited(old: bytes, by: bytes) -> bytes:
    assert BY_HAND.count(old) == 1
    return BY_HAND.replace(old, by)


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (pickle.dumps({"data": 1}, protocol=4), ("FRAME",)),
        (pickle.dumps({"labels": [1, 2]}, protocol=0), ("DICT",)),
        (pickle.dumps({"data": "text"}, protocol=2), ("BINUNICODE data",)),
        (python2_pickle({"data": np.zeros(3, np.float32)}), ()),
        (python2_pickle({"data": OrderedDict(a=1)}), ("GLOBAL collections OrderedDict",)),
        (python2_pickle({"data": 1.5}), ("BINFLOAT 1.5",)),
        (python2_pickle({"data": np.zeros((2, 3), np.uint8, order="F")}), ()),
        (python2_pickle([1, 2]), ("list",)),
        (python2_pickle({1: 2}), ()),
        (edited(b"numpy\ndtype", b"numpy\nload"), ("GLOBAL numpy load",)),
        (edited(b"numpy\ndtype", b"numpy\nndarray"), ()),
        (edited(b"U\x02u1", b"U\x02O8"), ()),
        (edited(b"K\x00\x85", b"K\x09\x85"), ()),
        (edited(b"K\x02\x8a\x01\x03", b"K\x02\x8a\x01\x04"), ()),
        (edited(b"K\x02\x8a\x01\x03", b"\x8a\x01\xfe\x8a\x01\xfd"), ()),
        (edited(b"T\x06\x00\x00\x00", b"T\xff\xff\xff\x7f"), ("2147483647",)),
        (edited(b"u.", b"."), ()),
        (b"", ("STOP",)),
        (b"\x80\x02.", ("0",)),
        (b"\x80\x02q\x01.", ()),
        (b"\x80\x02h\x01.", ("1",)),
        (b"\x80\x02(\x85.", ()),
        (b"\x80\x02K\x01\x86.", ()),
        (b"\x80\x02t.", ()),
        (b"\x80\x02}(U\x01atu.", ()),
        (b"\x80\x02}(U\x01au.", ("zip()",)),
        (b"\x80\x02K\x01Nb.", ("int",)),
        (b"<!DOCTYPE html>", ()),
    ],
)
def test_what_the_originals_do_not_have_is_refused(data: bytes, values: tuple[str, ...]) -> None:
    with raises("data.bad_archive", *values) as caught:
        read_pickle(data, "folder/data_batch_1")
    assert refused_at(caught) == "folder/data_batch_1"


@given(st.lists(st.tuples(st.integers(0, len(BY_HAND) - 1), st.binary(max_size=3)), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_damaged_pickles_are_read_or_refused_and_nothing_else(damage: list[tuple[int, bytes]]) -> None:
    data = bytearray(BY_HAND)
    for place, by in damage:
        data[place : place + 1] = by
    assert _read_or_refused(bytes(data))


OPCODES = b"".join(opcode.code.encode("latin-1") for opcode in pickletools.opcodes)


@given(st.lists(st.one_of(st.sampled_from(OPCODES).map(lambda code: struct.pack("B", code)), st.binary(max_size=2))))
@settings(max_examples=200, deadline=None)
def test_any_sequence_of_opcodes_is_read_or_refused(parts: list[bytes]) -> None:
    assert _read_or_refused(b"\x80\x02}" + b"".join(parts) + b".")


def _read_or_refused(data: bytes) -> bool:
    try:
        return isinstance(read_pickle(data, "batch"), dict)
    except DataError:
        return True


def test_text_with_odd_escapes_is_refused_without_a_warning() -> None:
    with raises("data.bad_archive", "batch"):
        read_pickle(b"\x80\x02S'\\u'\n.", "batch")

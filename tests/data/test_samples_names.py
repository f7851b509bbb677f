"""Packed names."""

import pickle

import pytest

from vitral.data.samples import PackedNames

NAMES = ["cat/1.jpg", "", "größe/ä b.png", "\udcff/raw.jpg", "猫/1.jpg"]


def test_names_come_back_to_the_letter() -> None:
    packed = PackedNames.of(NAMES)
    assert [packed[place] for place in range(len(packed))] == NAMES


def test_there_is_no_name_before_the_first_or_after_the_last() -> None:
    for place in (-1, 5):
        with pytest.raises(IndexError):
            PackedNames.of(NAMES)[place]


def test_they_travel() -> None:
    assert pickle.loads(pickle.dumps(PackedNames.of(NAMES)))[4] == "猫/1.jpg"

from pathlib import Path

import pytest

from tests.data.trees import plant, refused_at
from tests.errors import raises
from vitral.data.datasets.shards import names_shards
from vitral.data.datasets.urls import expand_braces, list_tars

THREE = ["set/train-000.tar", "set/train-001.tar", "set/val-000.tar"]


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("set/a.tar", ["set/a.tar"]),
        ("a-{0..3}.tar", ["a-0.tar", "a-1.tar", "a-2.tar", "a-3.tar"]),
        ("a-{008..010}.tar", ["a-008.tar", "a-009.tar", "a-010.tar"]),
        ("a-{98..101}.tar", ["a-98.tar", "a-99.tar", "a-100.tar", "a-101.tar"]),
        ("a-{7..7}", ["a-7"]),
        ("a-{00..01,05}.tar", ["a-00.tar", "a-01.tar", "a-05.tar"]),
        ("{train,val}-{0..1}", ["train-0", "train-1", "val-0", "val-1"]),
        ("s3://bucket/{0..1}.tar", ["s3://bucket/0.tar", "s3://bucket/1.tar"]),
        ("a-{}.tar", ["a-.tar"]),
        ("a-{0..1.tar", ["a-{0..1.tar"]),
    ],
)
def test_braces_stand_for_every_number_and_word_in_them(address: str, names: list[str]) -> None:
    assert expand_braces(address) == names


@pytest.mark.parametrize("address", ["a-{3..0}.tar", "a-{0..99999999999}.tar", "{0..9999}-{0..9999}.tar"])
def test_a_range_that_cannot_be_followed_is_refused(address: str) -> None:
    with raises("data.bad_pattern") as caught:
        expand_braces(address)
    assert refused_at(caught) == address


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("set/train-000.tar", THREE[:1]),
        ("set/train-{000..001}.tar", THREE[:2]),
        ("set/*.tar", THREE),
        ("set/train-*.tar", THREE[:2]),
        ("set/train-00[01].tar", THREE[:2]),
        ("set/{train,val}-*.tar", THREE),
        ("set/{train-000,train-*}.tar", THREE[:2]),
        ("odd/a{1..2}[3].tar", ["odd/a{1..2}[3].tar"]),
    ],
)
def test_an_address_stands_for_its_tars_in_order_and_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, names: list[str]
) -> None:
    monkeypatch.chdir(plant(tmp_path, [*reversed(THREE), "odd/a{1..2}[3].tar"]))
    assert names_shards(address)
    assert list_tars(address) == names


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("set/train-{000..007}.tar", ("data.missing_file", "6", "8", "set/train-002.tar, ")),
        ("set/test-*.tar", ("data.not_found", "set/test-*.tar")),
    ],
)
def test_a_shard_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, error: tuple[str, ...]
) -> None:
    monkeypatch.chdir(plant(tmp_path, THREE))
    with raises(*error) as caught:
        list_tars(address)
    assert refused_at(caught) == address


@pytest.mark.parametrize(
    ("names", "path", "shards"),
    [
        (THREE, "set", True),
        (["set/shards.json"], "set", True),
        (["set/shards.unfinished.json"], "set", True),
        (["set/a.tar.gz"], "set", True),
        ([*THREE, "set/classes.txt", "set/.cache/x"], "set", True),
        ([*THREE, "set/cat/1.jpg"], "set", False),
        ([*THREE, "set/1.jpg"], "set", False),
        (["set/notes.txt"], "set", False),
        (["a.tgz"], "a.tgz", True),
        (["a.csv"], "a.csv", False),
        ([], "gone.tar", False),
        ([], "gone-{0..1}.tar", True),
        ([], "s3://bucket/set", True),
    ],
)
def test_shards_are_told_from_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], path: str, shards: bool
) -> None:
    monkeypatch.chdir(plant(tmp_path, names))
    assert names_shards(path) == shards

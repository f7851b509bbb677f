import json
from typing import Any

import pytest

from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.pack_index import Index, Shard, parse_index

TRAIN = Shard("train-00000.tar", "train", 10240, ("cat/é 1.jpg", "dog/\udcff.png"), (0, 1), (1536, 4608), (7, 0))
VAL = Shard("val-00000.tar", "val", 10240, ("cat/2.jpg",), (0,), (1536,), (900,))
INDEX = Index(("cat", "dog"), ("a note",), "0" * 64, (TRAIN, VAL))


def test_an_index_comes_back_as_it_was() -> None:
    assert parse_index(INDEX.to_json().encode(), "x") == INDEX


def test_the_file_is_plain_ascii_json_with_a_line_for_each_shard() -> None:
    text = INDEX.to_json()
    assert text.isascii()
    assert json.loads(text)["shards"][1]["names"] == ["cat/2.jpg"]
    assert sum(line.startswith('{"file":') for line in text.splitlines()) == 2


def changed(shard: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The plain data of the index with some fields of its first shard, and then of its own, changed."""
    data = json.loads(INDEX.to_json())
    data["shards"][0].update(shard)
    return {**data, **fields}


BAD: dict[str, Any] = {
    "a list": [],
    "nothing": {},
    "no shards": changed({}, shards=[]),
    "shards that are a number": changed({}, shards=3),
    "no classes": changed({}, classes=[]),
    "a field too many": changed({"more": 1}),
    "a file elsewhere": changed({"file": "../train-00000.tar"}),
    "a file from the root": changed({"file": "/etc/passwd"}),
    "no file": changed({"file": ""}),
    "an unknown split": changed({"split": "dev"}),
    "a label of no class": changed({"labels": [0, 2]}),
    "a label below zero": changed({"labels": [0, -1]}),
    "a label too few": changed({"labels": [0]}),
    "a name too few": changed({"names": ["cat/1.jpg"]}),
    "a start too few": changed({"starts": [1536]}),
    "a start that is no number": changed({"starts": [1536, "4608"]}),
    "a length that is a fraction": changed({"lengths": [7, 0.5]}),
    "an image beyond the end": changed({"lengths": [7, 10240]}),
    "a name twice": changed({"names": ["cat/2.jpg", "dog/1.jpg"]}),
    "a name that no system has": changed({"names": ["\ud800", "dog/1.jpg"]}),
    "a name that is a number": changed({"names": [1, "dog/1.jpg"]}),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_an_index_that_cannot_be_true_is_refused(data: Any) -> None:
    with raises("data.bad_index") as caught:
        parse_index(json.dumps(data).encode(), "set/shards.json")
    assert refused_at(caught) == "set/shards.json"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", INDEX.to_json().encode()[:-20]])
def test_a_file_that_is_not_whole_json_is_refused(text: bytes) -> None:
    with raises("data.bad_index", "set/shards.json"):
        parse_index(text, "set/shards.json")


def test_a_later_format_asks_for_a_later_vitral() -> None:
    with raises("data.unsupported_version", "set/shards.json", 2, 1):
        parse_index(b'{"format": 3}', "set/shards.json")

import csv
import os
import random
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from vitral.data.samples import SPLITS, Row, StratifiedSplit, stratified_split, write_split


def rows_of(**classes: int) -> list[Row]:
    return [
        Row(f"{label}/{number:03}.jpg", label, "train") for label, size in classes.items() for number in range(size)
    ]


def held(rows: list[Row], label: str) -> int:
    return sum(row.split == "val" for row in rows if row.label == label)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    fraction=st.floats(0.001, 0.999),
    seed=st.integers(0, 2**40),
)
def test_every_class_gives_its_share_and_keeps_some(sizes: list[int], fraction: float, seed: int) -> None:
    classes = {f"class{number}": size for number, size in enumerate(sizes)}
    rows = rows_of(**classes)
    divided, alone = stratified_split(rows, StratifiedSplit(fraction=fraction, seed=seed))
    assert sorted(row.name for row in divided) == sorted(row.name for row in rows)
    assert alone == [label for label, size in classes.items() if size == 1]
    for label, size in classes.items():
        taken = held(divided, label)
        assert taken == 0 if size == 1 else 1 <= taken <= size - 1
        assert abs(taken - size * fraction) <= 1


def test_a_fifth_of_ten_is_two() -> None:
    divided, _ = stratified_split(rows_of(cat=10, dog=50), StratifiedSplit())
    assert (held(divided, "cat"), held(divided, "dog")) == (2, 10)


def test_the_order_in_which_images_are_found_does_not_matter() -> None:
    rows = rows_of(cat=30, dog=20)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert stratified_split(rows, StratifiedSplit()) == stratified_split(shuffled, StratifiedSplit())


def test_another_seed_divides_otherwise() -> None:
    rows = rows_of(cat=30, dog=20)
    assert stratified_split(rows, StratifiedSplit(seed=1)) != stratified_split(rows, StratifiedSplit(seed=2))


def test_the_division_is_the_one_it_always_was() -> None:
    divided, _ = stratified_split(rows_of(cat=10), StratifiedSplit(fraction=0.3))
    assert [row.name for row in divided if row.split == "val"] == ["cat/001.jpg", "cat/003.jpg", "cat/007.jpg"]


def test_one_more_image_moves_no_more_than_one_other() -> None:
    before, _ = stratified_split(rows_of(cat=40), StratifiedSplit())
    after, _ = stratified_split(rows_of(cat=41), StratifiedSplit())
    assert len(set(before) - set(after)) <= 1


def test_a_spelling_of_an_accent_does_not_change_the_draw() -> None:
    names = [f"é/{number}.jpg" for number in range(20)]
    ranks = []
    for form in ("NFC", "NFD"):
        rows = [Row(unicodedata.normalize(form, name), "é", "train") for name in names]
        divided, _ = stratified_split(rows, StratifiedSplit())
        ranks.append({row.name[-6:] for row in divided if row.split == "val"})
    assert ranks[0] == ranks[1]


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_a_fraction_that_leaves_nothing_on_one_side_is_refused(fraction: float) -> None:
    with raises("config.out_of_range", "fraction"):
        StratifiedSplit(fraction=fraction)


NAMES = [
    "a,b.jpg",
    'say "x".jpg',
    "two\nlines.jpg",
    "return\r.jpg",
    " spaces .jpg",
    "ねこ/é.jpg",
    os.fsdecode(b"\xff.jpg"),
]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    rows = tuple(Row(name, f"class of {name}", SPLITS[number % 3]) for number, name in enumerate(NAMES))
    write_split(tmp_path / "split.csv", rows)
    with (tmp_path / "split.csv").open(encoding="utf-8", errors="surrogateescape", newline="") as file:
        assert [*csv.reader(file, strict=True)] == [["name", "label", "split"], *map(list, rows)]
    assert [path.name for path in tmp_path.iterdir()] == ["split.csv"]


def test_a_split_file_is_plain_csv(tmp_path: Path) -> None:
    write_split(tmp_path / "split.csv", [Row("cat/1.jpg", "cat", "val")])
    assert (tmp_path / "split.csv").read_bytes() == b"name,label,split\r\ncat/1.jpg,cat,val\r\n"


def test_a_failure_while_writing_keeps_the_file_before(tmp_path: Path) -> None:
    path = tmp_path / "split.csv"
    write_split(path, rows_of(cat=2))
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError):
        write_split(path, (Row(f"{1 / (2 - number)}.jpg", "cat", "train") for number in range(4)))
    assert path.read_bytes() == before

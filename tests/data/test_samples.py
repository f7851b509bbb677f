import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from vitral.data.samples import Item, Row, Samples


@dataclass(frozen=True)
class Shelf:
    """Images in memory: the size of each is its own."""

    images: tuple[tuple[str, bytes], ...]

    def read(self, name: str) -> bytes:
        return dict(self.images)[name]

    def address(self, name: str) -> str:
        return name

    def size(self, name: str) -> int:
        return len(self.read(name))


SAMPLES = Samples(
    where="shelf",
    classes=("cat", "dog"),
    items=(Item("a", 0, "train"), Item("b", 1, "train"), Item("c", 1, "val")),
    store=Shelf((("a", b"1"), ("b", b"22"), ("c", b"333"))),
)


def test_items_are_found_by_split_and_read() -> None:
    assert SAMPLES.of("train") == SAMPLES.items[:2]
    assert SAMPLES.of("test") == ()
    assert [SAMPLES.read(item) for item in SAMPLES.items] == [b"1", b"22", b"333"]


def test_images_are_counted_for_every_class_even_where_there_are_none() -> None:
    assert SAMPLES.counts("train") == (1, 1)
    assert SAMPLES.counts("val") == (0, 1)
    assert SAMPLES.counts("test") == (0, 0)


def test_rows_carry_the_names_of_classes() -> None:
    assert list(SAMPLES.rows()) == [Row("a", "cat", "train"), Row("b", "dog", "train"), Row("c", "dog", "val")]


def test_samples_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SAMPLES.where = "elsewhere"  # type: ignore[misc]


def test_samples_go_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(SAMPLES)) == SAMPLES


def test_the_fingerprint_is_the_one_it_always_was() -> None:
    assert SAMPLES.fingerprint() == "9b3dfb7af51d4629218b27834dcb7aa3ab6e29cb2d21f1b6c0865b456cfcdbcd"


@pytest.mark.parametrize(
    "other",
    [
        replace(SAMPLES, classes=("cat", "cow")),
        replace(SAMPLES, items=SAMPLES.items[:2]),
        replace(SAMPLES, items=(*SAMPLES.items[:2], Item("c", 0, "val"))),
        replace(SAMPLES, items=(*SAMPLES.items[:2], Item("c", 1, "test"))),
        replace(SAMPLES, store=Shelf((("a", b"1"), ("b", b"2"), ("c", b"333")))),
    ],
    ids=["class", "items", "label", "split", "size"],
)
def test_the_fingerprint_tells_a_change(other: Samples) -> None:
    assert other.fingerprint() != SAMPLES.fingerprint()


def test_the_fingerprint_does_not_know_where_the_set_lies() -> None:
    assert replace(SAMPLES, where="elsewhere", notes=("moved",)).fingerprint() == SAMPLES.fingerprint()

"""Tars from elsewhere as a source; packs are opened in `test_pack.py`."""

import multiprocessing
import pickle
import tarfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import fsspec
import pytest

from tests.data.tars import File, sample, write_tar
from tests.data.trees import labeled, refused_at
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples

Tars = dict[str, list[File]]

PETS = [*sample("a/1", "cat"), *sample("a/2", "dog")]
MORE = [*sample("a/1", "dog"), *sample("b/2", "cat")]


def made(root: Path, tars: Tars, classes: str = "") -> Path:
    for name, files in tars.items():
        write_tar(root / name, files)
    if classes:
        (root / "classes.txt").write_text(classes, encoding="utf-8")
    return root


def sizes(samples: Samples) -> dict[str, int]:
    return {split: len(samples.of(split)) for split in ("train", "val", "test") if samples.of(split)}


GOOD: dict[str, tuple[Tars, str, dict[str, int]]] = {
    "train and val": ({"train-000.tar": PETS, "val-000.tar": MORE}, "", {"train": 2, "val": 2}),
    "train and test, by glob": ({"train0.tar": PETS, "test0.tar": MORE}, "*.tar", {"train": 2, "test": 2}),
    "a name before the split": (
        {"pets-train-0.tar": PETS, "pets_validation_0.tar": MORE},
        "pets*.tar",
        {"train": 2, "val": 2},
    ),
    "folders for splits": ({"train/0.tar": PETS, "val/0.tar": MORE}, "{train,val}/0.tar", {"train": 2, "val": 2}),
    "one tar": ({"pets.tar": PETS + sample("c/3", "cat") + sample("c/4", "dog")}, "pets.tar", {"train": 2, "val": 2}),
    "no splits": ({"0.tar": PETS, "1.tar": MORE}, "{0..1}.tar", {"train": 2, "val": 2}),
    "train alone is divided": ({"train-0.tar": PETS, "train-1.tar": MORE}, "", {"train": 2, "val": 2}),
    "words that only hold a split": ({"contest-0.tar": PETS, "trained-1.tar": MORE}, "", {"train": 2, "val": 2}),
}


@pytest.mark.parametrize(("tars", "address", "expected"), GOOD.values(), ids=GOOD)
def test_tars_are_understood(tmp_path: Path, tars: Tars, address: str, expected: dict[str, int]) -> None:
    samples = open_data(str(made(tmp_path, tars) / address))
    assert samples.classes == ("cat", "dog")
    assert sizes(samples) == expected
    for item in samples.items:
        shard, _, member = item.name.rpartition(".tar/")
        with tarfile.open(tmp_path / f"{shard}.tar") as tar:
            content = tar.extractfile(member)
            assert content is not None
            assert samples.read(item) == content.read()
        assert samples.store.size(item.name) == len(samples.read(item))


def test_one_key_in_two_shards_is_two_images(tmp_path: Path) -> None:
    samples = open_data(str(made(tmp_path, {"train-0.tar": PETS, "val-0.tar": MORE})))
    assert labeled(samples) == {
        "train-0.tar/a/1.jpg": "cat",
        "train-0.tar/a/2.jpg": "dog",
        "val-0.tar/a/1.jpg": "dog",
        "val-0.tar/b/2.jpg": "cat",
    }


def numbered(*labels: int) -> list[File]:
    return [file for number, label in enumerate(labels) for file in sample(f"{number:03}", str(label))]


def test_numbers_count_the_lines_of_the_classes_beside_the_shards(tmp_path: Path) -> None:
    tars = {"train-0.tar": [*numbered(0, 1, 2, 0), *sample("9", "zebra")], "val-0.tar": numbered(2)}
    samples = open_data(str(made(tmp_path, tars, "zebra\r\ncafe\u0301\nant\ngnu\n")))
    assert samples.classes == ("zebra", "café", "ant", "gnu")
    assert [item.label for item in samples.items] == [0, 1, 2, 0, 0, 2]
    first, second = samples.notes
    assert first.endswith("val: café, zebra")
    assert second.endswith(": gnu")


def test_numbers_without_classes_are_names_in_the_order_of_numbers(tmp_path: Path) -> None:
    samples = open_data(str(made(tmp_path, {"train-0.tar": numbered(10, 2, 9, 0), "val-0.tar": numbered(9)})))
    assert samples.classes == ("0", "2", "9", "10")
    assert [item.label for item in samples.items] == [3, 1, 2, 0, 2]


BAD: dict[str, tuple[Tars, str, str, str, tuple[str, ...]]] = {
    "a number beyond the classes": (
        {"0.tar": numbered(0, 1, 2)},
        "a\nb\n",
        "",
        "0.tar/002.jpg",
        ("data.bad_label", "2", "classes.txt"),
    ),
    "a name beside the classes": (
        {"0.tar": PETS},
        "cat\ncow\n",
        "",
        "0.tar/a/2.jpg",
        ("data.bad_label", "'dog'", "2", "classes.txt"),
    ),
    "a class twice": ({"0.tar": PETS}, "cat\ndog\ncat\n", "", "classes.txt", ("data.bad_class_list",)),
    "an empty line": ({"0.tar": PETS}, "cat\n\ndog\n", "", "classes.txt", ("data.bad_class_list",)),
    "a split for some": (
        {"0.tar": PETS, "val-0.tar": MORE},
        "",
        "",
        "",
        ("data.bad_split", "0.tar/a/1.jpg, 0.tar/a/2.jpg"),
    ),
    "val alone": ({"val-0.tar": PETS}, "", "", "", ("data.class_not_in_train", "'cat'", "val-0.tar/a/1.jpg")),
    "one class": ({"0.tar": sample("1", "cat")}, "", "", "", ("data.too_few", "'cat'")),
    "names that differ in case": (
        {"0.tar": PETS, "1.tar": sample("1", "Cat")},
        "",
        "",
        "",
        ("data.ambiguous_class", "'Cat'", "'cat'"),
    ),
    "a traversal name": ({"0.tar": [*PETS, ("../1.jpg", b"")]}, "", "", "0.tar", ("data.unsafe_archive", "'../1.jpg'")),
    "one bad shard of many": (
        {f"{number}.tar": [*PETS, *([("x.jpg", b"")] if number == 5 else [])] for number in range(9)},
        "",
        "{0..8}.tar",
        "5.tar/x",
        ("data.bad_label",),
    ),
}


@pytest.mark.parametrize(("tars", "classes", "address", "place", "error"), BAD.values(), ids=BAD)
def test_tars_that_cannot_be_right_are_refused(
    tmp_path: Path, tars: Tars, classes: str, address: str, place: str, error: tuple[str, ...]
) -> None:
    made(tmp_path, tars, classes)
    with raises(*error) as caught:
        open_data(str(tmp_path / address))
    assert refused_at(caught) == str(tmp_path / place)


def faults_of(address: Path) -> tuple[Samples, list[tuple[str, str]]]:
    """The samples, and the code and place of every fault."""
    found: list[DataError] = []
    samples = open_data(str(address), on_fault=found.append)
    return samples, [(fault.code, fault.where.removeprefix(str(address)).lstrip("/")) for fault in found]


@pytest.mark.parametrize(("tars", "classes", "address", "place", "error"), BAD.values(), ids=BAD)
def test_a_fault_is_collected_and_the_rest_is_read(
    tmp_path: Path, tars: Tars, classes: str, address: str, place: str, error: tuple[str, ...]
) -> None:
    found: list[DataError] = []
    samples = open_data(str(made(tmp_path, tars, classes) / address), on_fault=found.append)
    assert (found[0].code, found[0].where) == (error[0], str(tmp_path / place))
    assert all(samples.read(item) == item.name.rpartition(".tar/")[2].encode() for item in samples.items)


def test_all_faults_of_all_tars_are_collected_in_their_order(tmp_path: Path) -> None:
    tars = {f"{number}.tar": [*PETS, ("x.jpg", b"")] for number in range(9)}
    made(tmp_path, {**tars, "train-9.tar": [*PETS, *sample("y", "cow")]}, "cat\ndog\n")
    (tmp_path / "3.tar").write_bytes(b"<html>")
    samples, faults = faults_of(tmp_path)
    assert faults == [
        *(
            ("data.bad_archive", "3.tar") if number == 3 else ("data.bad_label", f"{number}.tar/x")
            for number in range(9)
        ),
        ("data.bad_label", "train-9.tar/y.jpg"),
        ("data.bad_split", ""),
    ]
    assert len(samples.items) == 18


def test_a_compressed_tar_is_refused_by_its_content(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "pets.tar.gz", "w:gz"):
        pass
    with raises("data.compressed_archive", tmp_path / "pets.tar.gz", "gzip"):
        open_data(str(tmp_path / "pets.tar.gz"))


@pytest.fixture(params=["file://", "memory://"])
def afar(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a folder with two shards and their classes, in each of the places."""
    made(tmp_path / "here", {"train-000.tar": numbered(0, 1), "val-000.tar": numbered(1, 0)}, "cat\ndog\n")
    address = f"{request.param}{tmp_path}/set"
    system, root = fsspec.core.url_to_fs(address)
    system.makedirs(root)
    for path in (tmp_path / "here").iterdir():
        system.pipe_file(f"{root}/{path.name}", path.read_bytes())
    yield address
    system.rm(root, recursive=True)


@pytest.mark.parametrize("pattern", ["", "/", "/*.tar", "/{train,val}-{000..000}.tar", "/{train-000,val-*}.tar"])
def test_shards_afar_are_the_same_as_shards_here(afar: str, tmp_path: Path, pattern: str) -> None:
    here, there = open_data(str(tmp_path / "here")), open_data(f"{afar}{pattern}")
    assert (there.classes, there.items) == (here.classes, here.items)
    assert [there.read(item) for item in there.items] == [here.read(item) for item in here.items]
    assert there.fingerprint() == here.fingerprint()


@pytest.mark.parametrize(
    ("pattern", "code"), [("/train-{000..009}.tar", "data.unreadable"), ("/x*.tar", "data.not_found")]
)
def test_a_shard_that_is_not_afar_is_named(afar: str, pattern: str, code: str) -> None:
    with raises(code) as caught:
        open_data(f"{afar}{pattern}")
    assert caught.value.where.startswith(afar)


def test_a_folder_afar_without_shards_is_refused(afar: str) -> None:
    system, root = fsspec.core.url_to_fs(afar)
    for name in ("train-000.tar", "val-000.tar"):
        system.rm(f"{root}/{name}")
    with raises("data.empty", afar):
        open_data(afar)


def contents(samples: Samples) -> list[bytes]:
    return [samples.read(item) for item in samples.items]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_processes_read_the_same_bytes(tmp_path: Path, start: str) -> None:
    samples = open_data(str(made(tmp_path, {"train-0.tar": PETS, "val-0.tar": MORE})))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(start)) as pool:
        assert list(pool.map(contents, [samples] * 2)) == [contents(samples)] * 2


def test_no_file_stays_open(tmp_path: Path) -> None:
    samples = open_data(str(made(tmp_path, {"train-0.tar": PETS, "val-0.tar": MORE})))
    contents(samples)
    assert [link for link in Path("/proc/self/fd").iterdir() if str(link.resolve()).endswith(".tar")] == []
    assert contents(pickle.loads(pickle.dumps(samples))) == contents(samples)


def test_an_address_that_needs_a_package_is_named_as_it_was_given() -> None:
    where = "s3://bucket/train-{000..001}.tar"
    with raises("config.missing_package") as caught:
        open_data(where)
    assert caught.value.where == where

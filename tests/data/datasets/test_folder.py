"""Layouts of folders: each gives the right samples, or an error that names the place and the remedy."""

import os
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data.trees import labeled, plant, refused_at
from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.folder import open_folder, open_unlabeled
from vitral.data.samples import Samples, StratifiedSplit

HOW = StratifiedSplit()
BOTH = ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg"]


def below(part: str, names: list[str] = BOTH) -> list[str]:
    return [f"{part}/{name}" for name in names]


def opened(root: Path, names: list[str]) -> Samples:
    return open_folder(plant(root, names), HOW)


GOOD = {
    "classes alone": (BOTH, ("cat", "dog"), {"train": 2, "val": 2}),
    "train and val": (below("train") + below("val"), ("cat", "dog"), {"train": 4, "val": 4}),
    "train and valid": (below("train") + below("valid"), ("cat", "dog"), {"train": 4, "val": 4}),
    "train and validation": (below("train") + below("validation"), ("cat", "dog"), {"train": 4, "val": 4}),
    "train and test": (below("train") + below("test"), ("cat", "dog"), {"train": 4, "test": 4}),
    "training and testing": (below("training") + below("testing"), ("cat", "dog"), {"train": 4, "test": 4}),
    "all three": (below("train") + below("val") + below("test"), ("cat", "dog"), {"train": 4, "val": 4, "test": 4}),
    "splits in capitals": (below("Train") + below("VAL"), ("cat", "dog"), {"train": 4, "val": 4}),
    "train alone": (below("train"), ("cat", "dog"), {"train": 2, "val": 2}),
    "nested classes": (
        ["animals/cat/1.jpg", "animals/dog/1.jpg", "cars/1.jpg"],
        ("animals/cat", "animals/dog", "cars"),
        {"train": 3},
    ),
    "nested below train": (
        [*below("train/pets"), "val/pets/cat/9.jpg"],
        ("pets/cat", "pets/dog"),
        {"train": 4, "val": 1},
    ),
    "unicode and spaces": (
        ["Крот/1 a.jpg", "Крот/2.jpg", "ねこ/é 1.jpg", "ねこ/2.jpg", "T-shirt top/1.jpg", "T-shirt top/2.jpg"],
        ("T-shirt top", "Крот", "ねこ"),
        {"train": 3, "val": 3},
    ),
    "any ending in any case": (
        ["a/1.JPG", "a/2.Jpeg", "a/3.PNG", "a/4.TIFF", "a/5.webp", "b/1.Bmp", "b/2.GIF", "b/3.avif", "b/4.NPY"],
        ("a", "b"),
        {"train": 7, "val": 2},
    ),
    "what systems leave behind": (
        [
            *BOTH,
            *["__MACOSX/cat/._1.jpg", ".ipynb_checkpoints/1.jpg", "cat/.ipynb_checkpoints/1-checkpoint.jpg"],
            *[".git/1.jpg", "cat/Thumbs.db", "dog/.DS_Store", "dog/desktop.ini", "cat/._1.jpg", "@eaDir/1.jpg"],
        ],
        ("cat", "dog"),
        {"train": 2, "val": 2},
    ),
    "one image a class": (["cat/1.jpg", "dog/1.jpg"], ("cat", "dog"), {"train": 2}),
    "a thousand classes": (
        [f"{number:04}/{image}.png" for number in range(1000) for image in "ab"],
        tuple(f"{number:04}" for number in range(1000)),
        {"train": 1000, "val": 1000},
    ),
    "a class called train": (
        ["car/1.jpg", "ship/1.jpg", "train/1.jpg"],
        ("car", "ship", "train"),
        {"train": 3},
    ),
    "a folder of notes in a class": ([*BOTH, "cat/notes/read.txt"], ("cat", "dog"), {"train": 2, "val": 2}),
    "a class missing from val": ([*below("train"), "val/dog/9.jpg"], ("cat", "dog"), {"train": 4, "val": 1}),
}


@pytest.mark.parametrize(("names", "classes", "sizes"), GOOD.values(), ids=GOOD)
def test_a_layout_is_understood(
    tmp_path: Path, names: list[str], classes: tuple[str, ...], sizes: dict[str, int]
) -> None:
    samples = opened(tmp_path, names)
    assert samples.classes == classes
    found = {"train": len(samples.of("train")), "val": len(samples.of("val")), "test": len(samples.of("test"))}
    assert {split: size for split, size in found.items() if size} == sizes
    for item in samples.items:
        assert samples.read(item) == item.name.encode()
        assert f"{samples.classes[item.label]}/{Path(item.name).name}" in item.name


BAD = {
    "an empty class": ([*BOTH, "lynx/"], "lynx", ("data.empty_class",)),
    "two empty classes": ([*BOTH, "lynx/", "puma/"], "lynx", ("data.empty_class", "puma")),
    "an empty class in val": ([*below("train"), "val/cat/1.jpg", "val/dog/"], "val/dog", ("data.empty_class",)),
    "a class in a format that is not read": ([*BOTH, "lynx/1.HEIC"], "lynx", ("data.empty_class", ".heic")),
    "a class only in val": (
        [*below("train"), *below("val"), "val/lynx/1.jpg"],
        "",
        ("data.class_not_in_train", "'lynx'", "val", "val/lynx/1.jpg"),
    ),
    "one class": (["cat/1.jpg", "cat/2.jpg"], "", ("data.too_few", "'cat'")),
    "names that differ in case": (["Cat/1.jpg", "cat/2.jpg"], "", ("data.ambiguous_class", "'Cat'", "'cat'")),
    "case that differs across splits": (
        [*below("train"), "val/Cat/9.jpg"],
        "",
        ("data.ambiguous_class", "val/Cat/9.jpg", "train/cat/1.jpg"),
    ),
    "nothing": ([], "", ("data.empty",)),
    "nothing in train": (["train/", *below("val")], "train", ("data.empty",)),
    "images without classes": (["1.jpg", "2.jpg"], "", ("data.no_labels", "1.jpg, 2.jpg")),
    "images in train without classes": (["train/1.jpg", "val/1.jpg"], "train", ("data.no_labels", "1.jpg")),
    "images beside classes": ([*BOTH, "stray.png"], "", ("data.bad_layout", "stray.png", "(cat)")),
    "a class inside a class": ([*BOTH, "cat/kitten/3.jpg"], "cat", ("data.bad_layout", "1.jpg, 2.jpg", "cat/kitten")),
    "a file called train": (["train", *below("val")], "train", ("data.bad_layout",)),
    "val without train": (below("val"), "", ("data.no_train_split", "val")),
    "two names for one split": (below("train") + below("val") + below("valid"), "", ("data.ambiguous_split", "valid")),
    "train inside another folder": (
        below("photos/train") + below("photos/val"),
        "photos",
        ("data.bad_layout", "train"),
    ),
    "splits inside classes": (["cat/train/1.jpg", "cat/val/2.jpg", "dog/1.jpg"], "cat", ("data.bad_layout", "train")),
    "train beside classes": (below("train") + BOTH, "", ("data.ambiguous_split", "cat, dog", "train")),
}


@pytest.mark.parametrize(("names", "place", "error"), BAD.values(), ids=BAD)
def test_a_layout_that_cannot_be_right_is_refused(
    tmp_path: Path, names: list[str], place: str, error: tuple[str, ...]
) -> None:
    with raises(*error) as caught:
        opened(tmp_path, names)
    assert refused_at(caught) == str(tmp_path / place)


def test_labels_are_matched_by_name_when_val_lacks_a_class(tmp_path: Path) -> None:
    samples = opened(
        tmp_path, ["train/ant/1.jpg", "train/bee/1.jpg", "train/cow/1.jpg", "val/bee/2.jpg", "val/cow/2.jpg"]
    )
    assert labeled(samples)["val/bee/2.jpg"] == "bee"
    assert samples.counts("val") == (0, 1, 1)
    (note,) = samples.notes
    assert note.endswith("val: ant")


def test_one_accent_in_two_spellings_is_one_class_across_splits(tmp_path: Path) -> None:
    one, other = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    samples = opened(tmp_path, [f"train/{one}/1.jpg", "train/tea/1.jpg", f"val/{other}/2.jpg"])
    assert samples.classes == (one, "tea")
    assert samples.read(samples.of("val")[0]) == f"val/{other}/2.jpg".encode()


def test_two_spellings_of_an_accent_in_one_split_are_refused(tmp_path: Path) -> None:
    names = [f"{unicodedata.normalize(form, 'café')}/1.jpg" for form in ("NFC", "NFD")]
    with raises("data.ambiguous_class", r"'cafe\u0301'", r"'caf\xe9'"):
        opened(tmp_path, names)


def test_what_is_left_out_is_told(tmp_path: Path) -> None:
    samples = opened(tmp_path, [*below("train"), *below("val"), "raw/1.jpg", "train/cat/notes.txt"])
    first, second = samples.notes
    assert first.endswith(": train/cat/notes.txt")
    assert second.endswith("train: raw")


def test_a_class_with_one_image_stays_in_training_and_is_told(tmp_path: Path) -> None:
    samples = opened(tmp_path, [*BOTH, "lynx/1.jpg"])
    assert samples.counts("train") == (1, 1, 1)
    assert samples.counts("val") == (1, 1, 0)
    assert any(note.endswith(": lynx") for note in samples.notes)


def test_items_come_in_the_order_of_names(tmp_path: Path) -> None:
    samples = opened(tmp_path, ["train/b/2.jpg", "train/b/10.jpg", "val/a/1.jpg", "train/a/3.jpg"])
    assert [item.name for item in samples.items] == ["train/a/3.jpg", "train/b/10.jpg", "train/b/2.jpg", "val/a/1.jpg"]


def test_links_to_images_and_folders_are_followed(tmp_path: Path) -> None:
    plant(tmp_path, ["far/1.jpg", "far/2.jpg", "near/cat/1.jpg"])
    (tmp_path / "near/dog").symlink_to(tmp_path / "far")
    (tmp_path / "near/cat/2.jpg").symlink_to(tmp_path / "far/2.jpg")
    samples = open_folder(tmp_path / "near", HOW)
    assert labeled(samples) == {"cat/1.jpg": "cat", "cat/2.jpg": "cat", "dog/1.jpg": "dog", "dog/2.jpg": "dog"}


@pytest.mark.parametrize(
    ("link", "target", "code"),
    [
        ("cat/again", "cat", "data.link_loop"),
        ("cat/all", ".", "data.link_loop"),
        ("cat/above", "..", "data.link_loop"),
        ("self", "self", "data.unreadable"),
        ("gone", "nowhere", "data.broken_link"),
        ("cat/9.jpg", "nowhere.jpg", "data.broken_link"),
    ],
)
def test_a_link_that_loops_or_leads_nowhere_is_named(tmp_path: Path, link: str, target: str, code: str) -> None:
    root = plant(tmp_path / "photos", ["cat/inner/1.jpg", "dog/1.jpg"])
    (root / link).symlink_to(root / target)
    with raises(code) as caught:
        open_folder(root, HOW)
    assert caught.value.where == str(root / link)


def test_two_folders_that_link_to_each_other_are_refused(tmp_path: Path) -> None:
    plant(tmp_path, ["cat/inner/1.jpg", "dog/inner/1.jpg"])
    (tmp_path / "cat/friend").symlink_to(tmp_path / "dog")
    (tmp_path / "dog/friend").symlink_to(tmp_path / "cat")
    with raises("data.link_loop") as caught:
        open_folder(tmp_path, HOW)
    assert caught.value.where == str(tmp_path / "cat/friend/friend")


def test_a_folder_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    plant(tmp_path, BOTH)
    for folder in ("cat", "dog", "."):
        (tmp_path / folder).chmod(0o555)
    before = sorted(tmp_path.rglob("*"))
    assert open_folder(tmp_path, HOW).classes == ("cat", "dog")
    assert sorted(tmp_path.rglob("*")) == before
    for folder in (".", "cat", "dog"):
        (tmp_path / folder).chmod(0o755)


@pytest.fixture
def locked() -> Iterator[Path]:
    """Classes of which one may not be read, looked at by a user who is not allowed everything."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        root = plant(Path(name), BOTH)
        root.chmod(0o755)
        (root / "dog").chmod(0o000)
        try:
            if user == 0:
                os.seteuid(65534)
            yield root
        finally:
            os.seteuid(user)
            (root / "dog").chmod(0o755)


def test_a_folder_that_may_not_be_read_is_named(locked: Path) -> None:
    with raises("data.unreadable", "chmod") as caught:
        open_folder(locked, HOW)
    assert refused_at(caught) == str(locked / "dog")


def test_a_name_that_is_not_unicode_is_read(tmp_path: Path) -> None:
    plant(tmp_path, BOTH)
    odd = os.path.join(os.fsencode(tmp_path), b"cat", b"\xff.jpg")
    with open(odd, "wb") as file:
        file.write(b"odd")
    samples = open_folder(tmp_path, HOW)
    item = next(item for item in samples.items if item.name.startswith("cat/\udcff"))
    assert samples.read(item) == b"odd"
    assert len(samples.fingerprint()) == 64


def test_an_image_that_vanished_is_named(tmp_path: Path) -> None:
    samples = opened(tmp_path, BOTH)
    gone = tmp_path / samples.items[0].name
    gone.unlink()
    with raises("data.unreadable") as caught:
        samples.read(samples.items[0])
    assert refused_at(caught) == str(gone)


def test_pictures_of_kinds_that_are_not_read_are_told_apart_from_litter(tmp_path: Path) -> None:
    plant(tmp_path, ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/2.jpg", "cat/3.HEIC", "dog/notes.txt"])
    first, second, _ = open_folder(tmp_path, StratifiedSplit()).notes
    assert first.endswith(": cat/3.HEIC")
    assert second.endswith(": dog/notes.txt")


def test_without_labels_every_image_below_is_taken(tmp_path: Path) -> None:
    names = ["a.jpg", "deep/er/b.png", "train/cat/c.jpg", "d.jpg", "e.jpg"]
    samples = open_unlabeled(plant(tmp_path, [*names, "notes.txt"]), HOW)
    assert sorted(item.name for item in samples.items) == sorted(names)
    assert {item.label for item in samples.items} == {0}
    assert (len(samples.of("train")), len(samples.of("val"))) == (4, 1)


def test_a_folder_without_any_image_is_refused_without_labels_too(tmp_path: Path) -> None:
    with raises("data.empty", tmp_path):
        open_unlabeled(plant(tmp_path, ["notes.txt"]), HOW)


def test_a_link_that_loops_is_named_without_labels_too(tmp_path: Path) -> None:
    plant(tmp_path, ["a.jpg"])
    (tmp_path / "again").symlink_to(tmp_path)
    with raises("data.link_loop", tmp_path / "again"):
        open_unlabeled(tmp_path, HOW)


def faults_of(root: Path, names: list[str]) -> tuple[Samples, list[tuple[str, str]]]:
    """The samples, and the code and place of every fault."""
    found: list[DataError] = []
    samples = open_folder(plant(root, names), HOW, found.append)
    return samples, [(fault.code, fault.where.removeprefix(str(root)).lstrip("/")) for fault in found]


@pytest.mark.parametrize(("names", "place", "error"), BAD.values(), ids=BAD)
def test_a_fault_is_collected_once_and_the_rest_is_read(
    tmp_path: Path, names: list[str], place: str, error: tuple[str, ...]
) -> None:
    samples, faults = faults_of(tmp_path, names)
    assert faults[0] == (error[0], place)
    assert len(set(faults)) == len(faults)
    assert all(samples.read(item) == item.name.encode() for item in samples.items)


def test_all_faults_of_a_folder_are_collected(tmp_path: Path) -> None:
    names = [
        *below("train"),
        *["train/Cat/3.jpg", "train/lynx/", "train/puma/1.jpg", "train/puma/kitten/1.jpg", "train/elk/train/a/1.jpg"],
        *[*below("val"), "val/owl/1.jpg", "val/empty/", "val/yak/1.heic"],
    ]
    root = plant(tmp_path, names)
    (root / "train/cat/9.jpg").symlink_to("nowhere.jpg")
    (root / "train/dog/loop").symlink_to(root)
    samples, faults = faults_of(tmp_path, [])
    assert sorted(faults) == [
        ("data.ambiguous_class", ""),
        ("data.bad_layout", "train/elk"),
        ("data.bad_layout", "train/puma"),
        ("data.broken_link", "train/cat/9.jpg"),
        ("data.class_not_in_train", ""),
        ("data.empty_class", "train/lynx"),
        ("data.empty_class", "val/empty"),
        ("data.link_loop", "train/dog/loop"),
    ]
    assert samples.classes == ("Cat", "cat", "dog", "owl", "puma/kitten")
    assert len(samples.items) == 4 + 1 + 1 + 4 + 1


def test_both_folders_of_an_ambiguous_split_are_read(tmp_path: Path) -> None:
    samples, faults = faults_of(tmp_path, below("train") + below("val") + below("valid"))
    assert faults == [("data.ambiguous_split", "")]
    assert samples.counts("val") == (4, 4)


def test_without_train_the_classes_are_not_reported_one_by_one(tmp_path: Path) -> None:
    samples, faults = faults_of(tmp_path, below("val"))
    assert faults == [("data.no_train_split", "")]
    assert samples.counts("val") == (2, 2)


def test_links_that_lead_nowhere_are_collected_without_labels_too(tmp_path: Path) -> None:
    plant(tmp_path, ["a.jpg", "b.jpg"])
    (tmp_path / "gone.jpg").symlink_to("nowhere.jpg")
    found: list[DataError] = []
    samples = open_unlabeled(tmp_path, HOW, found.append)
    assert [fault.code for fault in found] == ["data.broken_link"]
    assert len(samples.items) == 2


def test_folders_that_lie_too_deep_are_refused(tmp_path: Path) -> None:
    (tmp_path / "/".join(["d"] * 300)).mkdir(parents=True)
    with raises("data.too_deep"):
        open_folder(tmp_path, HOW)

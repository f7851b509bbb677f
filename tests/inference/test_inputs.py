"""What words stand for, in real folders."""

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest

from tests.data.tables import table, write_table
from tests.data.tars import sample, write_tar
from tests.data.trees import plant
from tests.errors import raises
from vitral.core.files import allow_outside
from vitral.data.datasets.pack import pack
from vitral.data.datasets.source import open_data
from vitral.inference.inputs import ImageRef, MissingImage, UnlistedImages, find_images, natural_key, refuse_unlisted

TREE = ["b/10.jpg", "b/2.png", "b/9/1.jpeg", "b/9/notes.txt", "a/x.JPG", "10.jpg", "2.jpg", ".hidden.jpg", "Thumbs.db"]
# A user who may not look into a folder; whoever runs the tests may be allowed everything, and becomes one who is not.
LOCKED_OUT = """
import os, sys, tempfile
from io import BytesIO
from vitral.inference.inputs import find_images

if not os.getuid():
    os.setuid(65534)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for name, mode in (("locked", 0o000), ("dark", 0o111)):
        os.mkdir(name, mode)
    os.symlink("locked/x.jpg", "link.jpg")
    os.symlink("locked/photos", "link")
    open("ok.jpg", "w").close()
    words = ("locked/x.jpg", "locked/a/b/x.jpg", "locked/photos", "dark/x.jpg", "link.jpg", "link", "ok.jpg")
    for image in find_images(words, BytesIO()):
        print(image.name, type(image.source).__name__, getattr(getattr(image.source, "error", ""), "code", ""), sep="|")
"""
GAPS = {"": "data.empty_name", "empty": "data.empty", "list.jsonl": "data.bad_manifest", "a.tar": "data.bad_archive"}
GAPS |= {"link": "data.unreadable", "t-{0..1}.tar": "data.missing_file"}
GAPS |= dict.fromkeys(("gone", "gone/", "*.gif"), "data.not_found")
IN_ORDER = ["2.jpg", "10.jpg", "a/x.JPG", "b/2.png", "b/10.jpg", "b/9/1.jpeg"]


def found(words: Sequence[str], stdin: bytes = b"") -> list[ImageRef]:
    return list(find_images(words, BytesIO(stdin)))


def names(words: Sequence[str], root: Path, stdin: bytes = b"") -> list[str]:
    """The names below the root; each good image gives its own bytes, and what is refused ends in its code."""
    told = []
    for image in found(words, stdin):
        name = os.path.relpath(image.name, root)
        if isinstance(image.source, MissingImage | UnlistedImages):
            name += f": {image.source.error.code}"
        else:
            assert image.source.read() == name.encode()
        told.append(name)
    return told


def test_a_folder_is_all_images_below_it_in_the_order_of_numbers(tmp_path: Path) -> None:
    assert names([str(plant(tmp_path, TREE))], tmp_path) == IN_ORDER


def test_words_are_taken_in_the_order_given_and_named_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plant(tmp_path, TREE))
    assert [image.name for image in found(["10.jpg", "b/9", "./2.jpg"])] == ["10.jpg", "b/9/1.jpeg", "./2.jpg"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.jpg", ["2.jpg", "10.jpg"]),
        ("b/*", ["b/2.png", "b/10.jpg", "b/9/1.jpeg"]),
        ("*/*.[jJ][pP]*", ["a/x.JPG", "b/10.jpg"]),
        ("**/1?.jpg", ["10.jpg", "b/10.jpg"]),
        ("b/**", ["b/2.png", "b/10.jpg", "b/9/1.jpeg"]),
        ("**/9/*.jpeg", ["b/9/1.jpeg"]),
        ("**/**/9/*.jpeg", ["b/9/1.jpeg"]),
        ("**/9", ["b/9/1.jpeg"]),
        ("b/**/*", ["b/2.png", "b/10.jpg", "b/9/1.jpeg"]),
        ("**/b/**/*", ["b/2.png", "b/10.jpg", "b/9/1.jpeg"]),
        ("**/b/**/9/*", ["b/9/1.jpeg"]),
        ("?/x.JPG", ["a/x.JPG"]),
        ("{10,2}.jpg", ["10.jpg", "2.jpg"]),
        ("b/{2..3}.png", ["b/2.png", "b/3.png: data.not_found"]),
        ("b/{9/1.jpeg,2.png}", ["b/9/1.jpeg", "b/2.png"]),
        ("**/*.{png,jpeg}", ["b/2.png", "b/9/1.jpeg"]),
        ("{2.jpg,*.gif}", ["2.jpg", "*.gif: data.not_found"]),
        ("*.gif", ["*.gif: data.not_found"]),
    ],
)
def test_a_pattern_stands_for_what_has_such_a_name(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    plant(tmp_path, TREE)
    assert names([f"{tmp_path}/{pattern}"], tmp_path) == expected


def test_a_relative_pattern_is_looked_for_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plant(tmp_path, TREE))
    assert [image.name for image in found(["**/*.jpg", "b/?.png"])] == ["2.jpg", "10.jpg", "b/10.jpg", "b/2.png"]


def test_a_file_with_the_letters_of_a_pattern_in_its_name_is_that_file(tmp_path: Path) -> None:
    plant(tmp_path, ["a[1].jpg", "a1.jpg"])
    assert names([str(tmp_path / "a[1].jpg")], tmp_path) == ["a[1].jpg"]


@pytest.mark.parametrize("word", ["a{1,2}/b{3}.jpg", "a{1,2}/*.jpg", "*/b{3}.jpg"])
def test_braces_may_be_letters_of_a_name(tmp_path: Path, word: str) -> None:
    plant(tmp_path, ["a{1,2}/b{3}.jpg", "a1/b3.jpg"])
    assert names([f"{tmp_path}/{word}"], tmp_path) == ["a{1,2}/b{3}.jpg"]


def test_a_file_that_is_named_is_taken_whatever_its_name(tmp_path: Path) -> None:
    plant(tmp_path, ["photo", "notes.txt"])
    assert names([f"{tmp_path}/photo", f"{tmp_path}/notes.txt"], tmp_path) == ["photo", "notes.txt"]


def test_manifests_and_stdin_are_followed(tmp_path: Path) -> None:
    plant(tmp_path, TREE)
    (tmp_path / "b" / "list.csv").write_text("path,label\n10.jpg,x\n../2.jpg,y\n")
    assert names([f"{tmp_path}/b/list.csv"], tmp_path) == ["b/10.jpg", "2.jpg: data.outside"]
    with allow_outside():
        assert names([f"{tmp_path}/b/list.csv"], tmp_path) == ["b/10.jpg", "2.jpg"]
    assert names(["-", f"{tmp_path}/2.jpg"], tmp_path, f"{tmp_path}/10.jpg\n".encode()) == ["10.jpg", "2.jpg"]


def test_tars_are_read_by_name_by_pattern_and_as_a_folder(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        write_tar(tmp_path / "set" / f"{number}.tar", sample(f"{number}", "0"))
    every = [f"{tmp_path}/set/{number}.tar/{number}.jpg" for number in (1, 2, 10)]
    assert [image.name for image in found([f"{tmp_path}/set"])] == every
    assert [image.name for image in found([f"{tmp_path}/set/2.tar"])] == every[1:2]
    assert {image.name for image in found([f"{tmp_path}/set/*.tar"])} == set(every)
    assert [image.name for image in found([f"{tmp_path}/set/{{1,10}}.tar"])] == [every[0], every[2]]
    assert [image.name for image in found([f"{tmp_path}/*"])] == every


def test_a_tar_beside_images_is_what_they_came_from_and_left_out(tmp_path: Path) -> None:
    write_tar(plant(tmp_path, ["1.jpg"]) / "all.tar", sample("1", "0"))
    assert names([str(tmp_path)], tmp_path) == ["1.jpg"]


def test_sets_known_by_name_packs_and_all_their_splits_are_found(tmp_path: Path) -> None:
    samples = open_data("sample")
    pack(samples, tmp_path / "pack", 2_000_000)
    named, packed = found(["sample"]), found([str(tmp_path / "pack")])
    assert [image.name for image in named] == [f"sample/{item.name}" for item in samples.items]
    assert {image.name for image in packed} == {f"{tmp_path}/pack/{item.name}" for item in samples.items}
    assert named[6].source.read() == samples.read(samples.items[6])


def test_what_is_wrong_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    plant(tmp_path, ["1.jpg", "empty/", "list.csv", "deep/er/", "deep/2.jpg"])
    (tmp_path / "3.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "deep" / "back").symlink_to(tmp_path)
    every = ["nope.jpg", "empty", "list.csv", "deep", "1.jpg"]
    assert names([str(tmp_path / word) for word in every], tmp_path) == [
        "nope.jpg: data.not_found",
        "empty: data.empty",
        "list.csv: data.bad_manifest",
        "deep/2.jpg",
        "deep/back: data.link_loop",
        "1.jpg",
    ]
    link = found([str(tmp_path / "3.jpg")])[0]
    with raises("data.not_found", tmp_path / "3.jpg"):
        link.source.read()


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, ["a/1.jpg", "b/1.jpg", "c/1.jpg"])
    real = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("/b"):  # whoever runs the tests may be allowed everything
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    expected = ["a/1.jpg", "b: data.unreadable", "c/1.jpg"]
    assert names([str(tmp_path)], tmp_path) == expected
    assert names([f"{tmp_path}/*/*.jpg"], tmp_path) == expected


def test_what_one_may_not_look_into_is_told_and_the_rest_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", LOCKED_OUT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == [
        "locked/x.jpg|MissingImage|data.unreadable",
        "locked/a/b/x.jpg|MissingImage|data.unreadable",
        "locked/photos|UnlistedImages|data.unreadable",
        "dark/x.jpg|MissingImage|data.not_found",
        "link.jpg|FileSource|",
        "link|UnlistedImages|data.unreadable",
        "ok.jpg|FileSource|",
    ], done.stderr


def test_an_empty_word_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    first, second = found(["", str(plant(tmp_path, ["1.jpg"]))])
    assert isinstance(first.source, UnlistedImages)
    assert first.source.error.code == "data.empty_name"
    assert second.name == f"{tmp_path}/1.jpg"


@pytest.mark.parametrize(("word", "code"), GAPS.items())
def test_a_list_that_ends_too_early_is_an_error_for_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, code: str
) -> None:
    plant(tmp_path, ["1.jpg", "empty/", "a.tar"])
    (tmp_path / "list.jsonl").write_text('{"path": "1.jpg"}\n{"path": 7}\n')
    (tmp_path / "link").symlink_to("not-mounted")
    monkeypatch.chdir(tmp_path)
    images_found = refuse_unlisted(found(["1.jpg", word]))
    assert next(images_found).name == "1.jpg"
    with raises(code) as caught:
        list(images_found)
    assert caught.value.where.startswith(word.rstrip("/"))


def test_a_bad_image_and_a_link_that_leads_back_are_no_gap_in_a_list(tmp_path: Path) -> None:
    plant(tmp_path, ["in/1.jpg"])
    (tmp_path / "in" / "gone.jpg").symlink_to("nowhere.jpg")
    (tmp_path / "in" / "self").symlink_to(".")
    words = [f"{tmp_path}/{word}" for word in ("in", "in/gone.jpg", "missing.jpg")]
    assert [Path(image.name).name for image in refuse_unlisted(found(words))] == [
        *("1.jpg", "gone.jpg", "self"),
        "gone.jpg",
        "missing.jpg",
    ]


def test_a_link_in_circles_hides_no_image_beside_it(tmp_path: Path) -> None:
    plant(tmp_path, ["in/1.jpg", "in/2.jpg"])
    (tmp_path / "in" / "circle").symlink_to("circle")
    (tmp_path / "in" / "round.jpg").symlink_to("round.jpg")
    told = [image.name for image in found([f"{tmp_path}/in"])]
    assert [os.path.basename(name) for name in told] == ["1.jpg", "2.jpg", "round.jpg", "circle"]
    (tmp_path / "in" / "round.jpg").unlink()
    assert names([f"{tmp_path}/in/*.jpg"], tmp_path) == ["in/1.jpg", "in/2.jpg"]
    (unlisted,) = (image.source for image in found([f"{tmp_path}/in"]) if isinstance(image.source, UnlistedImages))
    assert (unlisted.error.code, unlisted.error.where) == ("data.unreadable", f"{tmp_path}/in/circle")


def test_a_closed_stdin_is_told_where_it_was_asked_for() -> None:
    [unlisted] = find_images(["-"], None)
    assert isinstance(unlisted.source, UnlistedImages)
    assert unlisted.source.error.code == "data.stdin_closed"


def test_a_pattern_passes_by_a_folder_without_images(tmp_path: Path) -> None:
    plant(tmp_path, ["in/1.jpg"])
    (tmp_path / "in" / "empty").mkdir()
    assert names([f"{tmp_path}/in/*"], tmp_path) == ["in/1.jpg"]
    assert names([f"{tmp_path}/in/e*"], tmp_path) == ["in/e*: data.not_found"]


def test_a_pattern_does_not_go_round_and_round(tmp_path: Path) -> None:
    plant(tmp_path, ["in/1.jpg", "in/a/2.jpg", "else.jpg"])
    (tmp_path / "in" / "self").symlink_to(".")
    (tmp_path / "in" / "a" / "up").symlink_to(tmp_path)
    expected = ["in/1.jpg", "in/a/2.jpg", "in/a/up: data.link_loop", "in/self: data.link_loop"]
    assert names([f"{tmp_path}/in/**/*.jpg"], tmp_path) == expected
    assert names([f"{tmp_path}/in/**/{{1,2}}.jpg"], tmp_path) == [expected[0], *expected[2:], *expected[1:]]
    assert names([f"{tmp_path}/in/a/../*.jpg"], tmp_path) == ["in/1.jpg"]


def test_tables_are_taken_from_a_folder_that_has_no_images(tmp_path: Path) -> None:
    write_table(tmp_path / "f.parquet", table([1, 2], [0, 1]))
    assert len(found([str(tmp_path)])) == 2
    plant(tmp_path, ["a/1.jpg"])
    assert names([str(tmp_path)], tmp_path) == ["a/1.jpg"]
    assert len(found([str(tmp_path / "f.parquet")])) == 2


def test_a_package_that_is_missing_stops_at_once() -> None:
    with raises("config.unknown_name", "ssss"):
        found(["ssss://bucket/a.tar"])


def test_numbers_in_names_count_as_numbers() -> None:
    ordered = ["a1", "a2", "a10", "a10b", "b1", "1a", "01a"]
    assert sorted(ordered, key=natural_key) == ["01a", "1a", "a1", "a2", "a10", "a10b", "b1"]
    assert natural_key("7") != natural_key("07")


def test_many_paths_are_not_held_at_once() -> None:
    """A hundred thousand paths on stdin take no more memory than a few."""
    lines = b"".join(b"folder/%d.jpg\n" % number for number in range(100_000))
    stream = BytesIO(lines)
    tracemalloc.start()
    count = sum(1 for _ in find_images(["-"], stream))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 200_000

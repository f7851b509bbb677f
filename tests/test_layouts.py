"""Every layout that people have images in: checking and loading it with no flags works, or says why it does not."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.data.doctor.albums import fill
from tests.data.pictures import encoded, noise
from tests.data.tars import write_tar
from tests.errors import raises
from vitral import Decoding, open_data
from vitral.cli import main
from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.loading.loader import ImagePipeline, Loader
from vitral.data.loading.sampler import Sequential
from vitral.data.transforms.crop import Resize


class Layout(NamedTuple):
    """How it is made, what is then named on the command line, the code of its error, and words of the answer."""

    build: Callable[[Path], str]
    code: str  # of the error; none where the layout is read
    words: tuple[str, ...]


def picture(seed: int) -> bytes:
    return encoded(noise(64, 64, 3, seed=seed).astype(np.uint8), "PNG")


def folder(*names: str) -> Callable[[Path], str]:
    """A folder of different images of these names; one that ends in / is an empty folder."""

    def build(root: Path) -> str:
        fill(root, {name: picture(seed) for seed, name in enumerate(names) if not name.endswith("/")})
        for name in names:
            if name.endswith("/"):
                (root / name).mkdir(parents=True)
        return str(root)

    return build


def each(*classes: str, images: int = 12) -> list[str]:
    return [f"{name}/{number}.png" for name in classes for number in range(images)]


def symlink_loop(root: Path) -> str:
    folder(*each("cat", "dog"))(root)
    (root / "cat" / "inner").symlink_to(root)
    return str(root)


def read_only(root: Path) -> str:
    folder(*each("cat", "dog"))(root)
    for place in (root / "cat", root / "dog", root):
        place.chmod(0o555)
    return str(root)


def manifest(root: Path, *lines: str) -> str:
    folder(*each("pictures", images=24))(root)
    rows = [f"pictures/{number}.png,{'cat' if number % 2 else 'dog'}" for number in range(24)]
    (root / "list.csv").write_text("\n".join(["path,label", *rows, *lines]), encoding="utf-8")
    return str(root / "list.csv")


def shards(root: Path, *strange: str) -> str:
    """Two tars, of which the second also has members of strange names."""
    for split, count in (("train", 20), ("val", 4)):
        files = [(f"{number}.png", picture(1000 * count + number)) for number in range(count)]
        labels = [(f"{number}.cls", b"cat" if number % 2 else b"dog") for number in range(count)]
        members = sorted([*files, *labels], key=lambda member: int(member[0].split(".")[0]))
        write_tar(root / f"{split}-000.tar", [*members, *((name, picture(0)) for name in strange)])
    return str(root)


def linked(root: Path) -> str:
    folder(*each("far/cat", "far/dog"))(root / "elsewhere")
    (root / "near").mkdir()
    for name in ("cat", "dog"):
        (root / "near" / name).symlink_to(root / "elsewhere" / "far" / name)
    return str(root / "near")


TRAIN_AND_VAL = [*each("train/cat", "train/dog"), *each("val/cat", "val/dog", images=3)]

LAYOUTS = {
    "train and val": Layout(folder(*TRAIN_AND_VAL), "", ("30 images of 2 classes (24 train, 6 val)", "vitral train")),
    "training, validation and test": Layout(
        folder(*each("training/cat", "training/dog"), *each("validation/cat", "validation/dog", "test/cat", images=3)),
        "",
        ("33 images of 2 classes (24 train, 6 val, 3 test)", "dog"),
    ),
    "classes alone": Layout(folder(*each("cat", "dog")), "", ("(20 train, 4 val)", "20% of every class")),
    "nested, unicode, spaces": Layout(
        folder(*each("animals/ねこ", "animals/red fox", "Крот")), "", ("animals/ねこ", "animals/red fox", "Крот")
    ),
    "an empty class": Layout(folder(*each("cat", "dog"), "lynx/"), "data.empty_class", ("lynx",)),
    "a class only in val": Layout(
        folder(*TRAIN_AND_VAL, "val/lynx/1.png"), "data.class_not_in_train", ("'lynx'", "val/lynx/1.png")
    ),
    "a mistyped train": Layout(
        folder(*each("trian/cat", "trian/dog"), *each("val/cat", "val/dog", images=3)),
        "data.no_train_split",
        ("val", "trian"),
    ),
    "an archive": Layout(
        lambda root: str(fill(root, {"photos.zip": b"PK"}) / "photos.zip"), "data.unknown_format", ("photos.zip",)
    ),
    "one image a class": Layout(
        folder("cat/1.png", "dog/1.png"),
        "",
        ("2 classes have fewer than 10 training images", "no validation or test images"),
    ),
    "one class": Layout(folder(*each("cat")), "data.too_few", ("'cat'",)),
    "a thousand classes": Layout(
        folder(*each(*(f"{number:04}" for number in range(1000)), images=2)),
        "",
        ("2,000 images of 1,000 classes", "... and 988 more"),
    ),
    "names that differ in case": Layout(
        folder(*each("Cat", "cat")), "data.ambiguous_class", ("'Cat'", "'cat'", "Cat/0.png")
    ),
    "a symlink loop": Layout(symlink_loop, "data.link_loop", ("cat/inner",)),
    "linked classes": Layout(linked, "", ("24 images of 2 classes",)),
    "litter beside classes": Layout(
        folder(*each("cat", "dog", ".ipynb_checkpoints", "__MACOSX"), "Thumbs.db", "cat/.DS_Store"),
        "",
        ("24 images of 2 classes",),
    ),
    "a read-only folder": Layout(read_only, "", ("24 images of 2 classes",)),
    "a manifest": Layout(manifest, "", ("24 images of 2 classes (20 train, 4 val)",)),
    "a manifest with a missing file": Layout(
        lambda root: manifest(root, "gone.png,cat"), "data.missing_file", ("1 of 25", "gone.png", "list.csv")
    ),
    "tar shards": Layout(shards, "", ("24 images of 2 classes (20 train, 4 val)",)),
    "a tar with a traversal name": Layout(
        lambda root: shards(root, "../outside.png"), "data.unsafe_archive", ("../outside.png", "train-000.tar")
    ),
    "a mistyped path": Layout(
        lambda root: folder(*each("pets/cat", "pets/dog"))(root) + "/pest", "data.not_found", ("/pest", "/pets'?")
    ),
    "the bundled sample": Layout(lambda root: "sample", "", ("6,000 images of 10 classes", "vitral train")),
}


UNOPENED = ("data.unknown_format", "data.not_found")  # other faults are in the report


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.sampled(4)
def test_check_answers_with_no_flags(layout: Layout, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = layout.build(tmp_path)
    before = sorted(os.walk(tmp_path))
    with pytest.raises(SystemExit) as left:
        main(["check", data])
    shown, talk = capfd.readouterr()
    assert left.value.code == (DataError.exit_code if layout.code else 0), talk
    assert all(word in shown + talk for word in layout.words), shown + talk
    assert sorted(os.walk(tmp_path)) == before
    if layout.code in UNOPENED:
        assert [line.split(":")[0] for line in talk.splitlines()] == [f"error[{layout.code}]", "where", "hint"]
    else:
        assert talk == ""
        assert ("\nerror " in shown) == bool(layout.code)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.sampled(4)
def test_an_epoch_shows_every_image_once_or_the_set_is_refused(layout: Layout, tmp_path: Path) -> None:
    data = layout.build(tmp_path)
    if layout.code:
        with raises(layout.code, *layout.words) as caught:
            open_data(data)
        assert caught.value.hint
        return
    samples = open_data(data)
    sight = ImagePipeline(Size(16, 16), Decoding(), Resize())
    items = samples.of("train")
    batches = list(Loader.of(samples, "train", sight, Sequential(), batch=64).epoch())
    shown = [place for batch in batches for place in batch.indices.tolist()]
    labels = [label for batch in batches for label in batch.labels.tolist()]
    assert shown == list(range(len(items)))
    assert labels == [item.label for item in items]
    assert all(batch.images.shape[1:] == (3, 16, 16) for batch in batches)

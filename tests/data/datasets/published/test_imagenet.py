"""ImageNet in each of its published forms, and its ReaL labels."""

import json
import shutil
from pathlib import Path

import pytest

from tests.data.datasets.published.downloads import (
    DEVKIT,
    picture,
    tar_of,
    train_images,
    val_names,
    write,
    write_imagenet,
)
from tests.errors import raises
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples

CLASSES = ("n01440764", "n02119789", "n03255030")
VAL = ["n03255030", "n02119789", "n01440764", "n01440764"]  # by the numbers of the development kit


def found(samples: Samples, split: str) -> list[tuple[str, bytes]]:
    return [(samples.classes[item.label], samples.read(item)) for item in samples.items if item.split == split]


@pytest.mark.parametrize("form", ["folders", "tars"])
def test_every_image_has_its_class_and_its_bytes(tmp_path: Path, form: str) -> None:
    samples = open_data("imagenet", root=str(write_imagenet(tmp_path, form)))
    assert samples.classes == CLASSES
    assert samples.numbered
    train = [(wnid, data) for wnid, files in sorted(train_images().items()) for data in files.values()]
    assert found(samples, "train") == train
    assert found(samples, "val") == [(wnid, picture(10 * place)) for place, wnid in enumerate(VAL, start=1)]
    assert not samples.divided


def test_the_folders_of_kaggle_and_a_val_in_class_folders_are_read(tmp_path: Path) -> None:
    write_imagenet(tmp_path / "ILSVRC/Data/CLS-LOC")
    shutil.rmtree(tmp_path / "ILSVRC/Data/CLS-LOC" / DEVKIT)
    shutil.rmtree(tmp_path / "ILSVRC/Data/CLS-LOC/train")
    mapping = "".join(f"{wnid} some, words\n" for wnid in CLASSES)
    lines = [f"{Path(name).stem},{wnid} 1 2 3 4 \n" for name, wnid in zip(val_names(), VAL, strict=True)]
    (tmp_path / "LOC_synset_mapping.txt").write_text(mapping)
    (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\n" + "".join(lines))
    kaggle = open_data("imagenet", root=str(tmp_path))
    assert [wnid for wnid, _ in found(kaggle, "val")] == VAL
    val = tmp_path / "ILSVRC/Data/CLS-LOC/val"
    for name, wnid in zip(val_names(), VAL, strict=True):
        (val / wnid).mkdir(exist_ok=True)
        (val / name).rename(val / wnid / name)
    sorted_by_class = open_data("imagenet", root=str(tmp_path))
    assert {name.rpartition("/")[2]: label for name, label, _ in sorted_by_class.rows()} == {
        name.rpartition("/")[2]: label for name, label, _ in kaggle.rows()
    }


def test_a_download_that_is_not_whole_says_what_is_missing(tmp_path: Path) -> None:
    with raises("data.not_found", "ILSVRC2012_img_train.tar", "ILSVRC2012_devkit_t12.tar.gz"):
        open_data("imagenet", root=str(tmp_path))
    root = write_imagenet(tmp_path)
    (root / "val" / val_names()[2]).unlink()
    with raises("data.partial_download", tmp_path, "val has 3 of 4", "n01440764 has 1 of 2"):
        open_data("imagenet", root=str(root))
    shutil.rmtree(root / "val")
    assert found(open_data("imagenet", root=str(root)), "val") == []
    shutil.rmtree(root / "train/n03255030")
    with raises("data.partial_download", "train has 3 of 5", "n03255030 has 0 of 2"):
        open_data("imagenet", root=str(root))


def test_without_the_kit_the_classes_are_counted_and_a_flat_val_is_refused(tmp_path: Path) -> None:
    root = write_imagenet(tmp_path)
    shutil.rmtree(root / DEVKIT)
    with raises("data.partial_download", "3 class folders, expected 1000", f"{DEVKIT}.tar.gz"):
        open_data("imagenet", root=str(root))
    (root / "LOC_synset_mapping.txt").write_text("".join(f"{wnid} a\n" for wnid in CLASSES))
    shutil.rmtree(root / "train")
    with raises("data.partial_download", "no class folders", f"{DEVKIT}.tar.gz"):
        open_data("imagenet", root=str(root))


def test_the_tar_of_a_class_that_ends_early_is_named(tmp_path: Path) -> None:
    root = write_imagenet(tmp_path, "tars")
    inner = {f"{wnid}.tar": tar_of(files) for wnid, files in train_images().items()}
    inner["n01440764.tar"] = inner["n01440764.tar"][:600]
    write(root, {"ILSVRC2012_img_train.tar": tar_of(inner)})
    with raises("data.bad_archive", "ILSVRC2012_img_train.tar/n01440764.tar"):
        open_data("imagenet", root=str(root))


def test_real_labels_replace_those_of_val_and_images_without_any_are_left_out(tmp_path: Path) -> None:
    root = write_imagenet(tmp_path)
    write(root, {"real.json": json.dumps([[2, 0], [], [0], [1, 2]]).encode()})
    samples = open_data("imagenet-real", root=str(root))
    assert dict(samples.label_sets) == {
        f"val/{name}": labels for name, labels in zip(val_names(), [(0, 2), (), (0,), (1, 2)], strict=True) if labels
    }
    assert [item.name for item in samples.items] == list(samples.label_sets)
    assert "1 images without" in samples.notes[-1]
    for wrong, code in (([[0]], "data.count_mismatch"), ([[0], [3], [0], [0]], "data.bad_label")):
        write(root, {"real.json": json.dumps(wrong).encode()})
        with raises(code, root / "real.json"):
            open_data("imagenet-real", root=str(root))
    (root / "real.json").unlink()
    with raises("data.partial_download", "real.json", "reassessed-imagenet"):
        open_data("imagenet-real", root=str(root))

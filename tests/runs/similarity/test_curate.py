"""Curated sets of real files: duplicates, the choice, and a training on the manifest."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitral
from tests.errors import raises
from tests.evaluation.subjects import striped_model
from tests.inference.album import photos
from tests.runs.similarity.test_cluster import rows
from tests.runs.small import SETTINGS
from tests.runs.small import photos as labeled_photos
from vitral.core.config import parse_settings
from vitral.data.datasets.source import open_images
from vitral.runs.similarity.curate import merge_groups


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    """Photos, one of them three times: a copy, and saved again in another size and format. A flat one twice."""
    folder = tmp_path / "pile"
    photos(folder, 10, side=64)
    smooth = np.random.default_rng(0).integers(0, 255, (6, 6, 3)).astype(np.uint8)
    picture = Image.fromarray(smooth).resize((96, 96), Image.Resampling.BICUBIC)
    picture.save(folder / "k.jpg")
    shutil.copy(folder / "k.jpg", folder / "l.jpg")
    picture.resize((80, 80), Image.Resampling.BICUBIC).save(folder / "m.png")
    for name in ("x.png", "y.png"):
        Image.new("RGB", (32, 32), "navy").save(folder / name)
    return folder


def test_of_duplicates_one_stays_and_the_choice_is_the_farthest_first(pile: Path, tmp_path: Path) -> None:
    found = vitral.curate(striped_model(), pile, 6, out=tmp_path / "out.csv", html=tmp_path / "out.html")
    assert found.images == 15
    assert [(Path(each.kept).name, [Path(name).name for name in each.dropped]) for each in found.duplicates] == [
        ("k.jpg", ["l.jpg", "m.png"]),
        ("x.png", ["y.png"]),
    ]
    table = rows(tmp_path / "out.csv")
    assert [str(tmp_path / row["path"]) for row in table] == list(found.kept)
    assert [row["rank"] for row in table] == list("123456")
    assert found.coverage.largest <= found.random_coverage.largest
    text = (tmp_path / "out.html").read_text()
    assert all(name in text for name in ("k.jpg", "l.jpg", "m.png", "y.png"))
    assert set(vitral.curate(striped_model(), pile, 3, out=tmp_path / "three.csv").kept) == set(found.kept[:3])


def test_all_that_is_left_is_kept_if_more_are_asked_for(
    pile: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    found = vitral.curate(striped_model(), pile, 14, out=tmp_path / "out.csv")
    assert (len(found.kept), found.dropped) == (12, 3)
    assert "only 12 images are left" in caplog.text
    assert found.coverage.largest == 0


def test_a_training_without_labels_takes_the_manifest(pile: Path, tmp_path: Path) -> None:
    vitral.curate(striped_model(), pile, 8, out=tmp_path / "out.csv")
    samples = open_images(str(tmp_path / "out.csv"))
    assert (len(samples.of("train")), len(samples.of("val"))) == (6, 2)
    run = vitral.train(
        tmp_path / "out.csv", recipe="small_hundreds", out=tmp_path / "run",
        settings=parse_settings([*SETTINGS, "epochs=1", "task=masked_patches"]),
    )  # fmt: skip
    assert run.step == 1


def test_a_training_with_labels_takes_the_manifest_of_labeled_images(tmp_path: Path) -> None:
    labeled_photos(tmp_path / "photos")
    vitral.curate(striped_model(), tmp_path / "photos", 20, out=tmp_path / "out.csv")
    samples = vitral.open_data(str(tmp_path / "out.csv"))
    assert samples.classes == ("bright", "dark")
    assert len(samples.items) == 20


def test_images_elsewhere_are_whole_paths_and_the_command_says_so(
    pile: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    (tmp_path / "lists").mkdir()
    vitral.curate(striped_model(), pile, 4, out=tmp_path / "lists/out.csv")
    assert "--allow-outside" in caplog.text
    with raises("data.outside"):
        open_images(str(tmp_path / "lists/out.csv"))
    with vitral.allow_outside():
        assert len(open_images(str(tmp_path / "lists/out.csv")).items) == 4


def test_groups_that_share_an_image_are_one() -> None:
    assert merge_groups([[5, 7], [1, 2], [7, 9], [2, 1]]) == [[1, 2], [5, 7, 9]]


def test_too_many_to_keep_are_refused(pile: Path, tmp_path: Path) -> None:
    with raises("config.out_of_range", "keep", "at most 15"):
        vitral.curate(striped_model(), pile, 16, out=tmp_path / "out.csv")
    with raises("config.out_of_range", "keep"):
        vitral.curate(striped_model(), pile, 0, out=tmp_path / "out.csv")

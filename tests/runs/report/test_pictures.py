"""Pictures of training: the views that the loader gives, and masked images."""

from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.runs.small import begin, photos, recipe_and_samples
from vitral.data.loading.sampler import SINGLE_PROCESS
from vitral.runs.build import build_loader, build_task
from vitral.runs.report.pictures import MAX_ROWS, MAX_VIEWS, augmented_grid, masked_grid


def picture_of(address: str) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(b64decode(address.partition(",")[2]))))


def test_the_views_are_those_that_training_is_given(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"), 'images.augment=[{"kind":"rand_augment"}]')
    grid = augmented_grid(recipe, samples)
    assert grid is not None
    assert len(grid.rows) == MAX_ROWS
    assert grid.headings == ("image", "epoch 1", "epoch 2", "epoch 3", "epoch 4", "epoch 5")
    loader = build_loader(recipe, samples, "train", SINGLE_PROCESS)
    names = [item.name for item in samples.of("train")]
    compared = 0
    for epoch in range(MAX_VIEWS):
        seen: dict[str, torch.Tensor] = {}
        for batch in loader.epoch(epoch):
            seen |= {names[index]: image for index, image in zip(batch.indices.tolist(), batch.images, strict=True)}
        for row in grid.rows:
            if row.name in seen:  # the last batch is not full and is left out
                truth = seen[row.name].permute(1, 2, 0).numpy()
                assert np.array_equal(picture_of(row.pictures[1 + epoch]), truth)
                compared += 1
    assert compared > MAX_VIEWS


def test_images_that_training_does_not_change_are_not_shown(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"), "images.crop=resize")
    assert augmented_grid(recipe, samples) is None


def test_masked_images_are_shown_with_their_prediction(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos") / "train"
    recipe, samples = recipe_and_samples(folder, "task=masked_patches", "task.target=mean_color")
    task = build_task(recipe, samples, torch.device("cpu"))
    grid = masked_grid(task, recipe, samples)
    assert grid is not None
    assert grid.headings == ("image", "input", "target", "prediction")
    assert all(len(row.pictures) == 4 for row in grid.rows)
    assert task.training, "the mode is restored"
    whole, _ = recipe_and_samples(folder, "task=masked_patches", "task.target=whole_patch")
    plain = masked_grid(build_task(whole, samples, torch.device("cpu")), whole, samples)
    assert plain is not None
    assert plain.headings == ("image", "input", "prediction"), "the target is the image"


def test_a_classifier_has_no_masked_images(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    assert masked_grid(build_task(recipe, samples, torch.device("cpu")), recipe, samples) is None


def test_the_report_of_a_run_has_the_pictures_of_its_task(home: Path) -> None:
    begin(home)
    text = (home / "run/report.html").read_text()
    assert 'id="augmented"' in text
    assert 'id="masked"' not in text
    begin(home, "task=masked_patches", data=str(home / "photos/train"), out="masked")
    assert 'id="masked"' in (home / "masked/report.html").read_text()

"""Any torch Dataset of (image, label) as training data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

import vitral
from tests.errors import raises
from tests.runs.small import photos, recipe_and_samples
from vitral.core.config import Size
from vitral.data.datasets.torch_dataset import open_dataset
from vitral.recipes.recipe import DataConfig
from vitral.runs.preflight import create_run
from vitral.runs.request import OBJECT
from vitral.runs.train import Run
from vitral.tasks.classify import Classify

SMALL = {
    "model.width": 16,
    "model.depth": 1,
    "mixer.heads": 1,
    "model.stem": {"kind": "patches", "patch": 8},
    "workers": 0,
    "batch_size": 8,
}


class Disks(Dataset[Any]):
    """Bright or dark images in the form that `wrap` gives them."""

    classes = ("dark", "bright", "unseen")

    def __init__(self, wrap: Any, count: int = 24) -> None:
        self.wrap, self.count = wrap, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, int]:
        noise = np.random.default_rng(index).integers(0, 60, (16, 16, 3))
        return self.wrap((noise + 150 * (index % 2)).astype(np.uint8)), index % 2


FORMS: dict[str, Any] = {
    "array": lambda pixels: pixels,
    "pil": Image.fromarray,
    "uint8_tensor": lambda pixels: torch.from_numpy(pixels).permute(2, 0, 1),
}


def tensors(pixels: Any) -> torch.Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1


def begin(home: Path, data: Dataset[Any], name: str = "run", **options: Any) -> Run:
    settings = {**SMALL, **options.pop("settings", {})}
    return vitral.train(data, recipe="small_hundreds", out=home / name, image_size=16, settings=settings, **options)


def test_arrays_pil_images_and_uint8_tensors_train_to_the_same_bytes(tmp_path: Path) -> None:
    runs = [begin(tmp_path, Disks(form), name, val=Disks(form, 8), steps=3) for name, form in FORMS.items()]
    weights = {(run.path / "last/model.safetensors").read_bytes() for run in runs}
    assert len(weights) == 1
    assert runs[0].metrics["accuracy"] >= 0
    assert runs[0].model.training is False


def test_output_k_is_label_k_of_the_dataset() -> None:
    samples = open_dataset(Disks(FORMS["array"]))
    assert samples.classes == ("dark", "bright", "unseen")
    assert {(item.name[-1] in "13579", item.label) for item in samples.items} == {(False, 0), (True, 1)}


def test_a_subset_and_targets_are_read_without_reading_images() -> None:
    class Silent(Disks):
        targets = (0, 1) * 12

        def __getitem__(self, index: int) -> tuple[Any, int]:
            raise AssertionError("images need not be read")

    samples = open_dataset(Subset(Silent(FORMS["array"]), list(range(10))), Silent(FORMS["array"]))
    assert (len(samples.of("train")), len(samples.of("val"))) == (10, 24)


def test_float_tensors_are_used_as_they_are(tmp_path: Path) -> None:
    run = begin(tmp_path, Disks(tensors), val=Disks(tensors, 8), steps=2)
    assert run.recipe.images.external
    assert run.recipe.model.image_size == Size(16, 16)
    _, bundle = vitral.load(run.path)
    with raises("config.external_transform"):
        bundle.preprocessing.pixels(b"", "photo.jpg")
    assert run.report.is_file()


def test_float_tensors_reach_the_model_unchanged(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Spy(vitral.BaseTask):
        def build(self, model: Any, classes: int, class_counts: Any, normalize: Any) -> vitral.Task:
            task = Classify().build(model, classes, class_counts, normalize)
            task.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
            return task

    begin(tmp_path, Disks(tensors), val=Disks(tensors, 8), task=Spy(), steps=1)
    assert {tuple(image.flatten().tolist()) for image in seen[0]} <= {
        tuple(tensors(Disks(FORMS["array"])[index][0]).flatten().tolist()) for index in range(24)
    }


def test_tensors_of_another_size_than_asked_for_are_refused(tmp_path: Path) -> None:
    with raises("config.conflict", "16x16", "32x32"):
        vitral.train(Disks(tensors), out=tmp_path / "run", image_size=32, settings=SMALL)


def test_a_float_tensor_unlike_the_first_is_refused_by_its_index(tmp_path: Path) -> None:
    class Mixed(Disks):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            image, label = super().__getitem__(index)
            return (image[:, :8] if index == 7 else image), label

    with raises("data.mixed_items", "item 7"):
        begin(tmp_path, Mixed(tensors), val=Disks(tensors, 8), epochs=1)


@pytest.mark.parametrize("item", [(np.zeros((4, 4)),), ("a.png", None), "text", (np.zeros((4, 4)), 0.5)])
def test_items_that_are_not_an_image_and_a_label_are_refused(item: Any) -> None:
    class Wrong(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return item

    with raises("data.bad_label", "item 0"):
        open_dataset(Wrong())


def test_a_run_on_an_object_is_named_after_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    named = [recipe.model_copy(update={"data": DataConfig(path=path)}) for path in (f"{OBJECT}Birds", "photos")]
    folders = [create_run("", each, samples, []).path for each in named]
    assert [str(folder) for folder in folders] == ["runs/Birds", "runs/photos"]


def test_a_run_on_an_object_is_resumed_with_the_object_alone(tmp_path: Path) -> None:
    train_set, val_set = Disks(FORMS["array"]), Disks(FORMS["array"], 8)
    run = begin(tmp_path, train_set, val=val_set, steps=2)
    with raises("data.needs_object"):
        vitral.resume(run.path)
    assert vitral.resume(run.path, data=train_set, val=val_set).step == 2
    with raises("data.changed"):
        vitral.resume(run.path, data=Disks(FORMS["array"], 20), val=val_set)
    with raises("data.needs_object"):
        vitral.train(recipe=run.path / "recipe.json", out=tmp_path / "again")
    again = vitral.train(train_set, val=val_set, recipe=run.path / "recipe.json", out=tmp_path / "again")
    files = [each.path / "last/model.safetensors" for each in (run, again)]
    assert files[0].read_bytes() == files[1].read_bytes()

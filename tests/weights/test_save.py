"""A model from one's own training loop becomes a bundle that everything else reads."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.errors import raises
from tests.models.variants import small
from tests.weights.bundles import CLASSES, TINY, loaded
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing
from vitral.models import NoHead, Resnet
from vitral.models.head import LinearHead
from vitral.weights.load import load
from vitral.weights.save import save

OTHER = Preprocessing(image_size=TINY.image_size, crop=CenterCrop(), normalize=IMAGENET)
IMAGES = torch.rand(2, 3, *TINY.image_size, generator=torch.Generator().manual_seed(0))


def test_a_saved_model_is_loaded_with_all_that_was_given(tmp_path: Path) -> None:
    model = loaded().model
    model.activation = "sigmoid"
    assert save(model, tmp_path / "new" / "out", classes=list(CLASSES), transform=OTHER) == tmp_path / "new" / "out"
    again, bundle = load(tmp_path / "new" / "out")
    assert torch.equal(again(IMAGES), model(IMAGES))
    assert (bundle.classes, bundle.transform, bundle.task, bundle.activation) == (CLASSES, OTHER, "classify", "sigmoid")
    assert "cat, dog" in (tmp_path / "new" / "out" / "README.md").read_text(encoding="utf-8")


def test_saving_again_replaces_the_bundle_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    model = loaded().model
    save(model, out, classes=CLASSES, transform=OTHER)
    with torch.no_grad():
        model.head.linear.bias += 1  # type: ignore[union-attr, operator]
    save(model, str(out), classes=CLASSES, transform=OTHER)
    assert torch.equal(load(out).model(IMAGES), model(IMAGES))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (out / "notes.txt").write_text("mine")
    with raises("file.exists", "notes.txt"):
        save(model, out, classes=CLASSES, transform=OTHER)
    assert (out / "notes.txt").read_text() == "mine"


def test_what_is_assumed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vitral")
    save(loaded().model, tmp_path / "out")
    bundle = load(tmp_path / "out").bundle
    assert bundle.classes == ("0", "1", "2", "3")
    assert bundle.transform == Preprocessing(image_size=TINY.image_size).with_decoding(jpeg_scale="triple")
    numbered, preprocessing = caplog.messages
    assert numbered.startswith("assumed: ")
    assert "classes=" in numbered
    assert "transform=" in preprocessing
    assert str(TINY.image_size) in preprocessing
    caplog.clear()
    save(loaded().model, tmp_path / "out", classes=CLASSES, transform=OTHER)
    assert caplog.messages == []


@pytest.mark.parametrize("classes", [CLASSES[:3], (*CLASSES, "one more")])
def test_a_wrong_number_of_classes_is_an_error(classes: tuple[str, ...], tmp_path: Path) -> None:
    with raises("config.conflict", "classes", 4, len(classes)):
        save(loaded().model, tmp_path / "out", classes=classes)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_head_has_no_classes(tmp_path: Path) -> None:
    model = loaded(TINY.model_copy(update={"head": NoHead()})).model
    save(model, tmp_path / "out", transform=OTHER)
    assert load(tmp_path / "out").bundle.task == "features"
    with raises("config.conflict", "classes"):
        save(model, tmp_path / "other", classes=CLASSES)


def test_a_model_inside_wrappers_of_torch_is_saved(tmp_path: Path) -> None:
    model = loaded().model
    averaged = torch.optim.swa_utils.AveragedModel(torch.compile(model, backend="eager"))  # type: ignore[arg-type]
    save(averaged, tmp_path / "out", classes=CLASSES, transform=OTHER)
    assert torch.equal(load(tmp_path / "out").model(IMAGES), model(IMAGES))


def test_half_precision_is_saved_as_float32(tmp_path: Path) -> None:
    model = loaded().model.bfloat16()
    save(model, tmp_path / "out", classes=CLASSES, transform=OTHER)
    assert {weight.dtype for weight in load(tmp_path / "out").model.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("model", "given", "code", "value"),
    [
        (nn.Linear(2, 2), {}, "config.wrong_type", "Linear"),
        (None, {}, "config.wrong_type", "NoneType"),
        (loaded().model, {"classes": "cat"}, "config.wrong_type", "classes"),
        (loaded().model, {"transform": nn.Identity()}, "config.wrong_type", "Identity"),
        (loaded(small(any_size=False)).model, {"transform": Preprocessing()}, "config.conflict", "image_size"),
    ],
)
def test_what_cannot_be_saved_is_refused(
    model: Any, given: dict[str, Any], code: str, value: str, tmp_path: Path
) -> None:
    with raises(code, value):
        save(model, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_a_changed_or_diverged_model_is_refused(tmp_path: Path) -> None:
    model = loaded().model
    model.head = nn.Linear(8, 7)
    with raises("weights.missing_tensor", "create_model"):
        save(model, tmp_path / "out", classes=CLASSES)
    model = loaded().model
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with raises("weights.not_finite"):
        save(model, tmp_path / "out", classes=CLASSES)
    assert not (tmp_path / "out").exists()


def test_a_resnet_is_saved_too(tmp_path: Path) -> None:
    model = loaded(Resnet(layers=(1,), root=32, image_size=TINY.image_size, head=LinearHead(num_classes=4))).model
    save(model, tmp_path / "out", classes=CLASSES)
    assert torch.equal(load(tmp_path / "out").model(IMAGES), model(IMAGES))

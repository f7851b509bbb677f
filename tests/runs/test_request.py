from pathlib import Path

import pytest

from tests.errors import raises
from tests.runs.small import begin, photos, wish
from tests.weights.bundles import bundle_of, tensors_of
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing
from vitral.models.head import LinearHead, NoHead
from vitral.models.vit import Vit
from vitral.recipes.recipe import Epochs, Steps
from vitral.runs.request import RunRequest, open_samples, resolve
from vitral.training.ema import NoAverage
from vitral.training.optimizers import Muon, ScheduleFreeAdamW
from vitral.training.schedules import Constant
from vitral.weights.bundle import write_bundle


def test_settings_are_taken_by_their_short_and_their_long_names(tmp_path: Path) -> None:
    found = resolve(wish(photos(tmp_path), "lr=0.5", "epochs=7", "seed=3", "optimizer.weight_decay=0.25")).recipe
    assert (found.optimizer.lr, found.optimizer.weight_decay, found.seed) == (0.5, 0.25, 3)
    assert found.length == Epochs(epochs=7)
    assert found.model.image_size == Size(16, 16)
    assert resolve(wish(tmp_path, "steps=9")).recipe.length == Steps(steps=9)


@pytest.mark.parametrize("kind", ["muon", Muon(), {"kind": "muon"}])
def test_an_optimizer_keeps_the_rate_that_is_given_before_it(tmp_path: Path, kind: object) -> None:
    request = RunRequest(str(photos(tmp_path)), settings={"lr": 0.5, "weight_decay": 0.25, "optimizer": kind})
    found = resolve(request).recipe.optimizer
    assert (found.kind, found.lr, found.weight_decay) == ("muon", 0.5, 0.25)


@pytest.mark.parametrize("kind", ["schedule_free_adamw", ScheduleFreeAdamW()])
def test_an_optimizer_without_a_schedule_replaces_that_of_the_recipe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: object
) -> None:
    caplog.set_level("INFO", "vitral")
    request = RunRequest(str(photos(tmp_path)), settings={"schedule.warmup": 3, "optimizer": kind})
    recipe = resolve(request).recipe
    assert (recipe.schedule, recipe.average) == (Constant(warmup=3), NoAverage())
    assert "schedule=constant" in caplog.text
    with raises("config.conflict", "schedule"):
        resolve(request._replace(settings={"schedule": "cosine", "optimizer": kind}))


def test_the_head_has_the_classes_of_the_data(tmp_path: Path) -> None:
    found = resolve(wish(photos(tmp_path)))
    assert found.recipe.model.head == LinearHead(num_classes=2)
    assert found.recipe.data.path == str(tmp_path)
    assert len(found.samples.items) == 32
    assert open_samples(found.recipe) == found.samples


def test_a_task_without_labels_takes_loose_images(tmp_path: Path) -> None:
    photos(tmp_path)
    found = resolve(wish(tmp_path / "train" / "dark", "task=masked_patches"))
    assert found.recipe.model.head == NoHead()
    assert found.samples.classes == ("",)


@pytest.mark.parametrize("views", ["images.views=two", "images.views.kind=two"])
def test_a_task_that_compares_views_is_chosen_together_with_them(tmp_path: Path, views: str) -> None:
    found = resolve(wish(photos(tmp_path), "task=dino", views, "task.head.outputs=32")).recipe
    assert (found.task.kind, found.images.views.kind) == ("dino", "two")


def test_a_task_is_chosen_together_with_the_stem_that_it_needs(tmp_path: Path) -> None:
    data = str(photos(tmp_path))
    plain = RunRequest(data, recipe="small_thousands", settings={"task": "mae", "model.stem": "patches"})
    found = resolve(plain).recipe
    assert isinstance(found.model, Vit)
    assert (found.task.kind, found.model.stem.kind) == ("mae", "patches")
    with raises("config.unsupported", "mae", "convolutions"):
        resolve(plain._replace(settings={"task": "mae"}))


def test_without_a_recipe_one_is_chosen_and_said_why(tmp_path: Path) -> None:
    found = resolve(RunRequest(str(photos(tmp_path))))
    assert found.recipe.name == "small_hundreds"
    assert "24 training images" in found.reason
    assert resolve(RunRequest(str(tmp_path), recipe="small_hundreds")).reason == ""


def test_weights_without_a_recipe_are_fine_tuned_as_photos(home: Path) -> None:
    begin(home, "steps=1", out="first")
    found = resolve(RunRequest(str(home / "photos"), settings={"from": home / "first"}))
    assert found.reason == "recipe photos, to fine-tune the given weights on 24 training images"
    assert (found.recipe.name, found.recipe.finetune.kind, found.recipe.batch_size) == ("photos", "staged", 24)
    assert found.recipe.model.image_size == Size(16, 16)
    unlabeled = RunRequest(str(home / "photos"), settings={"from": home / "first", "task": "masked_patches"})
    assert resolve(unlabeled).recipe.name == "photos_masked_patches"
    named = RunRequest(str(home / "photos"), settings={"from": home / "first"}, recipe="small_hundreds")
    assert resolve(named).recipe.finetune.kind == "full"


@pytest.mark.parametrize("recipe", ["", "small_hundreds"])
def test_a_model_by_name_keeps_the_images_of_the_recipe(tmp_path: Path, recipe: str) -> None:
    found = resolve(RunRequest(str(photos(tmp_path)), recipe=recipe, model="Ti/16")).recipe.model
    assert (found.kind, found.image_size, found.head) == ("vit", Size(64, 64), LinearHead(num_classes=2))
    larger = resolve(RunRequest(str(tmp_path), recipe=recipe, model="Ti/32", settings={"image_size": 96})).recipe.model
    assert larger.image_size == Size(96, 96)


def test_a_share_of_the_training_images_is_drawn_from_every_class(tmp_path: Path) -> None:
    found = resolve(wish(photos(tmp_path), "data.fraction=0.25", "batch_size=2"))
    assert found.samples.counts("train") == (3, 3)
    assert found.samples.counts("val") == (4, 4)


@pytest.mark.parametrize(
    ("setting", "code", "values"),
    [
        ("epochs=soon", "config.wrong_type", ("length.epochs", "'soon'")),
        ("optimizer.lrr=1", "config.unknown_field", ("optimizer.lrr", "'lr'")),
        ("image_size=15", "config.indivisible", ("model.image", 15)),
        ("nothing", "config.bad_setting", ("'nothing'",)),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, code: str, values: tuple[object, ...]) -> None:
    with raises(code, *values):
        resolve(wish(photos(tmp_path), setting))


def test_the_papers_fine_tuning_is_at_its_own_size_whatever_the_weights_have_seen(tmp_path: Path) -> None:
    write_bundle(tmp_path / "b", bundle_of(), tensors_of(), "")
    found = resolve(RunRequest("sample", settings={"from": tmp_path / "b"}, recipe="finetune_flowers")).recipe
    assert found.model.image_size == (384, 384)
    asked = resolve(
        RunRequest("sample", settings={"from": tmp_path / "b", "image_size": 64}, recipe="finetune_flowers")
    ).recipe
    assert asked.model.image_size == (64, 64)


def test_other_channels_bring_one_mean_for_all(tmp_path: Path) -> None:
    seen = Preprocessing(image_size=Size(32, 48), normalize=IMAGENET)
    write_bundle(tmp_path / "b", bundle_of(preprocessing=seen), tensors_of(), "")
    found = resolve(RunRequest("sample", settings={"from": tmp_path / "b", "model.channels": 1})).recipe
    assert found.model.channels == 1
    assert list(found.images.normalize.mean) == pytest.approx([0.449], abs=1e-3)


def test_a_model_that_is_named_sees_images_as_the_weights_did(tmp_path: Path) -> None:
    seen = Preprocessing(image_size=Size(32, 48), normalize=IMAGENET)
    write_bundle(tmp_path / "b", bundle_of(preprocessing=seen), tensors_of(), "")
    found = resolve(RunRequest("sample", settings={"from": tmp_path / "b"}, model="Ti/16")).recipe
    assert found.images.normalize == IMAGENET

from pathlib import Path

import pytest

from tests.run.small import photos, wish
from vitral.config import Size
from vitral.errors import ConfigError
from vitral.model.head import LinearHead, NoHead
from vitral.recipe import Epochs, Steps
from vitral.run.wishes import Wish, granted, opened


def test_settings_are_taken_by_their_short_and_their_long_names(tmp_path: Path) -> None:
    found = granted(wish(photos(tmp_path), "lr=0.5", "epochs=7", "seed=3", "optimiser.decay=0.25")).recipe
    assert (found.optimiser.rate, found.optimiser.decay, found.seed) == (0.5, 0.25, 3)
    assert found.length == Epochs(epochs=7)
    assert found.model.image == Size(16, 16)
    assert granted(wish(tmp_path, "steps=9")).recipe.length == Steps(steps=9)


def test_the_head_has_the_classes_of_the_data(tmp_path: Path) -> None:
    found = granted(wish(photos(tmp_path)))
    assert found.recipe.model.head == LinearHead(classes=2)
    assert found.recipe.data.where == str(tmp_path)
    assert len(found.samples.items) == 32
    assert opened(found.recipe) == found.samples


def test_a_task_without_labels_takes_loose_images(tmp_path: Path) -> None:
    photos(tmp_path)
    found = granted(wish(tmp_path / "train" / "dark", "task=masked"))
    assert found.recipe.model.head == NoHead()
    assert found.samples.classes == ("",)


def test_without_a_recipe_one_is_chosen_and_said_why(tmp_path: Path) -> None:
    found = granted(Wish(str(photos(tmp_path))))
    assert found.recipe.name == "small_hundreds"
    assert "24 training images" in found.why
    assert granted(Wish(str(tmp_path), recipe="small_hundreds")).why == ""


@pytest.mark.parametrize("recipe", ["", "small_hundreds"])
def test_a_model_by_name_keeps_the_images_of_the_recipe(tmp_path: Path, recipe: str) -> None:
    found = granted(Wish(str(photos(tmp_path)), recipe=recipe, model="Ti/16")).recipe.model
    assert (found.kind, found.image, found.head) == ("vit", Size(64, 64), LinearHead(classes=2))
    larger = granted(Wish(str(tmp_path), ("image=96",), recipe, "Ti/32")).recipe.model
    assert larger.image == Size(96, 96)


def test_a_share_of_the_training_images_is_drawn_from_every_class(tmp_path: Path) -> None:
    found = granted(wish(photos(tmp_path), "data.share=0.25", "batch=2"))
    assert found.samples.counts("train") == (3, 3)
    assert found.samples.counts("val") == (4, 4)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("epochs=soon", r"length\.epochs: expected a number, got 'soon'"),
        ("optimiser.rat=1", "did you mean 'rate'"),
        ("image=15", r"model\.image"),
        ("nothing", "expected field=value"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, setting: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        granted(wish(photos(tmp_path), setting))

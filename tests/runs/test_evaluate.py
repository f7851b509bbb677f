"""An evaluation, as Python asks for it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.evaluation.subjects import files_in, striped_model, stripes, without
from tests.runs.small import photos
from vitral.core.config import Size, parse_settings
from vitral.data.samples import Item, Samples, StratifiedSplit
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.accuracy import AccuracyResult
from vitral.evaluation.fewshot import FewShotEvaluator, FewShotResult
from vitral.recipes.recipe import DataConfig, Recipe
from vitral.runs.evaluate import EvaluateKeywords, choose_split, evaluate, run_recipe, split_config
from vitral.weights.bundle import write_bundle
from vitral.weights.load import LoadedModel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of a user who has evaluated nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vitral" / "features"


def bundled(folder: Path, classes: tuple[str, ...]) -> Path:
    model, bundle = striped_model(classes)
    write_bundle(folder / "tiny", bundle, model.state_dict(), "a card")
    return folder / "tiny"


def test_a_path_and_a_folder_of_photos_are_all_it_takes(tmp_path: Path) -> None:
    where = bundled(tmp_path, ("bright", "dark"))
    found = vitral.evaluate(where, str(photos(tmp_path / "photos")))
    assert (found.model, found.data) == (str(where), str(tmp_path / "photos"))
    assert (found.split, found.images, found.classes, found.seed) == ("val", 8, 2, 0)
    assert [each.kind for each in found.results] == ["accuracy"]
    assert isinstance(found.results[0], AccuracyResult)
    assert [each.name for each in found.results[0].accuracy.classes] == ["bright", "dark"]


def test_a_loaded_model_and_opened_samples_find_the_same(tmp_path: Path) -> None:
    where, data = bundled(tmp_path, ("bright", "dark")), str(photos(tmp_path / "photos"))
    words = evaluate(where, data, with_="accuracy,knn,linear")
    values = evaluate(vitral.load(where), vitral.open_data(data), with_=["accuracy", "knn", "linear"])
    assert values.results == words.results
    assert values.model == "a model in memory"


def test_features_are_kept_for_the_next_time_unless_told_not_to(cache: Path) -> None:
    first = evaluate(striped_model(), stripes(), cache=False, with_="knn")
    assert not cache.exists()
    second = evaluate(striped_model(), stripes(), with_="knn")
    assert len(files_in(cache)) == 2  # of train and test
    assert evaluate(striped_model(), stripes(), with_="knn") == second == first


@pytest.mark.parametrize("settings", [{"batch_size": 5}, {"workers": 2}, {"batch_size": 1000, "device": "cpu"}])
def test_batches_and_workers_change_no_finding(settings: EvaluateKeywords) -> None:
    whole = evaluate(striped_model(), stripes(), cache=False, with_="accuracy,knn")
    settings["cache"] = False
    other = evaluate(striped_model(), stripes(), **settings, with_="accuracy,knn")
    ours, theirs = whole.results[0], other.results[0]
    assert isinstance(ours, AccuracyResult)
    assert isinstance(theirs, AccuracyResult)
    assert theirs.accuracy.confusion_counts == ours.accuracy.confusion_counts
    assert other.results[1] == whole.results[1]


def test_the_seed_draws_other_shots() -> None:
    judge = FewShotEvaluator(shots=(1,), seeds=2)
    found = [evaluate(striped_model(), stripes(), seed=seed, with_=[judge]).results[0] for seed in (0, 5)]
    assert [each.seeds for each in found if isinstance(each, FewShotResult)] == [(0, 1), (5, 6)]


def moved(samples: Samples, split: str) -> Samples:
    items = tuple(Item(item.name, item.label, "val") if item.split == split else item for item in samples.items)
    return replace(samples, items=items)


def test_test_images_judge_before_those_for_validation() -> None:
    both = replace(stripes(), items=(*stripes().items, *moved(stripes(), "test").of("val")))
    assert choose_split(both, "") == "test"
    assert choose_split(both, "val") == "val"
    assert choose_split(moved(stripes(), "test"), "") == "val"


def test_a_split_that_is_not_there_is_refused() -> None:
    with raises("data.empty", "'val'", "36 train", "18 test"):
        evaluate(striped_model(), stripes(), split="val")
    with raises("data.empty", "36 train"):
        evaluate(striped_model(), without(stripes(), "test"))
    with raises("config.unknown_name", "--split", "'train'"):
        evaluate(striped_model(), stripes(), split="train")


def test_another_preprocessing_than_the_bundles_is_refused() -> None:
    own = striped_model().bundle.preprocessing
    assert evaluate(striped_model(), stripes(), preprocessing=own).images == 18
    with raises("config.conflict", "32x32", "16x16"):
        evaluate(striped_model(), stripes(), preprocessing=Preprocessing(image_size=Size(32, 32)))


@pytest.mark.parametrize(
    ("classes", "note"),
    [
        (("ant", "bee", "cat"), ()),
        (
            ("bee", "cat", "ant"),
            ("the classes of the data are in a different order from the model's; they were matched by name",),
        ),
        (("dog", "bee", "cat", "ant"), ("the data has 3 of the model's 4 classes",)),
    ],
)
def test_how_classes_were_matched_is_told(classes: tuple[str, ...], note: tuple[str, ...]) -> None:
    assert evaluate(striped_model(classes), stripes()).notes == note


@pytest.mark.parametrize("task", ["masked", "features"])
def test_a_backbone_is_judged_by_its_features_alone(task: str) -> None:
    model, bundle = striped_model(())
    backbone = LoadedModel(model, bundle.model_copy(update={"task": task}))
    assert evaluate(backbone, stripes(), with_="knn").notes == ()
    with raises("config.unsupported", repr(task)):
        evaluate(backbone, stripes())


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("batch_size=0", "config.out_of_range"),
        ("device=tpu", "config.unknown_name"),
        ("sead=1", "config.unknown_field"),
        ("workers=-1", "config.wrong_type"),
    ],
)
def test_a_wrong_setting_is_refused(setting: str, code: str) -> None:
    with raises(code, setting.partition("=")[0]):
        evaluate(striped_model(), stripes(), **parse_settings([setting]))


def test_the_weights_are_left_as_they_were() -> None:
    loaded = striped_model()
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    evaluate(loaded, stripes(), with_="accuracy,knn,fewshot,linear,resolution")
    assert all(torch.equal(weight, before[name]) for name, weight in loaded.model.state_dict().items())


def test_a_run_is_judged_by_images_that_it_did_not_learn_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(data=DataConfig(split=StratifiedSplit(seed=5)))
    (tmp_path / "run").mkdir()
    bundled(tmp_path, ("bright", "dark")).rename(tmp_path / "run/best")
    (tmp_path / "run/recipe.json").write_text(recipe.to_json())
    (tmp_path / "link").symlink_to(tmp_path / "run/best")
    for place in (tmp_path / "run", tmp_path / "run/best", str(tmp_path / "run"), tmp_path / "link"):
        assert split_config(place) == StratifiedSplit(seed=5)
    monkeypatch.chdir(tmp_path / "run/best")
    assert split_config(".") == StratifiedSplit(seed=5)
    assert run_recipe(bundled(tmp_path, ("bright", "dark"))) is None


def test_a_recipe_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    where = bundled(tmp_path, ("bright", "dark"))
    (tmp_path / "recipe.json").write_text("{bad")
    with raises("config.bad_json", tmp_path / "recipe.json") as caught:
        run_recipe(where)
    assert caught.value.hint


def test_a_recipe_in_a_folder_of_weights_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"title": "pancakes"}')
    (tmp_path / "weights.npz").touch()
    assert run_recipe(tmp_path) is None


def test_a_model_apart_from_its_run_is_noted_where_the_set_was_divided_here(tmp_path: Path) -> None:
    where, data = bundled(tmp_path, ("bright", "dark")), photos(tmp_path / "photos") / "train"
    apart = "the run of this model was not found: "
    for model in (where, vitral.load(where)):
        assert evaluate(model, str(data)).notes[-1].startswith(apart)
    (where.parent / "recipe.json").write_text(Recipe().to_json())
    assert not [note for note in evaluate(where, str(data)).notes if note.startswith(apart)]

"""A recipe is run as an object, by name, and from JSON and YAML files."""

from pathlib import Path
from typing import get_type_hints

import pytest

import vitral
from tests.errors import raises
from tests.processes import run_forked
from tests.runs.small import SETTINGS, photos
from vitral.core.config import Config, override, parse_settings
from vitral.models.registry import ModelOptions
from vitral.recipes.recipe import Recipe, load_recipe
from vitral.runs.options import RUN_OPTIONS, TrainOptions
from vitral.runs.request import RunRequest, resolve
from vitral.runs.train import Run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("first")
    settings = parse_settings(SETTINGS)
    return vitral.train(photos(home / "photos"), recipe="small_hundreds", out=home / "run", settings=settings)


def weights(run: Run) -> bytes:
    return (run.path / "last/model.safetensors").read_bytes()


def test_the_recipe_of_a_run_repeats_it_to_the_byte_as_json_yaml_and_object(first: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(first.recipe.to_yaml(), encoding="utf-8")
    recipes: list[Path | Recipe] = [first.path / "recipe.json", tmp_path / "recipe.yaml", first.recipe]
    again = [vitral.train(recipe=recipe, out=tmp_path / str(index)) for index, recipe in enumerate(recipes)]
    assert [run.recipe for run in again] == [first.recipe] * 3
    assert {weights(run) for run in again} == {weights(first)}


def test_options_override_a_recipe_file(first: Run) -> None:
    request = RunRequest(recipe=first.path / "recipe.json", settings={"lr": 0.5, "steps": 7})
    recipe = resolve(request).recipe
    assert (recipe.optimizer.lr, recipe.length.kind) == (0.5, "steps")
    assert recipe.model == first.recipe.model


def test_the_printed_recipe_is_the_one_that_would_run(first: Run, tmp_path: Path) -> None:
    words = ["train", first.recipe.data.path, "--recipe", "small_hundreds", "--print-recipe", "--seed", "5"]
    done = run_forked(*words, *(word for each in SETTINGS for word in ("--set", each)), cwd=tmp_path)
    (tmp_path / "printed.yaml").write_text(done.stdout, encoding="utf-8")
    assert load_recipe(tmp_path / "printed.yaml") == override(first.recipe, {"seed": 5, "threads": "auto"})
    assert not (tmp_path / "runs").exists()


def test_the_name_of_a_setting_in_another_library_is_answered_with_ours() -> None:
    with raises("config.unknown_field", "learning_rate", "'lr'"):
        resolve(RunRequest("sample", settings={"learning_rate": 0.1}))
    with raises("config.unknown_field", "weightdecay", "'weight_decay'"):
        resolve(RunRequest("sample", settings={"weightdecay": 0.1}))


def test_no_data_and_no_recipe_is_an_error() -> None:
    with raises("config.missing_value", "data"):
        vitral.train()


def test_a_model_is_given_by_config_file(first: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(first.recipe.model.to_json(), encoding="utf-8")
    assert vitral.model_config(path) == first.recipe.model
    found = resolve(RunRequest(first.recipe.data.path, model=path)).recipe.model
    assert found.image_size == resolve(RunRequest(first.recipe.data.path)).recipe.model.image_size


def shortcuts(options: type, config: Config, others: tuple[str, ...]) -> set[str]:
    return set(get_type_hints(options)) - set(type(config).model_fields) - set(others)


def test_the_typed_keywords_are_the_fields_of_the_configs_and_ends_of_their_paths() -> None:
    missing = set(Recipe.model_fields) - set(get_type_hints(TrainOptions))
    assert missing == {"format", "name", "data", "model"}  # the last two are arguments
    assert set(vitral.Vit.model_fields) - set(get_type_hints(ModelOptions)) == {"kind"}
    for name in shortcuts(TrainOptions, Recipe(), (*RUN_OPTIONS, "epochs", "steps", "root")):
        assert override(Recipe(), {name: override_value(Recipe(), name)}) == Recipe()
    for name in shortcuts(ModelOptions, vitral.Vit(), ()):
        assert override(vitral.Vit(), {name: override_value(vitral.Vit(), name)}) == vitral.Vit()


def override_value(config: Config, name: str) -> object:
    """The value that the one field whose path ends in this name has."""
    found = [value for path, value in leaves(config.model_dump(mode="json")) if path.endswith(f".{name}")]
    assert len(found) == 1, name
    return found[0]


def leaves(data: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in data.items():
        found.append((prefix + name, value))
        if isinstance(value, dict):
            found += leaves(value, f"{prefix}{name}.")
    return found


def test_create_model_takes_keywords_objects_and_any_setting_by_path() -> None:
    from vitral.models import Rope2d

    model = vitral.create_model("Ti/16", num_classes=10, image_size=32, position=Rope2d(base=50), depth=1)
    assert isinstance(model.config, vitral.Vit)
    assert model.config.position == Rope2d(base=50)
    assert vitral.create_model("Ti/16", image_size=32, depth=1, settings={"mixer.heads": 4}).config != model.config


def test_the_name_of_a_model_and_weights_of_its_size_give_the_architecture_of_the_weights(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    settings = {"block.scale": "layer_scale", "mlp.activation": "gelu", "depth": 12}
    source = vitral.create_model("Ti/16", num_classes=2, image_size=32, settings=settings)
    vitral.save(source.eval(), tmp_path / "bundle")
    asked = {"weights": str(tmp_path / "bundle")}
    model, alone = (resolve(RunRequest(data, model=name, settings=asked)).recipe.model for name in ("Ti/16", ""))
    assert isinstance(model, vitral.Vit)
    assert model.block.scale.kind == "layer_scale"
    assert model == alone
    other = resolve(RunRequest(data, model="S/16", settings=asked)).recipe.model  # refused when the weights are loaded
    assert isinstance(other, vitral.Vit)
    assert (other.width, other.block.scale.kind) == (384, "none")
    named = resolve(RunRequest(data, recipe="small_hundreds", model="Ti/16", settings=asked)).recipe.model
    assert isinstance(named, vitral.Vit)
    assert named.block.scale.kind == "none"  # the recipe was made for its model


def test_create_model_with_weights_takes_their_architecture_and_a_new_head(first: Run) -> None:
    config = first.recipe.model
    same = vitral.create_model(config, weights=first.path)
    own = vitral.load(first.path).model
    assert all(value.equal(own.state_dict()[name]) for name, value in same.state_dict().items())
    new = vitral.create_model(config, weights=first.path, num_classes=5)
    assert new.state_dict()["head.linear.weight"].shape[0] == 5
    assert not new.state_dict()["head.linear.weight"].any()
    with raises("weights.config_mismatch"):
        vitral.create_model("B/16", weights=first.path)
    with raises("weights.config_mismatch"):
        vitral.create_model(config, weights=first.path, pool="mean_all")

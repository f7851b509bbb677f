"""JSON and YAML files of users."""

import json
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.documents import MAX_BYTES, parse_json, parse_yaml, read_document, to_yaml
from vitral.recipes.recipe import Recipe, load_recipe

NUMBERS = {"3e-4": 3e-4, "1E5": 1e5, "-1.5": -1.5, ".5": 0.5, "10": 10, "+2": 2, "1e-05": 1e-5, "7.": 7.0}


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_a_number_as_in_json(text: str) -> None:
    value = parse_yaml(f"lr: {text}")["lr"]
    assert value == NUMBERS[text]
    assert type(value) is type(NUMBERS[text])


def test_what_is_no_number_stays_text() -> None:
    assert parse_yaml("a: 1.2.3\nb: 3e\nc: 224x320") == {"a": "1.2.3", "b": "3e", "c": "224x320"}


def test_every_field_of_a_recipe_returns_from_yaml() -> None:
    recipe = Recipe()
    assert Recipe.parse(parse_yaml(recipe.to_yaml())) == recipe


def test_lists_of_numbers_stand_on_one_line() -> None:
    assert to_yaml({"betas": [0.9, 0.999], "parts": [{"kind": "a"}]}) == "betas: [0.9, 0.999]\nparts:\n  - kind: a\n"


FAULTS = {
    "a: 1\na: 2": "given twice",
    "a: &x [1]\nb: *x": "aliases",
    "a: !!python/object:os.system {}": "constructor",
    "a: [1": "parsing",
}


@pytest.mark.parametrize("text", FAULTS)
def test_what_yaml_leaves_open_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with raises("config.bad_document", path, FAULTS[text]):
        read_document(path)


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.json", b"[1, 2]", "config.bad_document"),
        ("a.json", b"{", "config.bad_document"),
        ("a.yaml", b"- 1", "config.bad_document"),
        ("a.toml", b"", "config.unknown_format"),
        ("a.json", b" " * (MAX_BYTES + 1), "config.too_large"),
    ],
)
def test_a_bad_document_is_named(name: str, content: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with raises(code, path):
        read_document(path)


def test_a_missing_document_is_named(tmp_path: Path) -> None:
    with raises("config.not_found", "none.yaml"):
        read_document(tmp_path / "none.yaml")


def test_a_recipe_file_may_be_partial_and_names_a_wrong_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("batch_size: 32\noptimizer: {kind: sgd, lr: 1e-2}\n", encoding="utf-8")
    recipe = load_recipe(path)
    assert (recipe.batch_size, recipe.optimizer.kind, recipe.seed) == (32, "sgd", 0)
    path.write_text("batch_sise: 32\n", encoding="utf-8")
    with raises("config.unknown_field", path, "batch_sise"):
        load_recipe(path)


DEEP = "[" * 101 + "]" * 101
REFUSED: dict[str, str | bytes] = {
    "lists": DEEP,
    "objects": '{"a":' * 200_000,
    "in the text of another encoding": DEEP.encode("utf-16"),
    "after a string with escapes": '["' + r"\"[\\" + '",' + DEEP + "]",
    "that are never closed": "[" * 200_000,
    "many": "[" + "[]," * 100_000 + "[]]",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_json_is_refused_before_the_parser_recurses(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitral.core.documents.json.loads", pytest.fail)
    with pytest.raises(ValueError, match=r"levels|limit"):
        parse_json(REFUSED[kind])


@pytest.mark.parametrize(
    "text", ["[" * 100 + "]" * 100, '["' + "[" * 500 + r"\"{" + '"]', "[[1], {}] " + " " * 200, '"']
)
def test_other_json_is_parsed_or_refused_as_by_python(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:20]):
            parse_json(text.encode())
    else:
        assert parse_json(text) == parse_json(text.encode()) == expected

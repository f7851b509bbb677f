"""`vitral models`: what ships, and what is published."""

import json
from typing import Any

import pytest

import vitral
from vitral import cli
from vitral.explanation.walkthrough.describe import describe
from vitral.recipes.registry import list_recipes


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(["models", *arguments])
    assert left.value.code == 0
    return capsys.readouterr().out


def tables(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(shown(capsys, *arguments, "--json"))
    return found


def test_the_overview_has_every_recipe_and_every_published_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys)
    words = set(text.replace(",", " ").split())
    assert {"Ti/16", "B/16", "R50+B/16", *list_recipes()} <= words
    assert {weights.name for weights in vitral.list_pretrained()} <= words
    assert max(map(len, text.splitlines())) <= 100


def test_a_pattern_selects_in_all_sections(capsys: pytest.CaptureFixture[str]) -> None:
    found = tables(capsys, "Ti/16")
    assert [row["name"] for row in found["architectures"]] == [
        "Ti/16",
        "R+Ti/16",
        "R26+Ti/16",
        "R50+Ti/16",
        "R101+Ti/16",
    ]
    assert [row["name"] for row in found["pretrained"]] == ["augreg-ti16", "deit-tiny"]
    assert found["recipes"] == []


def test_a_wildcard_matches_the_whole_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert tables(capsys, "Ti/*")["architectures"][0]["name"] == "Ti/2"
    assert [row["name"] for row in tables(capsys, "dino-?16")["pretrained"]] == ["dino-s16", "dino-b16"]


def test_sections_are_selected_by_options(capsys: pytest.CaptureFixture[str]) -> None:
    found = tables(capsys, "--recipes", "--pretrained")
    assert found["architectures"] == []
    assert [row["name"] for row in found["recipes"]] == list(list_recipes())
    assert len(found["pretrained"]) == len(vitral.list_pretrained())
    assert {"name", "hub_id", "megabytes", "license", "good_for"} <= found["pretrained"][0].keys()


def test_published_weights_come_with_their_hub_ids_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "--pretrained")
    assert all(f"\n    {weights.source}\n" in f"{text}\n" for weights in vitral.list_pretrained())
    assert max(map(len, text.splitlines())) <= 100


def test_a_recipe_comes_with_its_lab_note(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(shown(capsys, "sample", "--recipes").split())
    for part in ("run: vitral train sample", "takes: 63 to 75 s", "reaches: 87.9%"):
        assert part in text


@pytest.mark.parametrize("name", ["Ti/16", "R26+S/32", "R50x1"])
@pytest.mark.sampled(3)
def test_parameters_and_multiply_adds_are_those_of_describe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = tables(capsys, name, "--architectures")["architectures"][0]
    described = describe(name)
    head = next(part.multiply_adds for part in described.parts if part.name == "head")
    assert (row["name"], row["parameters"]) == (name, described.parameters)
    assert row["multiply_adds"] == described.multiply_adds_in_full - head


def test_a_pattern_that_matches_nothing_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["models", "nothing-like-it", "--pretrained"])
    text = capsys.readouterr()
    assert (left.value.code, text.out) == (2, "")
    assert text.err.startswith("error[config.unknown_name]: ")


def test_datasets_are_listed_with_the_bundled_one_first() -> None:
    assert vitral.list_datasets()[0] == "sample"
    assert {"fashion-mnist", "cifar10"} < set(vitral.list_datasets())

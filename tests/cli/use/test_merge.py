"""`vitral merge` as its users meet it."""

import json
from pathlib import Path

import pytest

from tests.evaluation.subjects import striped_model
from tests.runs.small import photos
from vitral import cli
from vitral.runs.merge import Merge
from vitral.weights.bundle import write_bundle


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three bundles in the working directory."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        model, bundle = striped_model(("bright", "dark"), seed)
        write_bundle(Path(name), bundle, model.state_dict(), "a card")
    return ["a", "b", "c"]


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        cli.main(["merge", *arguments])
    return left.value.code


def test_the_last_name_is_the_new_folder(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*models, "soup", "--quiet") == 0
    assert capsys.readouterr() == ("soup\n", "")
    assert Path("soup", "model.safetensors").is_file()


def test_json_goes_to_stdout_and_the_table_to_stderr(
    models: list[str], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    data = str(photos(Path("photos")))
    assert run(*models, "soup", "--greedy", "--data", data, "--json") == 0
    shown = capsys.readouterr().out
    found = Merge.from_json(shown)
    assert [each["model"] for each in json.loads(shown)["ingredients"]] == models
    assert found.measured is not None
    assert (found.out, found.method, found.measured.split, found.measured.images) == ("soup", "greedy", "val", 8)
    assert found.measured.accuracy >= max(each.accuracy or 0 for each in found.ingredients)
    rows = [line.split()[0] for line in caplog.messages[-5:]]
    assert rows == ["model", *models, "soup"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("a b", "config.missing_value"),
        ("a b c", "config.path_exists"),
        ("a b out --alpha x", "config.wrong_type"),
        ("a b out --alpha 2", "config.out_of_range"),
        ("a b out --greedy", "config.missing_value"),
    ],
)
def test_mistakes_exit_2_with_their_code(
    command: str, code: str, models: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command.split()) == 2
    shown, talk = capsys.readouterr()
    assert shown == ""
    assert talk.startswith(f"error[{code}]: ")
    assert not Path("out").exists()

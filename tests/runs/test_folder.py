from pathlib import Path

import pytest

from tests.errors import raises
from vitral.runs.folder import create_folder, find_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("photos", "photos"),
        ("some/where/photos/", "photos"),
        ("list.csv", "list"),
        ("s3://bucket/shards-{000..009}.tar", "shards"),
        ("my photos", "my photos"),
        ("/", "run"),
        ("..", "run"),
    ],
)
def test_a_run_is_named_after_its_data(data: str, name: str) -> None:
    assert create_folder("", data).path == Path("runs") / name


def test_a_second_run_gets_a_number_and_no_run_is_overwritten() -> None:
    paths = [create_folder("", "photos").path.name for _ in range(3)]
    assert paths == ["photos", "photos-2", "photos-3"]


def test_a_folder_that_was_asked_for_must_be_new_or_empty(here: Path) -> None:
    assert create_folder("mine/own", "photos").path == Path("mine/own")
    assert create_folder("mine/own", "photos").path == Path("mine/own")  # it is still empty
    (here / "mine/own/recipe.json").write_text("{}")
    with raises("config.path_exists", "vitral train --resume mine/own"):
        create_folder("mine/own", "photos")


def test_a_place_where_nothing_can_be_made_is_told(here: Path) -> None:
    (here / "file").write_text("")
    with raises("file.write_failed", "file/run") as caught:
        create_folder("file/run", "photos")
    assert caught.value.exit_code == 1


def test_what_is_no_run_cannot_be_resumed(here: Path) -> None:
    with raises("config.not_found", "nowhere"):
        find_run("nowhere")
    with raises("config.not_found", here, "recipe.json"):
        find_run(str(here))
    (here / "recipe.json").write_text("{}")
    assert find_run(str(here)).path == here

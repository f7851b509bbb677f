import sys
from pathlib import Path

import pytest

from tests.run.small import photos, recipe_and_samples
from vitral.errors import ConfigError
from vitral.run.opening import command, prepared, reopened
from vitral.train.folder import Folder
from vitral.train.lock import Lock


def test_what_is_prepared_opens_again(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    folder = prepared(str(tmp_path / "run"), recipe, samples, [])
    assert reopened(folder) == (recipe, samples)
    assert folder.recipe.read_text().endswith("}\n")


def test_of_two_that_want_the_same_empty_folder_one_gets_it(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    (tmp_path / "run").mkdir()
    with Lock(tmp_path / "run"), pytest.raises(ConfigError):
        prepared(str(tmp_path / "run"), recipe, samples, [])
    assert not Folder(tmp_path / "run").recipe.exists()


def test_what_was_typed_is_a_command_or_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/vitral", "train", "my photos"])
    assert command(["'my photos'"]) == "vitral train 'my photos'"
    monkeypatch.setattr(sys, "argv", ["study.py", "7"])
    assert command(["'my photos'", "'epochs=3'"]) == "vitral.train('my photos', 'epochs=3')"

"""`vitral sweep` as its users meet it."""

from pathlib import Path

import pytest

from tests.runs.small import SETTINGS, photos
from tests.runs.sweeps.test_sweep import train_here
from vitral import cli
from vitral.runs.sweeps import sweep as sweeps
from vitral.runs.sweeps.results import SweepResult


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "run_trials", train_here)
    photos(Path("photos"))


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", *arguments])
    return left.value.code


def test_the_table_or_json_goes_to_stdout(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set={setting}" for setting in SETTINGS]
    assert run("photos", "--recipe", "small_hundreds", "--over", "lr=1e-5,3e-3", *settings, "--quiet") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lr", "accuracy", "deviation", "seeds", "seconds"]
    assert {line.split()[0] for line in lines[1:]} == {"1e-05", "0.003"}
    assert run("--resume", "sweeps/photos", "--json", "--quiet") == 0
    assert len(SweepResult.from_json(capsys.readouterr().out).trials) == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("photos", "config.missing_value"),
        ("photos --over lr", "config.bad_setting"),
        ("photos --over lr=1e-4..1e-2", "config.conflict"),
        ("photos --over lr=1 --halving 1", "config.out_of_range"),
        ("photos --resume sweeps/photos", "config.conflict"),
    ],
)
def test_what_cannot_be_done_is_refused(
    here: None, arguments: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments.split()) == 2
    assert f"error[{code}]" in capsys.readouterr().err


def test_a_folder_that_is_no_sweep_is_not_resumed(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--resume", "photos") == 3
    assert "error[config.not_found]" in capsys.readouterr().err

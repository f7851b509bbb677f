"""A path that does not exist has one exit code, whichever verb was given it and whatever should have been there."""

from pathlib import Path

import pytest

from tests.weights.bundles import bundle_of, tensors_of
from vitral import cli
from vitral.core.errors import ConfigError, DataError, VitralError, WeightsError
from vitral.weights.bundle import write_bundle

COMMANDS = [
    "predict nowhere cat.jpg",
    "predict bundle nowhere",
    "predict bundle cat.jpg",
    "evaluate nowhere sample",
    "evaluate bundle nowhere",
    "explain nowhere cat.jpg",
    "explain bundle nowhere",
    "describe nowhere.safetensors",
    "convert nowhere out",
    "merge bundle nowhere out",
    "export nowhere",
    "train nowhere",
    "train --resume nowhere",
    "train sample --weights nowhere",
    "train sample --recipe nowhere.json",
    "check nowhere",
    "pack nowhere out",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_path_that_does_not_exist_exits_3(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = bundle_of()
    write_bundle(Path("bundle"), bundle, tensors_of(bundle.model), "a card")
    with pytest.raises(SystemExit) as caught:
        cli.main(command.split())
    talk = capsys.readouterr().err
    assert caught.value.code == 3, talk
    assert "nowhere" in talk or "cat.jpg" in talk


@pytest.mark.parametrize("kind", [VitralError, ConfigError, DataError, WeightsError])
def test_the_code_of_an_error_decides(kind: type[VitralError]) -> None:
    assert kind("no such file", code="any.not_found").exit_code == 3
    assert kind("damaged", code="any.other").exit_code == kind.exit_code

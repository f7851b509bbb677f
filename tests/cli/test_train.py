"""`vitral train`: what is refused before anything is read."""

import os

import pytest

from vitral import cli
from vitral.cli.train import let_threads_sleep


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        ([], "config.missing_value", ("where: data",)),
        (["--resume", "runs/a b"], "config.not_found", ("where: runs/a b",)),
        (["photos", "--resume", "runs/a b"], "config.conflict", ("where: --resume", "DATA", "--resume 'runs/a b'")),
        (["--resume", "runs/a", "--lr", "1", "--set", "x=1"], "config.conflict", ("where: --resume", "lr, x")),
        (["--data", "photos"], "config.conflict", ("where: --data", "vitral train photos")),
        (["--resume", "runs/a b", "--data", "photos"], "config.not_found", ("where: runs/a b",)),
        (["--resume", "runs/a b", "--tracker", "wandb"], "config.not_found", ("where: runs/a b",)),
        (["sample", "--tracker", "wandbb"], "config.unknown_name", ("where: --tracker", "wandbb")),
    ],
)
def test_what_cannot_begin_is_refused(
    arguments: list[str], code: str, values: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", *arguments])
    shown, talk = capsys.readouterr()
    assert shown == ""
    assert talk.startswith(f"error[{code}]: ")
    assert all(value in talk for value in values)


@pytest.mark.parametrize(
    ("load", "name", "value", "policy"),
    [
        (3.0, "UNRELATED", "1", "PASSIVE"),
        (0.1, "UNRELATED", "1", None),
        (3.0, "OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"),
        (3.0, "GOMP_SPINCOUNT", "9", None),
    ],
)
def test_threads_sleep_while_they_wait_on_a_busy_machine_unless_told_otherwise(
    load: float, name: str, value: str, policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.setenv(each, "")  # so that it is restored
        monkeypatch.delenv(each)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 9.0, 9.0))
    let_threads_sleep()
    assert os.environ.get("OMP_WAIT_POLICY") == policy

"""`vitral train`: what is refused before anything is read."""

import pytest

from vitral import cli


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

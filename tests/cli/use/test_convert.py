"""`vitral convert`: what is refused before anything is read."""

import pytest

from vitral import cli


@pytest.mark.parametrize("layers", ["0,x", "one", "1,", "-1"])
def test_layers_that_are_no_numbers_are_refused(layers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["convert", "nowhere", "out", f"--layers={layers}"])
    shown, talk = capsys.readouterr()
    assert (left.value.code, shown) == (2, "")
    assert talk.startswith("error[config.wrong_type]: ")
    assert "where: --layers" in talk
    assert repr(layers.rsplit(",", maxsplit=1)[-1]) in talk

"""`vitral paper` as its users meet it."""

import json
from pathlib import Path

import pytest

from vitral import cli


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> object:
    with pytest.raises(SystemExit) as left:
        cli.main(["paper", *arguments])
    return left.value.code


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["table1", "Table"]
    assert run("--json") == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [line.split()[0] for line in lines]


def test_the_table_goes_to_stdout_and_into_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("table1") == 0
    shown = capsys.readouterr().out
    assert "B/16       86,567,656     86,567,656" in shown
    assert shown.splitlines()[-1].startswith("verdict: held")
    assert Path("paper/table1-tiny/table.txt").read_text() == shown
    assert run("table1", "--resume", "--json", "--quiet") == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "held"


def test_the_plan_of_the_paper_s_own_training_is_costed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("table8", "--scale", "full", "--plan", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    stem = next(each for each in plan["arms"] if each["arm"] == "1-D, stem")
    assert stem["flops"] == pytest.approx(224e18, rel=0.01)  # Table 6: B/16 on JFT
    assert plan["core_days"] == pytest.approx(plan["flops"] / 23e12 / 86_400)
    assert not Path("paper").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "status"),
    [
        ("table88", "config.unknown_name", 2),
        ("table8 --scale big", "config.unknown_name", 2),
        ("table8 --scale full", "config.missing_value", 2),
        ("table8 --resume", "config.not_found", 3),
        ("table8 --data nowhere", "data.not_found", 3),
    ],
)
def test_what_cannot_be_done_is_refused(
    arguments: str, code: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments.split()) == status
    assert f"error[{code}]" in capsys.readouterr().err

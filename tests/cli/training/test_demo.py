from pathlib import Path

import pytest

from tests.runs.small import StopAfterEachStep
from vitral.cli import main
from vitral.cli.training.demo import format_demo
from vitral.runs import train as start


def test_the_demo_shows_an_answer_for_each_class_the_page_and_three_commands(tmp_path: Path) -> None:
    run = start.train(
        "sample", settings={"steps": 20, "data.fraction": 0.1}, recipe="sample", out=str(tmp_path / "run")
    )
    lines = format_demo(run).splitlines()
    assert lines[0].split() == ["class", "prediction", "score"]
    rows = lines[1:11]
    assert [row[:14].strip() for row in rows][::9] == ["T-shirt/top", "Ankle boot"]
    for row in rows:
        assert ("wrong" in row) == (row[:14].strip() != row[14:28].strip())
        assert row[28:37].strip().endswith("%")
    assert lines[12].startswith("accuracy ")
    assert f"report: {tmp_path / 'run' / 'report.html'}" in lines
    assert (tmp_path / "run" / "report.html").exists()
    assert [line.strip().removeprefix("python -m ").split()[1] for line in lines[-3:]] == ["describe", "check", "train"]


def test_a_demo_that_is_stopped_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    with pytest.raises(SystemExit) as left:
        main(["demo", "--out", str(tmp_path / "run")])
    assert left.value.code == 143
    assert f"vitral train --resume {tmp_path / 'run'}" in caplog.messages

import signal
from pathlib import Path

from tests.runs.small import photos, recipe_and_samples
from vitral.runs.folder import RunFolder
from vitral.runs.train import Run


def run(home: Path, number: int = 0, *settings: str) -> Run:
    recipe, samples = recipe_and_samples(photos(home / "my photos"), *settings)
    return Run(RunFolder(Path("runs/my photos")), recipe, samples, 7, 12, number, None)


def test_a_run_that_was_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    assert run(tmp_path, signal.SIGTERM).summary() == [
        "SIGTERM: stopped and saved after step 7 of 12; resume with:",
        "vitral train --resume 'runs/my photos'",
    ]


def test_the_next_commands_are_quoted_for_the_shell(tmp_path: Path) -> None:
    report, heading, *commands = run(tmp_path).summary()
    assert report == "report: runs/my photos/report.html"
    assert heading == "next:"
    photo = f"'{tmp_path}/my photos/val/bright/0.png'"
    assert [line.partition("vitral ")[2] for line in commands] == [
        f"evaluate 'runs/my photos' '{tmp_path}/my photos'",
        f"predict 'runs/my photos' {photo}",
        f"explain 'runs/my photos' {photo}",
    ]


def test_what_was_learned_without_labels_wants_images_with_labels(tmp_path: Path) -> None:
    summary = run(tmp_path, 0, "task=masked_patches").summary()
    assert any(line.endswith("vitral train PHOTOS/ --weights 'runs/my photos'") for line in summary)
    assert not any("vitral predict" in line or "vitral evaluate" in line for line in summary)


def test_a_run_shows_itself_in_a_line(tmp_path: Path) -> None:
    assert repr(run(tmp_path)) == "Run('runs/my photos': step 7 of 12)"

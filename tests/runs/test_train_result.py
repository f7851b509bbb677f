import signal
from pathlib import Path

from tests.data.reader import Reader
from tests.runs.small import begin, photos, recipe_and_samples
from vitral.html.text import percent
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


def test_a_run_shows_itself_in_a_notebook(home: Path) -> None:
    done = begin(home)
    reader = Reader(done._repr_html_())
    assert done.evaluation is not None
    for told in (
        f"run {home / 'run'}",
        f"accuracy {percent(done.evaluation.accuracy.top1)} on 8 val images",
        "step 12 of 12, done",
        "16x16 pixels, 2x2 = 4 patches of 8x8",
        "24 train, 8 val images of 2 classes",
    ):
        assert told in reader.text, told
    labels = [attributes["aria-label"] for tag, attributes in reader.tags if tag == "svg"]
    assert [label.split()[0] for label in labels] == ["loss", "accuracy"]
    assert [attributes["href"] for tag, attributes in reader.tags if tag == "a"] == [str(home / "run/report.html")]


def test_a_notebook_says_how_to_resume_a_stopped_run(tmp_path: Path) -> None:
    text = Reader(run(tmp_path, signal.SIGINT)._repr_html_()).text
    assert "step 7 of 12, SIGINT: resume with vitral train --resume 'runs/my photos'" in text

"""`vitral export` as its users meet it: real processes, and a runner that is run by itself."""

import json
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest

from tests.inference.exports import bundled
from tests.processes import run_forked
from tests.runs.small import photos
from vitral import cli
from vitral.core.config import union_members
from vitral.exporters.targets import Target
from vitral.inference.exported import Export
from vitral.runs.export import IMAGES


def run(home: Path, *arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    return run_forked("export", *arguments, code=code, cwd=home)


def test_the_folder_goes_to_stdout_and_the_certificate_to_stderr_and_the_runner_runs(tmp_path: Path) -> None:
    done = run(tmp_path, str(bundled(tmp_path)), "--images", "20", "--out", "out")
    assert (done.returncode, done.stdout) == (0, "out\n")
    told = done.stderr.splitlines()
    assert "--data" in told[1]
    assert "20 test images of sample" in told[2]
    assert "100.00%" in told[4]
    assert "16 files" in told[6]
    notes = Export.from_json((tmp_path / "out" / "export.json").read_bytes())
    assert f"{notes.certificate.difference:.1e}" in told[3]

    pictures = sorted(map(str, photos(tmp_path / "photos").rglob("*.png")))[:3]
    words = [sys.executable, "-I", str(tmp_path / "out" / "run.py"), *pictures]
    answers = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    rows = [json.loads(line) for line in answers.stdout.splitlines()]
    assert [row["image"] for row in rows] == pictures
    assert {row["class"] for row in rows} <= set(notes.classes)

    named = run_forked("predict", "out", *pictures, "--format", "jsonl", cwd=tmp_path)
    found = [json.loads(line) for line in named.stdout.splitlines()]
    assert [row["path"] for row in found] == pictures
    assert [row["answers"][0]["class"] for row in found] == [row["class"] for row in rows]
    assert named.stderr == ""

    again = run(tmp_path, str(bundled(tmp_path)), "--images", "20", "--out", "out", "--quiet")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith("error[config.path_exists]: ")
    assert "where: out\n" in again.stderr


def test_a_broken_export_ends_with_1_and_no_folder(tmp_path: Path) -> None:
    script = (
        "import torch\n"
        "from vitral import cli\n"
        "from vitral.exporters import export\n"
        "real = export.build_graph\n"
        "def broken(loaded, answer):\n"
        "    graph = real(loaded, answer)\n"
        "    with torch.no_grad():\n"
        "        graph.head.linear.bias[3] += 0.001\n"
        "    return graph\n"
        "export.build_graph = broken\n"
        "cli.main()\n"
    )
    done = run(tmp_path, str(bundled(tmp_path)), "--images", "20", "--out", "out", code=script)
    assert (done.returncode, done.stdout) == (1, "")
    told = next(line for line in done.stderr.splitlines() if line.startswith("error[export.disagrees]: "))
    assert "1.0e-03" in told
    assert "1e-04" in told
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code", "value"),
    [
        (["--to", "onx"], 2, "config.unknown_name", "'onx'"),
        (["--to", "torch", "--int8"], 2, "config.conflict", "int8"),
        (["--batch-size", "none"], 2, "config.wrong_type", "'none'"),
        (["--data", "nowhere"], 3, "data.not_found", "nowhere"),
    ],
)
def test_wishes_that_cannot_be_granted_have_their_codes(
    arguments: list[str], exit_code: int, code: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["export", str(bundled(tmp_path)), "--out", str(tmp_path / "out"), *arguments])
    assert caught.value.code == exit_code
    talk = capsys.readouterr().err
    assert f"error[{code}]: " in talk
    assert value in talk
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_the_help_names_every_format() -> None:
    done = run_forked("export", "--help")
    kinds = [target.model_fields["kind"].default for target in union_members(Target)]
    assert f"{kinds[0]}, {kinds[1]} or {kinds[2]}." in done.stdout


def test_the_number_of_images_is_the_same_in_python() -> None:
    assert signature(cli.export.export).parameters["images"].default == IMAGES

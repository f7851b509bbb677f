"""`vitral check` as its users meet it."""

import json
import subprocess
from pathlib import Path

import numpy as np

from tests.data.pictures import cut, encoded, noise
from tests.processes import run_forked
from tests.runs.small import photos


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked("check", *arguments, "--workers", "0", cwd=home)


def test_a_report_a_page_and_json_of_faults_and_the_exit_code(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    (data / "train/empty").mkdir()
    (data / "val/only").mkdir()
    (data / "val/only/1.png").write_bytes((data / "train/dark/0.png").read_bytes())
    report = run(tmp_path, "photos", "--html", "page.html")
    assert (report.returncode, report.stderr) == (3, "")
    assert report.stdout.splitlines()[-1].endswith(": vitral check photos")
    assert "train/empty" in (tmp_path / "page.html").read_text()
    answer = json.loads(run(tmp_path, "photos", "--image-size", "32", "--json").stdout)
    assert {finding["code"] for finding in answer["findings"]} == {*["", "data.empty_class", "data.class_not_in_train"]}
    assert answer["training"]["image_size"] == [32, 32]
    assert answer["command"] == "vitral check photos --image-size 32"


def test_a_damaged_photo_is_an_error_and_with_lenient_it_is_named(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    (data / "train/dark/half.jpg").write_bytes(cut(encoded(noise(40, 40, 3).astype(np.uint8), "JPEG")))
    strict, lenient = (run(tmp_path, "photos", "--json", *words) for words in ((), ("--lenient",)))
    kinds = [
        {finding["kind"]: finding for finding in json.loads(done.stdout)["findings"]} for done in (strict, lenient)
    ]
    assert [example["files"][0]["name"] for example in kinds[0]["corrupt"]["examples"]] == ["train/dark/half.jpg"]
    assert [example["files"][0]["name"] for example in kinds[1]["damaged"]["examples"]] == ["train/dark/half.jpg"]
    assert "corrupt" not in kinds[1]

"""The attack suite: a short part of it on every run, kills where there is time."""

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def attack(out: Path, *words: str) -> dict[str, Any]:
    line = [sys.executable, "-m", "benchmarks.attack", "--json", str(out / "attack.json"), *words]
    subprocess.run(line, cwd=ROOT, capture_output=True, check=False)
    found: dict[str, Any] = json.loads((out / "attack.json").read_text())
    return found


def test_special_files_and_damaged_images_are_held(tmp_path: Path) -> None:
    found = attack(tmp_path, "--only", "places", "--only", "images", "--share", "0.01")
    assert found["failed"] == []
    assert found["tried"] == {"special files": 65, "images cut": 16, "images flipped": 19}


@pytest.mark.slow
def test_every_door_holds(tmp_path: Path) -> None:
    found = attack(tmp_path, "--share", "0.02", "--kills", "6")
    assert found["failed"] == []
    assert len(found["tried"]) == 17  # families
    assert {"kills, 0 workers", "kills, 2 workers", "kills, 2 processes"} <= set(found["tried"])


def touch(size: int) -> None:
    """Take new memory from the system: what this process has freed may be used again and is not counted."""
    with mmap.mmap(-1, size) as memory:
        memory[::4096] = b"1" * len(memory[::4096])


def test_an_accepted_fault_is_counted() -> None:
    from benchmarks.attack.case import Case, run_cases

    def refuse(path: Path) -> None:
        raise ValueError("no code")

    cases = [
        Case("family", "accepted", lambda folder: folder, lambda path: None),
        Case("family", "internal", lambda folder: folder, refuse, "either"),
        Case("family", "dear", lambda folder: folder, lambda path: touch(480_000_000), "either"),
        Case("family", "fine", lambda folder: folder, lambda path: None, "works"),
    ]
    faults = {result.name: result.fault for result in run_cases(cases)}
    assert faults["accepted"] == "accepted"
    assert "no code" in faults["internal"]
    assert faults["dear"].endswith("MB")
    assert faults["fine"] == ""

"""A file in the working directory is never imported by accident."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# contextlib and others are imported by `python -m` itself, before any file of vitral.
NAMES = ("torch", "typing", "numpy", "json", "logging", "dataclasses", "typer", "pydantic", "rich", "random")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("module", ["-m vitral", "-mvitral"])
@pytest.mark.parametrize("safe", ["", "1"])
def test_files_in_the_working_directory_do_not_replace_modules(tmp_path: Path, module: str, safe: str) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open('hijacked', 'w').close()\nraise SystemExit('{name}.py ran')\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": safe}
    line = [sys.executable, *module.split(), "describe", "Ti/16"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "5,717,416" in done.stdout  # the parameters
    assert not (tmp_path / "hijacked").exists()


@pytest.mark.slow
def test_a_checkout_runs_without_being_installed(tmp_path: Path) -> None:
    (tmp_path / "vitral").symlink_to(ROOT / "vitral")
    (tmp_path / "torch.py").write_text("raise SystemExit('torch.py ran')\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [sys.executable, "-m", "vitral", "describe", "Ti/16"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_modules_keep_their_working_directory(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("import vitral, sys\nassert sys.argv[0] == '-m'\n")
    (package / "__main__.py").write_text("import beside\n")
    (tmp_path / "beside.py").write_text("print('imported')\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "mine", "vitral"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")

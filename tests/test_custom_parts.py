"""docs/custom.md: every part of it trains, is killed, resumed, saved and loaded, and is refused without trust."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitral
from tests.errors import raises
from vitral.core.config import parse_settings

PAGE = Path(__file__).parents[1] / "docs/custom.md"
SMALL = ("model.width=16", "model.depth=1", "model.mixer.heads=1", "data.fraction=0.02", "batch_size=16", "workers=0")
PARTS = {
    "position": ("position={parts}:Sine", "position.rate=0.5"),
    "mixer": ("model.tokens.cls=false", "model.pool=mean", "model.position=none", "mixer={parts}:Shift"),
    "task": ("task={parts}:Margin",),
    "augmentation": ('images.augment=[{{"kind": "{parts}:Posterize", "bits": 5}}]',),
    "optimizer": ("optimizer={parts}:Lion", "optimizer.lr=1e-3"),
}


def blocks() -> list[str]:
    return re.findall(r"<!-- parts.py -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    path = tmp_path / "parts.py"
    path.write_text("\n\n".join(blocks()), encoding="utf-8")
    return path


def settings_for(kind: str, parts: Path) -> list[str]:
    found = [setting.format(parts=parts) for setting in PARTS[kind]]
    return [*(each for each in SMALL if kind != "mixer" or "mixer" not in each), *found]


def vitral_command(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "vitral", *words]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_each_part_has_at_most_20_lines_of_code() -> None:
    assert len(blocks()) == 7
    for block in blocks():
        lines = [line for line in block.splitlines() if line.strip() and not line.strip().startswith('"""')]
        assert len(lines) <= 20, block


@pytest.mark.slow
def test_an_object_of_a_script_trains_and_is_found_from_another_folder(parts: Path, tmp_path: Path) -> None:
    settings = {**parse_settings(SMALL), "steps": 2}
    lines = ["import vitral", "from parts import Sine", f"settings = {settings!r} | {{'position': Sine(rate=0.5)}}"]
    lines += ["vitral.train('sample', recipe='sample', out='run', settings=settings)", "vitral.load('run')"]
    (tmp_path / "script.py").write_text("\n".join(lines), encoding="utf-8")
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    (tmp_path / "elsewhere").mkdir()
    done = vitral_command("describe", str(tmp_path / "run"), "--trust", home=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", PARTS)
def test_a_part_from_a_file_trains_and_loads_with_trust_alone(kind: str, parts: Path, tmp_path: Path) -> None:
    settings = parse_settings(settings_for(kind, parts))
    with raises("config.untrusted", parts):
        vitral.train("sample", recipe="sample", out=tmp_path / "refused", steps=2, settings=settings)
    run = vitral.train("sample", recipe="sample", out=tmp_path / "run", steps=2, settings=settings, trust=True)
    assert run.step == 2
    assert vitral.load(run.path).bundle.model == run.recipe.model  # imported by now


@pytest.mark.slow
def test_a_killed_run_with_parts_of_a_user_resumes_to_the_same_bytes(parts: Path, tmp_path: Path) -> None:
    words = [*settings_for("position", parts), *PARTS["task"], "checkpoints.every_seconds=0", "eval_every=1000"]
    options = [word for each in words for word in ("--set", each.format(parts=parts))]
    train = ["train", f"{parts}:Disks", "--recipe", "small_hundreds", *options, "--set", "data.fraction=1"]
    train += ["--set", "steps=60", "--image-size", "32", "--set", "model.stem.patch=8"]
    refused = vitral_command(*train, "--out", "whole", home=tmp_path)
    assert refused.returncode == 2
    assert "config.untrusted" in refused.stderr
    whole = vitral_command(*train, "--trust", "--out", "whole", home=tmp_path)
    assert whole.returncode == 0, whole.stderr
    command = [sys.executable, "-m", "vitral", *train, "--trust", "--out", "cut"]
    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cut").glob("checkpoints/step-*[1-9]")) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert vitral_command("train", "--resume", "cut", home=tmp_path).returncode == 2  # without trust
    resumed = vitral_command("train", "--resume", "cut", "--trust", home=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    last = [(tmp_path / name / "last/model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert last[0] == last[1]
    described = vitral_command("describe", "cut", home=tmp_path)
    assert (described.returncode, "config.untrusted" in described.stderr) == (2, True)
    assert vitral_command("describe", "cut", "--trust", home=tmp_path).returncode == 0

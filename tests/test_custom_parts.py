"""docs/custom.md: every part of it trains, is killed, resumed, saved and loaded, and is refused without trust."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitral
from tests.errors import raises
from tests.processes import run_forked
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
    return run_forked(*words, cwd=home, env={**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"})


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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", PARTS)
def test_a_part_from_a_file_trains_and_loads_with_trust_alone(kind: str, parts: Path, tmp_path: Path) -> None:
    settings = parse_settings(settings_for(kind, parts))
    with raises("config.untrusted", parts):
        vitral.train("sample", recipe="sample", out=tmp_path / "refused", steps=2, settings=settings)
    run = vitral.train("sample", recipe="sample", out=tmp_path / "run", steps=2, settings=settings, trust=True)
    assert run.step == 2
    assert vitral.load(run.path).bundle.model == run.recipe.model  # imported by now


ELSEWHERE = """
import sys
import numpy as np
import torch
import vitral

home, photo = sys.argv[1:]
calls = {
    "load": lambda trust: vitral.load(home, trust=trust).model(torch.ones(1, 3, 32, 32)),
    "predictor": lambda trust: vitral.Predictor(home, trust=trust)(photo),
    "predict": lambda trust: list(vitral.predict(home, photo, trust=trust)),
    "explain": lambda trust: vitral.explain(home, photo, quick=True, trust=trust),
    "evaluate": lambda trust: vitral.evaluate(home, "digits.csv", split="val", cache=False, workers=0, trust=trust),
    "export": lambda trust: vitral.export(home, "torch", data="digits.csv", out="exported", trust=trust),
    "convert": lambda trust: vitral.convert(home, "converted", trust=trust),
    "describe": lambda trust: vitral.describe("Ti/16", {"position": "./own.py:Sine"}, trust=trust),
}
for name, call in calls.items():  # each is refused as long as nothing is imported
    try:
        call(False)
    except vitral.ConfigError as error:
        print(name, error.code)
    else:
        print(name, "was not refused")
for name, call in calls.items():
    found = call(True)
    print(name, "opened")
    if name == "load":
        np.save("logits.npy", found.detach().numpy())
    for module in [each for each in sys.modules if each.startswith("vitral_copy_")]:
        del sys.modules[module]
"""


@pytest.mark.slow
def test_a_bundle_with_a_part_of_a_user_opens_elsewhere_with_trust_alone(parts: Path, tmp_path: Path) -> None:
    settings: dict[str, object] = {"position": f"{parts}:Sine", "depth": 1, "width": 16, "mixer.heads": 1}
    model = vitral.create_model("Ti/16", num_classes=2, image_size=32, settings=settings, trust=True)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    vitral.save(model.eval(), tmp_path / "bundle", classes=["cat", "dog"])
    logits = model(torch.ones(1, 3, 32, 32)).detach()
    parts.rename(tmp_path / "own.py")
    rows = ["path,label"]
    for number in range(10):
        Image.new("RGB", (32, 32), (20 * number, 50, 50)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{'cat' if number % 2 else 'dog'}")
    (tmp_path / "digits.csv").write_text("\n".join(rows), encoding="utf-8")
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "bundle"), "1.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    names = ("load", "predictor", "predict", "explain", "evaluate", "export", "convert", "describe")
    refused, opened = [f"{name} config.untrusted" for name in names], [f"{name} opened" for name in names]
    assert done.stdout.splitlines() == [*refused, *opened], done.stderr
    assert np.array_equal(np.load(tmp_path / "logits.npy"), logits.numpy())


@pytest.mark.slow
def test_a_killed_run_with_parts_of_a_user_resumes_to_the_same_bytes(parts: Path, tmp_path: Path) -> None:
    words = [*settings_for("position", parts), *PARTS["task"], "checkpoints.every_seconds=0", "eval_every=1000"]
    options = [word for each in words for word in ("--set", each.format(parts=parts))]
    train = ["train", f"{parts}:Disks", "--recipe", "small_hundreds", *options, "--set", "data.fraction=1"]
    train += ["--set", "steps=60", "--image-size", "32", "--set", "model.stem=patches", "--set", "model.stem.patch=8"]
    refused = vitral_command(*train, "--out", "whole", home=tmp_path)
    assert refused.returncode == 2
    assert "config.untrusted" in refused.stderr
    whole = vitral_command(*train, "--trust", "--out", "whole", home=tmp_path)
    assert whole.returncode == 0, whole.stderr
    assert whole.stderr.rstrip().endswith("vitral.Predictor('whole', trust=True)")  # no command could name the data
    command = [sys.executable, "-m", "vitral", *train, "--trust", "--out", "cut"]
    killed = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cut").glob("checkpoints/step-*[1-9]")) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    untrusted = vitral_command("train", "--resume", "cut", home=tmp_path)
    assert untrusted.returncode == 2
    assert "--trust" in untrusted.stderr
    assert "restore" not in untrusted.stderr  # nothing is wrong with the recipe
    resumed = vitral_command("train", "--resume", "cut", "--trust", home=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    last = [(tmp_path / name / "last/model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert last[0] == last[1]
    described = vitral_command("describe", "cut", home=tmp_path)
    assert (described.returncode, "config.untrusted" in described.stderr) == (2, True)
    assert vitral_command("describe", "cut", "--trust", home=tmp_path).returncode == 0

"""Files that the code before the large refactoring wrote: each opens, answers and goes on as it did then.

`tests/fixtures/make_before.py` made them. On the machine that made them the results are the same bytes; another
processor rounds otherwise, so floats are compared within a tolerance, and integers exactly.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import vitral
from tests.processes import run_forked

ROOT = Path(__file__).parents[1]
BEFORE = Path(__file__).parent / "fixtures/before"
BUNDLES = ("classify", "hybrid", "lora", "masked", "resnet")
EXPORTS = ("onnx", "onnx-int8", "openvino")  # that vitral runs itself
RUNNERS = (*EXPORTS, "torch")
HALTED = {"plain": 1, "lora": 1, "masked": 1, "ddp": 2, "fsdp": 2}  # and by how many processes
CLOSE = 1e-6
BYTES_CLOSE = 1e-2  # for int8, whose kernels differ among processors in more than rounding
STEPS, HALT = 12, 7


@cache
def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((BEFORE / "expected.json").read_text())
    return found


def photos() -> list[Path]:
    return sorted((BEFORE / "photos/val").rglob("*.*"))


def pixels_for(predictor: vitral.Predictor) -> Any:
    needs = predictor.bundle.preprocessing
    return np.stack([needs.pixels(path.read_bytes(), path.name) for path in photos()])  # (B, H, W, C)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the photos, from which the runs find them."""
    shutil.copytree(BEFORE / "photos", tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(home: Path, *words: str, processes: int = 1) -> str:
    """What a command line prints, run by this code from a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if processes == 1:
        alone = run_forked(*words, cwd=home, env=environment)
        assert alone.returncode == 0, alone.stderr
        return alone.stdout
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    module = [sys.executable, *launcher, "-m", "vitral", *words]
    done = subprocess.run(module, cwd=home, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_same_weights(file: Path, end: Path) -> None:
    found, wanted = load_file(file), load_file(end)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype, name
        if np.issubdtype(array.dtype, np.floating):
            np.testing.assert_allclose(found[name], array, rtol=0, atol=CLOSE, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], array, err_msg=name)


def test_every_fixture_is_tested() -> None:
    for kind, names in (("bundles", BUNDLES), ("exports", RUNNERS), ("halted", HALTED)):
        assert {path.name for path in (BEFORE / kind).iterdir()} == set(names)
    assert expected()["bundles"].keys() == set(BUNDLES)
    assert expected()["exports"].keys() == set(RUNNERS)
    assert expected()["ends"].keys() == set(HALTED)


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_answers_as_it_did(name: str) -> None:
    predictor = vitral.Predictor(BEFORE / "bundles" / name, engine="eager")
    ((kind, wanted),) = expected()["bundles"][name].items()
    pixels = pixels_for(predictor)
    found = predictor.logits(pixels) if kind == "logits" else predictor.features(pixels)
    np.testing.assert_allclose(found, np.array(wanted, dtype=np.float32), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("name", BUNDLES)
def test_the_model_of_a_bundle_has_its_weights(name: str) -> None:
    model, bundle = vitral.load(BEFORE / "bundles" / name)
    stored = load_file(BEFORE / "bundles" / name / "model.safetensors")
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == {
        key: array.shape for key, array in stored.items()
    }
    assert bundle.task == ("masked_patches" if name == "masked" else "classify")
    assert bundle.classes == (() if name == "masked" else ("bright", "dark"))


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_answers_as_it_did(name: str) -> None:
    predictor = vitral.Predictor(BEFORE / "exports" / name)
    wanted = np.array(expected()["exports"][name]["logits"], dtype=np.float32)
    found = predictor.logits(pixels_for(predictor))
    assert found.argmax(axis=1).tolist() == wanted.argmax(axis=1).tolist()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BYTES_CLOSE if "int8" in name else CLOSE)


@pytest.mark.parametrize("name", RUNNERS)
@pytest.mark.sampled(4)
def test_the_runner_of_an_export_prints_what_it_did(name: str, home: Path) -> None:
    shutil.copytree(BEFORE / "exports" / name, home / name)
    (home / name / "run.txt").rename(home / name / "run.py")
    names = [str(path.relative_to(BEFORE)) for path in photos()]
    words = [sys.executable, "-W", "ignore", str(home / name / "run.py"), *names]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, check=True)
    for text, line in zip(done.stdout.splitlines(), expected()["exports"][name]["lines"], strict=True):
        found = json.loads(text)
        close = BYTES_CLOSE if "int8" in name else 2 * CLOSE  # printed with six digits
        assert found == line | {"chance": pytest.approx(line["chance"], abs=close)}


def test_a_finished_run_opens(home: Path) -> None:
    run = home / "finished"
    shutil.copytree(BEFORE / "finished", run)
    evaluation = vitral.evaluate(run, "photos", workers=0, cache=False, split="val")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    best = max(line["accuracy"] for line in lines if line["split"] == "val")
    assert evaluation.results[0].model_dump()["accuracy"]["top1"] == pytest.approx(best)
    predictor = vitral.Predictor(run, engine="eager")
    assert [prediction.labels[0] for prediction in predictor.predict(photos())]
    before = (run / "last/model.safetensors").read_bytes()
    again = vitral.resume(str(run))
    assert again.step == again.steps == STEPS
    assert (run / "last/model.safetensors").read_bytes() == before
    assert "</html>" in (run / "report.html").read_text()


@pytest.mark.parametrize(("name", "processes"), HALTED.items())
@pytest.mark.sampled(5)
def test_a_run_that_was_stopped_ends_as_it_would_have(name: str, processes: int, home: Path) -> None:
    shutil.copytree(BEFORE / "halted" / name, home / "run")
    steps = [json.loads(line)["step"] for line in (home / "run/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == HALT
    command(home, "train", "--resume", "run", processes=processes)
    steps = [json.loads(line)["step"] for line in (home / "run/metrics.jsonl").read_text().splitlines()]
    assert max(steps) == STEPS
    end = BEFORE / f"ends/{name}.safetensors"
    assert hashlib.sha256(end.read_bytes()).hexdigest() == expected()["ends"][name]
    assert_same_weights(home / "run/last/model.safetensors", end)

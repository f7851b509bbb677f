"""Shell completion: the protocol of each shell, and a real bash."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest

from tests.processes import run_forked
from vitral.cli.terminal import completion
from vitral.core.config import union_members
from vitral.data.datasets.named import NAMED_DATASETS
from vitral.data.datasets.source import SAMPLE
from vitral.evaluation.evaluators import Evaluator
from vitral.inference.engines.auto import EngineConfig
from vitral.inference.writers import FORMATS
from vitral.models.registry import model_config
from vitral.recipes.recipe import Recipe
from vitral.recipes.registry import list_recipes
from vitral.runs.bench import ENGINES
from vitral.runs.evaluate import EVAL_SPLITS
from vitral.runs.export import TARGETS
from vitral.weights.formats.registry import WRITABLE

ROOT = Path(__file__).parents[3]


def complete(*words: str, cwd: Path = ROOT) -> list[str]:
    """What bash would offer for the last word."""
    request = {
        "COMP_WORDS": "\n".join(("vitral", *words)),
        "COMP_CWORD": str(len(words)),
        "_VITRAL_COMPLETE": "complete_bash",
    }
    done = run_forked(cwd=cwd, env={**os.environ, **request})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines() if done.stdout.strip() else []


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["tr"], ["train"]),
        (["--qu"], ["--quiet"]),
        (["predict", "--en"], ["--engine"]),
        (["predict", "m", "x", "--engine", "o"], ["onnxruntime", "openvino"]),
        (["predict", "m", "x", "--format", "json"], ["json", "jsonl"]),
        (["evaluate", "m", "--with", "accuracy,"], [f"accuracy,{name}" for name in completion.EVALUATORS[1:]]),
        (["evaluate", "m", "x", "--device", "c"], ["cpu", "cuda"]),
        (["evaluate", "m", "x", "--split", ""], ["test", "val"]),
        (["export", "m", "--to", ""], ["onnx", "openvino", "torch"]),
        (["convert", "a", "b", "--to", "t"], ["timm", "torchvision"]),
        (["bench", "--models", "Ti/16,B/1"], ["Ti/16,B/14", "Ti/16,B/16"]),
        (["check", "cifar"], ["cifar10", "cifar100"]),
        (["train", "cifar"], ["cifar10", "cifar100"]),
        (
            ["train", "sample", "--recipe", "fashion_m"],
            ["fashion_mnist", "fashion_masked", "fashion_mae", "fashion_moco_v3"],
        ),
        (["train", "sample", "--model", "Ti/1"], ["Ti/14", "Ti/16"]),
        (["train", "sample", "--device", "m"], ["mps"]),
        (["train", "sample", "--task", "m"], ["masked_patches", "mae", "moco_v3"]),
        (["train", "sample", "--weights", "dinov2-s"], ["dinov2-small", "dinov2-small-reg"]),
        (["explain", "dinov2-s"], ["dinov2-small", "dinov2-small-reg"]),
        (["describe", "B/"], ["B/14", "B/16", "B/32"]),
    ],
    ids=" ".join,
)
def test_verbs_options_and_values_are_completed(words: list[str], offered: list[str]) -> None:
    assert complete(*words) == offered


def test_a_name_is_offered_beside_the_files_that_fit(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    (tmp_path / "[odd").touch()
    assert complete("check", "sam", cwd=tmp_path) == ["sample", "samples/"]
    assert complete("check", "[", cwd=tmp_path) == []  # no name fits, so that the shell completes paths


@pytest.mark.parametrize("words", ["predict --", "train sample --weights ", "predict m x --engine ", "check "])
def test_completion_does_not_wait_for_torch(words: str) -> None:
    request = {"COMP_WORDS": f"vitral {words}", "COMP_CWORD": str(words.count(" ") + 1)}
    environment = {**os.environ, "_VITRAL_COMPLETE": "complete_bash", **request}
    line = [sys.executable, "-X", "importtime", "-m", "vitral"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "vitral.cli" in imported
    assert not imported & {"torch", "numpy", "rich.console"}


@pytest.mark.parametrize(
    ("shell", "shown"),
    [("zsh", r"_arguments '\*: :\(\(\"train\":\"Train .*\"\)\)'\n"), ("fish", r"train\tTrain .*\n")],
)
def test_other_shells_get_the_verb_with_its_summary(shell: str, shown: str) -> None:
    request = {"_VITRAL_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "vitral tr"}
    environment = {**os.environ, **request, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = run_forked(env=environment)
    assert re.fullmatch(shown, done.stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    environment = {**os.environ, "_VITRAL_COMPLETE": f"source_{shell}"}
    done = run_forked(env=environment)
    assert f"_VITRAL_COMPLETE=complete_{shell}" in done.stdout


def test_a_real_bash_completes_a_verb_and_a_value(tmp_path: Path) -> None:
    program = tmp_path / "vitral"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vitral "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}", "TERM": "dumb"}
    ours, theirs = pty.openpty()
    shell = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        shell, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    ) as bash:
        os.close(theirs)
        os.write(ours, b'eval "$(_VITRAL_COMPLETE=source_bash vitral)"; echo re"ady"\n')
        assert "ready" in read_until(ours, "ready\r\n")
        os.write(ours, b"vitral pred\t")
        assert "predict " in read_until(ours, "predict ")
        os.write(ours, b"m x --engine onn\t")
        assert "onnxruntime " in read_until(ours, "onnxruntime ")
        bash.kill()
    os.close(ours)


def read_until(terminal: int, text: str) -> str:
    shown, end = "", time.monotonic() + 60
    while text not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, f"{text!r} is not in {shown!r}"
        shown += os.read(terminal, 4096).decode()
    return shown


def test_the_completed_names_are_those_that_exist() -> None:
    assert (SAMPLE, *NAMED_DATASETS) == completion.DATASETS
    assert list_recipes() == completion.RECIPES
    assert tuple(each.model_fields["kind"].default for each in union_members(Evaluator)) == completion.EVALUATORS
    assert tuple(each.model_fields["kind"].default for each in union_members(EngineConfig)) == completion.ENGINES
    assert tuple(name.removeprefix("vitral ") for name in ENGINES) == completion.BENCH_ENGINES
    assert tuple(TARGETS) == completion.EXPORT_FORMATS
    assert completion.PREDICTION_FORMATS == FORMATS
    assert completion.SPLITS == EVAL_SPLITS
    assert completion.LIBRARIES == WRITABLE
    assert get_args(Recipe.model_fields["device"].annotation) == completion.DEVICES
    assert all(model_config(name) for name in completion.MODELS)

"""`vitral evaluate` as its users meet it: the bundled images and a real process."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

import vitral
from tests.evaluation.subjects import files_in
from tests.processes import run_forked
from vitral import cli
from vitral.core.config import Size, parse_settings, union_members
from vitral.data.datasets.named import CLASSES
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.evaluators import Evaluation, Evaluator
from vitral.weights.bundle import Bundle, write_bundle

JUDGES = "accuracy,knn,fewshot,linear,resolution,tokens"


def tiny(folder: Path, classes: tuple[str, ...] = CLASSES) -> str:
    """A bundle of a model that sees the bundled images and has learned nothing."""
    settings = ("image_size=28", "channels=1", "stem.patch=14", "width=8", "depth=1", "mixer.heads=1", "mlp.ratio=1")
    model = vitral.create_model("Ti/16", settings=parse_settings([*settings, f"head.num_classes={len(classes)}"]))
    needs = Preprocessing(image_size=Size(28, 28), decoding=Decoding(channels=1))
    bundle = Bundle(model=model.config, task="classify", preprocessing=needs, classes=classes)
    write_bundle(folder / "tiny", bundle, model.state_dict(), "a card")
    return str(folder / "tiny")


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked("evaluate", *arguments, env={**os.environ, "XDG_CACHE_HOME": str(home)})


def test_all_judges_on_the_bundled_images_then_the_same_numbers_from_the_cache_and_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(tmp_path)
    table = run(tmp_path, model, "sample", "--with", JUDGES, "--quiet")
    assert (table.returncode, table.stderr) == (0, "")
    assert table.stdout.startswith(f"{model} on sample: 1,000 test images of 10 classes\n")
    assert [text for text in table.stdout.splitlines() if text in JUDGES.split(",")] == JUDGES.split(",")
    assert "28x28  2x2" in table.stdout
    assert "\x1b" not in table.stdout

    again = run(tmp_path, model, "sample", "--with", "knn,accuracy", "--json", "--batch-size", "50")
    assert again.returncode == 0
    assert "cached features of 5,000 images" in again.stderr
    found = Evaluation.from_json(again.stdout)
    assert [each["kind"] for each in json.loads(again.stdout)["results"]] == ["knn", "accuracy"]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert vitral.evaluate(model, "sample", batch_size=50, with_=("knn", "accuracy")) == found


def test_other_classes_are_refused_with_both_lists(tmp_path: Path) -> None:
    done = run(tmp_path, tiny(tmp_path, tuple(f"thing {number}" for number in range(300))), "sample", "--no-cache")
    assert (done.returncode, done.stdout) == (3, "")
    first, where, hint = done.stderr.splitlines()
    assert first.startswith("error[data.unknown_class]: ")
    assert all(value in first for value in ("10 of the 10", "T-shirt/top, Trouser", "thing 0, thing 1", "292"))
    assert where == "where: sample"
    assert "--with knn,linear" in hint


def test_an_interrupt_leaves_with_130_and_no_file(tmp_path: Path) -> None:
    """Interrupted in the midst of its features."""
    script = (
        "import os, signal\n"
        "from vitral import cli\n"
        "from vitral.evaluation import subject\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "real = subject.collect_outputs\n"
        "def halfway(see, *others):\n"
        "    def seen(images):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        return see(images)\n"
        "    return real(seen, *others)\n"
        "subject.collect_outputs = halfway\n"
        "cli.main()\n"
    )
    model = tiny(tmp_path)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run_forked("evaluate", model, "sample", "--with", "knn", code=script, env=environment)
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "cache").exists() or files_in(tmp_path / "cache" / "vitral" / "features") == []


def test_the_help_names_every_judge() -> None:
    listed = cli.evaluate.WITH_HELP.rpartition(": ")[2].removesuffix(".").split(", ")
    assert listed == [judge.model_fields["kind"].default for judge in union_members(Evaluator)]

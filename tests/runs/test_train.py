"""Whole runs: what they leave behind, and that nothing which stops them changes a byte of it."""

import ctypes
import json
import multiprocessing
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.runs.small import SETTINGS, StopAfterEachStep, begin, content
from vitral.cli.terminal.app import main
from vitral.core.config import parse_settings
from vitral.core.storage import Lock
from vitral.runs import train as start
from vitral.runs.train import resume, train
from vitral.training.checkpoints.checkpoint import checkpoint_path, find_newest, open_checkpoint
from vitral.training.loop import Diverged
from vitral.weights import load as weights_load
from vitral.weights.bundle import begin_bundle, read_bundle

STEPS = 12  # three epochs of 24 images in batches of 5
COMPILED = (
    "model.stem=convolutions", "model.stem.widths=[4,8]", "optimizer=muon", "images.size=progressive",
    "images.size.smaller_stages=1", "model.block.drop_path_rate=0.5", "model.block.drop_path_mode=skip", "steps=3",
)  # fmt: skip
ALL = ("average=ema", "average.decay=0.9", "task.mixing=mixup", "model.block.drop_path_rate=0.2")


def test_a_run_explains_itself(home: Path) -> None:
    run = begin(home)
    assert run.step == run.steps == STEPS
    folder = home / "run"
    assert {path.name for path in folder.iterdir()} >= {
        "recipe.json", "environment.json", "split.csv", "metrics.jsonl", "results.csv", "times.jsonl", "checkpoints",
        "best", "last", "report.html",
    }  # fmt: skip
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if line["split"] == "val"] == [4, 8, 12]
    assert run.evaluation is not None
    assert run.evaluation.split == "val"
    best = max(line["accuracy"] for line in lines if line["split"] == "val")
    assert run.evaluation.accuracy.top1 == pytest.approx(best)
    model, bundle = vitral.load(folder)
    assert bundle.classes == ("bright", "dark")
    assert "accuracy" in (folder / "best" / "README.md").read_text()
    assert not model.training
    assert any(f"vitral evaluate {folder} {home / 'photos'}" in line for line in run.summary())


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_run_leaves_no_file_open(home: Path) -> None:
    begin(home, "steps=1")
    opened = [os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.startswith(str(home))]


def test_the_recipe_of_a_run_does_it_again_to_the_byte(home: Path) -> None:
    begin(home)
    begin(home, out="again")
    assert content(home / "run") == content(home / "again")
    assert (home / "run/recipe.json").read_bytes() == (home / "again/recipe.json").read_bytes()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("portions", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_stopping_after_every_single_step_changes_no_byte(
    home: Path, monkeypatch: pytest.MonkeyPatch, portions: int, workers: int
) -> None:
    settings = (*ALL, f"microbatches={portions}", f"workers={workers}")
    begin(home, *settings, out="unbroken")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *settings)
    seen = [run.step]
    while run.signal:
        assert run.summary()[-1] == f"vitral train --resume {home / 'run'}"
        run = resume(str(home / "run"))
        seen.append(run.step)
    assert seen == list(range(1, STEPS + 1))
    assert content(home / "run") == content(home / "unbroken")


@pytest.mark.slow
def test_a_run_without_clipping_resumes_to_the_byte(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(home, *ALL, "clip=1e-3", out="clipped")
    begin(home, *ALL, "clip=none", out="unbroken")
    assert content(home / "unbroken") != content(home / "clipped")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *ALL, "clip=none")
    while run.signal:
        run = resume(str(home / "run"))
    assert content(home / "run") == content(home / "unbroken")


CHEAPER = {
    "dropped patches": ["task.patch_drop=linear"],
    "growing images": ["images.size=progressive", "images.size.smaller_stages=1", "images.size.until=0.5"],
    "both, with Muon": ["task.patch_drop=linear", "images.size=progressive", "images.size.smaller_stages=1",
                        "optimizer=muon"],
    "repeated images, skipped branches": ["data.order=repeated", "images.crop=random_crop", "images.crop.padding=2",
                                          "model.block.drop_path_rate=0.5", "model.block.drop_path_mode=skip",
                                          "microbatches=2"],
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("settings", CHEAPER.values(), ids=CHEAPER.keys())
def test_a_run_with_cheaper_steps_resumes_to_the_byte(
    home: Path, monkeypatch: pytest.MonkeyPatch, settings: list[str]
) -> None:
    changed = (*ALL, *settings, "epochs=2")
    begin(home, *ALL, "epochs=2", out="plain")
    begin(home, *changed, out="unbroken")
    assert content(home / "unbroken") != content(home / "plain")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *changed, "workers=2")
    while run.signal:
        run = resume(str(home / "run"))
    assert content(home / "run") == content(home / "unbroken")


@pytest.mark.slow
def test_kills_at_random_instants_change_no_byte(home: Path) -> None:
    settings = (*ALL, "checkpoints.every_seconds=0", "epochs=10")
    begin(home, *settings, out="unbroken")

    def work() -> None:
        if (home / "run/recipe.json").exists():
            resume(str(home / "run"))
        else:
            begin(home, *settings, out="run")

    context, rng, kills = multiprocessing.get_context("fork"), random.Random(0), 0
    begin(home, *settings, "steps=1", out="warm")  # so that a child has nothing left to import
    while True:
        process = context.Process(target=work)
        process.start()
        wait = rng.uniform(0.3, 0.6) if kills < 5 else None
        process.join(wait)
        if process.exitcode is not None:
            break
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
    assert process.exitcode == 0
    assert kills > 0
    assert content(home / "run") == content(home / "unbroken")


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin(home, out="unbroken")
    begin(home, "checkpoints.every_seconds=0", "checkpoints.keep=3")
    folder = home / "run"
    last = find_newest(folder / "checkpoints").checkpoint
    assert last is not None
    file = last.path / "task.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    resume(str(folder))
    assert str(file) in caplog.text
    assert content(folder) == content(home / "unbroken")


def test_a_run_whose_checkpoints_are_lost_is_not_begun_anew_over_its_record(home: Path) -> None:
    begin(home)
    record = (home / "run/metrics.jsonl").read_bytes()
    for checkpoint in (home / "run/checkpoints").iterdir():
        (checkpoint / "state.json").unlink()
    with raises("weights.not_found", home / "run/checkpoints", f"step {STEPS}"):
        resume(str(home / "run"))
    assert (home / "run/metrics.jsonl").read_bytes() == record


def test_the_bundles_hold_the_averaged_weights_of_their_steps(home: Path) -> None:
    begin(home, "average=ema", "average.decay=0.9", "checkpoints.every_seconds=0", "checkpoints.keep=20", "seed=1")
    lines = [json.loads(line) for line in (home / "run/metrics.jsonl").read_text().splitlines()]
    watched = [line for line in lines if line["split"] == "val"]
    best = max(watched, key=lambda line: (line["accuracy"], -line["step"]))["step"]
    for name, step in (("best", best), ("last", STEPS)):
        saved = open_checkpoint(checkpoint_path(home / "run/checkpoints", step)).load().tensors["average"]
        for part, tensor in read_bundle(home / "run" / name).tensors.items():
            assert torch.equal(tensor, saved[f"model.{part}"]), (name, part)
        assert f"{step} steps" in (home / "run" / name / "README.md").read_text()


def test_a_bundle_of_a_step_that_was_lost_and_redone_otherwise_is_written_anew(home: Path) -> None:
    begin(home)
    kept = (home / "run/best/model.safetensors").read_bytes()
    weights = (home / "run/last/model.safetensors").read_bytes()
    (home / "run/best/model.safetensors").write_bytes(weights if weights != kept else kept[:-4] + bytes(4))
    resume(str(home / "run"))
    assert (home / "run/best/model.safetensors").read_bytes() == kept


def test_a_run_goes_on_though_the_weights_that_it_started_from_are_gone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(home, out="first")
    begin(home, f"from={home / 'first'}", out="unbroken")
    with monkeypatch.context() as patch:
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        assert begin(home, f"from={home / 'first'}").step == 1
    (home / "first").rename(home / "gone")
    resume(str(home / "run"))
    assert content(home / "run") == content(home / "unbroken")


@pytest.mark.usefixtures("counted_clock")
def test_the_weights_to_start_from_are_opened_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(home, "steps=1", out="first")
    opened: list[Path] = []

    def counting(folder: Path) -> object:
        opened.append(folder)
        return begin_bundle(folder)

    monkeypatch.setattr(weights_load, "begin_bundle", counting)
    settings = [setting for setting in SETTINGS if setting != "epochs=3"]
    weights = f"weights={home / 'first'}"
    train(
        str(home / "photos"),
        settings=parse_settings([*settings, weights]),
        recipe="small_hundreds",
        out=str(home / "run"),
        time_limit="9s",
    )
    assert [folder for folder in opened if folder.is_relative_to(home / "first")] == [home / "first/best"]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("c++")), reason="torch's compiler needs one for C++")
@pytest.mark.filterwarnings("ignore")  # of a compiler that is still changing
def test_a_compiled_run_learns_as_a_plain_one_and_resumes_to_the_same_bytes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, compiled = (
        begin(home, *COMPILED, f"compile={compile}", out=name)
        for name, compile in (("plain", "false"), ("compiled", "true"))
    )
    losses = [
        [json.loads(line)["loss"] for line in (run.folder.path / "metrics.jsonl").open()] for run in (plain, compiled)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *COMPILED, "compile=true")
    while run.signal:
        run = resume(str(home / "run"))
    assert content(home / "run") == content(home / "compiled")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has mallopt")
def test_training_from_python_does_not_change_the_allocator(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setattr(ctypes, "CDLL", calls.append)  # how mallopt is found
    begin(home, "steps=1")
    assert not calls
    with suppress(SystemExit):
        main(["train", "--resume", str(home / "run")])
    assert calls


def test_the_next_commands_that_are_printed_work(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    lines = begin(home).summary()
    commands = [shlex.split(line.partition("vitral ")[2]) for line in lines[lines.index("next:") + 1 :]]
    assert [words[0] for words in commands] == ["evaluate", "predict", "explain"]
    assert commands[0][1:] == ["run", "photos"], "relative to the working directory"
    for words in commands:
        with pytest.raises(SystemExit) as exited:
            main([*words, *(["--quick"] if words[0] == "explain" else [])])
        assert exited.value.code == 0


def test_a_run_that_is_over_can_be_resumed_and_stays_as_it_is(home: Path) -> None:
    begin(home)
    before = content(home / "run")
    assert resume(str(home / "run")).step == STEPS
    assert content(home / "run") == before


def test_early_stopping_ends_a_run_and_resuming_takes_no_more_steps(home: Path) -> None:
    settings = ("early_stopping=patience", "early_stopping.evaluations=2", "lr=1e-9", "epochs=50")
    run = begin(home, *settings)
    assert run.step == 12  # the first evaluation is the best, the two after it are no better
    before = content(home / "run")
    assert resume(str(home / "run")).step == 12
    assert content(home / "run") == before


def test_a_loss_that_is_not_finite_names_step_files_and_checkpoint(home: Path) -> None:
    with raises("run.diverged", home / "run/checkpoints") as caught:
        begin(home, "lr=1e30", "clip=1e30", "checkpoints.every_seconds=0", "schedule.warmup=0")
    error = caught.value
    assert isinstance(error, Diverged)
    assert error.step > 0
    assert error.where == f"step {error.step}"
    assert error.message.count(".png") == 5
    assert f"{home / 'run/checkpoints'}/step-{error.step:08}" in error.message
    assert error.exit_code == 1


def test_a_second_writer_is_refused(home: Path) -> None:
    begin(home)
    with Lock(home / "run"), raises("config.run_locked", home / "run") as caught:
        resume(str(home / "run"))
    assert caught.value.exit_code == 2


def test_masked_patches_learn_without_labels_and_another_run_starts_from_them(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    first = begin(home, "task=masked_patches", data=str(home / "photos/train"), out="masked")
    assert first.evaluation is None
    assert (home / "masked/report.html").exists()
    second = begin(home, f"from={home / 'masked'}")
    assert second.evaluation is not None
    assert "a new head of 2 classes starts at zero" in caplog.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.sampled(2)
def test_a_signal_saves_and_prints_the_line_that_goes_on(home: Path, number: int, code: int) -> None:
    words = [sys.executable, "-m", "vitral", "train", str(home / "photos"), "--recipe", "small_hundreds"]
    settings = [word for setting in (*SETTINGS, "epochs=100000") for word in ("--set", setting)]
    process = subprocess.Popen(
        [*words, "--out", str(home / "run"), *settings],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "step" in line:  # it has begun
            break
    process.send_signal(number)
    out, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert told.splitlines()[-1] == f"vitral train --resume {home / 'run'}"
    assert out == f"{home / 'run'}\n"
    assert find_newest(home / "run/checkpoints").checkpoint is not None

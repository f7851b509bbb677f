"""Fine-tuning in stages: the head, the last layers on tokens in memory, all layers; each kept if it is better."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.runs.small import StopAfterEachStep, begin, content, photos
from vitral.core.errors import VitralError
from vitral.recipes.recipe import Recipe, read_recipe
from vitral.runs import train as start
from vitral.runs.session import Session
from vitral.runs.train import resume
from vitral.training.finetune import Staged, TuningStage
from vitral.weights.bundle import read_bundle

STAGED = (
    "finetune=staged",
    "finetune.layers=1",
    "average=polyak",
    "task.mixing=none",
)  # 6 steps of one layer, 6 of all


def recipe_of(run: Path) -> Recipe:
    return read_recipe((run / "recipe.json").read_bytes())


def evaluations(run: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {line["step"]: line["accuracy"] for line in lines if line["split"] == "val"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    photos(home / "photos")
    begin(home, "epochs=2", out="first")
    return home / "first"


@pytest.fixture
def first(home: Path, trained: Path) -> Path:
    """Weights to start from."""
    return Path(shutil.copytree(trained, home / "first"))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return dict(read_bundle(folder).tensors)


def test_a_run_stopped_after_every_step_of_every_stage_ends_in_the_same_bits(
    home: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (f"from={first}", *STAGED, "checkpoints.keep=1")
    begin(home, *settings, out="unbroken")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *settings)
    shutil.rmtree(first)
    sessions = 1
    while run.signal:
        run, sessions = resume(str(home / "run")), sessions + 1
    assert sessions >= 10  # the last steps of a stage stop no session
    assert content(home / "run") == content(home / "unbroken")
    assert list(evaluations(home / "run")) == [0, 4, 6, 8, 12]  # each epoch, and the end of a stage


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["_begin_next_stage", "_use_stage", "save", "evaluate"])
def test_a_kill_between_two_stages_loses_nothing(
    home: Path, first: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    settings = (f"from={first}", *STAGED, "checkpoints.every_seconds=0")
    begin(home, *settings, out="unbroken")
    child = os.fork()
    if not child:
        kill_in_session(monkeypatch, method, lambda session: session.step == 6)
        begin(home, *settings)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resume(str(home / "run"))
    assert content(home / "run") == content(home / "unbroken")


def kill_in_session(monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[[Session], bool]) -> None:
    """Kill this process at the end of a method of the session."""
    original = getattr(Session, method)

    def killed(session: Session, *arguments: object) -> None:
        original(session, *arguments)
        if when(session):
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(Session, method, killed)


def test_a_stage_that_harms_is_not_kept_and_the_next_starts_from_the_weights_before_it(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    begin(home, "epochs=12", "lr=1e-2", out="first")
    # The second stage has one step, at the begin of a warmup: its learning rate is 0.
    harmful = ("lr=3", "clip=none", "schedule=linear", "schedule.warmup=0.6", "average=none")
    finetune = Staged(stages=(TuningStage(layers=1, views=2), TuningStage(first=4))).model_dump_json()
    begin(home, f"from={home / 'first'}", "task.mixing=none", *harmful, f"finetune={finetune}", "steps=5")
    found = evaluations(home / "run")
    assert found[4] < found[0], "the settings of this test must harm"
    best, last = tensors(home / "run/best"), tensors(home / "run/last")
    assert all(torch.equal(tensor, last[name]) for name, tensor in best.items())
    assert "(no better, not kept)" in caplog.text
    assert "not kept" in (home / "run/report.html").read_text()


def test_only_the_last_layers_change_in_the_first_stage(home: Path, first: Path) -> None:
    finetune = Staged(stages=(TuningStage(layers=1, views=3),)).model_dump_json()
    begin(home, f"from={first}", "task.mixing=none", f"finetune={finetune}")
    before, after = tensors(first / "best"), tensors(home / "run/last")
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith(("blocks.1.", "pool.norm.", "head.")), name


def test_the_stages_are_recorded_and_a_recipe_file_repeats_them(home: Path, first: Path) -> None:
    options = {"finetune.layers": 1, "length.images": 48, "length.min_epochs": 1, "batch_size": 6, "workers": 0}
    run = start.train(str(home / "photos"), weights=str(first), recipe="photos", out=home / "run", settings=options)
    recipe = recipe_of(run.path)
    assert isinstance(recipe.finetune, Staged)
    assert recipe.finetune.stages == run.recipe.finetune.stages != "auto"  # type: ignore[union-attr]
    assert recipe.length.kind == "steps"
    start.train(str(home / "photos"), recipe=run.path / "recipe.json", out=home / "again")
    assert content(home / "again") == content(run.path)


def test_training_images_are_held_out_if_there_are_only_test_images_beside_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    photos(tmp_path / "photos", {"train": 10, "test": 3})
    begin(tmp_path, "steps=1", out="first")
    run = begin(tmp_path, f"from={tmp_path / 'first'}", *STAGED)
    rows = [line.split(",") for line in (run.path / "split.csv").read_text().splitlines()]
    assert {(row[0].split("/")[0], row[-1]) for row in rows if "/" in row[0]} >= {("train", "val"), ("test", "test")}
    assert ("test", "val") not in {(row[0].split("/")[0], row[-1]) for row in rows}
    assert len(run.samples.of("val")) == 4
    assert recipe_of(run.path).data.hold_out == 0.2
    assert "0.2 of the training images of every class are validation images" in caplog.text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("settings", "stages"),
    [
        (("epochs=1",), (TuningStage(layers=1, views=3), TuningStage(first=2))),
        (("steps=1",), (TuningStage(),)),
        (("distributed=fsdp",), (TuningStage(),)),
        (("task.mixing=mixup",), (TuningStage(layers=1), TuningStage(first=6))),
    ],
)
def test_a_length_that_is_asked_for_is_divided_between_the_stages(
    home: Path, first: Path, settings: tuple[str, ...], stages: tuple[TuningStage, ...]
) -> None:
    run = begin(home, f"from={first}", *STAGED, *settings)
    assert isinstance(run.recipe.finetune, Staged)
    assert run.recipe.finetune.stages == stages
    assert run.step == run.steps


@pytest.mark.usefixtures("counted_clock")
def test_a_time_limit_has_one_stage(home: Path, first: Path) -> None:
    options = {"finetune": "staged", "finetune.layers": 1, "batch_size": 5, "workers": 0, "eval_every": 1000}
    run = start.train(str(home / "photos"), weights=str(first), out=home / "run", settings=options, time_limit="6s")
    assert isinstance(run.recipe.finetune, Staged)
    assert len(run.recipe.finetune.planned) == 1
    assert run.step == run.steps > 1


def test_an_absolute_warmup_longer_than_a_stage_is_refused_before_a_folder_is_made(home: Path, first: Path) -> None:
    with pytest.raises(VitralError) as error:
        begin(home, f"from={first}", *STAGED, "schedule.warmup=7")
    assert error.value.where == "warmup"
    assert not (home / "run").exists()

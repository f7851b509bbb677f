"""Sweeps: their trials are ordinary runs, and a sweep that was stopped ends in the same table."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import vitral
from tests.errors import raises
from tests.runs.small import SETTINGS, photos
from vitral.core.config import parse_settings
from vitral.core.storage import Lock
from vitral.runs.folder import RunFolder
from vitral.runs.sweeps import processes
from vitral.runs.sweeps import sweep as sweeps
from vitral.runs.sweeps.folder import Candidate, SweepFolder, SweepPlan, Trial, create_sweep
from vitral.runs.sweeps.processes import StopSweep
from vitral.runs.sweeps.results import SweepResult
from vitral.runs.sweeps.search import GridSearch
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches

Ended = Callable[[Trial], None]


def train_here(trials: Iterable[Trial], jobs: int, on_end: Ended, on_wait: Callable[[Sequence[Trial]], None]) -> None:
    """Trials in this process: starting one takes seconds. Its log says how it ended."""
    for trial in trials:
        try:
            vitral.train(recipe=trial.recipe, out=trial.folder.path)
        except vitral.VitralError as error:
            trial.log_file.write_text(f"error[{error.code}]: {error.message}\n")
        on_end(trial)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos to work in, where trials are trained in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "run_trials", train_here)
    monkeypatch.setattr(sweeps, "cpu_count", torch.get_num_threads)
    return photos(tmp_path / "photos")


def small_sweep(data: Path, over: dict[str, Any], search: GridSearch = GridSearch(), **options: Any) -> vitral.Sweep:  # noqa: B008
    settings = parse_settings(SETTINGS)
    return vitral.sweep(data, over, search=search, recipe="small_hundreds", jobs=1, settings=settings, **options)


def without_times(result: SweepResult) -> dict[str, Any]:
    found = json.loads(result.to_json())
    for each in [*found["candidates"], *found["trials"]]:
        each.pop("seconds")
    return found


def test_every_combination_is_trained_and_the_best_mean_comes_first(here: Path) -> None:
    done = small_sweep(here, {"lr": [1e-5, 3e-3], "model.depth": [1]}, GridSearch(seeds=2))
    result = done.result
    assert len(result.trials) == 4
    assert {(each.settings["lr"], each.settings["model.depth"], each.seed) for each in result.trials} == {
        (lr, depth, seed) for lr in (1e-5, 3e-3) for depth in (1,) for seed in (0, 1)
    }
    means = [each.mean for each in result.candidates]
    assert all(mean is not None for mean in means)
    assert means == sorted(means, reverse=True)  # type: ignore[type-var]
    for each in result.candidates:
        values = [trial.value for trial in result.trials if trial.candidate == each.candidate]
        assert each.mean == pytest.approx(sum(values) / 2)  # type: ignore[arg-type]
        assert each.deviation == pytest.approx(abs(values[0] - values[1]) / 2**0.5)  # type: ignore[operator]
    assert SweepResult.from_json((done.path / "results.json").read_text()) == result
    assert (done.path / "results.csv").read_text().splitlines()[0].startswith("lr,model.depth,seed,rung,accuracy")


def test_a_trial_is_the_run_that_train_makes(here: Path) -> None:
    done = small_sweep(here, {"lr": [1e-3]})
    settings = parse_settings([*SETTINGS, "lr=1e-3"])
    threads = torch.get_num_threads()
    run = vitral.train(here, recipe="small_hundreds", out="alone", settings=settings, threads=threads)
    trial = RunFolder(done.path / done.result.trials[0].run)
    weights = "best/model.safetensors"
    assert (trial.path / weights).read_bytes() == (run.path / weights).read_bytes()
    assert done.result.trials[0].value == max(
        json.loads(line)["accuracy"]
        for line in (run.path / "metrics.jsonl").read_text().splitlines()
        if json.loads(line)["split"] == "val"
    )


@pytest.mark.slow
def test_halving_trains_the_best_longer(here: Path) -> None:
    done = small_sweep(here, {"lr": [1e-6, 1e-5, 3e-3, 1e-3]}, GridSearch(halving=2))
    rungs = [[each for each in done.result.trials if each.rung == rung] for rung in (1, 2, 3)]
    assert [len(rung) for rung in rungs] == [4, 2, 1]
    best = sorted(rungs[0], key=lambda each: (-(each.value or 0), each.candidate))[:2]
    assert {each.candidate for each in rungs[1]} == {each.candidate for each in best}
    assert done.result.candidates[0].rung == 3
    epochs = [json.loads((done.path / rung[0].run / "recipe.json").read_text())["length"]["epochs"] for rung in rungs]
    assert epochs == [0.75, 1.5, 3]


def test_a_failed_trial_is_named_and_the_others_go_on(here: Path) -> None:
    done = small_sweep(here, {"lr": [3e-3, 1e30]})
    assert [each.code for each in done.result.trials] == ["", "run.diverged"]
    assert [each.failed for each in done.result.candidates] == [0, 1]
    assert "run.diverged" in done.report.read_text()
    assert done.result.best == done.result.candidates[0]


def test_settings_that_do_not_fit_are_found_before_any_training(here: Path) -> None:
    with raises("config.unknown_field"):
        small_sweep(here, {"learning": [1]})
    with raises("config.missing_value", "over"):
        small_sweep(here, {})
    with raises("config.wrong_type", "search"):
        small_sweep(here, {"lr": [1e-3]}, search=3)  # type: ignore[arg-type]
    assert not Path("sweeps").exists()


def test_a_dataset_object_is_refused(here: Path) -> None:
    with raises("data.needs_object"):
        small_sweep(torch.utils.data.TensorDataset(torch.zeros(1)), {"lr": [1]})  # type: ignore[arg-type]


def test_a_folder_that_exists_is_not_overwritten(here: Path) -> None:
    Path("mine").mkdir()
    with raises("config.path_exists"):
        small_sweep(here, {"lr": [1e-3]}, out="mine")


def planned(folder: Path, recipe: vitral.Recipe | None = None) -> SweepFolder:
    """A sweep of one candidate that was not begun."""
    recipe = recipe or vitral.Recipe()
    return create_sweep(folder, SweepPlan(candidates=(Candidate(number=1, settings={"lr": 0.5}, recipe=recipe),)))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a changed setting": lambda plan: plan.write_text(plan.read_text().replace("0.5", "0.6")),
    "no manifest": lambda plan: plan.with_name("manifest.json").unlink(),
    "a manifest of something else": lambda plan: plan.with_name("manifest.json").write_text(
        plan.with_name("manifest.json").read_text().replace("sweep.json", "run.json")
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_sweep_whose_plan_was_changed_is_refused(tmp_path: Path, change: str) -> None:
    folder = planned(tmp_path / "sweep")
    folder.read_plan()
    CHANGES[change](folder.plan)
    with raises("run.record_changed"):
        sweeps.resume_sweep(folder.path)


def test_a_plan_of_the_format_without_a_manifest_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = planned(tmp_path / "sweep")
    folder.plan.write_text(folder.plan.read_text().replace('"format": 2', '"format": 1', 1))
    (folder.path / "manifest.json").unlink()
    with caplog.at_level("INFO", logger="vitral"):
        assert folder.read_plan().candidates[0].settings == {"lr": 0.5}
    assert "unverified" in caplog.text


def test_a_plan_with_recipes_of_an_older_format_is_read(tmp_path: Path) -> None:
    folder = planned(tmp_path / "sweep", vitral.Recipe(task=MaskedPatches()))
    plan = json.loads(folder.plan.read_text())
    older = plan["candidates"][0]["recipe"] | {"format": 4}
    del older["task"]["draws"]
    plan["candidates"][0]["recipe"] = older
    folder.plan.write_text(json.dumps(plan | {"format": 1}))
    (folder.path / "manifest.json").unlink()
    task = folder.read_plan().candidates[0].recipe.task
    assert isinstance(task, MaskedPatches)
    assert task.draws == "by_process"


@pytest.mark.parametrize("linked", ["trials", "log"])
def test_a_trial_is_not_written_through_a_link(tmp_path: Path, linked: str) -> None:
    mine, folder = tmp_path / "mine", tmp_path / "sweep/trials/001"
    mine.mkdir()
    (mine / "kept").write_text("kept")
    if linked == "trials":
        folder.parent.parent.mkdir()
        folder.parent.symlink_to(mine)
    else:
        folder.parent.mkdir(parents=True)
        folder.with_name("001.log").symlink_to(mine / "kept")
    candidate = Candidate(number=1, settings={}, recipe=vitral.Recipe())
    with raises("file.is_link" if linked == "trials" else "file.write_failed"):
        processes._start(Trial(candidate, 0, 0, 1.0, RunFolder(folder)))
    assert [path.name for path in mine.iterdir()] == ["kept"]
    assert (mine / "kept").read_text() == "kept"


def test_models_are_compared_on_images_held_out_of_the_training_images(here: Path) -> None:
    (here / "val").rename(here / "test")
    done = small_sweep(here, {"lr": [1e-3]})
    rows = (done.path / done.result.trials[0].run / "split.csv").read_text().splitlines()[1:]
    assert sum(row.endswith(",val") for row in rows) == 2  # one in ten of each class, at least one
    assert sum(row.endswith(",test") for row in rows) == 8


@pytest.mark.slow
def test_a_stopped_sweep_goes_on_where_it_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    over = {"lr": [1e-5, 1e-3, 3e-3]}
    whole = small_sweep(here, over, out="whole")

    def stop_after_one(trials: Iterable[Trial], jobs: int, on_end: Ended, on_wait: Any) -> None:
        train_here(list(trials)[:1], jobs, on_end, on_wait)
        raise StopSweep(signal.SIGTERM)

    monkeypatch.setattr(sweeps, "run_trials", stop_after_one)
    stopped = small_sweep(here, over, out="stopped")
    assert (stopped.signal, len(stopped.result.trials), stopped.result.missing) == (signal.SIGTERM, 1, 2)
    assert stopped.summary()[-1] == "vitral sweep --resume stopped"
    monkeypatch.setattr(sweeps, "run_trials", train_here)
    assert without_times(sweeps.resume_sweep("stopped").result) == without_times(whole.result)


def test_only_one_process_runs_a_sweep(here: Path) -> None:
    done = small_sweep(here, {"lr": [1e-3]})
    with Lock(done.path), raises("config.run_locked"):
        sweeps.resume_sweep(done.path)


@pytest.mark.slow
def test_a_sweep_that_is_killed_and_resumed_ends_in_the_same_table(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    base = [sys.executable, "-m", "vitral", "sweep"]
    command = [*base, "photos", "--recipe", "small_hundreds", "--over", "lr=1e-5,1e-3,3e-3"]
    command += [f"--set={setting}" for setting in SETTINGS]
    subprocess.run([*command, "--out", "whole"], cwd=tmp_path, check=True)
    killed = subprocess.Popen([*command, "--out", "killed", "--jobs", "1"], cwd=tmp_path, start_new_session=True)
    trials = tmp_path / "killed" / "trials"
    while not any(trials.glob("*/done.json")):
        time.sleep(0.05)
    time.sleep(2)  # the second trial has begun
    os.kill(killed.pid, signal.SIGKILL)  # its trial goes on, and is waited for
    killed.wait()
    subprocess.run([*base, "--resume", "killed"], cwd=tmp_path, check=True)
    tables = [SweepResult.from_json(SweepFolder(tmp_path / name).results.read_text()) for name in ("whole", "killed")]
    assert without_times(tables[0]) == without_times(tables[1])


@pytest.mark.slow
def test_ctrl_c_saves_the_trials_that_run(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    command = [
        sys.executable,
        "-m",
        "vitral",
        "sweep",
        "photos",
        "--recipe",
        "small_hundreds",
        "--over",
        "lr=1e-5,3e-3",
    ]
    command += [f"--set={setting}" for setting in [*SETTINGS, "epochs=3000"]]
    process = subprocess.Popen([*command, "--out", "out"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while len(list(tmp_path.glob("out/trials/*/metrics.jsonl"))) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "vitral sweep --resume out" in said
    assert len(list(tmp_path.glob("out/trials/*/checkpoints/step-*"))) >= 2

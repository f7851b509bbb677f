"""An experiment from end to end: it is stopped and killed, goes on, and ends in the same table."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitral
from tests.errors import raises
from tests.experiments.toy import CHAIN, PAIR, TOY, toy_photos, train_one
from tests.runs.small import StopAfterEachStep
from vitral.experiments import paper as module
from vitral.experiments.experiment import Cell
from vitral.experiments.folder import Request, create_experiment, default_path
from vitral.experiments.measures import Measured, accuracy
from vitral.experiments.results import ExperimentResult
from vitral.experiments.runner import RATE_SEED
from vitral.runs import train as train_module
from vitral.runs.folder import is_finished
from vitral.runs.sweeps import sweep as sweeps
from vitral.runs.sweeps.folder import Trial
from vitral.runs.sweeps.processes import StopSweep

Runner = Callable[[Sequence[Trial], int, Any, Any], None]


def train_here(trials: Sequence[Trial], jobs: int, on_end: Any, on_wait: Any) -> None:
    for trial in trials:
        train_one(trial)
        on_end(trial)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder with photos to work in, where runs are trained in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "run_trials", train_here)
    monkeypatch.setattr(module, "get_experiment", {"toy": TOY, "chain": CHAIN}.__getitem__)
    return str(toy_photos(tmp_path / "photos"))


def without_times(result: ExperimentResult) -> dict[str, Any]:
    found = json.loads(result.to_json())
    found.pop("finished")
    for each in [*found["cells"], *found["rates"]]:
        each.pop("cpu_seconds")
    return found


def test_arms_are_compared_with_rates_that_were_chosen_on_held_out_images(
    here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, int]] = []

    def count(cell: Cell) -> Measured:
        measured.append((cell.arm.name, cell.seed))
        return accuracy(cell)

    monkeypatch.setattr(module, "get_experiment", lambda name: replace(TOY, measure=count))
    done = vitral.paper("toy", data=here)
    result = done.result
    assert [each.arm for each in result.arms] == ["one layer", "two layers"]
    assert {(each.arm, each.rate) for each in result.rates} == {
        (arm, rate) for arm in ("one layer", "two layers") for rate in (1e-3, 3e-3)
    }
    for arm in result.arms:
        tried = {each.rate: each.value or 0.0 for each in result.rates if each.arm == arm.arm}
        assert tried[arm.rate] == max(tried.values())
        cells = [each for each in result.cells if each.arm == arm.arm]
        assert [each.seed for each in cells] == [RATE_SEED + 1, RATE_SEED + 2]
        assert arm.values == tuple(each.values["accuracy"] for each in cells)
        assert all(each.values["images"] == 12 and each.rate == arm.rate for each in cells)
        assert all(each.cpu_seconds > 0 and each.code.version == vitral.__version__ for each in cells)
    assert (result.arms[0].paper, result.arms[1].paper) == (0.5, None)
    assert result.verdict in {"undecided", "invalid"}  # of two seeds
    assert ExperimentResult.from_json(done.folder.results.read_text()) == result
    assert done.folder.figure.read_bytes().startswith(b"\x89PNG")
    assert str(result) == done.folder.table.read_text().rstrip("\n")
    again = vitral.paper("toy", resume=True)
    assert without_times(again.result) == without_times(result)
    assert len(measured) == len(set(measured)) == 4  # test images are used once


def test_an_experiment_that_is_stopped_between_and_inside_runs_ends_in_the_same_table(
    here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = vitral.paper("chain", data=here, out="whole")

    def stop(count: int, inside: bool) -> Runner:
        def run(trials: Sequence[Trial], jobs: int, on_end: Any, on_wait: Any) -> None:
            if not trials:
                return
            train_here(trials[:count], jobs, on_end, on_wait)
            if inside and trials[count:]:
                with monkeypatch.context() as patch:
                    patch.setattr(train_module, "SignalHandler", StopAfterEachStep)
                    train_one(trials[count])
            raise StopSweep(signal.SIGTERM)

        return run

    monkeypatch.setattr(sweeps, "run_trials", stop(1, inside=True))
    stopped = vitral.paper("chain", data=here, out="stopped")
    assert (stopped.signal, len(stopped.result.cells)) == (signal.SIGTERM, 0)
    assert stopped.summary()[-1] == "vitral paper chain --scale tiny --resume --out stopped"
    for count in (0, 2, 1, 0):
        monkeypatch.setattr(sweeps, "run_trials", stop(count, inside=count == 1))
        stopped = vitral.paper("chain", out="stopped", resume=True)
    monkeypatch.setattr(sweeps, "run_trials", train_here)
    resumed = vitral.paper("chain", out="stopped", resume=True)
    assert without_times(resumed.result) == without_times(whole.result)
    assert resumed.folder.table.read_text().splitlines()[:9] == whole.folder.table.read_text().splitlines()[:9]
    runs = {(each.arm, each.seed): resumed.path / each.run for each in resumed.result.cells}
    for seed in (1, 2):  # an arm starts from the weights of its own seed
        recipe = json.loads((runs["fine-tuned", seed] / "recipe.json").read_text())
        assert recipe["weights"] == os.path.abspath(runs["start", seed] / "best")
    assert {arm.arm for arm in resumed.result.arms} == {"from scratch", "fine-tuned"}
    assert all(each.values == {} for each in resumed.result.cells if each.arm == "start")


def test_a_run_that_fails_stops_the_experiment_and_names_its_log(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trials: Sequence[Trial], jobs: int, on_end: Any, on_wait: Any) -> None:
        for trial in trials:
            trial.log_file.parent.mkdir(parents=True, exist_ok=True)
            trial.log_file.write_text("error[machine.out_of_memory]: not enough memory\n")

    monkeypatch.setattr(sweeps, "run_trials", fail)
    with raises("run.trial_failed", "machine.out_of_memory", ".log"):
        vitral.paper("chain", data=here)


def test_what_does_not_fit_is_refused_before_any_training(here: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with raises("config.unknown_name", "huge"):
        vitral.paper("toy", scale="huge")
    with raises("config.missing_value", "--data"):
        vitral.paper("toy", scale="full")
    with raises("config.not_found"):
        vitral.paper("toy", resume=True)
    create_experiment(default_path("toy", "tiny"), Request(name="toy", scale="tiny", data=here))
    with raises("config.path_exists", "--resume"):
        vitral.paper("toy", data=here)
    with raises("config.conflict", "scale"):
        vitral.paper("toy", scale="small", out="paper/toy-tiny", resume=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with raises("config.unsupported"):
        vitral.paper("toy", data=here, out="other")


def test_the_threads_of_a_run_are_its_share_of_the_cores_and_part_of_the_request(
    here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "cpu_count", lambda: 4)
    monkeypatch.setattr(module, "run_plan", lambda plan, folder, request, jobs: request)
    vitral.paper("toy", data=here, jobs=2)
    assert vitral.paper("toy", jobs=1, resume=True).threads == 2  # type: ignore[attr-defined]


KILLED = """
import os, signal, sys
from tests.experiments.toy import PAIR, train_one
from vitral.experiments import paper as module
from vitral.runs.callbacks.events import Saved
from vitral.runs.sweeps import sweep

data, out, when = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def run_trials(trials, jobs, on_end, on_wait):
    for trial in trials:
        train_one(trial, [lambda event: die() if when == "inside" and isinstance(event, Saved) else None])
        on_end(trial)
        if when == "between":
            die()

module.get_experiment = {"pair": PAIR}.__getitem__
sweep.run_trials = run_trials
module.paper("pair", data=data, out=out, resume=os.path.exists(out))
"""


def test_an_experiment_that_is_killed_between_and_inside_runs_ends_in_the_same_table(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "get_experiment", {"pair": PAIR}.__getitem__)
    whole = vitral.paper("pair", data=here, out="whole")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for when, finished, begun in (("between", 1, 0), ("inside", 1, 1)):
        command = [sys.executable, "-c", KILLED, here, "killed", when]
        assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == -signal.SIGKILL
        runs = {each.parents[1] for each in tmp_path.glob("killed/cells/trials/*/checkpoints/step-*")}
        done = sum(is_finished(str(run)) for run in runs)
        assert (done, len(runs) - done) == (finished, begun)
    killed = vitral.paper("pair", out="killed", resume=True)
    assert without_times(killed.result) == without_times(whole.result)
    assert [len(arm.values) for arm in killed.result.arms] == [1, 1]
    table = [result.folder.table.read_text().splitlines()[:6] for result in (whole, killed)]
    assert table[0] == table[1]

"""Trackers: what TensorBoard, an offline wandb and a local MLflow store hold after a run, a stop and a failure."""

import json
import logging
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import vitral
from tests.errors import raises
from tests.processes import run_forked
from tests.runs.small import StopAfterEachStep, begin, content, photos
from vitral.core.imports import load_mlflow, load_wandb
from vitral.runs import train as start
from vitral.runs.callbacks import trackers
from vitral.runs.callbacks.trackers import SafeTracker, flatten, open_trackers, read_ids
from vitral.training.metrics import read_metrics

ROOT = Path(__file__).parents[3]
STEPS = 12


@pytest.fixture
def home(tmp_path: Path) -> Path:
    photos(tmp_path / "photos")
    return tmp_path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of a local MLflow store, which the tracker uses too."""
    mlflow = load_mlflow()
    for name, value in {"TRACKING_URI": f"file:{tmp_path / 'mlruns'}", "ALLOW_FILE_STORE": "true"}.items():
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    return mlflow.MlflowClient()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    wandb = load_wandb()
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    wandb.teardown()  # ends its process


def history(store: Any, run: str, name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in store.get_metric_history(run, name)]


def expected(folder: Path, split: str, name: str) -> list[tuple[int, float]]:
    return [(line.step, line.values[name]) for line in read_metrics(folder) if line.split == split]


def offline_records(run: Path) -> list[Any]:
    """The records of all sessions of an offline wandb run, in order."""
    import_module("wandb").teardown()  # its process writes on after a run is finished
    pb = import_module("wandb.proto.wandb_internal_pb2")
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    return [pb.Record.FromString(data) for file in files for data in leveldb_records(file.read_bytes())]


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """The records of a log of LevelDB, in blocks of 32 KiB, after the seven bytes of wandb's own header."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block that has no room for a header
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def logged(records: list[Any], name: str) -> list[tuple[int, float]]:
    found = []
    for record in records:
        values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        if name in values:
            found.append((values["_step"], values[name]))
    return found


def test_mlflow_has_the_metrics_and_the_recipe_of_a_run(home: Path, store: Any) -> None:
    run = begin(home, tracker="mlflow")
    number = read_ids(home / "run")["mlflow"]
    found = store.get_run(number)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert store.get_experiment(found.info.experiment_id).name == "photos"
    assert found.data.params == {name: value[:500] for name, value in flatten(run.recipe).items()}
    assert found.data.params["optimizer.lr"] == "0.003"
    for split, name in (("train", "loss"), ("train", "rate"), ("val", "accuracy")):
        assert history(store, number, f"{split}/{name}") == expected(home / "run", split, name)
    assert run.evaluation is not None
    assert found.data.metrics["best/accuracy"] == run.evaluation.accuracy.top1


def test_a_resumed_run_continues_its_mlflow_run_and_sends_no_step_twice(
    home: Path, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(home, out="unbroken")
    with monkeypatch.context() as patch:
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        begin(home, tracker="mlflow")
    number = read_ids(home / "run")["mlflow"]
    assert store.get_run(number).info.status == "KILLED"
    store.log_metric(number, "train/loss", 9.0, step=3)  # as if killed after step 3, with a checkpoint of step 1
    vitral.resume(str(home / "run"), tracker="mlflow")
    assert read_ids(home / "run") == {"mlflow": number}
    assert store.get_run(number).info.status == "FINISHED"
    assert [step for step, _ in history(store, number, "train/loss")] == [1, 3, *range(4, STEPS + 1)]
    assert history(store, number, "train/rate") == expected(home / "run", "train", "rate")
    assert len(store.search_runs([store.get_run(number).info.experiment_id])) == 1
    assert content(home / "run") == content(home / "unbroken")


@pytest.mark.usefixtures("offline")
def test_an_offline_wandb_run_has_the_metrics_and_the_recipe(home: Path) -> None:
    run = begin(home, tracker="wandb")
    records = offline_records(home / "run")
    (begun,) = [record.run for record in records if record.HasField("run")][:1]
    assert (begun.run_id, begun.project, begun.display_name) == (read_ids(home / "run")["wandb"], "photos", "run")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert {name: config[name] for name in type(run.recipe).model_fields} == run.recipe.model_dump(mode="json")
    for split, name in (("train", "loss"), ("train", "rate"), ("val", "accuracy")):
        assert logged(records, f"{split}/{name}") == expected(home / "run", split, name)
    summary = {item.key or item.nested_key[0]: item.value_json for each in records for item in each.summary.update}
    assert run.evaluation is not None
    assert json.loads(summary["best/accuracy"]) == run.evaluation.accuracy.top1
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [0]


@pytest.mark.slow
@pytest.mark.usefixtures("offline")
def test_a_resumed_run_continues_its_wandb_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(home, out="unbroken")
    with monkeypatch.context() as patch:
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        begin(home, tracker=["wandb"])
    number = read_ids(home / "run")["wandb"]
    vitral.resume(str(home / "run"), tracker=["wandb"])
    assert read_ids(home / "run") == {"wandb": number}
    records = offline_records(home / "run")
    assert {record.run.run_id for record in records if record.HasField("run")} == {number}
    assert logged(records, "train/loss") == expected(home / "run", "train", "loss")
    assert [record.exit.exit_code for record in records if record.HasField("exit")] == [1, 0]
    assert content(home / "run") == content(home / "unbroken")


@pytest.mark.slow
def test_all_trackers_together_change_no_byte(home: Path, store: Any, offline: None) -> None:
    settings = ("workers=2", "average=ema")
    begin(home, *settings, out="without")
    begin(home, *settings, tracker=["mlflow", "wandb"])
    assert set(read_ids(home / "run")) == {"mlflow", "wandb"}
    assert content(home / "run") == content(home / "without")


def test_a_tracker_that_fails_is_one_warning_and_training_goes_on(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        calls = closed = 0

        def __call__(self, event: vitral.RunEvent) -> None:
            self.calls += 1
            if isinstance(event, vitral.Logged):
                raise ConnectionError("the server\nis gone")

        def close(self) -> None:
            self.closed += 1
            raise ConnectionError("still")

    begin(home, out="without")
    failing = Failing()
    assert begin(home, tracker=failing).step == STEPS
    assert content(home / "run") == content(home / "without")
    assert failing.closed == 1
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [("Failing" in record.message, "the server is gone" in record.message) for record in warned] == [(1, 1)]
    assert failing.calls == 3  # Started, Saved, Logged


def test_an_mlflow_server_that_cannot_be_reached_is_one_warning(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # the port of discard: nobody answers
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert begin(home, "steps=2", tracker="mlflow").step == 2
    assert [record.message.partition(" ")[0] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "mlflow"
    ]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_missing_is_an_error_before_a_folder_is_made(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda package: None if package == name else find_spec(package))
    with raises("config.missing_package", "tracker", name) as caught:
        begin(home, tracker=name)
    assert caught.value.hint.startswith("pip install ")
    assert not (home / "run").exists()


@pytest.mark.parametrize("uri", ["", "sqlite:///runs.db"])
def test_mlflow_without_a_database_says_how_to_do_without(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(trackers, "find_spec", lambda package: None if package == "sqlalchemy" else "there")
    with raises("config.missing_package", "tracker", "MLFLOW_TRACKING_URI"):
        open_trackers("mlflow")


def test_an_unknown_tracker_is_named(home: Path) -> None:
    with raises("config.unknown_name", "tracker", "wandbb") as caught:
        begin(home, tracker=["wandbb"])
    assert "wandb" in caught.value.hint
    with raises("config.unknown_name", "tracker"):
        vitral.resume("nowhere", tracker="nothing")


def test_no_service_is_imported_or_contacted_unless_it_is_named(home: Path) -> None:
    names = [name for name in ("tensorboard",) if find_spec(name)]
    assert [tracker.name for tracker in open_trackers(())] == names
    code = "import sys; from vitral.runs.callbacks.trackers import open_trackers; "
    code += "named = sys.argv[1:]; [each.close() for each in open_trackers(named)]; "
    code += "assert not {'tensorboard', 'torch.utils.tensorboard', 'wandb', 'mlflow'} & set(sys.modules)"
    installed = [name for name in ("wandb",) if find_spec(name)]
    for given in ([], installed):
        done = run_forked(*given, code=code, cwd=ROOT)
        assert done.returncode == 0, done.stderr


def test_a_tracker_is_used_once() -> None:
    class Mine:
        def __call__(self, event: vitral.RunEvent) -> None: ...

        def close(self) -> None: ...

    assert [each.name for each in open_trackers(Mine()) if each.name != "tensorboard"] == ["Mine"]
    assert all(isinstance(each, SafeTracker) for each in open_trackers(["", Mine()]))


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_shows_a_resumed_run_as_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    with monkeypatch.context() as patch:
        patch.setattr(start, "SignalHandler", StopAfterEachStep)
        begin(home)
    vitral.resume(str(home / "run"))
    found = reader.EventAccumulator(str(home / "run/tensorboard")).Reload()
    for split in ("train", "val"):
        shown = {event.step: event.value for event in found.Scalars(f"loss/{split}")}
        assert shown == pytest.approx(dict(expected(home / "run", split, "loss")))


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_hides_the_steps_that_are_taken_again(tmp_path: Path) -> None:
    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    recipe = vitral.Recipe()
    for first, steps, value in ((0, (1, 2, 3), 1.0), (1, (2,), 20.0)):
        board = trackers.TensorBoard()
        board(vitral.Started(tmp_path, recipe, first, 3))
        for step in steps:
            board(vitral.Logged(step, 0.0, {"loss": value * step}))
        board.close()
    found = reader.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in found.Scalars("loss/train")] == [(1, 1.0), (2, 40.0)]

"""Trackers: callbacks that send the metrics of a run to TensorBoard, Weights & Biases or MLflow.

A tracker never stops a run: after its first failure there is one warning, and training goes on without it. Only
trackers that were named are contacted; TensorBoard, which only writes to the run folder, is used wherever it is
installed. The ids that a service knows the run by are in trackers.json, so that a resumed run continues there.
"""

import json
import logging
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vitral.core.config import Config
from vitral.core.documents import parse_json
from vitral.core.errors import ConfigError, suggest_choice
from vitral.core.files import read_file
from vitral.core.imports import load_mlflow, load_tensorboard, load_wandb
from vitral.core.storage import STORAGE, refuse_link
from vitral.runs.callbacks.events import Evaluated, Finished, Logged, RunEvent, Started, Tracker, TrackerLike
from vitral.runs.folder import data_name
from vitral.training.metrics import TRAIN

log = logging.getLogger("vitral")
IDS_FILE = "trackers.json"
SEND_SECONDS = 5.0  # between two requests to an MLflow server
MAX_METRICS, MAX_PARAMS = 1000, 100  # in one request to it
MAX_PARAM = 500  # letters of a parameter


class TensorBoard:
    """Writes scalars to `tensorboard/` in the run folder. The package, which takes 1 s, is imported with the first."""

    def __init__(self) -> None:
        _require("tensorboard", "pip install 'vitral[tracking]'")
        self._folder, self._step = Path(), 0
        self._writer: Any = None

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started(path=path, step=step):
                self._folder, self._step = path / "tensorboard", step
                refuse_link(self._folder)
            case Logged() | Evaluated():
                if self._writer is None:  # scalars of later steps, which are taken again, are hidden
                    self._writer = load_tensorboard().SummaryWriter(str(self._folder), purge_step=self._step + 1)
                for name, value in event.metrics.items():
                    self._writer.add_scalar(f"{name}/{_split(event)}", value, event.step)
                self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class Wandb:
    """Sends metrics to Weights & Biases, with the recipe as the config of the run. `WANDB_MODE=offline` is respected.

    The project is named after the data, unless `WANDB_PROJECT` names another.
    """

    def __init__(self) -> None:
        _require("wandb", "pip install wandb")
        self._run: Any = None
        self._exit_code = 1

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                self._start(event)
            case Logged() | Evaluated():
                values = {f"{_split(event)}/{name}": value for name, value in event.metrics.items()}
                self._run.log({"epoch": event.epoch, **values}, step=event.step)
            case Finished():
                self._run.summary.update({f"best/{name}": value for name, value in event.metrics.items()})
                self._exit_code = 0

    def _start(self, event: Started) -> None:
        wandb = load_wandb()
        known = read_ids(event.path)
        # Chosen here, not by the service, so that it is on disk before the service knows it.
        number = known.get("wandb") or secrets.token_hex(4)
        write_ids(event.path, {**known, "wandb": number})
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or re.sub(r"[/\\#?%:]", "-", data_name(event.recipe.data.path)),
            name=event.path.name,
            id=number,
            resume="allow",
            dir=os.environ.get("WANDB_DIR") or str(event.path),
            config=event.recipe.model_dump(mode="json"),
            reinit="create_new",  # leaves a run of the caller alone
            settings=wandb.Settings(console="off", silent=True),
        )
        # The files of an offline run are in FOLDER/files.
        upload = f"offline; to upload the run: wandb sync {shlex.quote(str(Path(self._run.dir).parent))}"
        log.info(f"wandb: {upload if self._run.offline else self._run.url}")

    def close(self) -> None:
        if self._run is not None:
            self._run.finish(exit_code=self._exit_code)  # 1 for a run that was stopped or failed
            self._run = None


class Mlflow:
    """Sends metrics to the MLflow server or store of `MLFLOW_TRACKING_URI`, with the recipe as parameters.

    The experiment is named after the data, unless `MLFLOW_EXPERIMENT_NAME` names another.
    """

    def __init__(self) -> None:
        _require("mlflow", "pip install mlflow, or mlflow-skinny")
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        if (not uri or uri.startswith("sqlite:")) and find_spec("sqlalchemy") is None:
            message = "mlflow-skinny has no database, which MLflow uses where MLFLOW_TRACKING_URI names no server"
            hint = "pip install mlflow, or set MLFLOW_TRACKING_URI to a server, or to a folder such as file:./mlruns"
            raise ConfigError(message, code="config.missing_package", where="tracker", hint=hint)
        self._client: Any = None
        self._metric: Any = None
        self._run = ""
        self._status = "KILLED"
        self._sent: dict[str, int] = {}  # the last step of each metric
        self._pending: list[Any] = []
        self._sent_at = 0.0

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                self._start(event)
            case Logged() | Evaluated():
                values = {f"{_split(event)}/{name}": value for name, value in event.metrics.items()}
                self._add(event.step, {"epoch": event.epoch, **values})
                if isinstance(event, Evaluated) or time.monotonic() - self._sent_at >= SEND_SECONDS:
                    self._send()
            case Finished():
                self._add(event.step, {f"best/{name}": value for name, value in event.metrics.items()})
                self._status = "FINISHED"

    def _start(self, event: Started) -> None:
        mlflow = load_mlflow()
        self._client, self._metric = mlflow.MlflowClient(), mlflow.entities.Metric
        known = read_ids(event.path)
        self._run = known.get("mlflow", "") or self._create(event, mlflow.entities.Param)
        write_ids(event.path, {**known, "mlflow": self._run})
        self._client.update_run(self._run, status="RUNNING")
        # Steps that are taken again after a stop have the same values, and are not sent twice.
        for name in self._client.get_run(self._run).data.metrics:
            self._sent[name] = max(point.step for point in self._client.get_metric_history(self._run, name))
        log.info(f"mlflow: run {self._run} of {mlflow.get_tracking_uri()}")

    def _create(self, event: Started, param: Callable[[str, str], Any]) -> str:
        """The id of a new run that has the recipe as its parameters."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or data_name(event.recipe.data.path)
        experiment = self._client.get_experiment_by_name(name)
        home = experiment.experiment_id if experiment else self._client.create_experiment(name)
        run = str(self._client.create_run(home, run_name=event.path.name).info.run_id)
        params = [param(key, value[:MAX_PARAM]) for key, value in flatten(event.recipe).items()]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run, params=params[first : first + MAX_PARAMS])
        return run

    def _add(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        for name, value in values.items():
            if step > self._sent.get(name, -1):
                self._sent[name] = step
                self._pending.append(self._metric(name, value, now, step))

    def _send(self) -> None:
        for first in range(0, len(self._pending), MAX_METRICS):
            self._client.log_batch(self._run, metrics=self._pending[first : first + MAX_METRICS])
        self._pending.clear()
        self._sent_at = time.monotonic()

    def close(self) -> None:
        if self._run:
            self._send()
            self._client.set_terminated(self._run, status=self._status)
            self._run = ""


TRACKERS: dict[str, Callable[[], Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": Mlflow}


class SafeTracker:
    """A tracker that is not called again after it has failed, which is one warning."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self.name, self.tracker = name, tracker
        self._failed = False

    def __call__(self, event: RunEvent) -> None:
        self._try(lambda: self.tracker(event))

    def close(self) -> None:
        """Close the tracker, even one that has failed: it may hold connections."""
        self._try(self.tracker.close, always=True)

    def _try(self, action: Callable[[], None], always: bool = False) -> None:
        if self._failed and not always:
            return
        try:
            action()
        except Exception as error:  # each package has its own error classes
            if not self._failed:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                log.warning(f"{self.name} failed, and training continues without it: {reason}")
            self._failed = True


def open_trackers(given: TrackerLike) -> list[SafeTracker]:
    """The trackers of a run: those given by name or as objects, and TensorBoard where it is installed.

    A package that is missing is an error here, before anything is trained; nothing is imported or contacted yet.
    """
    chosen: list[str | Tracker] = [given] if isinstance(given, str) or callable(given) else list(given)
    named = dict.fromkeys(tracker for tracker in chosen if isinstance(tracker, str) and tracker)
    if "tensorboard" not in named and find_spec("tensorboard"):
        named["tensorboard"] = None
    for name in named:
        if name not in TRACKERS:
            hint = suggest_choice(name, TRACKERS)
            raise ConfigError(f"unknown tracker {name!r}", code="config.unknown_name", where="tracker", hint=hint)
    objects = [SafeTracker(type(tracker).__name__, tracker) for tracker in chosen if not isinstance(tracker, str)]
    return [*(SafeTracker(name, TRACKERS[name]()) for name in named), *objects]


def read_ids(folder: Path) -> dict[str, str]:
    """The id of a run in each service that it was sent to."""
    try:
        return dict(parse_json(read_file(folder / IDS_FILE)))
    except FileNotFoundError:
        return {}


def write_ids(folder: Path, ids: Mapping[str, str]) -> None:
    """Write trackers.json."""
    STORAGE.replace_file(folder / IDS_FILE, json.dumps(ids, indent=2).encode())


def flatten(config: Config) -> dict[str, str]:
    """Every setting of a config by its path: `{"optimizer.lr": "0.001"}`."""
    found: dict[str, str] = {}

    def visit(path: str, value: object) -> None:
        if isinstance(value, dict) and value:
            for name, inner in value.items():
                visit(f"{path}.{name}" if path else name, inner)
        else:
            found[path] = value if isinstance(value, str) else json.dumps(value)

    visit("", config.model_dump(mode="json"))
    return found


def _split(event: Logged | Evaluated) -> str:
    return event.split if isinstance(event, Evaluated) else TRAIN


def _require(package: str, hint: str) -> None:
    if find_spec(package) is None:
        message = f"{package} is not installed"
        raise ConfigError(message, code="config.missing_package", where="tracker", hint=hint)

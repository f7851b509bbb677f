"""The record of a run and the table that is drawn from it."""

import csv
import json
import math
import os
import resource
import shutil
import signal
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

from tests.errors import raises
from tests.training.scenes import kill, until
from vitral.core.storage import Storage
from vitral.data.loading.shared_memory import FORK
from vitral.training.metrics import MetricsLine, MetricsLog, read_metrics, results_csv

EPOCH = 4  # steps


def train_line(step: int) -> MetricsLine:
    return MetricsLine(step, step / EPOCH, "train", {"loss": 2.0 / step, "accuracy": step / 100, "rate": 0.001 * step})


def val_line(step: int, split: str = "val") -> MetricsLine:
    return MetricsLine(step, step / EPOCH, split, {"loss": 3.0 / step, "accuracy": step / 50})


def session(folder: Path, start: int, stop: int) -> None:
    """Steps from one to another of a run that notes every second step and evaluates after each epoch."""
    metrics = MetricsLog(folder)
    metrics.truncate(start)
    for step in range(start + 1, stop + 1):
        if step % 2 == 0:
            metrics.add(train_line(step))
        if step % EPOCH == 0:
            metrics.add(val_line(step))
    metrics.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "results.csv")}


def test_lines_have_the_agreed_form(tmp_path: Path) -> None:
    metrics = MetricsLog(tmp_path)
    metrics.add(MetricsLine(50, 50 / 94, "train", {"loss": 2.0999999046325684, "accuracy": 0.31, "rate": 0.0005}))
    metrics.add(MetricsLine(94, 1.0, "val", {"loss": 1.7, "accuracy": 0.41}))
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 50, "epoch": 0.5319149, "split": "train", "loss": 2.1, "accuracy": 0.31, "rate": 0.0005}\n'
        '{"step": 94, "epoch": 1.0, "split": "val", "loss": 1.7, "accuracy": 0.41}\n'
    )


def test_what_was_added_is_what_is_read_later(tmp_path: Path) -> None:
    metrics = MetricsLog(tmp_path)
    assert metrics.lines() == []
    added = [train_line(2), train_line(4), val_line(4)]
    for line in added:
        metrics.add(line)
    assert metrics.lines() == read_metrics(tmp_path) == MetricsLog(tmp_path).lines()
    for line, found in zip(added, read_metrics(tmp_path), strict=True):
        assert found[:3] == line[:3]
        assert found.values == pytest.approx(line.values, rel=1e-6)
    assert read_metrics(tmp_path / "none") == []


def test_a_number_that_is_none_is_kept(tmp_path: Path) -> None:
    MetricsLog(tmp_path).add(MetricsLine(1, 0.5, "val", {"loss": math.nan}))
    assert math.isnan(read_metrics(tmp_path)[0].values["loss"])


@pytest.mark.parametrize("stop", [0, 1, 3, 4, 5, 8, 12])
@pytest.mark.parametrize("behind", [0, 3])
def test_a_run_stopped_anywhere_and_resumed_from_an_earlier_step_ends_with_the_same_bytes(
    tmp_path: Path, stop: int, behind: int
) -> None:
    for name in ("unbroken", "resumed"):
        (tmp_path / name).mkdir()
    session(tmp_path / "unbroken", 0, 12)
    session(tmp_path / "resumed", 0, stop)
    with (tmp_path / "resumed/metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 1')
    session(tmp_path / "resumed", max(0, stop - behind), 12)
    assert contents(tmp_path / "resumed") == contents(tmp_path / "unbroken")
    assert sorted(os.listdir(tmp_path / "resumed")) == sorted(os.listdir(tmp_path / "unbroken"))


def cutting(folder: Path) -> Callable[[Storage], None]:
    return lambda disk: MetricsLog(folder, disk).truncate(6)


def test_a_kill_at_any_instant_of_a_cut_leaves_all_lines_or_those_that_stay(tmp_path: Path) -> None:
    seen = set()
    (tmp_path / "whole").mkdir()
    session(tmp_path / "whole", 0, 12)
    for stop in range(9):
        folder = tmp_path / str(stop)
        shutil.copytree(tmp_path / "whole", folder)
        process = FORK.Process(target=until, args=(stop, kill, cutting(folder)))
        process.start()
        process.join()
        assert process.exitcode in {0, -signal.SIGKILL}
        steps = [line.step for line in read_metrics(folder)]
        assert steps in ([2, 4, 4, 6], [2, 4, 4, 6, 8, 8, 10, 12, 12])
        seen.add((process.exitcode, len(steps)))
        session(folder, 6, 12)
        assert contents(folder) == contents(tmp_path / "whole")
    assert seen == {(-signal.SIGKILL, 9), (-signal.SIGKILL, 4), (0, 4)}


def test_the_table_has_a_row_for_each_evaluation_and_the_mean_of_training_since_the_one_before() -> None:
    lines = [train_line(1), train_line(2), val_line(2), train_line(3), train_line(5), train_line(7), val_line(7)]
    assert results_csv(lines) == (
        "epoch,step,train_loss,train_accuracy,val_loss,val_accuracy,rate\n"
        "0.5,2,1.5,0.015,1.5,0.04,0.002\n"
        "1.75,7,0.4507937,0.05,0.42857142857142855,0.14,0.007\n"
    )


def test_the_table_leaves_empty_what_was_not_measured() -> None:
    lines = [val_line(1), MetricsLine(2, 0.5, "train", {"loss": 4.0}), MetricsLine(3, 0.75, "val", {"loss": 1.0})]
    rows = list(csv.DictReader(StringIO(results_csv(lines))))
    assert [row["train_loss"] for row in rows] == ["", "4.0"]
    assert [row["val_accuracy"] for row in rows] == ["0.02", ""]
    assert results_csv([]) == results_csv([train_line(1)]) == "epoch,step\n"


def test_two_splits_evaluated_after_one_step_share_a_row() -> None:
    (row,) = csv.DictReader(StringIO(results_csv([train_line(1), val_line(4), val_line(4, "test")])))
    assert (row["train_loss"], row["val_loss"], row["test_loss"]) == ("2.0", "0.75", "0.75")


def test_the_table_is_up_to_date_after_each_evaluation(tmp_path: Path) -> None:
    metrics = MetricsLog(tmp_path)
    metrics.add(train_line(2))
    assert not (tmp_path / "results.csv").exists()
    metrics.add(val_line(4))
    assert (tmp_path / "results.csv").read_text() == results_csv(metrics.lines())
    metrics.add(val_line(8))
    metrics.truncate(4)
    assert (tmp_path / "results.csv").read_text().count("\n") == 2


@pytest.mark.parametrize(
    "bad", [{"step": 1}, {}, {"step": "x", "epoch": 1, "split": "val"}, {"step": 1, "epoch": 1, "split": "a", "b": []}]
)
def test_a_line_that_is_no_measurement_is_named(tmp_path: Path, bad: dict[str, object]) -> None:
    MetricsLog(tmp_path).add(train_line(1))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(bad) + "\n")
    with raises("run.bad_log") as caught:
        MetricsLog(tmp_path)
    assert caught.value.where == f"{tmp_path}/metrics.jsonl:2"


def _limited(folder: Path) -> None:
    metrics = MetricsLog(folder)
    for step in (4, 8):
        metrics.add(val_line(step))
    before = contents(folder)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
    with raises("file.write_failed", "metrics.jsonl", "ulimit") as caught:
        metrics.truncate(8)  # no line goes, so the table alone is written
    assert caught.value.where == f"{folder}/results.csv.tmp"
    assert contents(folder) == before
    assert not (folder / "results.csv.tmp").exists()


def test_a_table_that_cannot_be_written_leaves_the_old_one_and_the_record_whole(tmp_path: Path) -> None:
    process = FORK.Process(target=_limited, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0

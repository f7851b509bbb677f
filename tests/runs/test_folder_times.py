"""Times of sessions, kept apart from what a run finds."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch

from vitral.runs.folder import TimeLog, TimeRecord, read_times, total_cpu_seconds, total_seconds, utc_now

CPU = torch.device("cpu")


def moment(started: str, seconds: float) -> TimeRecord:
    return TimeRecord(step=1, seconds=seconds, images=2, started=started, peak_memory=3, threads=4, processes=5)


def test_a_line_has_the_agreed_fields(tmp_path: Path) -> None:
    times = TimeLog(tmp_path, 2, CPU)
    added = times.add(94, 6016)
    times.close()
    (line,) = (tmp_path / "times.jsonl").read_text().splitlines()
    names = ["step", "seconds", "images", "started", "peak_memory", "threads", "processes", "cpu_seconds"]
    assert list(json.loads(line)) == names
    assert read_times(tmp_path) == [added]
    assert (added.step, added.images, added.processes, added.threads) == (94, 6016, 2, torch.get_num_threads())
    assert added.peak_memory > 10_000_000


def test_seconds_count_from_the_start_of_the_session(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    times = TimeLog(tmp_path, 1, CPU)
    first, second = times.add(1, 1), times.add(2, 2)
    assert 0 <= first.seconds <= second.seconds <= times.seconds() + 0.001
    assert first.started == second.started == times.started
    assert abs(datetime.fromisoformat(first.started) - before) < timedelta(seconds=5)


def test_sessions_follow_each_other_in_one_file(tmp_path: Path) -> None:
    for step in (1, 2):
        TimeLog(tmp_path, 1, CPU).add(step, step)
    assert [found.step for found in read_times(tmp_path)] == [1, 2]
    assert read_times(tmp_path / "none") == []


def test_the_time_of_all_sessions_counts_each_up_to_its_last_moment() -> None:
    assert total_seconds([moment("a", 1.5), moment("a", 4.0), moment("b", 2.0), moment("b", 3.0)]) == 7.0
    assert total_seconds([]) == 0


def test_cpu_seconds_are_recorded_and_summed_over_sessions_and_older_runs_have_none(tmp_path: Path) -> None:
    times = TimeLog(tmp_path, 1, CPU)
    sum(range(2_000_000))
    added = times.add(1, 1)
    assert 0.01 < added.cpu_seconds < 60
    again = added.model_copy(update={"started": "b", "cpu_seconds": 2.0})
    assert total_cpu_seconds([added, again]) == added.cpu_seconds + 2
    assert total_cpu_seconds([moment("a", 1.5)]) == 0


def test_now_is_in_utc() -> None:
    assert utc_now().endswith("+00:00")

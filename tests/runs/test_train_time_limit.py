"""Runs with a time limit: they end in time, and what was planned is followed to the bit by those who come after."""

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.errors import raises
from tests.runs.small import SETTINGS, content
from vitral.core.config import parse_settings
from vitral.recipes.recipe import PlannedSteps, load_recipe
from vitral.runs.train import Run, resume, train
from vitral.training.time_limit import read_plan

TIMED = parse_settings([each for each in SETTINGS if each != "epochs=3"])


def begin_timed(home: Path, limit: str, *settings: str) -> Run:
    where, complete = str(home / "photos"), TIMED | parse_settings(settings)
    return train(where, recipe="small_hundreds", settings=complete, out=str(home / "run"), time_limit=limit)


@pytest.mark.parametrize("clock", ["counted_clock", pytest.param("home", id="clock", marks=pytest.mark.slow)])
def test_a_plan_of_steps_for_a_time_limit_can_be_repeated_to_the_bit_but_not_changed(
    home: Path, clock: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(clock)
    started = time.monotonic()
    run = begin_timed(home, "7s")
    assert 4 < time.monotonic() - started < 14  # others may use the machine, too
    assert "s of 7 s  opening the data" in capsys.readouterr().err
    changes = read_plan(run.path)
    assert run.step == run.steps == changes[-1].steps > 12
    assert [change.step for change in changes[:4]] == [0, 2, 4, 8]
    assert all(before.seconds <= after.seconds < 14 for before, after in pairwise(changes))
    length = load_recipe(run.folder.replay).length
    assert isinstance(length, PlannedSteps)
    assert length.changes == tuple(changes)
    again = train(recipe=run.folder.replay, out=str(home / "again"))
    assert again.step == run.step
    assert content(home / "again") == content(home / "run")
    rates = [json.loads(line).get("rate") for line in (home / "run/metrics.jsonl").read_text().splitlines()]
    assert min(rate for rate in rates[-3:] if rate is not None) < 0.2 * max(filter(None, rates))
    path = run.path / "plan.jsonl"
    path.write_text(path.read_text().replace('"steps": 200', '"steps": 201'))
    with raises("run.bad_log", path):
        resume(run.path)
    path.unlink()
    with raises("run.bad_log", path):
        resume(run.path)


@pytest.mark.slow
def test_a_run_with_a_time_limit_that_is_killed_follows_its_plan_when_it_is_resumed(home: Path) -> None:
    child = os.fork()
    if not child:
        begin_timed(home, "60s", "checkpoints.every_seconds=0.2", "average=polyak")
    while len(read_plan(home / "run")) < 6:
        time.sleep(0.02)
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    time.sleep(0.5)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    planned = read_plan(home / "run")
    # As if most of the time had been used: the rest of the run is short.
    text = (home / "run/plan.jsonl").read_text()
    (home / "run/plan.jsonl").write_text(text.replace(f'"seconds": {planned[-1].seconds}', '"seconds": 57.0'))
    run = resume(str(home / "run"))
    assert run.step == run.steps
    assert [(each.step, each.steps) for each in read_plan(run.path)[: len(planned)]] == [
        (each.step, each.steps) for each in planned
    ]
    train(recipe=run.folder.replay, out=str(home / "again"))
    assert content(home / "again") == content(home / "run")


def test_a_limit_that_the_start_uses_up_is_refused_before_a_folder_is_made(home: Path) -> None:
    with raises("config.time_limit_too_short", "time-limit"):
        begin_timed(home, "1s")
    assert not (home / "run").exists()


def test_a_time_limit_and_a_length_are_one_too_many(home: Path) -> None:
    with raises("config.conflict", "time-limit", "epochs"):
        begin_timed(home, "4s", "epochs=3")

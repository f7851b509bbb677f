"""The number of threads of a run is chosen and recorded before its first step, and used again."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.runs.small import begin, content, recipe_and_samples
from vitral.recipes.recipe import load_recipe
from vitral.runs import autotune
from vitral.runs.train import resume, train


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def pretend(monkeypatch: pytest.MonkeyPatch, others: float, one: float, two: float) -> None:
    """So many other threads run, and a trial takes so many seconds with one thread and with two."""
    monkeypatch.setattr(autotune, "other_running_threads", lambda: others)
    monkeypatch.setattr(autotune, "time_threads", lambda *_: {2: two, 1: one})


def test_threads_are_recorded_and_used_again_whatever_is_set_then(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, others=0.0, one=1.0, two=9.0)
    assert begin(home, "steps=2").recipe.threads == 2
    torch.set_num_threads(1)
    assert load_recipe(home / "run/recipe.json").threads == 2
    resume(home / "run")
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    train(recipe=home / "run/recipe.json", out=str(home / "again"))
    assert torch.get_num_threads() == 2
    assert content(home / "again") == content(home / "run")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("one", "threads"), [(1.0, 1), (1.9, 2)], ids=["clearly faster", "hardly faster"])
def test_on_a_busy_machine_a_trial_chooses_the_threads(
    one: float, threads: int, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, others=2.0, one=one, two=2.0)
    with caplog.at_level("INFO", "vitral"):
        assert begin(home, "steps=2").recipe.threads == threads
    assert len([each for each in caplog.messages if f"{1000 * one:.0f} ms with 1" in each]) == 1
    pretend(monkeypatch, others=2.0, one=3.0 - one, two=0.1)  # a resumed run does not try again
    torch.set_num_threads(2)
    resume(home / "run")
    assert torch.get_num_threads() == threads


def test_a_trial_changes_neither_threads_nor_the_run(home: Path) -> None:
    recipe, samples = recipe_and_samples(home / "photos")
    drawn = torch.random.get_rng_state()
    seconds = autotune.time_threads(recipe, samples, [2, 1])
    assert (set(seconds), torch.get_num_threads()) == ({1, 2}, 2)
    assert min(seconds.values()) > 0
    assert torch.equal(torch.random.get_rng_state(), drawn)

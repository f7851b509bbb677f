"""The quickest engine: measured, told, remembered, and measured again where the memory is of no use."""

import logging
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Literal

import numpy as np
import pytest

from tests.deploy.truth import graph, loaded, pixels, truth
from tests.model.variants import small
from vitral.deploy import auto
from vitral.deploy.auto import AutoEngine, Choice, Question, cache_folder, chosen, keep, read
from vitral.deploy.engine import Bytes, Engine, Numbers
from vitral.deploy.engines.kind import EngineKind, Threads
from vitral.deploy.graph import Graph
from vitral.errors import ConfigError


class Clocked:
    def __init__(self, seconds: float, mark: float) -> None:
        self.seconds, self.mark = seconds, mark

    def run(self, pixels: Bytes) -> Numbers:
        sleep(self.seconds)
        return np.full((len(pixels), 4), self.mark, dtype=np.float32)


class Hare(EngineKind):
    kind: Literal["hare"] = "hare"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return Clocked(0.001, 1.0)


class Tortoise(EngineKind):
    kind: Literal["tortoise"] = "tortoise"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return Clocked(0.004, 2.0)


class Snail(EngineKind):
    kind: Literal["snail"] = "snail"

    def check(self, graph: Graph) -> None:
        raise ConfigError("body.blocks.0 is uphill", where="engine")


class Lame(EngineKind):
    kind: Literal["lame"] = "lame"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        raise RuntimeError("out of breath")


@pytest.fixture(autouse=True)
def race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(auto, "TRIED", (Tortoise(), Snail(), Hare()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "vitral")


def question(about: str = "a", threads: int = 1, case: auto.Case = "batches") -> Question:
    return Question(graph(small())[1], about, threads, case)


def test_the_quickest_is_chosen_and_told_with_the_others_and_the_reasons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = chosen(question(), tmp_path)
    assert found.best == "hare"
    assert set(found.seconds) == {"hare", "tortoise"}
    assert 0.0005 / 2 < found.seconds["hare"] < found.seconds["tortoise"]  # of one image; a batch has two a thread
    first, second = (record.message for record in caplog.records)
    assert first.startswith("measuring which engine is quickest for batches")
    assert second.startswith("the engine for batches is hare; tortoise has 0.")
    assert second.endswith("of its speed; snail was passed over (body.blocks.0 is uphill)")


def test_an_engine_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(auto, "TRIED", (Lame(), Tortoise()))
    found = chosen(question(), tmp_path)
    assert (found.best, found.passed_over) == ("tortoise", {"lame": "it failed: out of breath"})
    monkeypatch.setattr(auto, "TRIED", (Lame(), Snail()))
    with pytest.raises(ConfigError, match="no engine can run this model: lame: it failed: out of breath; snail: body"):
        chosen(question(about="b"), tmp_path)


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = chosen(question(), tmp_path)
    monkeypatch.setattr(auto, "measured", None)
    assert chosen(question(), tmp_path) == first


@pytest.mark.parametrize(
    "other",
    [question(about="b"), question(threads=2), question(case="single images")],
    ids=["model", "threads", "case"],
)
def test_something_else_has_a_key_of_its_own(other: Question) -> None:
    assert other.key() != question().key()


@pytest.mark.parametrize("name", ["processor", "version_of"])
def test_another_processor_or_version_is_measured_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = question().key()
    monkeypatch.setattr(auto, name, lambda *_: "another")
    assert question().key() != before


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def of_another(path: Path) -> None:
    path.write_text(path.read_text().replace('"key": "', '"key": "0'))


def of_an_engine_that_is_gone(path: Path) -> None:
    path.write_text(path.read_text().replace("hare", "dodo"))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [cut_short, of_another, of_an_engine_that_is_gone, empty, a_folder])
def test_a_damaged_memory_is_told_and_made_again(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen(question(), tmp_path)
    [path] = tmp_path.glob("*.json")
    damage(path)
    caplog.clear()
    assert chosen(question(), tmp_path).best == "hare"
    assert "is damaged, so the engines are measured again" in caplog.records[0].message
    assert damage is a_folder or read(path, question().key()) is not None
    assert not list(tmp_path.glob("*.tmp-*"))


def test_a_disk_that_refuses_is_told_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    keep(tmp_path / "file" / "key.json", Choice(key="key", seconds={"hare": 1.0}, passed_over={}))
    assert "the choice of an engine is not kept for the next time" in caplog.text


def test_each_kind_of_batch_has_an_engine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def best_of(question: Question, folder: Path) -> Choice:
        assert folder == cache_folder()
        best = "tortoise" if question.case == "single images" else "hare"
        return Choice(key="", seconds={best: 1.0}, passed_over={})

    monkeypatch.setattr(auto, "chosen", best_of)
    source, made = graph(small())
    engine = AutoEngine(made, "a")
    engine.settle()
    assert [engine.run(pixels(source, count)).max(initial=0) for count in (1, 2, 5)] == [2.0, 1.0, 1.0]
    assert engine.run(pixels(source, 0)).shape == (0, 4)


@pytest.mark.parametrize("batches", [[1, 30, 1, 1], [40, 1], [31, 1], [32]])
def test_a_few_images_are_answered_at_once_and_more_by_the_quickest(batches: list[int]) -> None:
    source, made = graph(small())
    engine, seen = AutoEngine(made, "a"), 0
    for count in batches:
        images = pixels(source, count)
        expected = truth(source, images) if seen + count < 32 else np.ones((count, 4))  # the mark of the hare
        seen += count
        assert abs(engine.run(images) - expected).max() < 1e-4
    assert cache_folder().exists() == (seen > 31)


def test_the_engines_that_there_are_answer_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(auto, "cache_folder", lambda: Path("/nowhere"))
    monkeypatch.setattr(auto, "ROUNDS", 1)
    source = loaded(small())
    engine = AutoEngine(graph(small())[1], "a")
    engine.settle()
    for count in (1, 3):
        images = pixels(source, count)
        assert abs(engine.run(images) - truth(source, images)).max() < 1e-4


def test_the_cache_is_where_the_user_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache" / "vitral" / "engines"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folder() == Path("/home/somebody/.cache/vitral/engines")

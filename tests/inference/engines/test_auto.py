"""The quickest engine: measured, told, remembered, and measured again where the memory is of no use."""

import gc
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import sleep
from typing import Literal
from weakref import ref

import numpy as np
import pytest

from tests.errors import raises
from tests.inference.truth import graph, loaded, pixels, truth
from tests.models.variants import small
from vitral.core.errors import ConfigError
from vitral.core.imports import load_onnxruntime
from vitral.core.machine import cache_folder
from vitral.inference.engines import auto
from vitral.inference.engines.auto import (
    AutoEngine,
    EngineBuilders,
    EngineChoice,
    Workload,
    choose_engine,
    read_choice,
    save_choice,
)
from vitral.inference.engines.engine import Engine, EngineKind, FloatArray, Lazy, PixelBatch, Threads, kind_of
from vitral.inference.graph.graph import Graph


class Clocked:
    def __init__(self, seconds: float, mark: float) -> None:
        self.seconds, self.mark = seconds, mark

    def run(self, pixels: PixelBatch) -> FloatArray:
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
        raise ConfigError("body.blocks.0 is uphill", code="config.unsupported", where="engine")


class Breathless:
    def run(self, pixels: PixelBatch) -> FloatArray:
        load_onnxruntime().InferenceSession(b"out of breath")  # its errors are no RuntimeErrors
        raise AssertionError


class Lame(EngineKind):
    kind: Literal["lame"] = "lame"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return Breathless()


@pytest.fixture(autouse=True)
def race(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", (Tortoise(), Snail(), Hare()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "vitral")


def question(about: str = "a", threads: int = 1) -> Workload:
    return Workload(graph(small())[1], about, threads)


def choose(folder: Path, about: str = "a") -> EngineChoice:
    asked = question(about)
    built = {kind_of(each): Lazy(partial(each.build, asked.graph)) for each in auto.CANDIDATES}
    return choose_engine(asked, built, folder)


def test_the_quickest_is_chosen_and_told_with_the_others_and_the_reasons(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = choose(tmp_path)
    for case, seconds in found.seconds.items():
        assert found.best(case) == "hare"
        assert set(seconds) == {"hare", "tortoise"}
        assert 0.001 / 2 <= seconds["hare"] < seconds["tortoise"]  # of one image; a batch has two a thread
    first, single, batches, last = caplog.messages
    assert first == "measuring which engine is quickest for this model; this is done once"
    assert single.startswith("the engine for single images is hare; tortoise has 0.")
    assert batches.startswith("the engine for batches is hare; tortoise has 0.")
    assert last == "snail was passed over: body.blocks.0 is uphill"


def test_an_engine_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", (Lame(), Tortoise()))
    found = choose(tmp_path)
    assert found.best("batches") == "tortoise"
    assert found.failed["lame"].startswith("[ONNXRuntimeError]")
    assert found.told()[-1].startswith("lame was passed over, for it failed: [ONNXRuntimeError]")
    assert list(tmp_path.iterdir()) == []  # the next time it may go well
    monkeypatch.setattr(auto, "CANDIDATES", (Lame(), Snail()))
    with raises("config.no_engine", "engine", "snail", "body.blocks.0 is uphill", "lame", "[ONNXRuntimeError]"):
        choose(tmp_path, "b")


def test_what_was_measured_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = choose(tmp_path)
    monkeypatch.setattr(auto, "measure_engines", None)
    caplog.clear()
    assert choose(tmp_path) == first
    assert caplog.messages == ["as measured before, the engine is hare for single images and hare for batches"]


@pytest.mark.parametrize("other", [question(about="b"), question(threads=2)], ids=["model", "threads"])
def test_something_else_has_a_key_of_its_own(other: Workload) -> None:
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
    choose(tmp_path)
    [path] = tmp_path.glob("*.json")
    damage(path)
    caplog.clear()
    assert choose(tmp_path).best("batches") == "hare"
    assert "is damaged, so the engines are measured again" in caplog.records[0].message
    assert damage is a_folder or read_choice(path, question().key()) is not None
    assert not list(tmp_path.glob("*.tmp-*"))


def test_a_disk_that_refuses_is_told_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    save_choice(tmp_path / "file" / "key.json", EngineChoice(key="key", seconds={}, passed_over={}))
    assert "the choice of an engine is not kept for the next time" in caplog.text


def test_each_kind_of_batch_has_an_engine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(question: Workload, built: EngineBuilders, folder: Path) -> EngineChoice:
        assert folder == cache_folder("engines")
        return EngineChoice(
            key="", seconds={"single images": {"tortoise": 1.0}, "batches": {"hare": 1.0}}, passed_over={}
        )

    monkeypatch.setattr(auto, "choose_engine", known)
    source, made = graph(small())
    engine = AutoEngine(made, "a")
    engine.settle()
    assert [engine.run(pixels(source, count)).max(initial=0) for count in (1, 2, 5)] == [2.0, 1.0, 1.0]
    assert engine.run(pixels(source, 0)).shape == (0, 4)


def test_every_engine_is_made_once_and_only_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ref[Clocked]] = []
    build = Clocked.__init__

    def noted(engine: Clocked, seconds: float, mark: float) -> None:
        made.append(ref(engine))
        build(engine, seconds, mark)

    monkeypatch.setattr(Clocked, "__init__", noted)
    source, found = graph(small())
    engine = AutoEngine(found, "a")
    engine.settle()
    for count in (2, 1, 2):
        engine.run(pixels(source, count))
    gc.collect()
    alive = [each() for each in made]
    assert len(alive) == 2
    assert [each.mark for each in alive if each] == [1.0]


@pytest.mark.parametrize("batches", [[1, 30, 1, 1], [40, 1], [31, 1], [32]])
def test_a_few_images_are_answered_at_once_and_more_by_the_quickest(batches: list[int]) -> None:
    source, made = graph(small())
    engine, seen = AutoEngine(made, "a"), 0
    for count in batches:
        images = pixels(source, count)
        expected = truth(source, images) if seen + count < 32 else np.ones((count, 4))  # the mark of the hare
        seen += count
        assert abs(engine.run(images) - expected).max() < 1e-4
    assert cache_folder("engines").exists() == (seen > 31)


def test_the_engines_that_there_are_answer_as_the_model_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(auto, "ROUNDS", 1)
    source = loaded(small())
    engine = AutoEngine(graph(small())[1], "a")
    engine.settle()
    for count in (1, 3):
        images = pixels(source, count)
        assert abs(engine.run(images) - truth(source, images)).max() < 1e-4

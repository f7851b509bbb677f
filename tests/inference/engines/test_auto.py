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
from vitral.inference.engines.engine import BaseEngine, Engine, FloatArray, Lazy, PixelBatch, Threads, kind_of
from vitral.inference.graph.graph import Graph


class Clocked:
    def __init__(self, seconds: float, mark: float) -> None:
        self.seconds, self.mark = seconds, mark

    def run(self, pixels: PixelBatch) -> FloatArray:
        sleep(self.seconds)
        return np.full((len(pixels), 4), self.mark, dtype=np.float32)


class Hare(BaseEngine):
    kind: Literal["hare"] = "hare"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return Clocked(0.001, 1.0)


class Tortoise(BaseEngine):
    kind: Literal["tortoise"] = "tortoise"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return Clocked(0.004, 2.0)


class Snail(BaseEngine):
    kind: Literal["snail"] = "snail"

    def check(self, graph: Graph) -> None:
        raise ConfigError("body.blocks.0 is uphill", code="config.unsupported", where="engine")


class Absent(BaseEngine):
    kind: Literal["absent"] = "absent"

    def check(self, graph: Graph) -> None:
        raise ConfigError("onnx is not installed", code="config.missing_package")


class Breathless:
    def run(self, pixels: PixelBatch) -> FloatArray:
        load_onnxruntime().InferenceSession(b"out of breath")  # its errors are no RuntimeErrors
        raise AssertionError


class Lame(BaseEngine):
    kind: Literal["lame"] = "lame"

    def build(self, graph: Graph, threads: Threads = "torch") -> Engine:
        return Breathless()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", (Tortoise(), Snail(), Hare()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(auto, "load_per_core", lambda: 0.0)
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
    assert "measuring" in first
    assert all("hare; tortoise has 0." in line for line in (single, batches))
    assert all(word in last for word in ("snail", "body.blocks.0 is uphill"))


def test_engines_that_are_not_installed_are_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", (Absent(), Tortoise()))
    assert choose(tmp_path).best("batches") == "tortoise"
    [line] = caplog.messages
    assert "pip install 'vitral[deploy]'" in line
    assert "absent" not in line


def test_an_engine_that_fails_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(auto, "CANDIDATES", (Lame(), Tortoise()))
    found = choose(tmp_path)
    assert found.best("batches") == "tortoise"
    assert found.failed["lame"].startswith("[ONNXRuntimeError]")
    assert found.lines()[-1].startswith("lame failed: [ONNXRuntimeError]")
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
    (message,) = caplog.messages
    assert message.count("hare") == 1  # for single images and for batches


@pytest.mark.parametrize("other", [question(about="b"), question(threads=2)], ids=["model", "threads"])
def test_something_else_has_a_key_of_its_own(other: Workload) -> None:
    assert other.key() != question().key()


@pytest.mark.parametrize("name", ["cpu_name", "package_version"])
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
    assert "is damaged" in caplog.records[0].message
    assert damage is a_folder or read_choice(path, question().key()) is not None
    assert not list(tmp_path.glob("*.tmp-*"))


def test_a_disk_that_refuses_is_told_and_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    save_choice(tmp_path / "file" / "key.json", EngineChoice(key="key", seconds={}, unsupported={}, load=0.0))
    assert "not cached" in caplog.text


def test_each_kind_of_batch_has_an_engine_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(question: Workload, built: EngineBuilders, folder: Path) -> EngineChoice:
        assert folder == cache_folder("engines")
        return EngineChoice(
            key="", seconds={"single images": {"tortoise": 1.0}, "batches": {"hare": 1.0}}, unsupported={}, load=0.0
        )

    monkeypatch.setattr(auto, "choose_engine", known)
    source, made = graph(small())
    engine = AutoEngine(made, "a")
    assert [engine.select(images, size).name for images in (None, 32) for size in (1, 2)] == ["tortoise", "hare"] * 2
    assert engine.name == "auto"
    assert [engine.run(pixels(source, count)).max(initial=0) for count in (1, 2, 5)] == [2.0, 2.0, 2.0]
    assert engine.name == "tortoise", "a stream has one engine"
    assert AutoEngine(made, "a").run(pixels(source, 0)).shape == (0, 4)


def test_every_engine_is_made_once_and_only_the_best_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ref[Clocked]] = []
    build = Clocked.__init__

    def noted(engine: Clocked, seconds: float, mark: float) -> None:
        made.append(ref(engine))
        build(engine, seconds, mark)

    monkeypatch.setattr(Clocked, "__init__", noted)
    source, found = graph(small())
    engine = AutoEngine(found, "a")
    for count in (2, 1, 2):
        engine.run(pixels(source, count))
    gc.collect()
    alive = [each() for each in made]
    assert len(alive) == 2
    assert [each.mark for each in alive if each] == [1.0]


@pytest.mark.parametrize("images", [0, 1, 31])
def test_a_few_images_are_run_at_once_by_torch(images: int) -> None:
    source, made = graph(small())
    name, engine = AutoEngine(made, "a").select(images, 32)
    assert name == "eager"
    assert abs(engine.run(pixels(source, 3)) - truth(source, pixels(source, 3))).max() < 1e-4
    assert not cache_folder("engines").exists()


@pytest.mark.parametrize("images", [None, 32, 1000])
def test_more_images_are_run_by_the_fastest(images: int | None) -> None:
    assert AutoEngine(graph(small())[1], "a").select(images, 32).name == "hare"
    assert cache_folder("engines").exists()


def test_a_choice_of_a_busy_machine_is_measured_again_when_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto, "load_per_core", lambda: 3.0)
    busy = choose(tmp_path)
    assert (busy.load, busy.is_noisy) == (3.0, True)
    assert choose(tmp_path) == busy, "the machine is still busy, so another measurement would be no better"
    monkeypatch.setattr(auto, "load_per_core", lambda: 0.1)
    quiet = choose(tmp_path)
    assert (quiet.load, quiet.is_noisy) == (0.1, False)
    monkeypatch.setattr(auto, "measure_engines", None)
    assert choose(tmp_path) == quiet


def test_the_engines_that_there_are_answer_as_the_model_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(auto, "ROUNDS", 1)
    source = loaded(small())
    engine = AutoEngine(graph(small())[1], "a")
    for count in (1, 3):
        images = pixels(source, count)
        assert abs(engine.run(images) - truth(source, images)).max() < 1e-4


def test_a_timed_call_follows_an_untimed_one_of_the_same_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Recorded:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, pixels: PixelBatch) -> FloatArray:
            events.append(self.name)
            return np.zeros((len(pixels), 1), np.float32)

    def clock() -> float:
        events.append("clock")
        return 0.0

    monkeypatch.setattr(auto, "ROUNDS", 2)
    monkeypatch.setattr("vitral.inference.engines.auto.time.perf_counter", clock)
    auto.time_engines({"first": Recorded("first"), "second": Recorded("second")}, np.zeros((1, 4, 4, 3), np.uint8))
    assert events == [each for name in ("first", "second") for each in (name, "clock", name, "clock")] * 2

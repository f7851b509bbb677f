"""The bench: real processes that take turns."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import peers
from tests.errors import raises
from vitral.runs import bench as module
from vitral.runs.bench import (
    BASELINE,
    BASELINE_FLOPS,
    ENGINES,
    IMPORT_ROOT,
    OWN_WORKER,
    PEERS,
    Bench,
    BenchEngine,
    BenchPlan,
    Duration,
    TimingProcess,
    bench,
    flops,
    is_checkout,
    own_engines,
    peer_engines,
    quartiles,
    summarize_cell,
    time_rounds,
)

METRONOME = "tests.inference.metronome"
QUICK, SLOW, BROKEN = (BenchEngine(name, METRONOME) for name in ("1", "2", "broken"))


class Steps:
    """How far each bar came."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.done = 0

    @contextmanager
    def bar(self, message: str, total: int) -> Iterator[Callable[[int], None]]:
        self.told.append((message, total))
        yield self.advance

    def advance(self, count: int) -> None:
        self.done += count


@pytest.mark.slow
def test_the_table_has_each_engine_at_each_batch_and_says_who_is_left_out() -> None:
    steps = Steps()
    found = bench(BenchPlan(["Ti/16"], [1, 8], [QUICK, SLOW, BROKEN], 1, Duration(rounds=3, turn=0)), steps.bar)
    assert Bench.from_json(found.to_json()) == found
    assert [(cell.model, cell.batch) for cell in found.cells] == [("Ti/16", 1), ("Ti/16", 8)]
    for cell in found.cells:
        assert [(row.engine, row.own) for row in cell.rows] == [("1", False), ("2", False)]
        assert [round(row.rate) for row in cell.rows] == [1000, 500]
        assert [len(row.seconds) for row in cell.rows] == [3, 3]
        assert cell.left_out == ("broken: metronome: it is broken",)
        assert cell.rows[0].share == pytest.approx(1000 * flops("Ti/16") / cell.peak)
    assert "1 thread, Python" in found.machine
    assert steps.told == [("Ti/16, batch 1", 16), ("Ti/16, batch 8", 16)]
    assert steps.done == 2 * (4 + 3 * 3)


def test_a_name_that_is_none_is_found_before_anything_is_measured() -> None:
    steps = Steps()
    with raises("config.unknown_name", "'S16'"):
        bench(BenchPlan(["Ti/16", "S16"], [1], [QUICK], 1, Duration(rounds=1, turn=0)), steps.bar)
    assert steps.told == []


def test_an_engine_that_falls_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    runners = {
        each: TimingProcess(each.name, [METRONOME, each.name]) for each in (QUICK, SLOW, BenchEngine("two", METRONOME))
    }

    def advance(count: int) -> None:
        turns.append(count)
        if len(turns) == 6:  # after the round that warms up and a first one
            runners[SLOW]._process.kill()
            runners[SLOW]._process.wait()

    turns: list[int] = []
    seconds, left_out = time_rounds(runners, 4, Duration(rounds=4, turn=0), advance)
    for runner in runners.values():
        runner.stop()
    assert seconds == {QUICK: [0.004] * 4}
    assert left_out == ["two: two ended with exit code 1", "2: 2 ended with exit code -9"]
    assert "could not convert" in capfd.readouterr().err


def test_without_the_matmul_there_is_no_table() -> None:
    with raises("bench.no_baseline", "matmul: it fell"):
        summarize_cell("S/16", 8, 1.0, {QUICK: [1.0]}, ["matmul: it fell"])


def test_a_cell_that_no_engine_runs_is_an_error_with_every_reason() -> None:
    contest = BenchPlan(["Ti/16"], [8], [BROKEN], 1, Duration(rounds=1, turn=0))
    with raises("bench.no_engine", "Ti/16", 8, "broken: metronome: it is broken"):
        bench(contest, Steps().bar)


def test_a_long_cell_ends_after_three_rounds() -> None:
    runners = {QUICK: TimingProcess("1", [METRONOME, "1"])}
    seconds, _ = time_rounds(runners, 4, Duration(rounds=9, turn=0, seconds=0.0), lambda count: None)
    runners[QUICK].stop()
    assert len(seconds[QUICK]) == 3


def test_rates_are_medians_and_the_middle_half_beside_the_peak() -> None:
    times = {
        BenchEngine(BASELINE, OWN_WORKER): [1.0, 2.0, 5.0],
        BenchEngine("vitral eager", OWN_WORKER): [1.0, 2.0, 4.0, 8.0, 100.0],
    }
    cell = summarize_cell("S/16", 8, BASELINE_FLOPS / 16, times, [])
    assert cell.peak == BASELINE_FLOPS / 2
    (row,) = cell.rows
    assert (row.low, row.rate, row.high) == (1.0, 2.0, 4.0)
    assert row.share == 2 / 8  # two images a second, where the peak would do eight
    assert row.own
    assert quartiles([3.0]) == [3.0, 3.0, 3.0]


@pytest.mark.parametrize(("model", "giga"), [("Ti/16", 2.51), ("S/16", 9.20), ("B/16", 35.13)])
def test_floating_point_operations_are_those_of_every_token_in_every_layer(model: str, giga: float) -> None:
    layers, width = 12, {"Ti/16": 192, "S/16": 384, "B/16": 768}[model]
    tokens, patches = 197, 196
    block = tokens * (4 * width**2 + 8 * width**2) + 2 * tokens**2 * width
    assert flops(model) == 2 * (layers * block + patches * 768 * width)
    assert flops(model) / 1e9 == pytest.approx(giga, abs=0.006)


def test_engines_whose_packages_are_missing_do_not_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.name for each in own_engines()] == list(ENGINES)
    assert all(each.own for each in own_engines())
    assert [each.name for each in own_engines(["vitral openvino"])] == ["vitral openvino"]
    with raises("config.unknown_name", "--engines", "eager", "compiled", "'opnvino'", "'openvino'"):
        own_engines(["vitral opnvino"])
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert [each.name for each in own_engines()] == ["vitral eager", "vitral compiled"]
    with raises("config.missing_package", "--engines", "onnx and openvino", "vitral[deploy]"):
        own_engines(["vitral openvino"])


def test_peers_need_a_checkout_and_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with raises("config.missing_package", "timm", "transformers", "vit-pytorch"):
        peer_engines()
    monkeypatch.setattr(module, "find_spec", lambda name: name if name != "timm" else None)
    assert [each.name for each in peer_engines()] == ["huggingface", "vit-pytorch"]
    assert not any(each.own for each in peer_engines())
    monkeypatch.setattr(module, "IMPORT_ROOT", tmp_path)
    with raises("config.missing_package", "make bench", tmp_path) as caught:
        peer_engines()
    assert caught.value.where == "--peers"


def test_peers_of_the_checkout_are_those_that_its_worker_knows() -> None:
    assert list(PEERS) == list(peers.PEERS)
    assert is_checkout(IMPORT_ROOT)


@pytest.mark.slow
def test_no_worker_comes_from_the_working_directory(tmp_path: Path) -> None:
    """A folder that is called benchmarks, tests or vitral there is not imported, by neither side."""
    for package, name in (("benchmarks", "peers"), ("tests/inference", "metronome"), ("vitral/runs", "bench_worker")):
        folder = tmp_path / package
        folder.mkdir(parents=True)
        for each in (folder, *folder.parents):
            if each == tmp_path:
                break
            (each / "__init__.py").write_text("raise SystemExit('imported from the working directory')")
        (folder / f"{name}.py").write_text("raise SystemExit('imported from the working directory')")
    (tmp_path / "pyproject.toml").write_text('name = "vitral"')
    script = (
        "from vitral.runs.bench import is_checkout, peer_engines\n"
        "from vitral.runs.bench import TimingProcess\n"
        "process = TimingProcess('1', ['tests.inference.metronome', '1'])\n"
        "print(process.measure('4 0'))\n"
        "process.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(IMPORT_ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("0.004\n", 0), done.stderr


@pytest.mark.slow
def test_an_interrupt_ends_every_process() -> None:
    script = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from contextlib import contextmanager\n"
        "from vitral.runs.bench import BenchPlan, BenchEngine, Duration, bench\n"
        "@contextmanager\n"
        "def bar(what, total):\n"
        "    print('begun', flush=True)\n"
        "    yield lambda count: None\n"
        "engines = [BenchEngine('1', 'tests.inference.metronome')]\n"
        "bench(BenchPlan(['Ti/16'], [1], engines, 1, Duration(10**9, 0)), bar)\n"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the children too
        _, talk = process.communicate(timeout=60)  # which waits until nobody holds stderr, the children too
    assert process.returncode != 0
    assert "KeyboardInterrupt" in talk
    assert talk.count("Traceback") == 1, "the children say nothing"

"""`vitral bench`: the speed of engines on this machine, one process each, in turns, beside a float32 matmul.

A worker is a module that is run as `python -m MODULE NAME MODEL THREADS`. For a line such as `8 0.5` on its stdin it
prints the seconds of a call with a batch of 8, the mean over half a second of calls.

The workers of other libraries are `benchmarks/peers.py` of vitral's own checkout. They are not installed with the
package, and are never taken from the working directory.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from vitral.core.config import Config
from vitral.core.errors import ConfigError, VitralError, did_you_mean, format_choices
from vitral.core.machine import cpu_name
from vitral.html.text import align_columns
from vitral.inference.engines.engine import package_version

IMPORT_ROOT = Path(__file__).resolve().parents[2]  # the folder that this vitral was imported from
OWN_WORKER, PEER_WORKER = "vitral.runs.bench_worker", "benchmarks.peers"
BASELINE = "matmul"  # what all engines are compared with
BASELINE_SIZE = 2048
BASELINE_FLOPS = 2 * BASELINE_SIZE**3
STOP_TIMEOUT = 0.5  # seconds for a process to end on its own
MIN_ROUNDS = 3
ENGINES = {  # and the packages that they need
    "vitral eager": (),
    "vitral compiled": (),
    "vitral onnxruntime": ("onnx", "onnxruntime"),
    "vitral openvino": ("onnx", "openvino"),
    "vitral onnxruntime int8": ("onnx", "onnxruntime"),
    "vitral openvino int8": ("onnx", "onnxruntime", "openvino"),
}
PEERS = {  # other libraries, in the same way
    "timm": ("timm",),
    "timm compiled": ("timm",),
    "huggingface": ("transformers",),
    "vit-pytorch": ("vit_pytorch",),
    "timm on onnxruntime": ("timm", "onnxscript", "onnxruntime"),
    "timm on onnxruntime streams": ("timm", "onnxscript", "onnxruntime"),
    "timm on openvino": ("timm", "onnxscript", "openvino"),
    "timm on openvino streams": ("timm", "onnxscript", "openvino"),
}
PACKAGES = ("torch", "onnxruntime", "openvino", "timm", "transformers", "vit-pytorch")

# A progress bar: entered with a text and a total, it gives a function to advance it by.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class TimingProcess:
    """A Python module in a separate process: for each line on its stdin it prints a line of JSON.

    The process imports the same vitral as this one. The working directory is not on its import path.
    """

    def __init__(self, name: str, command: Sequence[str], **environment: str) -> None:
        path = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)} | environment,
            start_new_session=True,  # so that Ctrl-C reaches only the parent
        )
        self._name = name

    def request(self, line: str = "go") -> None:
        """Request a timing; `result` waits for it."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # `result` reports the exit code
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def result(self) -> Any:
        """The result of the requested timing: seconds, or whatever else the worker prints as JSON."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with exit code {self._process.wait()}")
        return json.loads(line)

    def measure(self, line: str = "go") -> Any:
        """Request a timing and wait for it."""
        self.request(line)
        return self.result()

    def close_stdin(self) -> None:
        """Close its stdin: it ends on its own unless it is in the middle of a timing."""
        assert self._process.stdin
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self, patience: float = 10) -> None:
        """End the process; it is killed if it does not end in time."""
        self.close_stdin()
        try:
            self._process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()


def serve_timings(prepare: Callable[[], Callable[[str], object]]) -> None:
    """The main loop of a worker: a timing for each line of stdin. A ConfigError or ImportError is the answer to all."""
    try:
        measure = prepare()
    except (ConfigError, ImportError) as error:
        reason = {"refused": str(error)}
        measure = lambda line: reason  # noqa: E731
    for line in sys.stdin:
        print(json.dumps(measure(line.strip())), flush=True)


def mean_seconds(call: Callable[[], object], least: float) -> float:
    """Mean seconds of a call, over at least `least` seconds of calls after a first one that warms up.

    If the first call takes that long, it is the only one.
    """
    first = _seconds(call)
    if first >= least:
        return first
    calls, spent = 0, 0.0
    while spent < least:
        spent += _seconds(call)
        calls += 1
    return spent / calls


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class BenchEngine(NamedTuple):
    """An engine, and the module of its worker."""

    name: str
    module: str

    @property
    def own(self) -> bool:
        """Whether it is an engine of vitral."""
        return self.module == OWN_WORKER


class Duration(NamedTuple):
    """How long one cell of the table is measured."""

    rounds: int = 7
    turn: float = 0.4  # seconds of calls in a round, at least one call
    seconds: float = float("inf")  # after which no round is started, once there were three


class BenchPlan(NamedTuple):
    """What is measured: every engine on every model at every batch size."""

    models: Sequence[str]
    batches: Sequence[int]
    engines: Sequence[BenchEngine]
    threads: int
    length: Duration


class Row(Config):
    """One engine with one model at one batch size."""

    model: str
    batch: int
    engine: str
    own: bool
    rate: float  # images a second in the median round
    low: float  # quartiles of the rounds
    high: float
    share: float  # of the matmul's FLOP/s, by the FLOPs of a plain model: every token in every layer
    seconds: tuple[float, ...]  # of a call, round by round


class Cell(Config):
    """One model at one batch size, all engines in the same rounds."""

    model: str
    batch: int
    peak: float  # FLOP/s of a float32 matmul in the median round
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]  # which engines, and why


class Bench(Config):
    """The whole table."""

    machine: str
    threads: int
    cells: tuple[Cell, ...]


def bench(plan: BenchPlan, progress: Progress) -> Bench:
    """Measure the whole table."""
    cells = tuple(measure_cells(plan, progress))
    return Bench(machine=describe_machine(plan.threads), threads=plan.threads, cells=cells)


def measure_cells(plan: BenchPlan, progress: Progress) -> Iterator[Cell]:
    """The cells, each as soon as it is measured."""
    works = {model: flops(model) for model in plan.models}  # first: it finds unknown names
    for model, work in works.items():
        with ExitStack() as stack:
            runners: dict[BenchEngine, TimingProcess] = {}
            for each in (BenchEngine(BASELINE, OWN_WORKER), *plan.engines):
                command = [each.module, each.name, model, str(plan.threads)]
                runners[each] = TimingProcess(f"{each.name} with {model}", command)
                stack.callback(runners[each].stop, STOP_TIMEOUT)
            for runner in runners.values():  # all end at once, before any is waited for
                stack.callback(runner.close_stdin)
            for batch in plan.batches:
                with progress(f"{model}, batch {batch}", len(runners) * (plan.length.rounds + 1)) as advance:
                    seconds, left_out = time_rounds(runners, batch, plan.length, advance)
                yield summarize_cell(model, batch, work, seconds, left_out)


Seconds = dict[BenchEngine, list[float]]


def time_rounds(
    runners: dict[BenchEngine, TimingProcess], batch: int, length: Duration, advance: Callable[[int], None]
) -> tuple[Seconds, list[str]]:
    """Seconds of a call of each engine in each round, and which engines failed, and why. The first round warms up."""
    seconds: Seconds = {each: [] for each in runners}
    left_out = []
    started = 0.0
    for number in range(1 + length.rounds):
        if number == 1:
            started = time.perf_counter()
        if number > MIN_ROUNDS and time.perf_counter() - started > length.seconds:
            break
        # Every other round runs backwards, so that no engine always follows the same one.
        for each in [*seconds] if number % 2 else [*reversed(seconds)]:
            try:
                found = runners[each].measure(f"{batch} {length.turn if number else 0}")
            except RuntimeError as error:  # it crashed; its traceback is on stderr
                found = {"refused": str(error)}
            advance(1)
            if isinstance(found, dict):
                del seconds[each]
                left_out.append(f"{each.name}: {found['refused']}")
            elif number:
                seconds[each].append(found)
    return seconds, left_out


def summarize_cell(model: str, batch: int, work: float, seconds: Seconds, left_out: Sequence[str]) -> Cell:
    """The cell, from the seconds of each engine and the FLOPs of an image."""
    baseline = next((times for each, times in seconds.items() if each.name == BASELINE), None)
    if baseline is None:
        raise VitralError(f"the matmul baseline failed: {'; '.join(left_out)}", code="bench.no_baseline")
    peak = BASELINE_FLOPS / median(baseline)
    rows = []
    for each, times in seconds.items():
        if each.name != BASELINE:
            low, rate, high = (batch / some for some in reversed(quartiles(times)))
            cell = {"model": model, "batch": batch, "engine": each.name, "own": each.own, "share": rate * work / peak}
            rows.append(Row.model_validate(cell | {"rate": rate, "low": low, "high": high, "seconds": tuple(times)}))
    if not rows:
        raise VitralError(f"no engine runs {model} at batch {batch}: {'; '.join(left_out)}", code="bench.no_engine")
    return Cell(model=model, batch=batch, peak=peak, rows=tuple(rows), left_out=tuple(left_out))


def quartiles(values: Sequence[float]) -> list[float]:
    """The first quartile, the median and the third."""
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


def flops(model: str) -> float:
    """FLOPs of a plain model (by name, or a bundle by path) for one image, two for each multiply-add."""
    import torch  # timing workers import this module, and not all of them torch
    from torch.utils.flop_counter import FlopCounterMode

    from vitral.models.registry import model_config
    from vitral.weights.load import load

    bundle = load(model).bundle if Path(model).expanduser().exists() else None
    config = bundle.model if bundle else model_config(model)
    image_size = bundle.preprocessing.image_size if bundle else config.image_size
    images = torch.zeros(1, config.channels, *image_size, device="meta")  # (1, C, H, W)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        config.build_empty().eval().forward_features(images)
    return float(counter.get_total_flops())


def own_engines(names: Sequence[str] = ()) -> list[BenchEngine]:
    """Vitral's engines of these names; without names, all whose packages are installed."""
    for name in names:
        asked = name.removeprefix("vitral ")
        if name not in ENGINES:
            known = [each.removeprefix("vitral ") for each in ENGINES]
            message = f"expected {format_choices(known)}, got {asked!r}"
            raise ConfigError(message, code="config.unknown_name", where="--engines", hint=did_you_mean(asked, known))
        if missing := [package for package in ENGINES[name] if not find_spec(package)]:
            message, hint = f"{asked} needs {' and '.join(missing)}", "pip install 'vitral[deploy]'"
            raise ConfigError(message, code="config.missing_package", where="--engines", hint=hint)
    return [BenchEngine(name, OWN_WORKER) for name in names or ENGINES if all(map(find_spec, ENGINES[name]))]


def peer_engines() -> list[BenchEngine]:
    """The other libraries that are installed."""
    if not is_checkout(IMPORT_ROOT):
        message = f"the workers of other libraries are in a checkout of vitral, and {IMPORT_ROOT} is none"
        hint = "in a checkout, `make bench` sets up an environment for it: .venv-bench/bin/vitral bench --peers"
        raise ConfigError(message, code="config.missing_package", where="--peers", hint=hint)
    names = [name for name, packages in PEERS.items() if all(map(find_spec, packages))]
    if not names:
        message = "none of timm, transformers and vit-pytorch is installed"
        hint = "`make bench` sets up an environment with them: .venv-bench"
        raise ConfigError(message, code="config.missing_package", where="--peers", hint=hint)
    return [BenchEngine(name, PEER_WORKER) for name in names]


def is_checkout(folder: Path) -> bool:
    """Whether a folder is a checkout of vitral with its benchmarks."""
    project, worker = folder / "pyproject.toml", folder.joinpath(*PEER_WORKER.split(".")).with_suffix(".py")
    return worker.is_file() and project.is_file() and 'name = "vitral"' in project.read_text(encoding="utf-8")


def describe_machine(threads: int) -> str:
    """Processor, threads and package versions."""
    found = [f"{package} {package_version(package)}" for package in PACKAGES if package_version(package) != "none"]
    plural = "thread" if threads == 1 else "threads"
    here = (cpu_name(), f"{os.cpu_count()} cores", f"{threads} {plural}", f"Python {platform.python_version()}")
    return ", ".join([*here, *found])


def format_bench(bench: Bench) -> str:
    """The results as text: the machine, then a table for each model."""
    peak = median(cell.peak for cell in bench.cells)
    lines = [bench.machine, f"a float32 matmul: {peak / 1e9:.0f} GFLOP/s"]
    for model in dict.fromkeys(cell.model for cell in bench.cells):
        lines += ["", *format_table([cell for cell in bench.cells if cell.model == model])]
    lines += ["", "images/s in the median round (the middle half of the rounds), share of the matmul peak"]
    return "\n".join(lines)


def format_table(cells: Sequence[Cell]) -> Iterator[str]:
    """One model: a line for each engine, the fastest first, and which failed, and why."""
    rows = {(row.engine, cell.batch): row for cell in cells for row in cell.rows}
    rates = {engine: row.rate for (engine, _), row in rows.items()}  # at the last batch size that it was measured at
    table = [[cells[0].model, *(f"batch {cell.batch}" for cell in cells)]]
    for engine in sorted(rates, key=lambda engine: -rates[engine]):
        table.append([engine, *(_format_row(rows.get((engine, cell.batch))) for cell in cells)])
    yield from align_columns(table)
    for reason in dict.fromkeys(reason for cell in cells for reason in cell.left_out):
        yield f"left out: {reason}"


def _format_row(row: Row | None) -> str:
    if row is None:
        return "-"
    digits = 1 if row.rate < 100 else 0
    low, middle, high = (f"{rate:.{digits}f}" for rate in (row.low, row.rate, row.high))
    return f"{middle} ({low} to {high}) {100 * row.share:.0f}%"

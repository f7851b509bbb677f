"""How fast engines are on this machine: one process each, turn by turn, beside a plain matmul.

A contestant is a module that takes turns: `python -m MODULE NAME MODEL THREADS`, and a line such as `8 0.5` asks for
the seconds of a call with a batch of 8, the mean over half a second of calls.

What a bench found, as text: a table for each model, engines by batches.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError, VitralError, format_choices, did_you_mean
from vitral.core.machine import cpu_name
from vitral.inference.engines.auto import package_version
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.runs.bench.subprocess_runner import TimingProcess
from vitral.weights.load import load

OWN_WORKER, PEER_WORKER = "vitral.runs.bench.worker", "benchmarks.rivals"
BASELINE = "matmul"  # the contestant that all are held against
BASELINE_SIZE = 2048
BASELINE_FLOPS = 2 * BASELINE_SIZE**3
STOP_TIMEOUT = 0.5  # seconds for a process to end by itself
MIN_ROUNDS = 3
ENGINES = {  # ours, and the packages that they need
    "vitral eager": (),
    "vitral compiled": (),
    "vitral onnxruntime": ("onnx", "onnxruntime"),
    "vitral openvino": ("onnx", "openvino"),
    "vitral onnxruntime int8": ("onnx", "onnxruntime"),
    "vitral openvino int8": ("onnx", "onnxruntime", "openvino"),
}
PACKAGES = ("torch", "onnxruntime", "openvino", "timm", "transformers", "vit-pytorch")

# A bar for so many of something; what it gives is called with how many more are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


class BenchEngine(NamedTuple):
    """An engine, and the module whose process runs it."""

    name: str
    module: str

    @property
    def own(self) -> bool:
        """Whether it is one of ours."""
        return self.module == OWN_WORKER


class Duration(NamedTuple):
    """How long a cell of the table is measured."""

    rounds: int = 7
    turn: float = 0.4  # seconds of calls in a turn, one call at the least
    seconds: float = float("inf")  # after so many no round is begun, once there were three


class BenchPlan(NamedTuple):
    """Who meets on what: every contestant with so many threads, on every model at every batch."""

    models: Sequence[str]
    batches: Sequence[int]
    contestants: Sequence[BenchEngine]
    threads: int
    length: Duration


class Row(Config):
    """One engine with one model at one batch."""

    model: str
    batch: int
    engine: str
    own: bool
    rate: float  # images a second, in the median round
    low: float  # the middle half of the rounds
    high: float
    share: float  # of the matmul peak: of what a plain model computes, every token in every layer
    seconds: tuple[float, ...]  # of a call, round by round


class Cell(Config):
    """What was measured of one model at one batch, all engines in the same rounds."""

    model: str
    batch: int
    peak: float  # floating-point operations a second of a float32 matmul, in the median round
    rows: tuple[Row, ...]
    left_out: tuple[str, ...]  # which engines, and why


class Bench(Config):
    """The whole table."""

    machine: str
    threads: int
    cells: tuple[Cell, ...]


def bench(contest: BenchPlan, progress: Progress) -> Bench:
    """The whole table of a contest."""
    cells = tuple(measure_cells(contest, progress))
    return Bench(machine=describe_machine(contest.threads), threads=contest.threads, cells=cells)


def measure_cells(contest: BenchPlan, progress: Progress) -> Iterator[Cell]:
    """The cells, each as soon as it is done."""
    works = {model: flops(model) for model in contest.models}  # before all else: it finds a name that is none
    for model, work in works.items():
        with ExitStack() as stack:
            runners: dict[BenchEngine, TimingProcess] = {}
            for each in (BenchEngine(BASELINE, OWN_WORKER), *contest.contestants):
                words = [each.module, each.name, model, str(contest.threads)]
                runners[each] = TimingProcess(f"{each.name} with {model}", words)
                stack.callback(runners[each].stop, STOP_TIMEOUT)
            stack.callback(close_workers, tuple(runners.values()))  # all at once, before each is waited for
            for batch in contest.batches:
                with progress(f"{model}, batch {batch}", len(runners) * (contest.length.rounds + 1)) as advance:
                    seconds, left_out = time_rounds(runners, batch, contest.length, advance)
                yield summarize_cell(model, batch, work, seconds, left_out)


def close_workers(runners: Sequence[TimingProcess]) -> None:
    for runner in runners:
        runner.dismiss()


Seconds = dict[BenchEngine, list[float]]


def time_rounds(
    runners: dict[BenchEngine, TimingProcess], batch: int, length: Duration, advance: Callable[[int], None]
) -> tuple[Seconds, list[str]]:
    """Seconds of a call of each contestant in each round, and who is left out, and why. A round before warms up."""
    seconds: Seconds = {each: [] for each in runners}
    left_out = []
    started = time.perf_counter()
    for number in range(1 + length.rounds):
        if number == 1:
            started = time.perf_counter()
        if number > MIN_ROUNDS and time.perf_counter() - started > length.seconds:
            break
        # Every other round goes backwards, so that none always follows the same one.
        for each in [*seconds] if number % 2 else [*reversed(seconds)]:
            found = time_call(runners[each], f"{batch} {length.turn if number else 0}")
            advance(1)
            if isinstance(found, str):
                del seconds[each]
                left_out.append(f"{each.name}: {found}")
            elif number:
                seconds[each].append(found)
    return seconds, left_out


def time_call(runner: TimingProcess, words: str) -> float | str:
    """The seconds that it finds, or why it finds none."""
    try:
        found = runner.turn(words)
    except RuntimeError as error:  # it fell; its own words are on stderr
        return str(error)
    return str(found["refused"]) if isinstance(found, dict) else float(found)


def summarize_cell(model: str, batch: int, work: float, seconds: Seconds, left_out: Sequence[str]) -> Cell:
    """The cell, from the seconds of each contestant and the floating-point operations of an image."""
    multiplied = [times for each, times in seconds.items() if each.name == BASELINE]
    if not multiplied:
        raise VitralError(
            f"the matmul that engines are held against gave no answer: {'; '.join(left_out)}", code="bench.no_baseline"
        )
    peak = BASELINE_FLOPS / median(multiplied[0])
    rows = []
    for each, times in seconds.items():
        if each.name != BASELINE:
            low, rate, high = (batch / some for some in reversed(quartiles(times)))
            rows.append(
                Row(
                    model=model,
                    batch=batch,
                    engine=each.name,
                    own=each.own,
                    rate=rate,
                    low=low,
                    high=high,
                    share=rate * work / peak,
                    seconds=tuple(times),
                )
            )
    if not rows:
        raise VitralError(f"no engine runs {model} at batch {batch}: {'; '.join(left_out)}", code="bench.no_engine")
    return Cell(model=model, batch=batch, peak=peak, rows=tuple(rows), left_out=tuple(left_out))


def quartiles(values: Sequence[float]) -> list[float]:
    """The first quartile, the median and the third."""
    return quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3


def flops(model: str) -> float:
    """Floating-point operations of a plain model for an image as it is shown to it, two for each multiply-add."""
    shown = bench_model(model)
    plain = shown.config.skeleton().eval()
    images = torch.zeros(1, shown.config.channels, *shown.image, device="meta")  # (1, C, H, W)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        plain.features(images)
    return float(counter.get_total_flops())


class BenchModel(NamedTuple):
    """An architecture, and the size of the images that it is shown."""

    config: Vit | Resnet
    image: Size


def bench_model(model: str) -> BenchModel:
    """Of a model by name, or of a bundle by path."""
    if Path(model).expanduser().exists():
        bundle = load(model).bundle
        return BenchModel(bundle.model, bundle.preprocessing.image_size)
    config = model_config(model)
    return BenchModel(config, config.image_size)


def own_engines(wanted: Sequence[str] = ()) -> list[BenchEngine]:
    """Our engines of these names; where none are named, all whose packages are installed."""
    for name in wanted:
        asked = name.removeprefix("vitral ")
        if name not in ENGINES:
            known = [each.removeprefix("vitral ") for each in ENGINES]
            message = f"expected {format_choices(known)}, got {asked!r}"
            raise ConfigError(message, code="config.unknown_name", where="--engines", hint=did_you_mean(asked, known))
        if missing := [package for package in ENGINES[name] if not find_spec(package)]:
            hint = "pip install 'vitral[deploy]'"
            raise ConfigError(
                f"{asked} needs {' and '.join(missing)}",
                code="config.missing_package",
                where="--engines",
                hint=hint,
            )
    return [BenchEngine(name, OWN_WORKER) for name in wanted or ENGINES if all(map(find_spec, ENGINES[name]))]


def peer_engines() -> list[BenchEngine]:
    """The other libraries that are installed. What runs them is in a checkout of vitral, not in the package."""
    if find_spec(PEER_WORKER.partition(".")[0]) is None:
        raise ConfigError(
            "what runs the peers is in a checkout of vitral, and no part of the installed package",
            code="config.missing_package",
            where="--peers",
            hint="there, `make bench` sets up an environment with the peers: .venv-bench/bin/vitral bench --peers",
        )
    names: list[str] = import_module(PEER_WORKER).installed()
    if not names:
        message = "none of timm, transformers and vit-pytorch is installed"
        raise ConfigError(
            message,
            code="config.missing_package",
            where="--peers",
            hint="`make bench` sets up an environment with them: .venv-bench",
        )
    return [BenchEngine(name, PEER_WORKER) for name in names]


def describe_machine(threads: int) -> str:
    """What the numbers were measured on."""
    found = [f"{package} {package_version(package)}" for package in PACKAGES if package_version(package) != "none"]
    plural = "thread" if threads == 1 else "threads"
    here = (cpu_name(), f"{os.cpu_count()} cores", f"{threads} {plural}", f"Python {platform.python_version()}")
    return ", ".join([*here, *found])


def format_bench(bench: Bench) -> str:
    """The machine, then a table for each model."""
    peak = median(cell.peak for cell in bench.cells)
    lines = [bench.machine, f"a float32 matmul: {peak / 1e9:.0f} GFLOP/s"]
    for model in dict.fromkeys(cell.model for cell in bench.cells):
        lines += ["", *format_table([cell for cell in bench.cells if cell.model == model])]
    lines += ["", "images/s in the median round (the middle half of the rounds), share of the matmul peak"]
    return "\n".join(lines)


def format_table(cells: Sequence[Cell]) -> Iterator[str]:
    """One model: a line for each engine, the fastest first, and why others are left out."""
    rows = {(row.engine, cell.batch): row for cell in cells for row in cell.rows}
    engines = sorted(dict.fromkeys(engine for engine, _ in rows), key=lambda name: -_rate(name, cells))
    width = max(map(len, [*engines, cells[0].model]))
    heads = [f"batch {cell.batch}" for cell in cells]
    told = [[_format_row(rows.get((engine, cell.batch))) for cell in cells] for engine in engines]
    sides = [max(map(len, column)) for column in zip(heads, *told, strict=True)]
    yield "  ".join([f"{cells[0].model:<{width}}", *map(str.ljust, heads, sides)]).rstrip()
    for engine, texts in zip(engines, told, strict=True):
        yield "  ".join([f"{engine:<{width}}", *map(str.ljust, texts, sides)]).rstrip()
    for reason in dict.fromkeys(reason for cell in cells for reason in cell.left_out):
        yield f"left out: {reason}"


def _rate(engine: str, cells: Sequence[Cell]) -> float:
    """The rate at the last batch that the engine took part in."""
    return [row.rate for cell in cells for row in cell.rows if row.engine == engine][-1]


def _format_row(row: Row | None) -> str:
    if row is None:
        return "-"
    digits = 1 if row.rate < 100 else 0
    low, middle, high = (f"{rate:.{digits}f}" for rate in (row.low, row.rate, row.high))
    return f"{middle} ({low} to {high}) {100 * row.share:.0f} %"

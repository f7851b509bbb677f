"""Int8 that keeps to its bound: which way, and which layers stay in float, is decided by measuring."""

import logging
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import onnx

from vitral.deploy.certificate import Certificate
from vitral.deploy.engine import Bytes, Engine
from vitral.deploy.exported import Method, Quantisation, Trial
from vitral.deploy.quantise import Range, dynamic, layers_of, measured, part_of, static
from vitral.deploy.targets import OnnxTarget, OpenVinoTarget
from vitral.deploy.verify import INT8, faults
from vitral.errors import ConfigError, VitralError

log = logging.getLogger("vitral")
Sort = OnnxTarget | OpenVinoTarget
WITHOUT = "leave out --int8"
FEW = 16  # images by which the sensitivity of a part is measured
TIMED, ROUNDS = 8, 3  # images, and how often the time for them is taken
# With ranges that are found batch by batch, an answer depends on the company of an image: only for a clear gain.
PREFERENCE: dict[Method, float] = {"dynamic": 1.0, "static": 1.1}


class Quantised(NamedTuple):
    """A model in int8, and how it came to be."""

    model: onnx.ModelProto
    notes: Quantisation


class Quantising(NamedTuple):
    """What quantisation works with."""

    core: onnx.ModelProto
    target: Sort
    calibrating: Bytes  # (B, H, W, C)
    judge: Callable[[onnx.ModelProto], Certificate]  # of a model in the place of the core

    def applied(self, method: Method, layers: Sequence[str], ranges: dict[str, Range]) -> onnx.ModelProto:
        return dynamic(self.core, layers) if method == "dynamic" else static(self.core, layers, ranges)


def quantised(work: Quantising) -> Quantised:
    """The quickest of the ways that hold the bound, or nearly so; where none does, an error that says by how much."""
    layers = layers_of(work.core)
    if not layers:
        raise ConfigError(
            "int8 is for the layers of blocks, and this model has none",
            code="config.unsupported",
            where="--int8",
            remedy=WITHOUT,
        )
    ranges = measured(work.core, layers, work.target.engine).ranges(work.calibrating)
    engines: dict[str, Engine] = {"float32": work.target.engine(work.core)}
    models: dict[Method, onnx.ModelProto] = {}
    trials: list[Trial] = []
    for method in work.target.methods:
        for trial, model in attempts(work, method, layers, ranges):
            trials.append(trial)
            if trial.holds:
                models[method], engines[method] = model, work.target.engine(model)
    if not models:
        best = max(trials, key=lambda trial: (trial.agreement or 0.0, -(trial.lost or 0.0)))
        lost = "" if best.lost is None else f" and {100 * best.lost:.2f} points of accuracy lost"
        raise VitralError(
            f"int8 does not hold its bound: at best {best.agreement or 0:.2%} of images have the same top-1{lost}",
            code="export.int8_inaccurate",
            remedy=f"{WITHOUT}, or train the model further: one that is unsure is easily swayed",
        )
    rates = timed(engines, work.calibrating[:TIMED])
    told = tuple(each.model_copy(update={"rate": rates[each.method] if each.holds else None}) for each in trials)
    chosen = max(models, key=lambda method: rates[method] * PREFERENCE[method])
    floats = next(each.floats for each in told if each.holds and each.method == chosen)
    count = len([layer for layer in layers if group_of(layer) not in floats])
    notes = Quantisation(
        method=chosen,
        layers=count,
        floats=floats,
        calibrated=len(work.calibrating),
        float_rate=rates["float32"],
        trials=told,
    )
    return Quantised(models[chosen], notes)


def attempts(
    work: Quantising, method: Method, layers: Sequence[str], ranges: dict[str, Range]
) -> Iterator[tuple[Trial, onnx.ModelProto]]:
    """Trials of a method, each with more of the sensitive parts left in float, until one holds or nothing is left."""
    groups = list(dict.fromkeys(map(group_of, layers)))
    order: list[str] = []
    for kept in stages(len(groups)):
        floats = tuple(order[:kept])
        model = work.applied(method, [layer for layer in layers if group_of(layer) not in floats], ranges)
        trial = tried(method, floats, work.judge(model))
        log.info(trial.line())
        yield trial, model
        if trial.holds:
            return
        order = order or sensitive(work, method, layers, ranges)


def stages(parts: int) -> list[int]:
    """How many parts stay in float, trial by trial: twice as many each time, and from half on, half of what is left."""
    found = [0]
    while (last := found[-1]) < parts - 1:
        found.append(max(1, min(2 * last, (last + parts + 1) // 2)))
    return found


def tried(method: Method, floats: tuple[str, ...], certificate: Certificate) -> Trial:
    """A trial by its certificate."""
    accuracy = certificate.accuracy
    return Trial(
        method=method,
        floats=floats,
        holds=not faults(certificate, INT8),
        difference=certificate.difference,
        agreement=certificate.agreement,
        lost=accuracy.model - accuracy.export if accuracy else None,
        rate=None,
    )


def sensitive(work: Quantising, method: Method, layers: Sequence[str], ranges: dict[str, Range]) -> list[str]:
    """The parts, first the one that moves the answers most when it alone is quantised."""
    pixels = work.calibrating[:FEW]
    own = work.target.engine(work.core).run(pixels)  # (B, K)
    drifts = {}
    for group in dict.fromkeys(map(group_of, layers)):
        alone = work.applied(method, [layer for layer in layers if group_of(layer) == group], ranges)
        drifts[group] = float(np.abs(work.target.engine(alone).run(pixels) - own).mean())
    return sorted(drifts, key=lambda group: -drifts[group])


def group_of(layer: str) -> str:
    """What is left in float together: `blocks.0.mixer` or `blocks.0.mlp`."""
    return ".".join(part_of(layer).split(".")[:3])


def timed(engines: dict[str, Engine], pixels: Bytes) -> dict[str, float]:
    """Images a second of each engine, measured in turns, at its best."""
    best = dict.fromkeys(engines, float("inf"))
    for round_ in range(ROUNDS + 1):  # the first is for warming up
        for name, engine in engines.items():
            started = perf_counter()
            engine.run(pixels)
            if round_:
                best[name] = min(best[name], perf_counter() - started)
    return {name: len(pixels) / seconds for name, seconds in best.items()}

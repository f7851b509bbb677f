"""Int8 that keeps to its bound: which way, and which layers stay in float, is decided by measuring.

Quantization: layers of an ONNX model that multiply bytes instead of floats.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from vitral.core.errors import ConfigError, VitralError
from vitral.exporters.targets import OnnxTarget, OpenVinoTarget
from vitral.exporters.verify import INT8, faults
from vitral.inference.engines.engine import Bytes, Engine
from vitral.inference.exported import Certificate, Method, Quantization, Trial

LEVELS = 63  # of a weight, to either side
BYTES = 255  # levels of an input
SENSITIVE = ("body.stem.", "head.")  # always in float: to quantize the patches multiplies the drift
PORTION = 8  # images at a time, while ranges are measured
LEAST = 1e-12  # a scale, lest a layer of zeros divide by zero


class Range(NamedTuple):
    """Between which numbers the inputs of a layer were found."""

    low: float
    high: float


def layers_of(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the layers that can be quantized: products of what comes in and a matrix of weights (I, O)."""
    matrices = {weight.name for weight in model.graph.initializer if len(weight.dims) == 2}
    return tuple(
        node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and not node.name.startswith(SENSITIVE)
    )


def part_of(layer: str) -> str:
    """The part of the model that a layer is, as people know it: `blocks.0.mixer.project`."""
    return layer.removeprefix("body.").rpartition(".")[0]


def dynamic(model: onnx.ModelProto, layers: Collection[str]) -> onnx.ModelProto:
    """The model with these layers quantized, the range of inputs measured in each batch anew."""

    def write(node: NodeProto, weights: "Weights", seen: bool) -> list[NodeProto]:
        x, (out,) = node.input[0], node.output
        numbers = [f"{x}.bytes", f"{x}.scale", f"{x}.zero"]
        first = [] if seen else [helper.make_node("DynamicQuantizeLinear", [x], numbers, name=f"{x}.quantize")]
        return [
            *first,
            helper.make_node(
                "MatMulInteger",
                [numbers[0], weights.bytes, numbers[2], weights.zero],
                [f"{out}.sums"],
                name=f"{node.name}.sums",
            ),
            helper.make_node(
                "Cast", [f"{out}.sums"], [f"{out}.whole"], name=f"{node.name}.whole", to=TensorProto.FLOAT
            ),
            helper.make_node("Mul", [numbers[1], weights.scale], [f"{out}.scale"], name=f"{node.name}.scale"),
            helper.make_node("Mul", [f"{out}.whole", f"{out}.scale"], [out], name=node.name),
        ]

    return _rewritten(model, layers, write, {})


def static(model: onnx.ModelProto, layers: Collection[str], ranges: Mapping[str, Range]) -> onnx.ModelProto:
    """The model with these layers quantized, inputs within ranges that were measured beforehand."""

    def write(node: NodeProto, weights: "Weights", seen: bool) -> list[NodeProto]:
        x = node.input[0]
        how = [f"{x}.scale", f"{x}.zero"]
        first = [
            helper.make_node("QuantizeLinear", [x, *how], [f"{x}.bytes"], name=f"{x}.quantize"),
            helper.make_node("DequantizeLinear", [f"{x}.bytes", *how], [f"{x}.back"], name=f"{x}.back"),
        ]
        back = helper.make_node(
            "DequantizeLinear", list(weights), [f"{weights.bytes}.back"], name=f"{weights.bytes}.back", axis=1
        )
        product = helper.make_node("MatMul", [f"{x}.back", f"{weights.bytes}.back"], list(node.output), name=node.name)
        return [*([] if seen else first), back, product]

    return _rewritten(model, layers, write, ranges)


class Weights(NamedTuple):
    """The names of a layer's weights in bytes, of their scales and of their zeros."""

    bytes: str
    scale: str
    zero: str


def _rewritten(
    model: onnx.ModelProto,
    layers: Collection[str],
    write: Callable[[NodeProto, Weights, bool], list[NodeProto]],
    ranges: Mapping[str, Range],
) -> onnx.ModelProto:
    """A copy of the model in which other nodes stand for the layers; `ranges` are of the inputs, if they are known."""
    wanted = set(layers)
    inputs = {node.input[0] for node in model.graph.node if node.name in wanted}
    weights = {node.input[1] for node in model.graph.node if node.name in wanted}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.initializer[:]
    seen: set[str] = set()
    for node in model.graph.node:
        if node.name not in wanted:
            copy.graph.node.append(node)
            continue
        name = node.input[1]
        copy.graph.node.extend(write(node, Weights(name, f"{name}.scale", f"{name}.zero"), node.input[0] in seen))
        seen.add(node.input[0])
    for tensor in model.graph.initializer:
        copy.graph.initializer.extend(_in_bytes(tensor) if tensor.name in weights else [tensor])
    for name in sorted(inputs & ranges.keys()):
        copy.graph.initializer.extend(_scale_of(name, ranges[name]))
    return copy


def _in_bytes(tensor: TensorProto) -> list[TensorProto]:
    """Weights (I, O) as bytes, with a scale and a zero for each output."""
    weights: NDArray[np.float32] = numpy_helper.to_array(tensor)
    scale = np.maximum(np.abs(weights).max(axis=0) / LEVELS, LEAST).astype(np.float32)  # (O)
    return [
        numpy_helper.from_array(np.rint(weights / scale).astype(np.int8), tensor.name),
        numpy_helper.from_array(scale, f"{tensor.name}.scale"),
        numpy_helper.from_array(np.zeros(len(scale), dtype=np.int8), f"{tensor.name}.zero"),
    ]


def _scale_of(name: str, range: Range) -> list[TensorProto]:
    """The scale of inputs and the byte that stands for zero, which must be one exactly."""
    low, high = min(range.low, 0.0), max(range.high, 0.0)
    scale = max((high - low) / BYTES, LEAST)
    return [
        numpy_helper.from_array(np.array(scale, dtype=np.float32), f"{name}.scale"),
        numpy_helper.from_array(np.array(round(-low / scale), dtype=np.uint8), f"{name}.zero"),
    ]


def measured(model: onnx.ModelProto, layers: Collection[str], run: Callable[[onnx.ModelProto], Engine]) -> "Meter":
    """What measures the range of the inputs of each layer."""
    wanted = set(layers)
    inputs = tuple(dict.fromkeys(node.input[0] for node in model.graph.node if node.name in wanted))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    ends = [f"{name}.{kind}" for name in inputs for kind in ("ReduceMin", "ReduceMax")]
    for end in ends:
        name, _, kind = end.rpartition(".")
        copy.graph.node.append(helper.make_node(kind, [name], [f"{end}.number"], name=end, keepdims=0))
        copy.graph.node.append(helper.make_node("Unsqueeze", [f"{end}.number", "first"], [end], name=f"{end}.row"))
    copy.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    copy.graph.node.append(helper.make_node("Concat", ends, ["ends"], name="ends", axis=0))
    copy.graph.output.append(helper.make_tensor_value_info("ends", TensorProto.FLOAT, [len(ends)]))
    return Meter(inputs, run(copy))


class Meter(NamedTuple):
    """An engine that answers images with the least and the greatest number of each input."""

    inputs: tuple[str, ...]
    engine: Engine

    def ranges(self, pixels: Bytes) -> dict[str, Range]:
        """The ranges over images (B, H, W, C), by the name of the input."""
        portions = [pixels[start : start + PORTION] for start in range(0, len(pixels), PORTION)]
        found = np.stack([self.engine.run(portion) for portion in portions])  # (portions, 2 x inputs)
        lows, highs = found[:, ::2].min(axis=0).tolist(), found[:, 1::2].max(axis=0).tolist()
        return {name: Range(low, high) for name, low, high in zip(self.inputs, lows, highs, strict=True)}


log = logging.getLogger("vitral")
Sort = OnnxTarget | OpenVinoTarget
WITHOUT = "leave out --int8"
FEW = 16  # images by which the sensitivity of a part is measured
TIMED, ROUNDS = 8, 3  # images, and how often the time for them is taken
# With ranges that are found batch by batch, an answer depends on the company of an image: only for a clear gain.
PREFERENCE: dict[Method, float] = {"dynamic": 1.0, "static": 1.1}


class Quantized(NamedTuple):
    """A model in int8, and how it came to be."""

    model: onnx.ModelProto
    notes: Quantization


class Quantizing(NamedTuple):
    """What quantization works with."""

    core: onnx.ModelProto
    target: Sort
    calibrating: Bytes  # (B, H, W, C)
    judge: Callable[[onnx.ModelProto], Certificate]  # of a model in the place of the core

    def applied(self, method: Method, layers: Sequence[str], ranges: dict[str, Range]) -> onnx.ModelProto:
        return dynamic(self.core, layers) if method == "dynamic" else static(self.core, layers, ranges)


def quantized(work: Quantizing) -> Quantized:
    """The quickest of the ways that hold the bound, or nearly so; where none does, an error that says by how much."""
    layers = layers_of(work.core)
    if not layers:
        raise ConfigError(
            "int8 is for the layers of blocks, and this model has none",
            code="config.unsupported",
            where="--int8",
            hint=WITHOUT,
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
            hint=f"{WITHOUT}, or train the model further: one that is unsure is easily swayed",
        )
    rates = timed(engines, work.calibrating[:TIMED])
    told = tuple(each.model_copy(update={"rate": rates[each.method] if each.holds else None}) for each in trials)
    chosen = max(models, key=lambda method: rates[method] * PREFERENCE[method])
    floats = next(each.floats for each in told if each.holds and each.method == chosen)
    count = len([layer for layer in layers if group_of(layer) not in floats])
    notes = Quantization(
        method=chosen,
        layers=count,
        floats=floats,
        calibrated=len(work.calibrating),
        float_rate=rates["float32"],
        trials=told,
    )
    return Quantized(models[chosen], notes)


def attempts(
    work: Quantizing, method: Method, layers: Sequence[str], ranges: dict[str, Range]
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


def sensitive(work: Quantizing, method: Method, layers: Sequence[str], ranges: dict[str, Range]) -> list[str]:
    """The parts, first the one that moves the answers most when it alone is quantized."""
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

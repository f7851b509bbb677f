"""Int8 quantization of ONNX models with accuracy control.  B images, I inputs, O outputs of a layer.

The matrix products of blocks are quantized dynamically or statically. Where the result exceeds the tolerance, the most
sensitive modules go back to float32, twice as many each time. The fastest method within the tolerance is chosen.

Why not NNCF (3.4, OpenVINO, Ti/16 with random weights, 64 images to calibrate, 100 to verify): its
`quantize_with_accuracy_control` had not finished after 210 s of processor time, this search took 57 s. It adds
scikit-learn, scipy and networkx to the dependencies. Without accuracy control its model is 12 % faster than ours with
all layers quantized (10.4 ms against 11.8 ms) and further from float32 (mean difference 0.040 against 0.034).
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
from vitral.exporters.targets import OnnxBasedTarget
from vitral.exporters.verify import INT8, find_violations
from vitral.inference.engines.engine import Engine, PixelBatch
from vitral.inference.exported import Certificate, Method, Quantization, Trial

log = logging.getLogger("vitral")
WITHOUT = "remove --int8"
SENSITIVITY_IMAGES = 16
TIMED, ROUNDS = 8, 3  # images a run, and runs
# With dynamic ranges an output depends on the rest of the batch: chosen only for a clear gain in speed.
PREFERENCE: dict[Method, float] = {"dynamic": 1.0, "static": 1.1}
WEIGHT_LEVELS = 63  # of either sign: sums of 8-bit products may not saturate on processors without VNNI
INPUT_LEVELS = 255
SENSITIVE = ("body.stem.", "head.")  # always in float32: quantized patches multiply the error
CHUNK = 8  # images at a time while ranges are measured
MIN_SCALE = 1e-12  # a layer of zeros must not divide by zero


class InputRange(NamedTuple):
    """The smallest and largest input of a layer."""

    low: float
    high: float


def quantizable_layers(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the nodes that can be quantized: matrix products with a constant weight (I, O)."""
    matrices = {weight.name for weight in model.graph.initializer if len(weight.dims) == 2}
    return tuple(
        node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and not node.name.startswith(SENSITIVE)
    )


def module_name(layer: str) -> str:
    """The module of a node: `blocks.0.mixer.project`."""
    return layer.removeprefix("body.").rpartition(".")[0]


def quantize_dynamic(model: onnx.ModelProto, layers: Collection[str]) -> onnx.ModelProto:
    """The model with these layers quantized; the range of inputs is measured in every batch."""

    def write(node: NodeProto, weights: "QuantizedWeights", quantized: bool) -> list[NodeProto]:
        x, (out,) = node.input[0], node.output
        numbers = [f"{x}.bytes", f"{x}.scale", f"{x}.zero"]
        first = [] if quantized else [helper.make_node("DynamicQuantizeLinear", [x], numbers, name=f"{x}.quantize")]
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

    return _replace_layers(model, layers, write, {})


def quantize_static(
    model: onnx.ModelProto, layers: Collection[str], ranges: Mapping[str, InputRange]
) -> onnx.ModelProto:
    """The model with these layers quantized, for inputs within calibrated ranges."""

    def write(node: NodeProto, weights: "QuantizedWeights", quantized: bool) -> list[NodeProto]:
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
        return [*([] if quantized else first), back, product]

    return _replace_layers(model, layers, write, ranges)


class QuantizedWeights(NamedTuple):
    """The names of a layer's int8 weights, their scales and zero points."""

    bytes: str
    scale: str
    zero: str


def _replace_layers(
    model: onnx.ModelProto,
    layers: Collection[str],
    write: Callable[[NodeProto, QuantizedWeights, bool], list[NodeProto]],
    ranges: Mapping[str, InputRange],
) -> onnx.ModelProto:
    """A copy of the model with the layers replaced; `ranges` of their inputs where they are static."""
    selected = set(layers)
    inputs = {node.input[0] for node in model.graph.node if node.name in selected}
    weights = {node.input[1] for node in model.graph.node if node.name in selected}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:], copy.graph.initializer[:]
    quantized: set[str] = set()
    for node in model.graph.node:
        if node.name not in selected:
            copy.graph.node.append(node)
            continue
        name = node.input[1]
        copy.graph.node.extend(
            write(node, QuantizedWeights(name, f"{name}.scale", f"{name}.zero"), node.input[0] in quantized)
        )
        quantized.add(node.input[0])
    for tensor in model.graph.initializer:
        copy.graph.initializer.extend(_quantize_weights(tensor) if tensor.name in weights else [tensor])
    for name in sorted(inputs & ranges.keys()):
        copy.graph.initializer.extend(_input_scale(name, ranges[name]))
    return copy


def _quantize_weights(tensor: TensorProto) -> list[TensorProto]:
    """Weights (I, O) in int8, with a scale and a zero point for each output."""
    weights: NDArray[np.float32] = numpy_helper.to_array(tensor)
    scale = np.maximum(np.abs(weights).max(axis=0) / WEIGHT_LEVELS, MIN_SCALE).astype(np.float32)  # (O)
    return [
        numpy_helper.from_array(np.rint(weights / scale).astype(np.int8), tensor.name),
        numpy_helper.from_array(scale, f"{tensor.name}.scale"),
        numpy_helper.from_array(np.zeros(len(scale), dtype=np.int8), f"{tensor.name}.zero"),
    ]


def _input_scale(name: str, range: InputRange) -> list[TensorProto]:
    """The scale and zero point of inputs. Zero must be representable exactly."""
    low, high = min(range.low, 0.0), max(range.high, 0.0)
    scale = max((high - low) / INPUT_LEVELS, MIN_SCALE)
    return [
        numpy_helper.from_array(np.array(scale, dtype=np.float32), f"{name}.scale"),
        numpy_helper.from_array(np.array(round(-low / scale), dtype=np.uint8), f"{name}.zero"),
    ]


def build_range_meter(
    model: onnx.ModelProto, layers: Collection[str], run: Callable[[onnx.ModelProto], Engine]
) -> "RangeMeter":
    """A meter of the input range of each layer."""
    selected = set(layers)
    inputs = tuple(dict.fromkeys(node.input[0] for node in model.graph.node if node.name in selected))
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
    return RangeMeter(inputs, run(copy))


class RangeMeter(NamedTuple):
    """An engine whose outputs are the smallest and largest input of each layer."""

    inputs: tuple[str, ...]
    engine: Engine

    def ranges(self, pixels: PixelBatch) -> dict[str, InputRange]:
        """The ranges over images (B, H, W, C), by input name."""
        chunks = [pixels[start : start + CHUNK] for start in range(0, len(pixels), CHUNK)]
        ends = np.stack([self.engine.run(chunk) for chunk in chunks])  # (chunks, 2 x inputs)
        lows, highs = ends[:, ::2].min(axis=0).tolist(), ends[:, 1::2].max(axis=0).tolist()
        return {name: InputRange(low, high) for name, low, high in zip(self.inputs, lows, highs, strict=True)}


class QuantizedModel(NamedTuple):
    """An int8 model, and the record of how it was chosen."""

    model: onnx.ModelProto
    record: Quantization


class QuantizationJob(NamedTuple):
    """What to quantize, and how to verify it."""

    core: onnx.ModelProto
    target: OnnxBasedTarget
    calibration: PixelBatch  # (B, H, W, C)
    verify: Callable[[onnx.ModelProto], Certificate]

    def apply(self, method: Method, layers: Sequence[str], ranges: dict[str, InputRange]) -> onnx.ModelProto:
        return (
            quantize_dynamic(self.core, layers) if method == "dynamic" else quantize_static(self.core, layers, ranges)
        )


def quantize(job: QuantizationJob) -> QuantizedModel:
    """The fastest method within the tolerance; VitralError, with the best result, where there is none."""
    layers = quantizable_layers(job.core)
    if not layers:
        raise ConfigError(
            "int8 quantizes the matrix products of blocks, and this model has none",
            code="config.unsupported",
            where="--int8",
            hint=WITHOUT,
        )
    ranges = build_range_meter(job.core, layers, job.target.engine).ranges(job.calibration)
    engines: dict[str, Engine] = {"float32": job.target.engine(job.core)}
    models: dict[Method, onnx.ModelProto] = {}
    trials: list[Trial] = []
    for method in job.target.quantization_methods:
        for trial, model in run_trials(job, method, layers, ranges):
            trials.append(trial)
            if trial.holds:
                models[method], engines[method] = model, job.target.engine(model)
    if not models:
        best = max(trials, key=lambda trial: (trial.agreement or 0.0, -(trial.lost or 0.0)))
        lost = "" if best.lost is None else f", accuracy drops by {100 * best.lost:.2f} points"
        raise VitralError(
            f"int8 exceeds its tolerance: at best {best.agreement or 0:.2%} of images have the same top-1{lost}",
            code="export.int8_inaccurate",
            hint=f"{WITHOUT}, or train the model further: low-confidence predictions change easily",
        )
    rates = measure_throughput(engines, job.calibration[:TIMED])
    timed = tuple(each.model_copy(update={"rate": rates[each.method] if each.holds else None}) for each in trials)
    chosen = max(models, key=lambda method: rates[method] * PREFERENCE[method])
    floats = next(each.floats for each in timed if each.holds and each.method == chosen)
    count = len([layer for layer in layers if group_of(layer) not in floats])
    record = Quantization(
        method=chosen,
        layers=count,
        floats=floats,
        calibrated=len(job.calibration),
        float_rate=rates["float32"],
        trials=timed,
    )
    return QuantizedModel(models[chosen], record)


def run_trials(
    job: QuantizationJob, method: Method, layers: Sequence[str], ranges: dict[str, InputRange]
) -> Iterator[tuple[Trial, onnx.ModelProto]]:
    """Trials of a method, each with more sensitive modules in float32, until one is within the tolerance."""
    groups = list(dict.fromkeys(map(group_of, layers)))
    order: list[str] = []
    for kept in float_group_counts(len(groups)):
        floats = tuple(order[:kept])
        model = job.apply(method, [layer for layer in layers if group_of(layer) not in floats], ranges)
        trial = trial_result(method, floats, job.verify(model))
        log.info(trial.line())
        yield trial, model
        if trial.holds:
            return
        order = order or rank_by_sensitivity(job, method, layers, ranges)


def float_group_counts(groups: int) -> list[int]:
    """How many groups stay in float32 in each trial: doubled each time, then half of the rest."""
    counts = [0]
    while (last := counts[-1]) < groups - 1:
        counts.append(max(1, min(2 * last, (last + groups + 1) // 2)))
    return counts


def trial_result(method: Method, floats: tuple[str, ...], certificate: Certificate) -> Trial:
    """The record of a trial."""
    accuracy = certificate.accuracy
    return Trial(
        method=method,
        floats=floats,
        holds=not find_violations(certificate, INT8),
        difference=certificate.difference,
        agreement=certificate.agreement,
        lost=accuracy.model - accuracy.export if accuracy else None,
        rate=None,
    )


def rank_by_sensitivity(
    job: QuantizationJob, method: Method, layers: Sequence[str], ranges: dict[str, InputRange]
) -> list[str]:
    """The groups, first the one that changes the outputs most when it alone is quantized."""
    pixels = job.calibration[:SENSITIVITY_IMAGES]
    expected = job.target.engine(job.core).run(pixels)  # (B, K)
    errors = {}
    for group in dict.fromkeys(map(group_of, layers)):
        alone = job.apply(method, [layer for layer in layers if group_of(layer) == group], ranges)
        errors[group] = float(np.abs(job.target.engine(alone).run(pixels) - expected).mean())
    return sorted(errors, key=lambda group: -errors[group])


def group_of(layer: str) -> str:
    """The modules that stay in float32 together: `blocks.0.mixer` or `blocks.0.mlp`."""
    return ".".join(module_name(layer).split(".")[:3])


def measure_throughput(engines: dict[str, Engine], pixels: PixelBatch) -> dict[str, float]:
    """Images per second of each engine: the best of interleaved runs."""
    best = dict.fromkeys(engines, float("inf"))
    for round_ in range(ROUNDS + 1):  # the first is a warm-up
        for name, engine in engines.items():
            started = perf_counter()
            engine.run(pixels)
            if round_:
                best[name] = min(best[name], perf_counter() - started)
    return {name: len(pixels) / seconds for name, seconds in best.items()}

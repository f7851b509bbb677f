"""Int8 quantization of ONNX models with accuracy control.  B images, I inputs, O outputs of a layer.

The matrix products of blocks are quantized dynamically or statically. Where the result exceeds the tolerance, the most
sensitive modules go back to float32, twice as many each time. The fastest method within the tolerance is chosen.

The nodes are rewritten by ONNX Runtime's own quantizers. Against the hand-written rewriting that they replaced (Ti/16
with random weights, 32 synthetic images, ONNX Runtime 1.31, one thread of a busy machine, one run), in milliseconds an
image and mean difference from float32: dynamic 12.95 against 13.04 and 0.0161 against 0.0164, static 13.62 against
13.33 and 0.0163 against 0.0163, static under OpenVINO 11.79 against 11.94 and 0.0165 against 0.0162. Rewriting takes
0.9 s for all layers and 0.05 s for one module, against 0.01 s: a few seconds of a search.

Why not NNCF (3.4, OpenVINO, Ti/16 with random weights, 64 images to calibrate, 100 to verify): its
`quantize_with_accuracy_control` had not finished after 210 s of processor time. This search took 57 s with the
hand-written rewriting, and 86 s with the quantizers in another run of 8 trials; the two runs are not comparable. NNCF
adds scikit-learn, scipy and networkx to the dependencies. Without accuracy control its model was 12% faster than the
hand-written one with all layers quantized (10.4 ms against 11.8 ms) and further from float32 (mean difference 0.040
against 0.034).
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from vitral.core.errors import ConfigError, VitralError
from vitral.core.imports import load_onnxruntime
from vitral.exporters.targets import OnnxBasedTarget, serialize_for_export
from vitral.exporters.verify import INT8, find_violations
from vitral.inference.engines.auto import time_engines
from vitral.inference.engines.engine import INPUT_NAME, Engine, PixelBatch
from vitral.inference.engines.onnxruntime import ALL_THREADS, make_session
from vitral.inference.exported import Certificate, Method, Quantization, Trial

log = logging.getLogger("vitral")
WITHOUT = "remove --int8"
SENSITIVITY_IMAGES = 16
TIMED = 8  # images
# With dynamic ranges an output depends on the rest of the batch: chosen only for a clear gain in speed.
PREFERENCE: dict[Method, float] = {"dynamic": 1.0, "static": 1.1}
SENSITIVE = ("body.stem.", "head.")  # always in float32: quantized patches multiply the error
ORT_QUANTIZATION = "onnxruntime.quantization"
SHAPES_INFERRED = {"onnx.infer": "onnxruntime.quant"}  # the quantizers then do not write the model to a file to infer

Ranges = Mapping[str, tuple[np.float32, np.float32]]  # the smallest and largest value of a tensor, by its name


def quantizable_layers(model: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the nodes that can be quantized: matrix products with a constant weight (I, O)."""
    matrices = {weight.name for weight in model.graph.initializer if len(weight.dims) == 2}
    return tuple(
        node.name
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices and not node.name.startswith(SENSITIVE)
    )


def measure_ranges(model: onnx.ModelProto, layers: Collection[str], pixels: PixelBatch) -> Ranges:
    """The range of the inputs of these layers over images (B, H, W, C)."""
    names = list(dict.fromkeys(node.input[0] for node in model.graph.node if node.name in layers))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = make_session(serialize_for_export(copy), ALL_THREADS)
    runs = (session.run(None, {INPUT_NAME: pixels[index : index + 1]}) for index in range(len(pixels)))
    ends = np.array([[(values.min(), values.max()) for values in run] for run in runs])  # (B, inputs, 2)
    return dict(zip(names, zip(ends[..., 0].min(axis=0), ends[..., 1].max(axis=0), strict=True), strict=True))


def quantize_layers(model: onnx.ModelProto, layers: Collection[str], ranges: Ranges | None) -> onnx.ModelProto:
    """A copy of the model with these layers quantized: for these ranges of inputs, or for those of every batch.

    Weights have 7 bits (`reduce_range`): sums of 8-bit products would saturate on processors without VNNI.
    """
    load_onnxruntime()
    ort: Any = import_module(ORT_QUANTIZATION)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    helper.set_model_props(copy, SHAPES_INFERRED)
    ends = {name for node in model.graph.node if node.name in layers for name in (node.input[0], *node.output)}
    copy.graph.value_info.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(ends))
    others = [node.name for node in model.graph.node if node.op_type == "MatMul" and node.name not in layers]
    options: dict[str, Any] = {
        "per_channel": True,
        "reduce_range": True,
        "weight_qType": ort.QuantType.QInt8,
        "activation_qType": ort.QuantType.QUInt8,
        "nodes_to_quantize": [],
        "nodes_to_exclude": others,
        "op_types_to_quantize": ["MatMul"],
        "extra_options": {"OpTypesToExcludeOutputQuantization": ["MatMul"]},
    }
    if ranges is None:
        dynamic: Any = import_module(f"{ORT_QUANTIZATION}.onnx_quantizer")
        mode = ort.QuantizationMode.IntegerOps
        quantizer = dynamic.ONNXQuantizer(copy, mode=mode, static=False, tensors_range=None, **options)
    else:
        measured = ort.TensorsData(ort.CalibrationMethod.MinMax, dict(ranges))
        quantizer = ort.QDQQuantizer(copy, tensors_range=measured, **options)
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    result: onnx.ModelProto = quantizer.model.model
    result.producer_name, result.producer_version = model.producer_name, model.producer_version
    del result.graph.value_info[:], result.metadata_props[:]
    return result


class QuantizationJob(NamedTuple):
    """What to quantize, and how to verify it."""

    core: onnx.ModelProto
    target: OnnxBasedTarget
    calibration: PixelBatch  # (B, H, W, C)
    verify: Callable[[onnx.ModelProto], Certificate]


def quantize(job: QuantizationJob) -> tuple[onnx.ModelProto, Quantization]:
    """The fastest method within the tolerance; VitralError, with the best result, where there is none."""
    layers = quantizable_layers(job.core)
    if not layers:
        message = "int8 quantizes the matrix products of blocks, but this model has none"
        raise ConfigError(message, code="config.unsupported", where="--int8", hint=WITHOUT)
    ranges = measure_ranges(job.core, layers, job.calibration)
    engines: dict[str, Engine] = {"float32": job.target.engine(job.core)}
    models: dict[Method, onnx.ModelProto] = {}
    trials: list[Trial] = []
    for method in job.target.quantization_methods:
        for trial, model in run_trials(job, method, layers, ranges if method == "static" else None):
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
    seconds = time_engines(engines, job.calibration[:TIMED])
    rates = {name: 1 / each for name, each in seconds.items()}
    timed = tuple(each.model_copy(update={"rate": rates[each.method] if each.holds else None}) for each in trials)
    chosen = max(models, key=lambda method: rates[method] * PREFERENCE[method])
    floats = next(each.floats for each in timed if each.holds and each.method == chosen)
    return models[chosen], Quantization(
        method=chosen,
        layers=sum(group_of(layer) not in floats for layer in layers),
        floats=floats,
        calibrated=len(job.calibration),
        float_rate=rates["float32"],
        trials=timed,
    )


def run_trials(
    job: QuantizationJob, method: Method, layers: Sequence[str], ranges: Ranges | None
) -> Iterator[tuple[Trial, onnx.ModelProto]]:
    """Trials of a method, each with more sensitive modules in float32, until one is within the tolerance."""
    groups = len(set(map(group_of, layers)))
    order: list[str] = []
    kept = 0
    while True:
        floats = tuple(order[:kept])
        model = quantize_layers(job.core, [layer for layer in layers if group_of(layer) not in floats], ranges)
        certificate = job.verify(model)
        accuracy = certificate.accuracy
        trial = Trial(
            method=method,
            floats=floats,
            holds=not find_violations(certificate, INT8),
            difference=certificate.difference,
            agreement=certificate.agreement,
            lost=accuracy.model - accuracy.export if accuracy else None,
            rate=None,
        )
        log.info(trial.line())
        yield trial, model
        if trial.holds or kept >= groups - 1:
            return
        order = order or rank_by_sensitivity(job, layers, ranges)
        kept = max(1, min(2 * kept, (kept + groups + 1) // 2))  # doubled each time, then half of the rest


def rank_by_sensitivity(job: QuantizationJob, layers: Sequence[str], ranges: Ranges | None) -> list[str]:
    """The groups, first the one that changes the outputs most when it alone is quantized."""
    pixels = job.calibration[:SENSITIVITY_IMAGES]
    expected = job.target.engine(job.core).run(pixels)  # (B, K)
    errors = {}
    for group in dict.fromkeys(map(group_of, layers)):
        alone = quantize_layers(job.core, [layer for layer in layers if group_of(layer) == group], ranges)
        errors[group] = float(np.abs(job.target.engine(alone).run(pixels) - expected).mean())
    return sorted(errors, key=lambda group: -errors[group])


def group_of(layer: str) -> str:
    """The modules that stay in float32 together: `blocks.0.mixer` or `blocks.0.mlp`."""
    *modules, _ = layer.removeprefix("body.").split(".")
    return ".".join(modules[:3])

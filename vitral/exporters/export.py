"""Export a model to a folder that other software runs, created only if its outputs agree with the model."""

import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.core.imports import load_onnxruntime
from vitral.core.manifest import CARD, Manifest, describe_files, write_manifest
from vitral.core.storage import new_folder
from vitral.exporters.runner import FILE as RUNNER
from vitral.exporters.runner import check_runner, runner_script
from vitral.exporters.targets import (
    STORAGE,
    BatchSize,
    ExportPlan,
    InputSize,
    Target,
    TorchTarget,
    build_onnx,
    finish_onnx,
)
from vitral.exporters.verify import (
    BATCH_SIZES,
    FLOAT32,
    INT8,
    ExportImages,
    ReferenceOutputs,
    Tolerance,
    VerificationImages,
    find_violations,
    load_pixels,
    reference_outputs,
    verify,
)
from vitral.inference.engines.engine import INPUT_NAME, Engine, Precision
from vitral.inference.exported import (
    EXPORT_FILE,
    RESIZE_IN_GRAPH,
    RESIZE_IN_GRAPH_FIXED,
    RESIZE_IN_RUNNER,
    Certificate,
    Export,
    Quantization,
    TensorSpec,
    package_versions,
)
from vitral.inference.graph.graph import build_graph
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel

VERIFICATION_SCALES = ((1.7, 2.3), (0.6, 0.9), (2.9, 1.4), (1.0, 1.0))  # of inputs, relative to the model's size


class ExportRequest(NamedTuple):
    """The requested format and input of an export."""

    target: Target
    precision: Precision = "float32"
    batch_size: BatchSize = "dynamic"
    input_size: InputSize | Literal["own"] = "own"  # of the images; "own": preprocessed pixels of the model's size


class ExportSource(NamedTuple):
    """A model, and the sha256 of its weights file."""

    loaded: LoadedModel
    weights_sha256: str


class ExportJob(NamedTuple):
    """A plan, and the images and outputs that verify it."""

    request: ExportRequest
    plan: ExportPlan
    images: VerificationImages
    reference: ReferenceOutputs

    @property
    def tolerance(self) -> Tolerance:
        return INT8 if self.request.precision == "int8" else FLOAT32

    def verify(self, engine: Engine) -> Certificate:
        """Compare an engine with the model, on the same images for quantization trials and the written file."""
        batches = BATCH_SIZES if self.plan.batch_size == "dynamic" else (self.plan.batch_size,)
        return verify(engine, self.reference, self.images, self.tolerance, self.images.describe(), batches)


def export(source: ExportSource, images: ExportImages, request: ExportRequest, out: Path) -> Export:
    """Write a new folder and return the content of its `export.json`; VitralError, and no folder, if outputs differ."""
    check_request(source.loaded.bundle, images, request, out)
    plan = plan_export(source.loaded, request)
    verification = VerificationImages(images, plan.preprocessing, verification_sizes(plan))
    reference = reference_outputs(source.loaded, verification, images.labels)
    job = ExportJob(request, plan, verification, reference)
    with new_folder(out) as folder:
        return write_export(job, source, folder)


def check_request(bundle: Bundle, images: ExportImages, request: ExportRequest, out: Path) -> None:
    """Raise an error for a request that cannot succeed, before any work."""
    if os.path.lexists(out):
        hint = "choose another folder: --out"
        raise ConfigError("already exists and is not overwritten", code="config.path_exists", where=out, hint=hint)
    if bundle.model.channels not in (1, 3):
        message = f"run.py reads image files, which have 1 or 3 channels; the model has {bundle.model.channels}"
        hint = "use vitral.Predictor in Python"
        raise ConfigError(message, code="config.unsupported", where="model.channels", hint=hint)
    if request.precision == "int8":
        if isinstance(request.target, TorchTarget):
            message, hint = "int8 is supported for ONNX and OpenVINO only", "use --to onnx or --to openvino"
            raise ConfigError(message, code="config.conflict", where="--int8", hint=hint)
        if bundle.task != "classify":
            message = "int8 is verified by top-1 agreement, but this model has no classes"
            raise ConfigError(message, code="config.unsupported", where="--int8", hint="remove --int8")
        if not images.calibration:
            message, hint = "no images are left for calibration after verification", "verify with fewer: --images"
            raise DataError(message, code="data.too_few", where=images.samples.where, hint=hint)
        load_onnxruntime()  # quantizes for OpenVINO too
    request.target.check(request.input_size if request.input_size != "own" else bundle.preprocessing.image_size)


def plan_export(loaded: LoadedModel, request: ExportRequest) -> ExportPlan:
    """The plan of a request."""
    bundle = loaded.bundle
    graph = build_graph(loaded, "logits" if bundle.task == "classify" else "features")
    metadata = {
        "classes": json.dumps(bundle.classes),
        "preprocessing": json.dumps(bundle.preprocessing.model_dump(mode="json")),
        "task": bundle.task,
    }
    input_size = bundle.preprocessing.image_size if request.input_size == "own" else request.input_size
    return ExportPlan(
        graph, bundle.preprocessing, request.batch_size, input_size, metadata, request.precision, bundle.activation
    )


def verification_sizes(plan: ExportPlan) -> tuple[Size, ...]:
    """The input sizes to verify, where the exported model resizes images."""
    if plan.input_size != "dynamic":
        return (plan.input_size,) if plan.resizes else ()
    least, size = plan.preprocessing.decoding.shortest_side, plan.preprocessing.image_size
    grown = ([side * factor for side, factor in zip(size, each, strict=True)] for each in VERIFICATION_SCALES)
    return tuple(Size(*(max(least, round(side)) for side in sides)) for sides in grown)


def resizing_description(plan: ExportPlan) -> str:
    """Where images are resized, as `export.json` says it."""
    if plan.input_size == "dynamic":
        return RESIZE_IN_GRAPH
    return RESIZE_IN_GRAPH_FIXED if plan.resizes else RESIZE_IN_RUNNER


def write_export(job: ExportJob, source: ExportSource, folder: Path) -> Export:
    """Write and verify all files in a temporary folder; the metadata come last."""
    request, plan, bundle = job.request, job.plan, source.loaded.bundle
    quantization = _write_model(job, folder)
    engine = request.target.open(folder)
    certificate = job.verify(engine)
    if violations := find_violations(certificate, job.tolerance):
        hint = "report this as a bug in the export; nothing was written"
        message = f"the outputs of the export differ from the model: {'; '.join(violations)}"
        raise VitralError(message, code="export.disagrees", hint=hint)
    metadata = Export(
        kind=request.target.kind,
        precision=request.precision,
        opset=request.target.opset,
        files=describe_files(folder),
        input=TensorSpec(name=INPUT_NAME, type="uint8", shape=tuple(plan.input_shape())),
        output=TensorSpec(name=plan.graph.answer, type="float32", shape=(plan.input_shape()[0], plan.graph.outputs)),
        task=bundle.task,
        classes=bundle.classes,
        activation=bundle.activation,
        preprocessing=plan.preprocessing,
        resizing=resizing_description(plan),
        weights=source.weights_sha256,
        source=bundle.source,
        versions=package_versions(),
        quantization=quantization,
        certificate=certificate,
        runner=None,
    )
    texts = {RUNNER: runner_script(request.target, plan), CARD: readme(metadata), EXPORT_FILE: metadata.to_json()}
    for name, text in texts.items():
        STORAGE.write_file(folder / name, [memoryview(text.encode())])
    check = check_runner(folder, request.target, plan, engine, job.images.source)
    checked = metadata.model_copy(update={"runner": check})
    STORAGE.replace_file(folder / EXPORT_FILE, checked.to_json().encode())
    files = tuple(entry for entry in describe_files(folder) if entry.name != CARD)
    write_manifest(folder, Manifest(kind="export", files=files))
    return checked


def _write_model(job: ExportJob, folder: Path) -> Quantization | None:
    """Write the model file, quantized for int8."""
    target, plan = job.request.target, job.plan
    if job.request.precision == "float32" or isinstance(target, TorchTarget):
        target.write(plan, folder)
        return None
    from vitral.exporters.quantize import QuantizationJob, quantize

    images = job.images.source
    calibration = load_pixels(images.samples, images.calibration, plan.preprocessing)  # (B, H, W, C)
    certify = lambda model: job.verify(target.engine(finish_onnx(plan, model)))  # noqa: E731
    model, record = quantize(QuantizationJob(build_onnx(plan), target, calibration, certify))
    target.save(finish_onnx(plan, model), folder)
    return record


def readme(metadata: Export) -> str:
    """The README.md of the folder."""
    takes, gives = (", ".join(map(str, port.shape)) for port in (metadata.input, metadata.output))
    verified = "\n".join(f"- {line}" for line in metadata.certificate.lines())
    return f"""\
# {metadata.precision} model, exported by vitral {metadata.vitral}

    python run.py IMAGE...

- Input: `{metadata.input.name}`, uint8 ({takes}). Output: `{metadata.output.name}`, float32 ({gives}).
- Normalization is in the graph; resizing is {metadata.resizing}.
{verified}
- export.json holds the class names, the preprocessing and the full certificate.
"""

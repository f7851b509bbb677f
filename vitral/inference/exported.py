"""Exports as predictors use them: `export.json`, which describes an export and its verification, and its engine.

Nothing here imports torch.
"""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic_core import from_json

from vitral import __version__
from vitral.core import formats
from vitral.core.activation import Activation
from vitral.core.config import Config
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.files import read_file
from vitral.core.formats import install_hint, upgrade_json
from vitral.core.manifest import FileCheck, FileEntry, check_files
from vitral.core.storage import wrap_read_errors
from vitral.data.samples import format_names
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import (
    Engine,
    FloatArray,
    OutputKind,
    PixelBatch,
    Precision,
    Threads,
    package_version,
    run_in_batches,
    thread_count,
)
from vitral.inference.engines.onnxruntime import OnnxRuntimeEngine, WholeBatchEngine, make_session
from vitral.inference.engines.openvino import OpenVinoEngine, compile_whole_batch


class Comparison(Config):
    """Outputs of an export against those of its model on the same images."""

    batch: int
    images: int
    difference: float  # the largest of any output
    agreement: float | None  # share of images with the same top-1; null for features

    @property
    def changed(self) -> int:
        """The number of images with another top-1."""
        return 0 if self.agreement is None else round(self.images * (1 - self.agreement))


class Accuracy(Config):
    """Top-1 accuracy of the model and of its export."""

    model: float
    export: float


class Certificate(Config):
    """How an export was verified, and the result."""

    bound: str
    images: str  # which they were
    comparisons: tuple[Comparison, ...]  # by batch
    accuracy: Accuracy | None  # null where the images have other classes

    @property
    def difference(self) -> float:
        """The largest difference at any batch size."""
        return max(each.difference for each in self.comparisons)

    @property
    def agreement(self) -> float | None:
        """The share of images with the same top-1, at the largest batch size: only there all images were run."""
        return max(self.comparisons, key=lambda each: each.batch).agreement

    def lines(self) -> list[str]:
        """The certificate as text."""
        batches = ", ".join(str(each.batch) for each in self.comparisons)
        lines = [f"verified on {self.images}, in batches of {batches}; {self.bound}"]
        lines.append(f"largest difference of an output: {self.difference:.1e}")
        if self.agreement is not None:
            lines.append(f"same top-1: {self.agreement:.2%}")
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy.model:.2%} (model), {self.accuracy.export:.2%} (export)")
        return lines


EXPORT_FILE = "export.json"
FORMAT: Literal[3] = 3  # core/formats.py reads the older ones
HAS_MANIFEST = 3  # and later formats
Kind = Literal["onnx", "openvino", "torch"]
MODEL_FILES: dict[Kind, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch": "model.pt2"}
Method = Literal["dynamic", "static"]  # of quantization
PACKAGES = ("torch", "numpy", "pillow", "onnx", "onnxruntime", "openvino")
RESIZE_IN_GRAPH = "in the graph, to the same pixels as in Vitral"
RESIZE_IN_GRAPH_FIXED = (
    "in the graph for images of its input size, to the same pixels as in Vitral; "
    "run.py first resizes other images to that size with Pillow, such that the model gets the same crop"
)
RESIZE_IN_RUNNER = "done by run.py with Pillow, whose pixels differ from Vitral's by a few levels"
MAX_NAMES = 6  # in a log line; export.json has them all


class TensorSpec(Config):
    """An input or output tensor."""

    name: str
    type: Literal["uint8", "float32"]
    shape: tuple[int | str, ...]  # a name for a dynamic dimension


class Trial(Config):
    """One quantization that was tried, and its result."""

    method: Method
    floats: tuple[str, ...]  # modules left in float32, besides the patch embedding and the head
    holds: bool
    difference: float
    agreement: float | None
    lost: float | None  # of accuracy
    rate: float | None  # images per second, if accepted

    def line(self) -> str:
        """The trial as text."""
        lost = "" if self.lost is None else f", accuracy {100 * (0 - self.lost):+.2f} points"
        kept = f" with {format_names(self.floats, MAX_NAMES)} in float32" if self.floats else ""
        verdict = "accepted" if self.holds else "rejected"
        return f"int8, {self.method}{kept}: same top-1 for {self.agreement or 0:.2%}{lost}: {verdict}"


class Quantization(Config):
    """How an export was quantized."""

    method: Method
    layers: int  # quantized
    floats: tuple[str, ...]  # modules left in float32, besides the patch embedding and the head
    calibrated: int  # images
    float_rate: float  # images per second of the same model in float32
    trials: tuple[Trial, ...]

    def lines(self) -> list[str]:
        """The choice as text."""
        rates = [f"{each.method} {each.rate:.1f}" for each in self.trials if each.rate is not None]
        rates.append(f"float32 {self.float_rate:.1f}")
        kept = format_names(("patch embedding", "head", *self.floats), MAX_NAMES)
        return [f"int8, {self.method}: {', '.join(rates)} images per second; kept in float32: {kept}"]


class RunnerCheck(Config):
    """Predictions of the export's own run.py on files, against the same export with vitral's preprocessing."""

    files: int
    agreement: float  # share with the same top-1; for features, with the same direction
    difference: float  # the largest, of the top-1 probability or of a feature

    def line(self) -> str:
        """The check as text."""
        changed = round(self.files * (1 - self.agreement))
        exception = f", except for {changed} of which the export is uncertain" if changed else ""
        return f"run.py was checked on {self.files} files: it gives the same predictions{exception}"


class Export(Config):
    """The description of an export: `export.json`."""

    format: Literal[3] = FORMAT
    vitral: str = __version__
    kind: Kind
    precision: Precision
    opset: int | None  # of ONNX; null for torch
    files: tuple[FileEntry, ...]  # of the model
    input: TensorSpec
    output: TensorSpec
    task: str
    classes: tuple[str, ...]
    activation: Activation = "softmax"  # what turns logits into probabilities
    preprocessing: Preprocessing  # its scaling is in the graph
    resizing: str  # where it happens
    weights: str  # the sha256 of the file that the model was read from
    source: str  # of foreign weights
    versions: dict[str, str]
    quantization: Quantization | None
    certificate: Certificate
    runner: RunnerCheck | None  # null until it was checked

    @property
    def transform(self) -> Preprocessing:
        """The preprocessing as a function: the model's input (C, H, W) for a path, bytes, a PIL image or an array."""
        return self.preprocessing

    @property
    def answer(self) -> OutputKind:
        """The kind of output."""
        return "logits" if self.task == "classify" else "features"

    @property
    def width(self) -> int:
        """The width of the output."""
        width = self.output.shape[-1]
        assert isinstance(width, int)
        return width


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages involved."""
    found = {name: package_version(name) for name in PACKAGES}
    return {"python": platform.python_version()} | {name: each for name, each in found.items() if each != "none"}


ENGINES: dict[Kind, str] = {"onnx": "onnxruntime", "openvino": "openvino"}
EXPORT_AGAIN = "copy the export again, or repeat vitral export"


def is_export(path: Path) -> bool:
    """Whether a path is a folder of `vitral export`."""
    return os.path.isfile(path / EXPORT_FILE)  # false also for an invalid path


class OpenedExport(NamedTuple):
    """The description of an export, and the check of its files, to be waited for before the first answer."""

    notes: Export
    check: FileCheck


def read_export(folder: Path) -> OpenedExport:
    """The description of an export. Raises WeightsError if it is damaged, or a predictor cannot use it."""
    path = folder / EXPORT_FILE
    check = check_files(folder, "export", (EXPORT_FILE,), "", EXPORT_AGAIN)
    with wrap_read_errors(path):
        text = read_file(path)
    try:
        data = from_json(text)
    except ValueError as error:
        raise WeightsError(f"not JSON: {error}", code="weights.bad_config", where=path, hint=EXPORT_AGAIN) from None
    _check_format(data, path)
    check.require_manifest(data["format"], HAS_MANIFEST, EXPORT_AGAIN)
    try:
        notes = Export.from_json(upgrade_json(text, formats.EXPORT, FORMAT))
    except ConfigError as error:
        raise WeightsError(str(error), code="weights.bad_config", where=path, hint=EXPORT_AGAIN) from None
    _check_usable(notes, folder)
    check.require_listed((MODEL_FILES[notes.kind], *(file.name for file in notes.files)), EXPORT_AGAIN)
    if check.status == "unverified":  # older ones have the hashes of the model alone
        check.start(notes.files, EXPORT_AGAIN)
    return OpenedExport(notes, check)


def load_engine(folder: Path, export: OpenedExport, threads: Threads = "torch") -> Engine:
    """The engine of an export, for any number of images, once its files are checked."""
    with export.check.explaining():
        engine = _load_engine(folder, export.notes, threads)
    export.check.wait()
    return engine


def _load_engine(folder: Path, notes: Export, threads: Threads) -> Engine:
    path, batch = folder / MODEL_FILES[notes.kind], notes.input.shape[0]
    outputs, count = notes.width, thread_count(threads)
    if isinstance(batch, int) and batch > 1:
        whole = WholeBatchEngine(make_session(path, count)) if notes.kind == "onnx" else compile_whole_batch(path)
        return FixedBatchEngine(whole, batch, outputs)
    return (OnnxRuntimeEngine if notes.kind == "onnx" else OpenVinoEngine)(path, outputs, count)


@dataclass(frozen=True)
class FixedBatchEngine:
    """Runs any number of images on an engine with a fixed batch size."""

    engine: Engine
    batch: int
    outputs: int

    def run(self, pixels: PixelBatch) -> FloatArray:
        if not len(pixels):
            return np.zeros((0, self.outputs), dtype=np.float32)
        return run_in_batches(self.engine, pixels, self.batch)  # (B, K)


def _check_format(data: Any, path: Path) -> None:
    """Refuse files of other programs, and of later versions, before their fields are validated."""
    found = data.get("format") if isinstance(data, dict) else None
    if type(found) is not int:
        message = f"not an export of vitral: format is {found!r}, expected an integer"
        hint = "give a folder written by vitral export"
        raise WeightsError(message, code="weights.unknown_format", where=path, hint=hint)
    if found > FORMAT:
        message = f"an export of format {found}, written by vitral {data.get('vitral')}; expected at most {FORMAT}"
        hint = install_hint(data.get("vitral"), __version__)
        raise WeightsError(message, code="weights.newer_version", where=path, hint=hint)


def _check_usable(notes: Export, folder: Path) -> None:
    """Refuse exports that a predictor cannot use."""
    if notes.kind not in ENGINES:
        message, hint = "an export for torch runs only with its run.py", "use the model that it was made from"
        raise WeightsError(message, code="weights.unsupported", where=folder, hint=hint)
    if notes.input.shape[1:3] != tuple(notes.preprocessing.image_size):
        message = "an export that resizes images itself runs only with its run.py"
        hint = "export the model without --image-size"
        raise WeightsError(message, code="weights.unsupported", where=folder, hint=hint)
    numbers = notes.output.shape[-1]
    if not isinstance(numbers, int) or (notes.answer == "logits" and numbers != len(notes.classes)):
        message = f"{numbers} outputs do not match {len(notes.classes)} classes"
        raise WeightsError(message, code="weights.bad_config", where=folder / EXPORT_FILE, hint=EXPORT_AGAIN)

"""What `export.json` says of an export: all that whoever runs it has to know, and what it was held to.

What an export was held to, and how it did, as its notes tell it.
An export opened again, by what its notes say of it; torch has no part in that.
"""

import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic_core import from_json

from vitral import __version__
from vitral.core import formats
from vitral.core.activation import Activation
from vitral.core.config import Config
from vitral.core.errors import ConfigError, WeightsError
from vitral.core.formats import upgrade_json
from vitral.core.storage import wrap_read_errors
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import (
    Engine,
    FloatArray,
    OutputKind,
    PixelBatch,
    Precision,
    Threads,
    run_in_batches,
    thread_count,
)
from vitral.inference.engines.onnxruntime import OnnxRuntimeEngine, WholeBatchEngine, make_session
from vitral.inference.engines.openvino import OpenVinoEngine, compile_whole_batch


class Comparison(Config):
    """Answers of an export and of its model to the same images."""

    batch: int
    images: int
    difference: float  # the largest, of any number of an answer
    agreement: float | None  # share of the same top-1; null where answers are features

    @property
    def changed(self) -> int:
        """How many images have another top-1."""
        return 0 if self.agreement is None else round(self.images * (1 - self.agreement))


class Accuracy(Config):
    """Shares of right answers."""

    model: float
    export: float


class Certificate(Config):
    """What an export was held to, and how it did."""

    bound: str
    images: str  # which they were
    comparisons: tuple[Comparison, ...]  # by batch
    accuracy: Accuracy | None  # null where the images are not of the model's classes

    @property
    def difference(self) -> float:
        """The largest difference of all."""
        return max(each.difference for each in self.comparisons)

    @property
    def agreement(self) -> float | None:
        """The share of images of the same top-1 in the largest batch, in which all of them were asked about."""
        return max(self.comparisons, key=lambda each: each.batch).agreement

    def lines(self) -> list[str]:
        """The certificate in words."""
        batches = ", ".join(str(each.batch) for each in self.comparisons)
        lines = [f"judged by {self.images}, in batches of {batches}; {self.bound}"]
        lines.append(f"largest difference of a number: {self.difference:.1e}")
        if self.agreement is not None:
            lines.append(f"the same top-1: {self.agreement:.2%}")
        if self.accuracy is not None:
            lines.append(f"accuracy: {self.accuracy.model:.2%} of the model, {self.accuracy.export:.2%} of the export")
        return lines


EXPORT_FILE = "export.json"
FORMAT: Literal[2] = 2
Kind = Literal["onnx", "openvino", "torch"]
MODEL_FILES: dict[Kind, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch": "model.pt2"}  # by their files
Method = Literal["dynamic", "static"]  # of quantization
PACKAGES = ("torch", "numpy", "pillow", "onnx", "onnxruntime", "openvino")
RESIZE_IN_GRAPH = "in the graph, to the pixels that Vitral sees"
RESIZE_IN_GRAPH_FIXED = (
    "in the graph for pictures of its size, to the pixels that Vitral sees; "
    "the runner first brings others to that size, with Pillow and so that the model sees the same part of them"
)
MAX_NAMES = 6  # parts that a line names; export.json has them all
RESIZE_IN_RUNNER = "left to the runner, with Pillow, whose pixels are Vitral's to a level or a few"


class ExportedFile(Config):
    """A file of the export."""

    name: str
    bytes: int
    sha256: str


class TensorSpec(Config):
    """What goes in or comes out."""

    name: str
    type: Literal["uint8", "float32"]
    shape: tuple[int | str, ...]  # a word where any number will do


def join_names(parts: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(parts) - MAX_NAMES} more" if len(parts) > MAX_NAMES else ""
    return ", ".join(parts[:MAX_NAMES]) + more


class Trial(Config):
    """One way to quantize, and what came of it."""

    method: Method
    floats: tuple[str, ...]  # parts left in float, beside the patch embedding and the head
    holds: bool
    difference: float
    agreement: float | None
    lost: float | None  # of accuracy
    rate: float | None  # images a second where it holds

    def line(self) -> str:
        """The trial in words."""
        lost = "" if self.lost is None else f", accuracy {100 * (0 - self.lost):+.2f} points"
        kept = f" with {join_names(self.floats)} in float" if self.floats else ""
        held = "holds" if self.holds else "does not hold"
        return f"int8, {self.method}{kept}: {self.agreement or 0:.2%} of the same top-1{lost}: it {held}"


class Quantization(Config):
    """How an export was quantized."""

    method: Method
    layers: int  # quantized
    floats: tuple[str, ...]  # parts left in float, beside the patch embedding and the head
    calibrated: int  # images
    float_rate: float  # images a second of the same model in float32
    trials: tuple[Trial, ...]

    def lines(self) -> list[str]:
        """The choice in words."""
        rates = [f"{each.method} {each.rate:.1f}" for each in self.trials if each.rate is not None]
        rates.append(f"float32 {self.float_rate:.1f}")
        kept = join_names(("patch embedding", "head", *self.floats))
        return [f"int8, {self.method}: {', '.join(rates)} images a second; in float stay {kept}"]


class RunnerCheck(Config):
    """The runner's answers to some files, beside those of the same export to what Vitral sees of them."""

    files: int
    agreement: float  # share of the same top-1; of features, of the same direction
    difference: float  # the largest, of the chance of the answer, or of a feature

    def line(self) -> str:
        """The check in words."""
        other = round(self.files * (1 - self.agreement))
        answers = "alike" if not other else f"alike but for {other}, of which the export itself is unsure"
        return f"the runner was tried on {self.files} files, and answers {answers}"


class Export(Config):
    """An export as its folder tells it."""

    format: Literal[2] = FORMAT
    vitral: str = __version__
    kind: Kind
    precision: Precision
    opset: int | None  # of ONNX; null for torch
    files: tuple[ExportedFile, ...]
    input: TensorSpec
    output: TensorSpec
    task: str
    classes: tuple[str, ...]
    activation: Activation = "softmax"  # what turns logits into probabilities
    preprocessing: Preprocessing  # its scaling is in the graph
    resizing: str  # where it is done
    weights: str  # the sha256 of the file that the model was read from
    source: str  # where those came from, if they are not of Vitral
    versions: dict[str, str]
    quantization: Quantization | None
    certificate: Certificate
    runner: RunnerCheck | None  # null until it was tried

    @property
    def answer(self) -> OutputKind:
        """What comes out."""
        return "logits" if self.task == "classify" else "features"

    @property
    def width(self) -> int:
        """How many numbers an answer has."""
        width = self.output.shape[-1]
        assert isinstance(width, int)
        return width


def package_versions() -> dict[str, str]:
    """The packages that had a part in it."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe_files(folder: Path) -> tuple[ExportedFile, ...]:
    """The files of a folder, by name."""
    return tuple(
        ExportedFile(name=path.name, bytes=path.stat().st_size, sha256=_hash(path)) for path in sorted(folder.iterdir())
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


ENGINES: dict[Kind, str] = {"onnx": "onnxruntime", "openvino": "openvino"}
EXPORT_AGAIN = "copy the export again, or make it anew: vitral export"


def is_export(path: Path) -> bool:
    """Whether this is a folder of `vitral export`."""
    return os.path.isfile(path / EXPORT_FILE)  # false too where the system would not even look


def read_export(folder: Path) -> Export:
    """What an export says of itself; refused where its files are others, or where a predictor cannot use it."""
    path = folder / EXPORT_FILE
    with wrap_read_errors(path):
        text = path.read_bytes()
    try:
        data = from_json(text)
    except ValueError as error:
        raise WeightsError(
            f"not JSON: {error}", code="weights.bad_config", where=str(path), hint=EXPORT_AGAIN
        ) from None
    _check_format(data, path)
    try:
        notes = Export.from_json(upgrade_json(text, formats.EXPORT, FORMAT))
    except ConfigError as error:
        raise WeightsError(str(error), code="weights.bad_config", where=str(path), hint=EXPORT_AGAIN) from None
    _check_usable(notes, folder)
    for file in notes.files:
        with wrap_read_errors(folder / file.name):
            size = (folder / file.name).stat().st_size
        if size != file.bytes:
            message = f"has {size:,} bytes, and {file.bytes:,} were written"
            raise WeightsError(message, code="weights.corrupt", where=str(folder / file.name), hint=EXPORT_AGAIN)
    return notes


def load_engine(folder: Path, notes: Export, threads: Threads = "torch") -> Engine:
    """An export as an engine for any number of images."""
    path, batch = folder / MODEL_FILES[notes.kind], notes.input.shape[0]
    outputs, count = notes.width, thread_count(threads)
    if isinstance(batch, int) and batch > 1:
        whole = WholeBatchEngine(make_session(path, count)) if notes.kind == "onnx" else compile_whole_batch(path)
        return FixedBatchEngine(whole, batch, outputs)
    return OnnxRuntimeEngine(path, count) if notes.kind == "onnx" else OpenVinoEngine(path, outputs, count)


@dataclass(frozen=True)
class FixedBatchEngine:
    """An engine that takes so many images at a time and no other number, for any number of them."""

    engine: Engine
    batch: int
    outputs: int

    def run(self, pixels: PixelBatch) -> FloatArray:
        if not len(pixels):
            return np.zeros((0, self.outputs), dtype=np.float32)
        return run_in_batches(self.engine, pixels, self.batch)  # (B, K)


def _check_format(data: Any, path: Path) -> None:
    """Refuse what no vitral wrote, and what a later one did: its other fields are not to be judged here."""
    found = data.get("format") if isinstance(data, dict) else None
    if type(found) is not int:
        message = f"not of an export of vitral: its format is {found!r}, expected a whole number"
        raise WeightsError(
            message, code="weights.unknown_format", where=str(path), hint="give a folder of vitral export"
        )
    if found > FORMAT:
        message = f"an export of format {found}, written by vitral {data.get('vitral')}; expected at most {FORMAT}"
        hint = f"pip install 'vitral>={data.get('vitral')}' (this one is {__version__})"
        raise WeightsError(message, code="weights.newer_version", where=str(path), hint=hint)


def _check_usable(notes: Export, folder: Path) -> None:
    """Refuse what a predictor cannot use, though it may be whole."""
    if notes.kind not in ENGINES:
        message, hint = "an export for torch, which is for its run.py", "give the model that it was made of"
        raise WeightsError(message, code="weights.unsupported", where=str(folder), hint=hint)
    if notes.input.shape[1:3] != tuple(notes.preprocessing.image_size):
        message = "an export that resizes pictures by itself, which is for its run.py"
        raise WeightsError(
            message, code="weights.unsupported", where=str(folder), hint="export the model without --image-size"
        )
    numbers = notes.output.shape[-1]
    if not isinstance(numbers, int) or (notes.answer == "logits" and numbers != len(notes.classes)):
        message = f"tells of {numbers} numbers an answer and {len(notes.classes)} classes, which do not go together"
        raise WeightsError(message, code="weights.bad_config", where=str(folder / EXPORT_FILE), hint=EXPORT_AGAIN)

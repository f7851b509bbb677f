"""The formats that a model can be exported to, and the plan of an export, which is the same for all of them.

OpenVINO files are converted from the ONNX model. OpenVINO's own converter from `torch.export` gives a model of the same
speed and takes longer to make it: `python -m benchmarks.onnx_export`. int8 and resizing work on the ONNX model, and
serve both formats. A `.pt2` file holds no pickle, and torch runs it without Vitral.
B images, H x W pixels, C channels, K outputs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from vitral.core.activation import Activation
from vitral.core.config import Config, OpenUnion, Size
from vitral.core.errors import ConfigError
from vitral.core.imports import load_onnx, load_onnxruntime, load_openvino
from vitral.core.storage import Storage
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import Engine, FloatArray, PixelBatch, Precision
from vitral.inference.engines.onnxruntime import ALL_THREADS, WholeBatchEngine, make_session
from vitral.inference.engines.openvino import compile_whole_batch
from vitral.inference.exported import MODEL_FILES, Method
from vitral.inference.graph.graph import Graph

if TYPE_CHECKING:
    from onnx import ModelProto

BatchSize = int | Literal["dynamic"]
InputSize = Size | Literal["dynamic"]  # of the images that the exported model takes
STORAGE = Storage()
TRACE_BATCH = 2  # images: torch.export specializes on a batch of one
MAX_SIDE = 65_535  # pixels
METADATA_FILE = "export.json"  # inside the .pt2 file


class ExportPlan(NamedTuple):
    """The graph to write, its input and its metadata."""

    graph: Graph
    preprocessing: Preprocessing
    batch_size: BatchSize
    input_size: InputSize
    metadata: Mapping[str, str]  # written into the model file
    precision: Precision
    activation: Activation = "softmax"  # turns logits into probabilities

    @property
    def resizes(self) -> bool:
        """Whether the exported model resizes images; otherwise it takes preprocessed pixels."""
        return self.input_size != self.preprocessing.image_size

    def input_shape(self) -> list[int | str]:
        """The shape of the input, with names for dynamic sides."""
        sides = ("height", "width") if self.input_size == "dynamic" else self.input_size
        return ["batch" if self.batch_size == "dynamic" else self.batch_size, *sides, self.graph.channels]


class OnnxTarget(Config):
    """One `.onnx` file."""

    kind: Literal["onnx"] = "onnx"
    file: ClassVar[str] = MODEL_FILES["onnx"]
    package: ClassVar[str] = "onnxruntime"
    opset: ClassVar[int | None] = 20  # of vitral.inference.graph.onnx, which needs the onnx package
    quantization_methods: ClassVar[tuple[Method, ...]] = ("dynamic", "static")  # that it runs fast

    def check(self, input_size: InputSize) -> None:
        load_onnx()
        load_onnxruntime()

    def write(self, plan: ExportPlan, folder: Path) -> None:
        self.save(finish_onnx(plan, build_onnx(plan)), folder)

    def save(self, model: "ModelProto", folder: Path) -> None:
        STORAGE.write_file(folder / self.file, [memoryview(serialize_for_export(model))])

    def open(self, folder: Path) -> Engine:
        return WholeBatchEngine(make_session(folder / self.file, ALL_THREADS))

    def engine(self, model: "ModelProto") -> Engine:
        """An engine for a model in memory."""
        return WholeBatchEngine(make_session(serialize_for_export(model), ALL_THREADS))


class OpenVinoTarget(Config):
    """An `.xml` file and a `.bin` file with its weights."""

    kind: Literal["openvino"] = "openvino"
    file: ClassVar[str] = MODEL_FILES["openvino"]
    package: ClassVar[str] = "openvino"
    opset: ClassVar[int | None] = OnnxTarget.opset
    quantization_methods: ClassVar[tuple[Method, ...]] = ("static",)  # dynamic quantization is slow here

    def check(self, input_size: InputSize) -> None:
        load_onnx()
        load_openvino()
        if input_size == "dynamic":
            message = "OpenVINO has no float64, which exact resizing of images of any size needs"
            hint = "give the size of the images, or use --to onnx"
            raise ConfigError(message, code="config.conflict", where="--image-size", hint=hint)

    def write(self, plan: ExportPlan, folder: Path) -> None:
        self.save(finish_onnx(plan, build_onnx(plan)), folder)

    def save(self, model: "ModelProto", folder: Path) -> None:
        openvino = load_openvino()
        converted = openvino.Core().read_model(serialize_for_export(model))
        for each in model.metadata_props:
            converted.set_rt_info(each.value, ["vitral", each.key])
        openvino.save_model(converted, str(folder / self.file), compress_to_fp16=False)
        for name in (self.file, "model.bin"):
            STORAGE.fsync(folder / name)

    def open(self, folder: Path) -> Engine:
        return compile_whole_batch(folder / self.file)

    def engine(self, model: "ModelProto") -> Engine:
        """An engine for a model in memory."""
        return compile_whole_batch(serialize_for_export(model))


class TorchTarget(Config):
    """One `.pt2` file."""

    kind: Literal["torch"] = "torch"
    file: ClassVar[str] = MODEL_FILES["torch"]
    package: ClassVar[str] = "torch"
    opset: ClassVar[int | None] = None

    def check(self, input_size: InputSize) -> None:
        """Torch is always installed, and resizes images of any size."""

    def write(self, plan: ExportPlan, folder: Path) -> None:
        file = BytesIO()
        torch.export.save(export_program(plan), file, extra_files={METADATA_FILE: json.dumps(dict(plan.metadata))})
        STORAGE.write_file(folder / self.file, [file.getbuffer()])

    def open(self, folder: Path) -> Engine:
        return ProgramEngine(torch.export.load(folder / self.file).module())


OnnxBasedTarget = OnnxTarget | OpenVinoTarget  # written from an ONNX model, which may be quantized
Target = Annotated[OnnxTarget | OpenVinoTarget | TorchTarget, OpenUnion()]


def build_onnx(plan: ExportPlan) -> "ModelProto":
    """The graph as a float32 ONNX model for any batch, ready to be quantized if that is the precision."""
    from vitral.inference.graph.onnx import lower_for_onnx, to_onnx

    return to_onnx(lower_for_onnx(plan.graph, plan.precision))


def finish_onnx(plan: ExportPlan, core: "ModelProto") -> "ModelProto":
    """A copy of the graph's model, quantized or not, with resizing, metadata and batch size as planned."""
    import onnx

    from vitral.exporters.resize_graph import add_resizing

    model = onnx.ModelProto()
    model.CopyFrom(add_resizing(core, plan.preprocessing, plan.input_size) if plan.resizes else core)
    onnx.helper.set_model_props(model, dict(plan.metadata))
    if plan.batch_size != "dynamic":
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = plan.batch_size
    return model


def serialize_for_export(model: "ModelProto") -> bytes:
    """The bytes of the model file; ConfigError above 2 GB."""
    from vitral.inference.graph.onnx import serialize

    return serialize(model, "--to", "use --to torch")


class ResizeModule(nn.Module):
    """Images uint8 (B, H, W, C) of any size to the model's pixels, by torch's own resizing."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__()
        self.preprocessing = preprocessing

    def forward(self, images: Tensor) -> Tensor:
        crop, image_size = self.preprocessing.crop, self.preprocessing.image_size
        sides: tuple[int, ...] = image_size
        if isinstance(crop, CenterCrop):
            sides = rows, columns = crop.filled(image_size)
        if isinstance(crop, CenterCrop) and crop.aspect == "keep":
            height, width = images.shape[1:3]
            sides = (torch.sym_max(rows, columns * height // width), torch.sym_max(columns, rows * width // height))
        resized = interpolate(images.permute(0, 3, 1, 2), size=sides, mode=crop.filter, antialias=True)
        for axis, (side, kept) in enumerate(zip(sides, image_size, strict=True), start=2):
            margin = side - kept
            down = isinstance(crop, CenterCrop) and crop.rounding == "down"
            start = margin // 2 if down else (margin + (margin // 2) % 2) // 2  # rounded to even
            resized = resized.narrow(axis, start, kept)
        return resized.permute(0, 2, 3, 1)  # (B, image_size, C)


def export_program(plan: ExportPlan) -> ExportedProgram:
    """The planned graph as a program of torch.export."""
    module = nn.Sequential(ResizeModule(plan.preprocessing), plan.graph).eval() if plan.resizes else plan.graph
    dynamic = {0: Dim("batch")} if plan.batch_size == "dynamic" else {}
    height, width = plan.preprocessing.image_size if plan.input_size == "dynamic" else plan.input_size
    if plan.input_size == "dynamic":
        dynamic |= {1: Dim("height", min=1, max=MAX_SIDE), 2: Dim("width", min=1, max=MAX_SIDE)}
        height, width = 2 * height, 2 * width
    batch = TRACE_BATCH if plan.batch_size == "dynamic" else plan.batch_size
    pixels = torch.zeros(batch, height, width, plan.graph.channels, dtype=torch.uint8)
    with torch.no_grad():
        program = torch.export.export(module, (pixels,), dynamic_shapes=(dynamic,) if dynamic else None)
    program.example_inputs = None  # the only part of a program that would be pickled
    return program


@dataclass(frozen=True)
class ProgramEngine:
    """An engine that runs a program of torch.export."""

    module: nn.Module

    @torch.no_grad()
    def run(self, pixels: PixelBatch) -> FloatArray:
        return self.module(torch.from_numpy(pixels)).numpy()  # (B, K)

"""What an export can be: files of ONNX, of OpenVINO or of torch, each opened again as a stranger would.

B pictures, H x W pixels, C channels, K numbers.

Graphs as programs of torch.export: one .pt2 file that torch runs without Vitral, and no pickle in it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn.functional import interpolate

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.core.imports import load_onnx, load_onnxruntime, load_openvino
from vitral.core.storage import Disk
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import Bytes, Engine, Numbers, Precision
from vitral.inference.engines.onnxruntime import ALL_THREADS, Session, session
from vitral.inference.engines.openvino import compiled
from vitral.inference.exported import MODELS, Method
from vitral.inference.graph.graph import Graph

if TYPE_CHECKING:
    from onnx import ModelProto


SAMPLE = 2  # images: torch takes one for a constant
LONGEST = 65_535  # pixels of a side that may come in
NOTES = "export.json"  # inside the file


class Resizing(nn.Module):
    """Pictures uint8 (B, H, W, C) of any size to what the model sees of them, by torch's own resizing."""

    def __init__(self, needs: Preprocessing) -> None:
        super().__init__()
        self.needs = needs

    def forward(self, pictures: Tensor) -> Tensor:
        view, image = self.needs.crop, self.needs.image_size
        lengths: tuple[int, ...] = image
        if isinstance(view, CenterCrop):
            rows, columns = (int(side / view.fraction) for side in image)
            high, wide = pictures.shape[1:3]
            lengths = (torch.sym_max(rows, columns * high // wide), torch.sym_max(columns, rows * wide // high))
        levels = interpolate(pictures.permute(0, 3, 1, 2), size=lengths, mode=view.filter, antialias=True)
        for axis, (length, kept) in enumerate(zip(lengths, image, strict=True), start=2):
            spare = length - kept
            start = (spare + (spare // 2) % 2) // 2  # the half of it, and of an odd one the even neighbor
            levels = levels.narrow(axis, start, kept)
        return levels.permute(0, 2, 3, 1)  # (B, image, C)


def program_of(
    graph: Graph, needs: Preprocessing, batch: int | Literal["dynamic"], incoming: Size | Literal["dynamic"]
) -> ExportedProgram:
    """The graph as a program; `incoming` is the size of the pictures that it takes."""
    whole = graph if incoming == needs.image_size else nn.Sequential(Resizing(needs), graph).eval()
    high, wide = (side * 2 for side in needs.image_size) if incoming == "dynamic" else incoming
    count = SAMPLE if batch == "dynamic" else batch
    pixels = torch.zeros(count, high, wide, graph.channels, dtype=torch.uint8)
    sides = {0: Dim("batch")} if batch == "dynamic" else {}
    if incoming == "dynamic":
        sides |= {1: Dim("height", min=1, max=LONGEST), 2: Dim("width", min=1, max=LONGEST)}
    with torch.no_grad():
        program = torch.export.export(whole, (pixels,), dynamic_shapes=(sides,) if sides else None)
    program.example_inputs = None  # the one thing of a program that would be pickled
    return program


def packed(program: ExportedProgram, notes: str) -> bytes:
    """The program as the content of a .pt2 file, with notes inside."""
    file = BytesIO()
    torch.export.save(program, file, extra_files={NOTES: notes})
    return file.getvalue()


Batch = int | Literal["dynamic"]
Incoming = Size | Literal["dynamic"]  # what comes in: pictures of one size, or of any

DISK = Disk()


class Plan(NamedTuple):
    """What is to be written, whatever the format."""

    graph: Graph
    needs: Preprocessing
    batch: Batch
    incoming: Incoming
    facts: Mapping[str, str]  # for the metadata of the file
    precision: Precision

    @property
    def resizes(self) -> bool:
        """Whether pictures are resized in the graph; those of the model's own size come in as it sees them."""
        return self.incoming != self.needs.image_size

    def shape(self) -> list[int | str]:
        """The shape of what comes in."""
        sides = ("height", "width") if self.incoming == "dynamic" else self.incoming
        return ["batch" if self.batch == "dynamic" else self.batch, *sides, self.graph.channels]

    def core(self) -> "ModelProto":
        """The graph alone as an ONNX model, for any batch; in float32, be it to be quantized."""
        from vitral.inference.graph.onnx import lowered, to_onnx

        return to_onnx(lowered(self.graph, self.precision))

    def finished(self, core: "ModelProto") -> "ModelProto":
        """An ONNX model of the graph, be it quantized, with what stands before it and its metadata."""
        import onnx
        from onnx import helper

        from vitral.exporters.resize_graph import with_resizing

        model = onnx.ModelProto()
        model.CopyFrom(with_resizing(core, self.needs, self.incoming) if self.resizes else core)
        helper.set_model_props(model, dict(self.facts))
        for value in (*model.graph.input, *model.graph.output) if self.batch != "dynamic" else ():
            value.type.tensor_type.shape.dim[0].dim_value = self.batch
        return model


@dataclass(frozen=True)
class Program:
    """A program of torch.export."""

    module: torch.nn.Module

    @torch.no_grad()
    def run(self, pixels: Bytes) -> Numbers:
        return self.module(torch.from_numpy(pixels)).numpy()  # (B, K)


class OnnxTarget(Config):
    """One .onnx file."""

    kind: Literal["onnx"] = "onnx"
    file: ClassVar[str] = MODELS["onnx"]
    package: ClassVar[str] = "onnxruntime"
    opset: ClassVar[int | None] = 20  # of vitral.inference.graph.onnx, which not everyone can import
    methods: ClassVar[tuple[Method, ...]] = ("dynamic", "static")  # of quantization that it runs quickly

    def check(self, incoming: Incoming) -> None:
        load_onnx()
        load_onnxruntime()

    def write(self, plan: Plan, folder: Path) -> None:
        self.save(plan.finished(plan.core()), folder)

    def save(self, model: "ModelProto", folder: Path) -> None:
        DISK.write(folder / self.file, [memoryview(_serialized(model))])

    def open(self, folder: Path) -> Engine:
        return Session(session(folder / self.file, ALL_THREADS))

    def engine(self, model: "ModelProto") -> Engine:
        """A model that is in no file yet."""
        return Session(session(_serialized(model), ALL_THREADS))


class OpenVinoTarget(Config):
    """An .xml file of OpenVINO and the .bin file with its weights."""

    kind: Literal["openvino"] = "openvino"
    file: ClassVar[str] = MODELS["openvino"]
    package: ClassVar[str] = "openvino"
    opset: ClassVar[int | None] = 20  # it is made of a model of ONNX
    methods: ClassVar[tuple[Method, ...]] = ("static",)  # it has no quick way for ranges that are found batch by batch

    def check(self, incoming: Incoming) -> None:
        load_onnx()
        load_openvino()
        if incoming == "dynamic":
            message = "OpenVINO calculates in 32 bits, in which pictures of any size are not resized to the last bit"
            raise ConfigError(
                message,
                code="config.conflict",
                where="--image-size",
                hint="give the size of the pictures, or use --to onnx",
            )

    def write(self, plan: Plan, folder: Path) -> None:
        self.save(plan.finished(plan.core()), folder)

    def save(self, model: "ModelProto", folder: Path) -> None:
        openvino = load_openvino()
        read = openvino.Core().read_model(_serialized(model))
        for fact in model.metadata_props:
            read.set_rt_info(fact.value, ["vitral", fact.key])
        openvino.save_model(read, str(folder / self.file), compress_to_fp16=False)
        for name in (self.file, "model.bin"):
            DISK.flush(folder / name)

    def open(self, folder: Path) -> Engine:
        return compiled(folder / self.file)

    def engine(self, model: "ModelProto") -> Engine:
        """A model that is in no file yet."""
        return compiled(_serialized(model))


class TorchTarget(Config):
    """One .pt2 file of torch.export, which holds no pickle."""

    kind: Literal["torch"] = "torch"
    file: ClassVar[str] = MODELS["torch"]
    package: ClassVar[str] = "torch"
    opset: ClassVar[int | None] = None
    methods: ClassVar[tuple[Method, ...]] = ()

    def check(self, incoming: Incoming) -> None:
        """Torch is always there, and resizes pictures of any size."""

    def write(self, plan: Plan, folder: Path) -> None:

        program = program_of(plan.graph, plan.needs, plan.batch, plan.incoming)
        DISK.write(folder / self.file, [memoryview(packed(program, json.dumps(dict(plan.facts))))])

    def open(self, folder: Path) -> Engine:
        return Program(torch.export.load(folder / self.file).module())


Target = Annotated[OnnxTarget | OpenVinoTarget | TorchTarget, Field(discriminator="kind")]


def _serialized(model: "ModelProto") -> bytes:
    from vitral.inference.graph.onnx import serialized

    return serialized(model, "--to", "use --to torch")

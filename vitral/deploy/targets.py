"""What an export can be: files of ONNX, of OpenVINO or of torch, each opened again as a stranger would.

B pictures, H x W pixels, C channels, K numbers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field

from vitral.config import Config, Size
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.deploy.engine import Bytes, Engine, Numbers, Precision
from vitral.deploy.engines.onnxruntime import ALL_THREADS, Session, session
from vitral.deploy.engines.openvino import compiled
from vitral.deploy.exported import MODELS, Method
from vitral.deploy.graph import Graph
from vitral.deploy.packages import load_onnx, load_onnxruntime, load_openvino
from vitral.errors import ConfigError
from vitral.weights.durable import Disk

if TYPE_CHECKING:
    from onnx import ModelProto

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
        return self.incoming != self.needs.image

    def shape(self) -> list[int | str]:
        """The shape of what comes in."""
        sides = ("height", "width") if self.incoming == "dynamic" else self.incoming
        return ["batch" if self.batch == "dynamic" else self.batch, *sides, self.graph.channels]

    def core(self) -> "ModelProto":
        """The graph alone as an ONNX model, for any batch; in float32, be it to be quantised."""
        from vitral.deploy.lowering import lowered
        from vitral.deploy.onnx import to_onnx

        return to_onnx(lowered(self.graph, self.precision))

    def finished(self, core: "ModelProto") -> "ModelProto":
        """An ONNX model of the graph, be it quantised, with what stands before it and its metadata."""
        import onnx
        from onnx import helper

        from vitral.deploy.resizing import with_resizing

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
    opset: ClassVar[int | None] = 20  # of vitral.deploy.onnx, which not everyone can import
    methods: ClassVar[tuple[Method, ...]] = ("dynamic", "static")  # of quantisation that it runs quickly

    def check(self, incoming: Incoming) -> None:
        load_onnx()
        load_onnxruntime()

    def write(self, plan: Plan, folder: Path) -> None:
        self.save(plan.finished(plan.core()), folder)

    def save(self, model: "ModelProto", folder: Path) -> None:
        DISK.write(folder / self.file, [memoryview(_serialised(model))])

    def open(self, folder: Path) -> Engine:
        return Session(session(folder / self.file, ALL_THREADS))

    def engine(self, model: "ModelProto") -> Engine:
        """A model that is in no file yet."""
        return Session(session(_serialised(model), ALL_THREADS))


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
            what = "OpenVINO calculates in 32 bits, in which pictures of any size are not resized to the last bit"
            raise ConfigError(
                what, code="config.conflict", where="--image", remedy="give the size of the pictures, or use --to onnx"
            )

    def write(self, plan: Plan, folder: Path) -> None:
        self.save(plan.finished(plan.core()), folder)

    def save(self, model: "ModelProto", folder: Path) -> None:
        openvino = load_openvino()
        read = openvino.Core().read_model(_serialised(model))
        for fact in model.metadata_props:
            read.set_rt_info(fact.value, ["vitral", fact.key])
        openvino.save_model(read, str(folder / self.file), compress_to_fp16=False)
        for name in (self.file, "model.bin"):
            DISK.flush(folder / name)

    def open(self, folder: Path) -> Engine:
        return compiled(folder / self.file)

    def engine(self, model: "ModelProto") -> Engine:
        """A model that is in no file yet."""
        return compiled(_serialised(model))


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
        from vitral.deploy.program import packed, program_of

        program = program_of(plan.graph, plan.needs, plan.batch, plan.incoming)
        DISK.write(folder / self.file, [memoryview(packed(program, json.dumps(dict(plan.facts))))])

    def open(self, folder: Path) -> Engine:
        return Program(torch.export.load(folder / self.file).module())


Target = Annotated[OnnxTarget | OpenVinoTarget | TorchTarget, Field(discriminator="kind")]


def _serialised(model: "ModelProto") -> bytes:
    from vitral.deploy.onnx import serialised

    return serialised(model, "--to", "use --to torch")

"""Export to ONNX: one `.onnx` file."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from vitral.core.config import Config
from vitral.core.imports import load_onnx, load_onnxruntime
from vitral.exporters.plan import STORAGE, ExportPlan, InputSize
from vitral.inference.engines.engine import Engine
from vitral.inference.engines.onnxruntime import ALL_THREADS, WholeBatchEngine, make_session
from vitral.inference.exported import MODEL_FILES, Method

if TYPE_CHECKING:
    from onnx import ModelProto


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


def build_onnx(plan: ExportPlan) -> "ModelProto":
    """The graph as a float32 ONNX model for any batch, ready to be quantized if that is the precision."""
    from vitral.inference.graph.onnx import lower_for_onnx, to_onnx

    return to_onnx(lower_for_onnx(plan.graph, plan.precision))


def finish_onnx(plan: ExportPlan, core: "ModelProto") -> "ModelProto":
    """A copy of the graph's model, quantized or not, with resizing, metadata and batch size as planned."""
    import onnx
    from onnx import helper

    from vitral.exporters.resize_graph import add_resizing

    model = onnx.ModelProto()
    model.CopyFrom(add_resizing(core, plan.preprocessing, plan.input_size) if plan.resizes else core)
    helper.set_model_props(model, dict(plan.metadata))
    if plan.batch_size != "dynamic":
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_value = plan.batch_size
    return model


def serialize_for_export(model: "ModelProto") -> bytes:
    """The bytes of the model file; ConfigError above 2 GB."""
    from vitral.inference.graph.onnx import serialize

    return serialize(model, "--to", "use --to torch")

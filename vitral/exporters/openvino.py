"""Export to OpenVINO: an `.xml` file and a `.bin` file, converted from the ONNX model.

OpenVINO's own converter from `torch.export` gives a model of the same speed and takes longer to make it:
`python -m benchmarks.onnx_export`. int8 and resizing work on the ONNX model, and serve both formats.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.core.imports import load_onnx, load_openvino
from vitral.exporters.onnx import build_onnx, finish_onnx, serialize_for_export
from vitral.exporters.plan import STORAGE, ExportPlan, InputSize
from vitral.inference.engines.engine import Engine
from vitral.inference.engines.openvino import compile_whole_batch
from vitral.inference.exported import MODEL_FILES, Method

if TYPE_CHECKING:
    from onnx import ModelProto


class OpenVinoTarget(Config):
    """An `.xml` file and a `.bin` file with its weights."""

    kind: Literal["openvino"] = "openvino"
    file: ClassVar[str] = MODEL_FILES["openvino"]
    package: ClassVar[str] = "openvino"
    opset: ClassVar[int | None] = 20  # of the ONNX model that it is converted from
    quantization_methods: ClassVar[tuple[Method, ...]] = ("static",)  # dynamic quantization is slow here

    def check(self, input_size: InputSize) -> None:
        load_onnx()
        load_openvino()
        if input_size == "dynamic":
            raise ConfigError(
                "OpenVINO has no float64, which exact resizing of images of any size needs",
                code="config.conflict",
                where="--image-size",
                hint="give the size of the images, or use --to onnx",
            )

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

"""The formats that a model can be exported to."""

from typing import Annotated

from pydantic import Field

from vitral.exporters.onnx import OnnxTarget
from vitral.exporters.openvino import OpenVinoTarget
from vitral.exporters.torch import TorchTarget

OnnxBasedTarget = OnnxTarget | OpenVinoTarget  # written from an ONNX model, which may be quantized
Target = Annotated[OnnxTarget | OpenVinoTarget | TorchTarget, Field(discriminator="kind")]

"""The engines that there are."""

from typing import Annotated

from pydantic import Field

from vitral.deploy.engines.compiled import Compiled
from vitral.deploy.engines.eager import Eager
from vitral.deploy.engines.onnxruntime import OnnxRuntime
from vitral.deploy.engines.openvino import OpenVino

EngineConfig = Annotated[Eager | Compiled | OnnxRuntime | OpenVino, Field(discriminator="kind")]

"""Fast engines for an evaluation, in which tokens are merged."""

from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec

from vitral.deploy.engines.eager import Eager
from vitral.deploy.engines.onnxruntime import OnnxRuntime
from vitral.deploy.engines.openvino import OpenVino
from vitral.deploy.engines.union import EngineConfig
from vitral.deploy.graph import graph_of
from vitral.deploy.merging import TokenMerging
from vitral.evaluate.fewer import Ask
from vitral.model.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.load import Loaded


@dataclass(frozen=True)
class MergingEngines:
    """Engines of one kind, on the processor."""

    kind: EngineConfig

    @property
    def engine(self) -> str:
        return self.kind.kind

    def check(self, bundle: Bundle) -> None:
        TokenMerging(per_layer=1).check(bundle.model)

    def tokens(self, bundle: Bundle, per_layer: int) -> int:
        assert isinstance(bundle.model, Vit)
        layout = bundle.model.layout(bundle.preprocessing.image)
        return layout.length() - sum(TokenMerging(per_layer=per_layer).removed(layout, bundle.model.depth)[:-1])

    def build(self, loaded: Loaded, per_layer: int) -> Ask:
        model, bundle = loaded
        here = all(weight.device.type == "cpu" for weight in model.parameters())
        own = loaded if here else Loaded(deepcopy(model).cpu(), bundle)
        return self.kind.build(graph_of(own, merging=TokenMerging(per_layer=per_layer))).run


def usual_engines() -> MergingEngines:
    """Of the kind that is the fastest as a rule, of those that are installed."""
    if find_spec("onnx") and find_spec("openvino"):
        return MergingEngines(OpenVino())
    if find_spec("onnx") and find_spec("onnxruntime"):
        return MergingEngines(OnnxRuntime())
    return MergingEngines(Eager())

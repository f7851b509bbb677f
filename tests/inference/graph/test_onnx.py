"""Graphs as ONNX models: valid, lean, for any batch."""

from collections import Counter

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from tests.errors import raises
from tests.inference.truth import GRAPHS, answer_of, graph, pixels, truth
from tests.models.variants import small
from vitral.inference.graph.graph import Graph
from vitral.inference.graph.onnx import OPSET, serialize, to_onnx, trace


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", GRAPHS)
def test_every_graph_is_a_valid_model_for_any_batch(name: str) -> None:
    source, made = graph(GRAPHS[name])
    model = to_onnx(made)
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", OPSET)]
    [incoming], [outgoing] = model.graph.input, model.graph.output
    assert (incoming.name, outgoing.name) == ("pixels", answer_of(source))
    assert incoming.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    needs = source.bundle.preprocessing
    assert sides(incoming) == ["batch", *needs.image_size, needs.decoding.channels]
    assert sides(outgoing) == ["batch", made.outputs]


def sides(value: onnx.ValueInfoProto) -> list[str | int]:
    return [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim]


STEMS = [name for name in GRAPHS if name.startswith("stem-") and name != "stem-hybrid"]


@pytest.mark.parametrize("name", [*STEMS, "position-relative2d", "mixer-axial", "pool-attention", "resnet"])
def test_the_formulas_of_onnx_itself_agree_with_the_model(name: str) -> None:
    source, made = graph(GRAPHS[name])
    plain = ReferenceEvaluator(to_onnx(made))
    for batch in (1, 3):
        images = pixels(source, batch)
        found = np.asarray(dict(zip(plain.output_names, plain.run(None, {"pixels": images}), strict=True))["logits"])
        assert abs(found - truth(source, images)).max() < 1e-4


def test_a_vit_leaves_nothing_behind_that_is_not_needed() -> None:
    shallow, deep = (nodes(small(depth=depth)) for depth in (2, 3))
    layer = deep - shallow
    assert layer == {
        "LayerNormalization": 2,
        "MatMul": 6,  # qkv, logits, values, projection, expand, contract
        "Add": 6,  # four biases, two sums
        "Split": 1,
        "Reshape": 4,
        "Transpose": 5,
        "Softmax": 1,
        "Gelu": 1,
    }
    assert shallow["Cast"] == 1  # from bytes
    assert shallow["Reshape"] == 2 + 4 + 2  # cutting patches, a layer, and the last layer with its one query
    assert not {"Shape", "Expand", "Identity", "Constant", "Where"} & set(shallow)


def nodes(config: object) -> Counter[str]:
    assert isinstance(config, type(small()))
    model = to_onnx(graph(config)[1])
    used = {name for node in model.graph.node for name in node.input}
    assert {each.name for each in model.graph.initializer} <= used
    return Counter(node.op_type for node in model.graph.node)


def test_nodes_are_called_after_the_parts_that_they_do_the_work_of() -> None:
    model = to_onnx(graph(small())[1])
    products = {node.name.rpartition(".")[0]: node for node in model.graph.node if node.op_type == "MatMul"}
    expand = products["body.blocks.0.mlp.expand"]
    assert expand.input[1] == "body.blocks.0.mlp.expand.weight"


class Huge:
    """A model that protobuf does not take."""

    def SerializeToString(self) -> bytes:
        raise ValueError("Message onnx.ModelProto exceeds maximum protobuf size of 2GB: 2528000000")


def test_a_model_of_more_than_two_gigabytes_is_refused_with_what_to_do() -> None:
    with raises("config.model_too_large", 2528000000, "engine=eager") as caught:
        serialize(Huge(), "engine", "use engine=eager")  # type: ignore[arg-type]
    assert caught.value.where == "engine"


class Fourier(nn.Module):
    """A mixer that is not written in ONNX."""

    def forward(self, pixels: Tensor) -> Tensor:
        return torch.fft.rfft(pixels.float().flatten(1)).real[:, :4]


def test_what_cannot_be_written_is_refused_with_the_name_of_the_part() -> None:
    odd = Graph(nn.Sequential(nn.Identity(), Fourier()), nn.Identity(), small().image_size, 3, 4)
    with raises("config.unsupported", "model", "body.1", "torch.fft.rfft"):
        trace(odd)


class Mirror(nn.Module):
    """Remembers who was at work."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[nn.Module] = []

    def forward(self, pixels: Tensor) -> Tensor:
        self.seen.append(self)
        return pixels.float().mean(dim=(1, 2))


def test_a_graph_that_is_at_work_elsewhere_is_not_disturbed() -> None:
    mirror = Mirror()
    trace(Graph(mirror, nn.Identity(), small().image_size, 3, 3))
    assert mirror.seen == []  # it was a copy that had the hooks


def test_the_weights_are_those_of_the_graph() -> None:
    made = graph(small())[1]
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in to_onnx(made).graph.initializer}
    expected = made.get_parameter("body.blocks.0.mlp.expand.weight").detach().numpy()
    assert np.array_equal(weights["body.blocks.0.mlp.expand.weight"], expected.T)

"""A graph that is lowered answers as before, by the steps that engines of ONNX take quickest."""

from typing import get_args

import onnx
import pytest
import torch
from torch import nn

from tests.inference.truth import GRAPHS, answer_of, loaded, pixels, truth
from tests.models.variants import small
from vitral.inference.engines.engine import Precision
from vitral.inference.graph.graph import build_graph
from vitral.inference.graph.layers import FusedQkv, SeparateQkv
from vitral.inference.graph.onnx import lower_for_onnx, to_onnx

NEAR = 2e-5


@pytest.mark.sampled(10)
@pytest.mark.parametrize("precision", get_args(Precision))
@pytest.mark.parametrize("name", GRAPHS)
def test_a_lowered_graph_gives_what_its_model_gives(name: str, precision: Precision) -> None:
    source = loaded(GRAPHS[name])
    images = pixels(source)
    found = lower_for_onnx(build_graph(source, answer_of(source)), precision)(torch.from_numpy(images))
    assert abs(found.numpy() - truth(source, images, answer_of(source))).max() < NEAR


def test_no_step_is_left_for_the_weights_of_norms_or_for_parting_a_product() -> None:
    graph = build_graph(loaded(small(depth=3)))
    before, after = (to_onnx(each) for each in (graph, lower_for_onnx(graph, "float32")))
    assert [count(before, "Split"), count(after, "Split")] == [2, 0]
    plain = [node for node in after.graph.node if node.op_type == "LayerNormalization" and len(node.input) == 2]
    assert count(before, "LayerNormalization") == 7
    assert len(plain) == 5, "all but those of the last attention and of the end"


def test_what_is_to_be_quantized_keeps_the_weights_of_its_norms() -> None:
    norms = [
        part
        for part in lower_for_onnx(build_graph(loaded(small())), "int8").modules()
        if isinstance(part, nn.LayerNorm)
    ]
    assert norms
    assert all(norm.elementwise_affine for norm in norms)


def test_a_graph_that_is_lowered_stays_as_it_was_and_shares_its_weights() -> None:
    graph = build_graph(loaded(small(depth=2)))
    before = {name: weight.clone() for name, weight in graph.state_dict().items()}
    made = lower_for_onnx(graph, "float32")
    ways = [part for part in (*graph.modules(), *made.modules()) if isinstance(part, FusedQkv | SeparateQkv)]
    assert [type(way) for way in ways] == [FusedQkv, SeparateQkv]
    last = "body.blocks.0.mlp.contract.weight"
    assert made.get_parameter(last) is graph.get_parameter(last)
    assert before.keys() == graph.state_dict().keys()
    assert all(torch.equal(weight, before[name]) for name, weight in graph.state_dict().items())
    assert not any(weight.requires_grad for weight in made.parameters())


def count(model: onnx.ModelProto, kind: str) -> int:
    return sum(node.op_type == kind for node in model.graph.node)

"""Quantized layers, against whole numbers in NumPy."""

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.inference.exports import export_images, loaded, plan
from vitral.exporters.quantize import group_of, measure_ranges, quantizable_layers, quantize_layers
from vitral.exporters.targets import OnnxTarget, OpenVinoTarget, build_onnx
from vitral.exporters.verify import load_pixels

WEIGHT_LEVELS = 64  # of either sign: seven bits
DICE = np.random.default_rng(0)
INPUTS = DICE.normal(size=(5, 1, 1, 8)).astype(np.float32)
WEIGHTS = (DICE.normal(size=(8, 6)) * np.array([1, 10, 0.01, 3, 1, 0])).astype(np.float32)  # one output has none at all


def one_layer() -> onnx.ModelProto:
    """A model of a single layer."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["pixels", "w"], ["logits"], name="body.blocks.0.mlp.expand.MatMul_0")],
        "vitral",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 1, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, 1, 6])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def answered(target: OnnxTarget | OpenVinoTarget, model: onnx.ModelProto) -> NDArray[np.float64]:
    inputs: Any = INPUTS  # no bytes, for once
    return target.engine(model).run(inputs).astype(np.float64)


def by_hand(low: float, high: float) -> NDArray[np.float64]:
    """Inputs in 256 levels from low to high, weights in 64 to either side, each output by a scale of its own."""
    step = (high - low) / 255
    zero = round(-low / step)
    levels = np.clip(np.rint(INPUTS.astype(np.float64) / step) + zero, 0, 255) - zero
    scales = np.abs(WEIGHTS.astype(np.float64)).max(axis=0) / WEIGHT_LEVELS
    whole = np.rint(WEIGHTS / np.where(scales == 0, 1, scales))
    return (levels @ whole) * step * scales


def test_a_layer_is_known_by_its_matrix_and_the_sensitive_ones_are_left_out() -> None:
    model = build_onnx(plan(loaded(), precision="int8"))
    layers = quantizable_layers(model)
    assert len(layers) == 6 + 4  # q, k and v, project, expand, contract; of the last block q alone
    assert not [layer for layer in layers if "stem" in layer or layer.startswith("head")]
    assert group_of("body.blocks.0.mixer.project.MatMul_8") == "blocks.0.mixer"


@pytest.mark.parametrize("target", [OnnxTarget(), OpenVinoTarget()], ids=lambda target: target.kind)
def test_static_quantization_is_what_one_would_do_by_hand(target: OnnxTarget | OpenVinoTarget) -> None:
    model = one_layer()
    found = quantize_layers(model, quantizable_layers(model), {"pixels": (np.float32(-1), np.float32(2))})
    onnx.checker.check_model(found, full_check=True)
    answers = answered(target, found)
    np.testing.assert_allclose(answers, by_hand(-1.0, 2.0), rtol=1e-5, atol=1e-5)
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT  # the model itself is as it was


def test_dynamic_quantization_takes_its_range_from_the_batch() -> None:
    model = one_layer()
    found = quantize_layers(model, quantizable_layers(model), None)
    onnx.checker.check_model(found, full_check=True)
    low, high = float(INPUTS.min()), float(INPUTS.max())
    np.testing.assert_allclose(answered(OnnxTarget(), found), by_hand(low, high), rtol=1e-5, atol=1e-5)


def test_layers_that_are_not_asked_for_stay_as_they_are() -> None:
    model = one_layer()
    for found in (quantize_layers(model, (), None), quantize_layers(model, (), {})):
        assert found.graph.SerializeToString() == model.graph.SerializeToString()


def test_weights_take_a_quarter_of_the_room_and_never_the_eighth_bit() -> None:
    model = build_onnx(plan(loaded(), precision="int8"))
    layers = quantizable_layers(model)
    found = quantize_layers(model, layers, None)
    bytes_ = [each for each in found.graph.initializer if each.data_type == TensorProto.INT8 and len(each.dims) == 2]
    assert len(bytes_) == len(layers)
    assert {int(np.abs(numpy_helper.to_array(each)).max()) for each in bytes_} == {WEIGHT_LEVELS}


def test_ranges_are_the_least_and_greatest_over_all_images() -> None:
    model = build_onnx(plan(loaded(), precision="int8"))
    layers = quantizable_layers(model)[2:4]
    pixels = load_pixels(export_images().samples, export_images().calibration, loaded().bundle.preprocessing)
    found = measure_ranges(model, layers, pixels)
    assert len(found) == 2
    for name, (low, high) in found.items():
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.graph.output[0].name = name
        copy.graph.output[0].type.tensor_type.ClearField("shape")
        values = OnnxTarget().engine(copy).run(pixels)
        np.testing.assert_allclose((low, high), (values.min(), values.max()), rtol=1e-6)

"""Formulas as ONNX nodes, against NumPy."""

import numpy as np
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from vitral.exporters.resize_graph import BYTE, DOUBLE, INTEGER, TORCH_DTYPES, OnnxValue
from vitral.inference.graph.onnx_ops import OnnxBuilder


def worked_out(value: OnnxValue) -> np.ndarray:
    outputs = [helper.make_tensor_value_info(value.name, value.dtype, None)]
    constants = [numpy_helper.from_array(each.numpy(), name) for name, each in value.builder.constants.items()]
    graph = helper.make_graph(value.builder.nodes, "sum", [], outputs, constants)
    (found,) = ReferenceEvaluator(helper.make_model(graph)).run(None, {})
    return np.asarray(found)


def constant(numbers: torch.Tensor) -> OnnxValue:
    builder = OnnxBuilder(lambda: "part")
    dtype = next(kind for kind, each in TORCH_DTYPES.items() if each == numbers.dtype)
    return OnnxValue(builder, builder.constant(numbers), dtype)


def test_a_formula_gives_what_numpy_gives() -> None:
    numbers = torch.tensor([[-1.5, 0.25, 7.0], [2.5, -0.5, 3.0]], dtype=torch.float64)
    x = constant(numbers)
    found = ((x * 2.0 + 1.0) / 4.0 - x).floor().where(x < 3.0, 9.0).op("Max", x) @ x.transpose(1, 0)
    own = numbers.numpy()
    chosen = np.where(own < 3, np.floor((own * 2 + 1) / 4 - own), 9)
    assert np.array_equal(worked_out(found), np.maximum(chosen, own) @ own.T)


def test_conditions_join_and_reductions_keep_or_drop_their_dimension() -> None:
    numbers = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    x = constant(numbers)
    inside = x.where((x < 1.0).op("Not").op("And", x < 5.0), 0.0)
    assert worked_out(inside.op("ReduceSum", torch.tensor([1]), keepdims=1)).tolist() == [[3.0], [7.0]]
    assert worked_out(inside.op("ReduceMax", keepdims=0)).tolist() == 4.0


def test_sides_are_counted_and_kinds_change() -> None:
    x = constant(torch.zeros(2, 5, dtype=torch.int64))
    counted = (x.length(1) + 1).to(DOUBLE).arange()
    assert (counted.dtype, x.length(0).dtype, counted.to(BYTE).dtype) == (DOUBLE, INTEGER, BYTE)
    assert worked_out(counted).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

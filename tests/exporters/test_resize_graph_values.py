"""Formulas as ONNX nodes, against NumPy."""

import numpy as np
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from vitral.exporters.resize_graph import BYTE, DOUBLE, INTEGER, OnnxNodes, OnnxValue


def worked_out(value: OnnxValue) -> np.ndarray:
    outputs = [helper.make_tensor_value_info(value.name, value.dtype, None)]
    graph = helper.make_graph(value.nodes.nodes, "sum", [], outputs, value.nodes.constants)
    (found,) = ReferenceEvaluator(helper.make_model(graph)).run(None, {})
    return np.asarray(found)


def test_a_formula_gives_what_numpy_gives() -> None:
    numbers = torch.tensor([[-1.5, 0.25, 7.0], [2.5, -0.5, 3.0]], dtype=torch.float64)
    x = OnnxNodes("part").constant(numbers)
    found = ((x * 2.0 + 1.0) / 4.0 - x).floor().where(x < 3.0, 9.0).op("Max", x) @ x.transpose(1, 0)
    own = numbers.numpy()
    chosen = np.where(own < 3, np.floor((own * 2 + 1) / 4 - own), 9)
    assert np.array_equal(worked_out(found), np.maximum(chosen, own) @ own.T)


def test_conditions_join_and_reductions_keep_or_drop_their_dimension() -> None:
    numbers = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    x = OnnxNodes("part").constant(numbers)
    inside = x.where((x >= 1.0) & (x < 5.0), 0.0)
    assert worked_out(inside.reduce("ReduceSum", 1)).tolist() == [[3.0], [7.0]]
    assert worked_out(inside.reduce_all("ReduceMax")).tolist() == 4.0


def test_sides_are_counted_and_kinds_change() -> None:
    x = OnnxNodes("part").constant(torch.zeros(2, 5, dtype=torch.int64))
    counted = (x.length(1) + 1).to(DOUBLE).arange()
    assert (counted.dtype, x.length(0).dtype, counted.to(BYTE).dtype) == (DOUBLE, INTEGER, BYTE)
    assert worked_out(counted).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]

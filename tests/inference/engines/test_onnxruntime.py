"""ONNX Runtime: sessions and models from files."""

from pathlib import Path

import numpy as np

from tests.inference.truth import graph, pixels, truth
from tests.models.variants import small
from vitral.inference.engines.onnxruntime import OnnxRuntimeEngine, make_session
from vitral.inference.graph.onnx import to_onnx


def test_a_model_in_a_file_answers_as_one_in_memory(tmp_path: Path) -> None:
    source, made = graph(small())
    data = to_onnx(made).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    images = pixels(source)
    one, other = OnnxRuntimeEngine(data, 4, 1), OnnxRuntimeEngine(tmp_path / "model.onnx", 4, 1)
    assert np.array_equal(one.run(images), other.run(images))
    assert abs(one.run(images) - truth(source, images)).max() < 1e-5


def test_a_session_has_as_many_threads_as_it_is_told() -> None:
    options = make_session(to_onnx(graph(small())[1]).SerializeToString(), 2).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 1)

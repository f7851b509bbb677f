"""OpenVINO: 32 bits, threads, and models from files."""

from pathlib import Path

import numpy as np
import pytest

from tests.inference.truth import graph, pixels, truth
from tests.models.variants import small
from vitral.core.imports import load_openvino
from vitral.core.machine import cpu_count
from vitral.inference.engines.openvino import OpenVinoEngine
from vitral.inference.graph.onnx import to_onnx


def test_a_model_in_a_file_answers_as_one_in_memory(tmp_path: Path) -> None:
    source, made = graph(small())
    data = to_onnx(made).SerializeToString()
    (tmp_path / "model.onnx").write_bytes(data)
    images = pixels(source)
    one, other = OpenVinoEngine(data, 4, 1), OpenVinoEngine(tmp_path / "model.onnx", 4, 1)
    assert np.array_equal(one.run(images), other.run(images))
    assert abs(one.run(images) - truth(source, images)).max() < 1e-5


@pytest.mark.parametrize("streams", [1, 2])
def test_numbers_have_32_bits_and_streams_have_the_threads(streams: int) -> None:
    engine = OpenVinoEngine(to_onnx(graph(small())[1]).SerializeToString(), 4, 2)
    compiled = engine._compiled(streams, images=1)
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == load_openvino().Type.f32
    assert compiled.get_property("INFERENCE_NUM_THREADS") == min(2, cpu_count())  # of more than there are it takes all
    assert compiled.get_property("NUM_STREAMS") == min(streams, cpu_count())

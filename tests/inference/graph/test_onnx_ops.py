"""Merging as ONNX: the engines that run it choose as torch does."""

import numpy as np
import pytest
import torch

from tests.inference.graph.test_token_merging import POOLS, loaded, noise
from tests.models.variants import small
from vitral.core.config import union_members
from vitral.core.imports import load_onnxruntime
from vitral.inference.engines.auto import EngineConfig
from vitral.inference.engines.compiled import Compiled
from vitral.inference.graph.graph import build_graph
from vitral.inference.graph.onnx import to_onnx
from vitral.inference.graph.token_merging import TokenMerging

ENGINES = [kind() for kind in union_members(EngineConfig) if kind is not Compiled]


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.kind)
@pytest.mark.sampled(7)
def test_every_engine_merges_the_same_tokens(engine: EngineConfig, name: str) -> None:
    config = small(depth=3, **POOLS[name])
    graph = build_graph(loaded(config), merging=TokenMerging(per_layer=5))
    ready, pixels = engine.build(graph, threads=2), noise(config, 5)
    with torch.inference_mode():
        truth = graph(pixels).numpy()
    for batch in (1, 5):
        np.testing.assert_allclose(ready.run(pixels[:batch].numpy()), truth[:batch], atol=1e-4)


def test_the_batch_is_written_down_nowhere() -> None:
    """Batches of other sizes than the one that was traced, in one model."""
    config = small(depth=3)
    graph = build_graph(loaded(config), merging=TokenMerging(per_layer=5))
    session = load_onnxruntime().InferenceSession(to_onnx(graph).SerializeToString())
    for batch in (1, 2, 7):
        pixels = noise(config, batch)
        np.testing.assert_allclose(session.run(None, {"pixels": pixels.numpy()})[0], graph(pixels).numpy(), atol=1e-4)

"""The engines that an evaluation is handed."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes
from vitral.core.config import Size
from vitral.evaluation.token_merging import TokenMergingResult
from vitral.inference.engines.eager import Eager
from vitral.inference.engines.onnxruntime import OnnxRuntime
from vitral.inference.engines.openvino import OpenVino
from vitral.models import ClassPool, MeanPool, Patches, Rope2d, Tokens
from vitral.runs import evaluate as fewer
from vitral.runs.evaluate import EngineFactory, default_engines, evaluate

FINE: dict[str, Any] = {"stem": Patches(patch=Size(2, 2)), "depth": 2}  # 64 patches


def test_an_engine_that_merges_nothing_answers_as_the_model_does() -> None:
    loaded = striped_model(**FINE)
    pixels = np.random.default_rng(0).integers(256, size=(3, 16, 16, 3), dtype=np.uint8)
    scaled = loaded.bundle.preprocessing.normalize.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    whole, merged = (default_engines().build(loaded, count) for count in (0, 20))
    with torch.no_grad():
        np.testing.assert_allclose(whole(pixels), loaded.model(scaled).numpy(), atol=1e-4)
    assert np.abs(merged(pixels) - whole(pixels)).max() > 1e-3


@pytest.mark.parametrize(
    "fields", [{"pool": ClassPool()}, {"pool": MeanPool(), "tokens": Tokens(registers=3)}], ids=["cls", "registers"]
)
def test_the_tokens_that_the_last_layer_sees_are_counted(fields: dict[str, Any]) -> None:
    loaded = striped_model(**FINE, **fields)
    prefix = loaded.bundle.model.layout(Size(16, 16)).prefix()
    engines = EngineFactory(Eager())
    assert [engines.tokens_left(loaded.bundle, count) for count in (0, 20, 50)] == [
        prefix + left for left in (64, 44, 32)
    ]


def test_what_cannot_be_merged_is_refused() -> None:
    with raises("config.unsupported", "rope2d") as caught:
        evaluate(striped_model(position=Rope2d()), stripes(), cache=False, with_="tokens")
    assert caught.value.where == "--with tokens"


def test_an_evaluation_has_a_row_for_each_count() -> None:
    found = evaluate(striped_model(**FINE), stripes(), cache=False, with_="tokens").results[0]
    assert isinstance(found, TokenMergingResult)
    assert [row.per_layer for row in found.rows] == [0, 4, 8, 12, 16, 20, 24, 28]
    assert [row.tokens for row in found.rows] == [65, 61, 57, 53, 49, 45, 41, 37]
    assert found.engine == default_engines().engine


def test_the_usual_engine_is_the_best_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing, kind in ((set(), OpenVino), ({"openvino"}, OnnxRuntime), ({"onnx"}, Eager)):
        monkeypatch.setattr(fewer, "find_spec", lambda name, gone=missing: None if name in gone else find_spec("json"))
        assert isinstance(default_engines().kind, kind)

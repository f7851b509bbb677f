"""Every engine agrees with the model, whatever the model is made of, and whoever asks."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.inference.truth import GRAPHS, answer_of, graph, loaded, pixels, truth
from tests.models.variants import small
from vitral.core.config import union_members
from vitral.inference.engines.auto import EngineConfig
from vitral.inference.engines.compiled import Compiled
from vitral.inference.engines.eager import Eager
from vitral.inference.engines.engine import BaseEngine, Engine
from vitral.inference.graph.graph import Graph, build_graph

KINDS: list[type[BaseEngine]] = [
    kind for kind in union_members(EngineConfig) if kind is not Compiled
]  # which is slow to make
NEAR = 1e-4


def name_of(kind: Any) -> str:
    return str(kind.model_fields["kind"].default)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
@pytest.mark.parametrize("name", GRAPHS)
def test_an_engine_agrees_with_the_model(kind: type[BaseEngine], name: str) -> None:
    source, made = graph(GRAPHS[name])
    images = pixels(source)
    kind().check(made)
    found = kind().build(made, 1).run(images)
    assert found.dtype == np.float32
    assert abs(found - truth(source, images, answer_of(source))).max() < NEAR


@cache
def built(kind: type[BaseEngine], threads: int) -> Engine:
    return kind().build(graph(small())[1], threads)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_batch_may_have_any_number_of_images(kind: type[BaseEngine], threads: int) -> None:
    source = loaded(small())
    images = pixels(source, 33)
    expected = truth(source, images)
    for count in (0, 1, 2, 3, 16, 17, 33):
        found = built(kind, threads).run(images[:count])
        assert found.shape == (count, 4)
        assert count == 0 or abs(found - expected[:count]).max() < NEAR


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_many_threads_are_given_the_same_bytes(kind: type[BaseEngine]) -> None:
    source, engine = loaded(small()), built(kind, 2)
    batches = [pixels(source, 7)[:count] for count in (1, 2, 5, 7)]
    alone = [engine.run(images).tobytes() for images in batches]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda turn: engine.run(batches[turn % 4]).tobytes(), range(64)))
    assert found == [alone[turn % 4] for turn in range(64)]


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_an_answer_is_the_callers_own(kind: type[BaseEngine]) -> None:
    source, engine = loaded(small()), built(kind, 2)
    for count in (1, 4):
        first = engine.run(pixels(source, count))
        kept = first.copy()
        engine.run(255 - pixels(source, count))
        assert np.array_equal(first, kept)
        first[:] = 0  # it can be written to


class Odd(nn.Module):
    def forward(self, pixels: Tensor) -> Tensor:
        return torch.linalg.norm(pixels.float().flatten(2), dim=1)[:, :4]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Eager], ids=name_of)
def test_an_engine_refuses_what_it_cannot_run_with_the_name_of_the_part(kind: type[BaseEngine]) -> None:
    odd = Graph(nn.Sequential(nn.Identity(), Odd()), nn.Identity(), small().image_size, 3, 4)
    for attempt in (kind().check, kind().build):
        with raises("config.unsupported", "model", "body.1", "torch.", "engine=eager"):
            attempt(odd)
    assert Eager().build(odd).run(pixels(loaded(small()))).shape == (3, 4)


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_an_engine_gives_features_too(kind: type[BaseEngine]) -> None:
    source = loaded(small())
    images = pixels(source)
    found = kind().build(build_graph(source, "features"), 2).run(images)
    assert found.shape == (3, 32)
    assert abs(found - truth(source, images, "features")).max() < NEAR

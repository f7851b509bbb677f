"""Torch's compiler: the graphs that it takes, the code it makes, and what it says of its cost."""

import logging

import pytest
import torch
from torch._inductor import cpp_builder
from torch._inductor.exc import InvalidCxxCompiler

from tests.deploy.truth import GRAPHS, graph, pixels, truth
from tests.model.variants import small
from vitral.deploy.engines import compiled
from vitral.deploy.engines.compiled import Compiled
from vitral.errors import ConfigError

# One of each part that is a different piece of code; a graph takes a second to be read.
PARTS = (
    "stem-patches",
    "stem-hybrid",
    "patch-norms",
    "position-relative2d",
    "position-rope2d",
    "block-post",
    "mixer-axial",
    "mixer-pooling",
    "mixer-token_mlp",
    "mlp-swiglu",
    "pool-attention",
    "head-tanh",
    "resnet",
)


@pytest.mark.parametrize("name", PARTS)
def test_the_compiler_reads_every_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(compiled, "OPTIONS", None)
    source, made = graph(GRAPHS[name])
    images = pixels(source, 1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = Compiled().build(made).run(images)
    assert abs(found - truth(source, images)).max() < 1e-4


def test_code_is_made_once_for_a_portion_and_once_for_one_image(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(compiled, "OPTIONS", None)
    monkeypatch.setattr(compiled, "PORTION", 3)
    caplog.set_level(logging.INFO, "vitral")
    source, made = graph(small())
    engine = Compiled().build(made)
    images = pixels(source, 8)
    expected = truth(source, images)
    for count in (0, 8, 5, 1, 3):
        assert abs(engine.run(images[:count]) - expected[:count]).max(initial=0) < 1e-4
    told = [record.message.partition(" in ")[0] for record in caplog.records]
    assert told == ["compiled for 3 images", "compiled for one image"]


def test_without_a_compiler_of_c_plus_plus_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", nothing)
    with pytest.raises(ConfigError, match="torch's compiler needs one for C\\+\\+, and there is none; install g\\+\\+"):
        Compiled().check(graph(small())[1])

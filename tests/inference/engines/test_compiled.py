"""Torch's compiler: the graphs that it takes, the code it makes, and what it says of its cost."""

import logging
import shutil

import pytest
import torch

from tests.errors import raises
from tests.inference.truth import GRAPHS, answer_of, graph, pixels, truth
from tests.models.variants import small
from vitral.inference.engines import compiled
from vitral.inference.engines.compiled import Compiled

# One of each part that is a different piece of code; a graph takes a second to be read.
PARTS = (
    "stem-patches",
    "stem-hybrid",
    "stem-convolutions",
    "stem-overlapping_patches",
    "stem-shifted_patches",
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
@pytest.mark.sampled(9)
def test_the_compiler_reads_every_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    source, made = graph(GRAPHS[name])
    images = pixels(source, 1)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = Compiled().build(made).run(images)
    assert abs(found - truth(source, images)).max() < 1e-4


HAS_COMPILER = shutil.which("g++") is not None or shutil.which("c++") is not None
MADE = ["stem-patches", *(name for name in GRAPHS if name != "stem-patches")]


@pytest.mark.skipif(not HAS_COMPILER, reason="torch's compiler needs one for C++")
@pytest.mark.filterwarnings("ignore")  # of a compiler that is still changing
@pytest.mark.slow  # a quarter of a minute each
@pytest.mark.parametrize("name", MADE)
def test_the_code_that_is_made_answers_as_the_model_does(name: str) -> None:
    torch._dynamo.reset()
    source, made = graph(GRAPHS[name])
    images = pixels(source, 1)
    found = Compiled().build(made).run(images)
    assert abs(found - truth(source, images, answer_of(source))).max() < 1e-4


def test_code_is_made_once_for_a_portion_and_once_for_one_image(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(compiled, "CHUNK", 3)
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
    monkeypatch.setenv("CXX", "no-such-compiler")
    with raises("config.missing_compiler", "engine", "no-such-compiler", "g++"):
        Compiled().check(graph(small())[1])


@pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler")
def test_where_torch_finds_a_compiler_so_do_we() -> None:
    Compiled().check(graph(small())[1])

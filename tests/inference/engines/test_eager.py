"""Torch as it is: packed weights, and portions of a batch."""

import pytest
import torch

from tests.inference.truth import graph, pixels, truth
from tests.models.variants import small
from vitral.inference.engines import eager
from vitral.inference.engines.eager import Eager, EagerEngine, PackedLinear, PackedMlp, pack_graph
from vitral.models import Mlp


def test_linear_layers_are_packed_and_the_graph_is_as_it_was() -> None:
    source, made = graph(small(mlp=Mlp(activation="gelu_tanh")))
    images = torch.from_numpy(pixels(source))
    before = made(images)
    own = pack_graph(made)
    kinds = [type(part) for part in own.modules()]
    assert kinds.count(PackedMlp) == 2
    assert torch.nn.Linear not in kinds
    assert not any(isinstance(part, PackedLinear) for part in made.modules())
    assert torch.equal(made(images), before)
    assert torch.allclose(own(images), before, atol=1e-5)


def test_where_torch_cannot_pack_the_graph_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    source, made = graph(small())
    assert pack_graph(made) is made
    images = pixels(source)
    assert abs(Eager().build(made).run(images) - truth(source, images)).max() < 1e-5


def test_a_large_batch_is_answered_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "CHUNK", 4)
    source, made = graph(small())
    seen: list[int] = []
    made.register_forward_pre_hook(lambda part, inputs: seen.append(len(inputs[0])))
    images = pixels(source, 10)
    found = EagerEngine(made).run(images)
    assert seen == [4, 4, 2]
    assert abs(found - truth(source, images)).max() < 1e-5

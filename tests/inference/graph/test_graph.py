"""A graph answers as its model does, whatever the model is made of."""

from collections.abc import Callable

import pytest
import torch

from tests.errors import raises
from tests.inference.truth import GRAY, answer_of, loaded, pixels, truth
from tests.models.variants import VARIANTS, small
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize
from vitral.inference.engines.engine import OutputKind
from vitral.inference.graph.graph import Encoder, Graph, build_graph, build_graph_sharing_weights
from vitral.inference.graph.layers import Block, FirstTokensAttention, FullAttention, LinearStem
from vitral.models import Attention, Hybrid, Patches, Rope2d
from vitral.weights.load import LoadedModel

NEAR = 2e-5


@pytest.mark.sampled(9)
@pytest.mark.parametrize("answer", ["logits", "features"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_graph_gives_what_its_model_gives(name: str, answer: OutputKind) -> None:
    source = loaded(VARIANTS[name])
    asked = answer if answer_of(source) == "logits" else "features"
    images = pixels(source)
    graph = build_graph(source, asked)
    found = graph(torch.from_numpy(images))
    assert found.shape == (3, graph.outputs)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert graph.answer == asked
    assert abs(found.numpy() - truth(source, images, asked)).max() < NEAR


@pytest.mark.parametrize("scaling", [CENTERED, IMAGENET, GRAY, Normalize(mean=(0.0, 0.5, 1.0), std=(1.0, 0.1, 3.0))])
@pytest.mark.parametrize("stem", [Patches(patch=Size(8, 4)), Patches(patch=Size(8, 8), norm="both"), Hybrid(layers=())])
def test_every_scaling_goes_into_every_stem(stem: Patches | Hybrid, scaling: Normalize) -> None:
    source = loaded(small(stem=stem), scaling)
    images = pixels(source)
    found = build_graph(source)(torch.from_numpy(images))
    assert abs(found.numpy() - truth(source, images)).max() < NEAR


@pytest.mark.parametrize("name", ["position-learned1d", "position-relative2d", "position-rope2d", "learned1d-offset"])
def test_a_graph_is_for_the_images_that_the_preprocessing_makes(name: str) -> None:
    source = loaded(VARIANTS[name])
    needs = source.bundle.preprocessing.model_copy(update={"image_size": Size(48, 40)})
    other = LoadedModel(source.model, source.bundle.model_copy(update={"preprocessing": needs}))
    images = pixels(other)
    graph = build_graph(other)
    assert graph.image_size == Size(48, 40) != other.bundle.model.image_size
    assert abs(graph(torch.from_numpy(images)).numpy() - truth(other, images)).max() < NEAR


KINDS = ["stem-patches", "stem-hybrid", "stem-convolutions", "patch-norms", "scale-layer_scale", "query-key-norm"]


@pytest.mark.parametrize("make", [build_graph, build_graph_sharing_weights])
@pytest.mark.parametrize("name", KINDS)
def test_a_graph_leaves_its_model_as_it_was(name: str, make: Callable[[LoadedModel], Graph]) -> None:
    source = loaded(VARIANTS[name])
    before = {name: weight.clone() for name, weight in source.model.state_dict().items()}
    images = torch.from_numpy(pixels(source))
    found = make(source)(images)
    assert torch.equal(found, build_graph(source)(images))
    assert before.keys() == source.model.state_dict().keys()
    assert all(torch.equal(weight, before[name]) for name, weight in source.model.state_dict().items())
    assert all(weight.requires_grad for weight in source.model.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_a_model_that_changes_changes_no_graph(name: str) -> None:
    source = loaded(VARIANTS[name])
    images = torch.from_numpy(pixels(source))
    graph = build_graph(source)
    found = graph(images)
    with torch.no_grad():
        for weight in source.model.parameters():
            weight.zero_()
    assert torch.equal(graph(images), found)


def test_a_graph_around_a_model_has_its_very_weights() -> None:
    source = loaded(small())
    theirs = {weight.data_ptr() for weight in source.model.parameters()}
    for make in (build_graph, build_graph_sharing_weights):
        held = make(source).get_parameter("body.blocks.0.mlp.expand.weight")
        assert (held.data_ptr() in theirs) == (make is build_graph_sharing_weights)


def test_a_vit_is_shaped_for_inference() -> None:
    body = build_graph(loaded(small(depth=3))).body
    assert isinstance(body, Encoder)
    assert isinstance(body.stem, LinearStem)  # bytes go into one product, the scaling is in it
    mixers = [block.mixer for block in body.blocks if isinstance(block, Block)]
    assert [type(mixer) for mixer in mixers] == [FullAttention, FullAttention, FirstTokensAttention]


def test_the_last_layer_answers_for_the_class_token_alone_behind_norms_and_rotations_too() -> None:
    for config in (small(mixer=Attention(heads=2, qk_norm=True)), small(position=Rope2d())):
        source = loaded(config)
        body = build_graph(source).body
        assert isinstance(body, Encoder)
        seen: list[int] = []
        last = body.blocks[-1]
        assert isinstance(last, Block)
        last.mlp.register_forward_pre_hook(lambda part, inputs, seen=seen: seen.append(inputs[0].shape[1]))
        body(torch.from_numpy(pixels(source)))
        assert seen == [1]


def test_a_model_without_a_head_gives_features_and_no_logits() -> None:
    source = loaded(VARIANTS["head-none"])
    assert build_graph(source, "features").outputs == 32
    with raises("config.unsupported", "model.head"):
        build_graph(source)

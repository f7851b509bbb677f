"""One pass gives the same as each analysis by itself."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.explanation.by_hand import awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.core.config import Size
from vitral.explanation.analysis import analyze
from vitral.explanation.attention_distance import mean_attention_distance, pool_attention
from vitral.explanation.explanation import Array
from vitral.explanation.relevance import relevance
from vitral.explanation.similarity import cosine_similarity, pca_colors
from vitral.explanation.trace import has_attention, logit_lens
from vitral.models import Attention, AttentionPool, Grid, NoHead, Patches, attention_maps


def assert_close(found: Array, expected: Tensor) -> None:
    torch.testing.assert_close(torch.from_numpy(found), expected.detach())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VITS)
def test_everything_is_what_it_is_by_itself(name: str) -> None:
    config = VITS[name]
    model, image = awake(config), images_for(config, 1)
    has_head = not isinstance(config.head, NoHead)
    found = analyze(model, image, 2 if has_head else "predicted")
    assert found.layout == config.layout(config.image_size)
    assert found.cells == found.layout.grid
    assert [each.layer for each in found.layers] == [*range(1, config.depth + 1)]
    with torch.no_grad():
        patches = model.forward_features(image).patches[0]
        np.testing.assert_allclose(found.similarity, cosine_similarity(patches), atol=1e-5)
        np.testing.assert_allclose(found.feature_colors, pca_colors(patches, found.layout.grid), atol=1e-2)
        if has_head:
            for each, expected in zip(found.layers, logit_lens(model, image)[:, 0], strict=True):
                assert_close(each.probabilities, expected)
    if not has_attention(model):
        assert found.maps == {}
        return
    for each, attention in zip(found.layers, attention_maps(model, image), strict=True):
        assert_close(each.attention, attention[0])
    assert_close(np.stack([each.distance for each in found.layers]), mean_attention_distance(model, [image]))
    assert list(found.maps) == (["rollout", "relevance", "attention"] if has_head else ["rollout", "attention"])
    if has_head:
        assert_close(found.maps["relevance"], relevance(model, image, [2])[0])


def test_the_class_is_the_predicted_one_unless_one_is_named() -> None:
    model, image = awake(small()), images_for(small(), 1)
    predicted = int(model(image).argmax())
    assert_close(analyze(model, image).maps["relevance"], relevance(model, image, [predicted])[0])
    other = analyze(model, image, 3 - predicted).maps["relevance"]
    assert not np.array_equal(other, analyze(model, image).maps["relevance"])


def test_a_head_that_was_not_trained_is_left_out() -> None:
    found = analyze(awake(small()), images_for(small(), 1), use_head=False)
    assert list(found.maps) == ["rollout", "attention"]
    assert found.probabilities.size == 0
    assert not any(each.probabilities.size for each in found.layers)


@pytest.mark.parametrize("mixer", ["pooling", "identity", "token_mlp"])
def test_a_model_without_attention_has_no_maps(mixer: str) -> None:
    config = VITS[f"mixer-{mixer}"]
    found = analyze(config.build(), images_for(config, 1))
    assert found.maps == {}
    assert all(each.attention.shape[0] == 0 and each.distance.shape == (0,) for each in found.layers)
    assert all(each.probabilities.shape == (4,) for each in found.layers)


@torch.no_grad()
def test_a_resnet_has_its_prediction_and_its_features() -> None:
    config = VARIANTS["resnet"]
    model, image = config.build().eval(), torch.randn(1, config.channels, *config.image_size)
    found = analyze(model, image)
    assert_close(found.probabilities, model(image)[0].softmax(dim=0))
    assert (found.layers, found.maps) == ((), {})
    assert found.feature_colors.shape == (*found.layout.grid, 3)


def test_attention_of_a_large_grid_is_averaged_into_cells() -> None:
    config = small(image_size=Size(36, 40), stem=Patches(patch=Size(2, 2)))
    model, image = awake(config), images_for(config, 1)
    found = analyze(model, image)
    assert found.layout.grid == Grid(18, 20)
    assert found.cells == Grid(16, 16)
    for each, attention in zip(found.layers, attention_maps(model, image), strict=True):
        assert each.attention.shape == (2, 257, 257)
        assert_close(each.attention, pool_attention(attention, found.layout, found.cells)[0])
    assert found.maps["rollout"].shape == found.maps["relevance"].shape == (18, 20)


@pytest.mark.parametrize("pool", [{}, {"pool": AttentionPool(heads=2)}])
def test_the_model_is_left_as_it_was(pool: dict[str, object]) -> None:
    model = awake(small(mixer=Attention(heads=2, dropout=0.5), **pool)).train()
    image = images_for(small(), 1)
    with torch.inference_mode():
        found = analyze(model, image)
    again = analyze(model, image)
    for kind, values in found.maps.items():
        assert np.array_equal(values, again.maps[kind])
    for one, other in zip(found.layers, again.layers, strict=True):
        assert np.array_equal(one.attention, other.attention)
        assert np.array_equal(one.distance, other.distance)
        assert np.array_equal(one.probabilities, other.probabilities)
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert all(part.training for part in model.modules())


def test_what_cannot_be_analyzed_is_refused() -> None:
    with raises("config.wrong_count", "image", 2):
        analyze(small().build(), torch.randn(2, 3, 32, 48))
    with raises("config.out_of_range", "target", 3, 7):
        analyze(small().build(), torch.randn(1, 3, 32, 48), 7)
    with raises("config.channel_mismatch", "images", 3, 1):
        analyze(small().build(), torch.randn(1, 1, 32, 48))

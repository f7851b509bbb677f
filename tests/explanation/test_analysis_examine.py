"""One pass tells the same as each question by itself."""

import pytest
import torch

from tests.errors import raises
from tests.explanation.by_hand import awake, images_for
from tests.models.variants import VARIANTS, VITS, small
from vitral.core.config import Size
from vitral.explanation.analysis import examine
from vitral.explanation.attention_distance import coarse, mean_distances
from vitral.explanation.logit_lens import lens
from vitral.explanation.relevance import relevance
from vitral.explanation.rollout import rollout_map
from vitral.explanation.trace import attends, layers_of
from vitral.models import Attention, AttentionPool, Grid, NoHead, Patches, attention_maps


@pytest.mark.parametrize("name", VITS)
def test_everything_is_what_it_is_by_itself(name: str) -> None:
    config = VITS[name]
    model, image = awake(config), images_for(config, 1)
    answers = not isinstance(config.head, NoHead)
    found = examine(model, image, 2 if answers else "answer")
    with torch.no_grad():
        steps = list(layers_of(model, image))
        features = model.features(image)
        torch.testing.assert_close(found.features, torch.cat([*features[:3]], dim=1)[0])
        torch.testing.assert_close(found.embedded, steps[0].before[0])
        assert [each.layer for each in found.layers] == [*range(1, config.depth + 1)]
        for each, step in zip(found.layers, steps, strict=True):
            torch.testing.assert_close(each.tokens, step.after[0])
        torch.testing.assert_close(torch.stack([each.probabilities for each in found.layers]), lens(model, image)[:, 0])
    assert found.layout == config.layout(config.image_size)
    assert found.shown == found.layout.grid
    if attends(model):
        for each, attention in zip(found.layers, attention_maps(model, image), strict=True):
            torch.testing.assert_close(each.attention, attention[0])
        torch.testing.assert_close(
            torch.stack([each.distance for each in found.layers]), mean_distances(model, [image])
        )
    torch.testing.assert_close(found.rollout, rollout_map(model, image)[0])
    if answers:
        torch.testing.assert_close(found.relevance, relevance(model, image, [2])[0])
    else:
        assert found.relevance.shape == (0, 0)


def test_the_class_is_the_answer_unless_one_is_named() -> None:
    model, image = awake(small()), images_for(small(), 1)
    answer = int(model(image).argmax())
    torch.testing.assert_close(examine(model, image).relevance, relevance(model, image, [answer])[0])
    assert not examine(model, image, 3 - answer).relevance.equal(examine(model, image).relevance)


@pytest.mark.parametrize("mixer", ["pooling", "identity", "token_mlp"])
def test_what_a_model_without_attention_lacks_has_no_size(mixer: str) -> None:
    config = VITS[f"mixer-{mixer}"]
    found = examine(config.build(), images_for(config, 1))
    assert found.rollout.shape == found.relevance.shape == (0, 0)
    assert all(each.attention.shape[0] == 0 and each.distance.shape == (0,) for each in found.layers)
    assert all(each.probabilities.shape == (4,) for each in found.layers)


def test_attention_of_a_large_grid_is_shown_by_cells() -> None:
    config = small(image_size=Size(36, 40), stem=Patches(patch=Size(2, 2)))
    model, image = awake(config), images_for(config, 1)
    found = examine(model, image)
    assert found.layout.grid == Grid(18, 20)
    assert found.shown == Grid(16, 16)
    for each, attention in zip(found.layers, attention_maps(model, image), strict=True):
        assert each.attention.shape == (2, 257, 257)
        torch.testing.assert_close(each.attention, coarse(attention, found.layout, found.shown)[0])
    assert found.rollout.shape == found.relevance.shape == (18, 20)


@pytest.mark.parametrize("pool", [{}, {"pool": AttentionPool(heads=2)}])
def test_what_comes_back_is_plain_and_the_model_is_left_as_it_was(pool: dict[str, object]) -> None:
    model = awake(small(mixer=Attention(heads=2, dropout=0.5), **pool)).train()
    image = images_for(small(), 1)
    with torch.inference_mode():
        found = examine(model, image)
    again = examine(model, image)
    for one, other in zip(
        (found.embedded, found.features, found.rollout, found.relevance, *found.layers[0][1:]),
        (again.embedded, again.features, again.rollout, again.relevance, *again.layers[0][1:]),
        strict=True,
    ):
        assert one.equal(other)
        assert not one.requires_grad
    assert all(weight.grad is None and weight.requires_grad for weight in model.parameters())
    assert all(part.training for part in model.modules())


def test_what_cannot_be_examined_is_refused() -> None:
    with raises("config.unsupported", "model"):
        examine(VARIANTS["resnet"].build(), torch.randn(1, 3, 32, 48))
    with raises("config.wrong_count", "image", 2):
        examine(small().build(), torch.randn(2, 3, 32, 48))
    with raises("config.out_of_range", "target", 3, 7):
        examine(small().build(), torch.randn(1, 3, 32, 48), 7)
    with raises("config.channel_mismatch", "images", 3, 1):
        examine(small().build(), torch.randn(1, 1, 32, 48))

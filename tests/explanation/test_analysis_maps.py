"""The map of the last layer is the attention of the tokens that are pooled; every kind has its texts."""

from typing import get_args

import numpy as np
import pytest
import torch

from tests.models.variants import VITS
from vitral.explanation.analysis import analyze
from vitral.explanation.explain import from_zero
from vitral.explanation.explanation import MAP_TITLES, MapKind
from vitral.explanation.trace import has_attention
from vitral.models import attention_maps


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VITS)
def test_the_attention_map_is_the_last_layers_attention_of_what_is_pooled(name: str) -> None:
    config = VITS[name]
    model, image = config.build().eval(), torch.randn(1, config.channels, *config.image_size)
    found = analyze(model, image)
    if not has_attention(model):
        assert "attention" not in found.maps
        return
    layout, values = found.layout, torch.from_numpy(found.maps["attention"])
    mean = attention_maps(model, image)[-1][0].mean(dim=0)  # (T, T)
    pooled = {"cls": [0], "distilled": [0, 1], "mean": range(layout.prefix(), layout.length())}
    pooled |= {"mean_all": range(layout.length())}
    assert tuple(values.shape) == tuple(layout.grid)
    if config.pool.kind in pooled:
        expected = mean[list(pooled[config.pool.kind])].mean(dim=0)[layout.prefix() :]  # (N,)
        torch.testing.assert_close(values.flatten(), expected.detach())
    else:  # a mixture of tokens, and rows sum to one
        assert values.min() >= 0
        assert values.sum() <= 1 + 1e-5


def test_every_kind_of_map_has_its_title() -> None:
    assert list(MAP_TITLES) == list(get_args(MapKind))


def test_a_map_starts_at_zero_and_keeps_its_order() -> None:
    values = np.array([[0.016, 0.017], [0.0155, 0.02]], np.float32)
    found = from_zero("relevance", values)
    assert found.min() == 0
    assert (np.argsort(found.ravel()) == np.argsort(values.ravel())).all()


def test_occlusion_keeps_its_negative_values() -> None:
    values = np.array([[-0.25, 0.5]], np.float32)
    assert from_zero("occlusion", values) is values

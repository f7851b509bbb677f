"""The map of the last layer is what its tokens that are read look at; every kind has its words."""

from typing import get_args

import numpy as np
import pytest
import torch

from tests.models.variants import VITS
from vitral.explanation.analysis import ABOUT, TITLES, examine, heat_map, last_look
from vitral.explanation.explanation import MapKind
from vitral.models import attention_maps
from vitral.models.attention import BaseAttention

ATTENDING = {name: config for name, config in VITS.items() if isinstance(config.mixer, BaseAttention)}


@pytest.mark.parametrize("name", ATTENDING)
def test_the_last_look_is_the_last_layers_attention_by_what_is_read(name: str) -> None:
    config = ATTENDING[name]
    model, image = config.build().eval(), torch.randn(1, config.channels, *config.image_size)
    found = examine(model, image)
    layout = found.layout
    mean = attention_maps(model, image)[-1][0].mean(dim=0)  # (T, T)
    readers = {"cls": [0], "distilled": [0, 1], "mean": range(layout.prefix(), layout.length())}
    readers |= {"mean_all": range(layout.length())}
    looked = last_look(model, found)
    assert tuple(looked.shape) == tuple(layout.grid)
    if config.pool.kind in readers:
        expected = mean[list(readers[config.pool.kind])].mean(dim=0)[layout.prefix() :]  # (N,)
        torch.testing.assert_close(looked.flatten(), expected)
    else:  # what is read is a mixture of tokens, and rows sum to one
        assert looked.min() >= 0
        assert looked.sum() <= 1 + 1e-5


def test_every_kind_of_map_has_its_title_and_its_words() -> None:
    assert list(TITLES) == list(ABOUT) == list(get_args(MapKind))
    assert all(about.endswith(".") for about in ABOUT.values())


def test_what_all_patches_have_in_common_is_taken_away_and_the_order_stays() -> None:
    values = np.array([[0.016, 0.017], [0.0155, 0.02]], np.float32)
    found = heat_map("relevance", values).values
    assert found.min() == 0
    assert (np.argsort(found.ravel()) == np.argsort(values.ravel())).all()


def test_what_speaks_against_a_class_stays_below_nothing() -> None:
    values = np.array([[-0.25, 0.5]], np.float32)
    assert heat_map("occlusion", values).values is values

"""A model is checked before it serves."""

import numpy as np
import pytest

from tests.errors import raises
from tests.inference.truth import loaded
from tests.models.variants import VARIANTS, small
from vitral.inference.engines.engine import FloatArray, NamedEngine, PixelBatch
from vitral.models.head import NoHead
from vitral.serving.models.served_model import AttentionShape, ServedModel, golden_pixels


class Wrong:
    """An engine that adds a number to every output."""

    def __init__(self, engine: NamedEngine, shift: float) -> None:
        self.engine, self.shift = engine.engine, shift

    def run(self, pixels: PixelBatch) -> FloatArray:
        return self.engine.run(pixels) + np.float32(self.shift)


@pytest.mark.parametrize(
    ("shift", "code"), [(0.1, "weights.mismatch"), (np.nan, "weights.not_finite"), (np.inf, "weights.not_finite")]
)
def test_an_engine_that_is_wrong_on_the_golden_input_is_refused(shift: float, code: str) -> None:
    model = ServedModel("vit", loaded(small()), "eager")
    model.check_golden()
    own = model._engines["logits"]
    model._engines["logits"] = NamedEngine("eager", Wrong(own, shift))
    with raises(code, "vit"):
        model.check_golden()


def test_the_features_of_a_model_without_classes_are_checked_too() -> None:
    model = ServedModel("headless", loaded(small(head=NoHead())), "eager")
    model.check_golden()
    model._engines["features"] = NamedEngine("eager", Wrong(model._engines["features"], 0.1))
    with raises("weights.mismatch", "headless"):
        model.check_golden()


def test_the_golden_input_is_always_the_same() -> None:
    one, two = golden_pixels((32, 48, 3)), golden_pixels((32, 48, 3))
    assert one.shape == (2, 32, 48, 3)
    assert one.dtype == np.uint8
    np.testing.assert_array_equal(one, two)


def test_a_model_says_how_much_attention_it_has() -> None:
    assert ServedModel("vit", loaded(small()), "eager").attention == AttentionShape(2, 2)
    assert ServedModel("resnet", loaded(VARIANTS["resnet"]), "eager").attention == AttentionShape(0, 0)
    headless = ServedModel("headless", loaded(small(head=NoHead())), "eager")
    assert headless.output == "features"
    with raises("config.unsupported", "model"):
        headless.check_classes()

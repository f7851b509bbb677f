import pytest

from vitral.recipes.augreg import augreg_imagenet, augreg_imagenet21k
from vitral.recipes.recipe import Recipe


@pytest.mark.parametrize(
    ("recipe", "magnitudes", "mixing", "bias"),
    [
        (augreg_imagenet("Ti/16"), [0], {"kind": "none"}, -6.9),
        (augreg_imagenet("S/32"), [10], {"kind": "mixup", "alpha": 0.2}, -6.9),
        (augreg_imagenet(), [15], {"kind": "mixup", "alpha": 0.5}, -6.9),
        (augreg_imagenet("R50+L/32"), [15], {"kind": "mixup", "alpha": 0.5}, -6.9),
        (augreg_imagenet21k("Ti/16"), [], {"kind": "none"}, -10.0),
        (augreg_imagenet21k("S/16"), [0], {"kind": "none"}, -10.0),
        (augreg_imagenet21k(), [10], {"kind": "mixup", "alpha": 0.2}, -10.0),
        (augreg_imagenet21k("L/16"), [15], {"kind": "mixup", "alpha": 0.5}, -10.0),
    ],
)
def test_augmentation_follows_the_model_and_the_data(
    recipe: Recipe, magnitudes: list[int], mixing: dict[str, object], bias: float
) -> None:
    found = recipe.model_dump()
    assert [step["magnitude"] for step in found["images"]["augment"]] == magnitudes
    assert found["task"]["mixing"] == mixing
    assert found["task"]["loss"]["kind"] == "sigmoid"
    assert found["model"]["head"]["bias"] == bias

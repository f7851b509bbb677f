"""The cost of a model: the formulas give what is counted."""

import pytest

from vitral.explanation.walkthrough.cost import ModelCost, model_cost
from vitral.explanation.walkthrough.describe import multiply_adds
from vitral.models import Resnet, Vit, model_config
from vitral.models.registry import list_models

NAMES = ("Ti/14", "S/32", "b/16", "R+Ti/16", "R26+Ti/16", "R50+Ti/32", "R50x1", "R101x2")


def counted(config: Vit | Resnet) -> ModelCost:
    parameters = sum(weight.numel() for weight in config.build_empty().parameters())
    return ModelCost(parameters, multiply_adds(config, in_full=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
def test_the_formulas_give_what_is_counted(name: str) -> None:
    config = model_config(name)
    assert model_cost(config) == counted(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(list_models()) - set(NAMES)))
def test_the_formulas_give_what_is_counted_for_every_name(name: str) -> None:
    config = model_config(name)
    assert model_cost(config) == counted(config)


OTHERS: dict[str, dict[str, object]] = {
    "Ti/16": {"position": "rope2d", "depth": 2},
    "S/16": {"tokens.registers": 4, "pool": "mean", "mlp": "swiglu", "depth": 2},
    "R26+Ti/32": {"image_size": "96x160", "channels": 1, "num_classes": 7, "depth": 2},
    "R50x1": {"image_size": "96x160", "channels": 1, "num_classes": 7, "layers": [1, 2]},
    "B/16": {"mixer": "axial", "depth": 2},
    "B/32": {"mixer": "pooling", "tokens.cls": False, "pool": "mean", "width": 64, "depth": 2},  # 12 heads do not fit
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_counted(name: str) -> None:
    config = model_config(name, OTHERS[name])
    assert model_cost(config) == counted(config)


def test_the_parameters_of_the_paper() -> None:  # Table 1 and Table 6, in millions
    found = {name: round(model_cost(model_config(name)).parameters / 1e6) for name in ("B/16", "L/16", "H/14")}
    assert found == {"B/16": 87, "L/16": 304, "H/14": 632}

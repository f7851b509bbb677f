"""Low-rank adapters against the plain model that they are to be."""

import pytest
import torch

import vitral
from tests.training.test_budget_memory import CPU
from vitral.core.config import parse_settings
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.base import Model
from vitral.tasks.classify import Classify
from vitral.training.budget import peak_bytes
from vitral.training.finetune import PARAMETRIZED, LoraTarget, add_adapters, merge_adapters, target_layers
from vitral.training.optimizers import param_groups
from vitral.training.precision import Precision

SMALL = ("image_size=16", "stem.patch=8", "width=16", "depth=3", "mixer.heads=2", "head.num_classes=4")
KINDS = ((), ("pool=mean",), ("mlp=swiglu",), ("mixer=axial", "depth=2"), ("mixer.qkv_bias=false",))
ALL: tuple[LoraTarget, ...] = ("qkv", "project", "mlp")
SCALE = 1.5


def model_of(*settings: str) -> Model:
    torch.manual_seed(3)
    model = vitral.create_model("Ti/16", settings=parse_settings([*SMALL, *settings]))
    torch.nn.init.normal_(model.head.get_parameter("linear.weight"))  # a head of zeros would answer nothing
    return model.requires_grad_(False)


def taught(model: Model) -> Model:
    """The model with adapters that add something."""
    add_adapters(model.blocks, ALL, 2, SCALE)  # type: ignore[arg-type]
    for name, weight in model.named_parameters():
        if name.endswith("up.weight"):
            torch.nn.init.normal_(weight, std=0.1)
    return model


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("learning", [False, True])  # torch rounds otherwise where a weight learns
@pytest.mark.parametrize("settings", KINDS)
def test_at_first_the_model_is_what_it_was_to_the_bit(settings: tuple[str, ...], learning: bool) -> None:
    with torch.set_grad_enabled(learning):
        before = model_of(*settings).requires_grad_(learning)(images())
        model = model_of(*settings)
        add_adapters(model.blocks, ALL, 2, SCALE)  # type: ignore[arg-type]
        assert torch.equal(model(images()), before)


@pytest.mark.parametrize("settings", KINDS)
def test_merged_weights_in_a_plain_model_answer_the_same_to_the_bit(settings: tuple[str, ...]) -> None:
    before, model = model_of(*settings), taught(model_of(*settings))
    plain = model_of(*settings)
    plain.load_weights(merge_adapters(model.state_dict(), SCALE))
    with torch.no_grad():
        assert torch.equal(plain(images()), model(images()))
    assert not torch.allclose(plain(images()), before(images()), atol=1e-3)


def test_a_map_with_an_adapter_is_the_map_and_a_path_beside_it() -> None:
    linear, model = next(target_layers(model_of().blocks, ("project",))), taught(model_of())  # type: ignore[arg-type]
    x = torch.randn(5, 16, dtype=torch.float64)
    tensors = {name: tensor.double() for name, tensor in model.state_dict().items()}
    home = f"blocks.0.mixer.project{PARAMETRIZED}"
    beside = x @ tensors[f"{home}0.down.weight"].mT @ tensors[f"{home}0.up.weight"].mT
    truth = x @ linear.weight.double().mT + linear.bias.double() + SCALE * beside
    found = model.get_submodule("blocks.0.mixer.project").double()(x)
    torch.testing.assert_close(found, truth, atol=1e-12, rtol=0)


def test_what_is_merged_has_the_names_and_shapes_of_an_ordinary_model() -> None:
    found, own = merge_adapters(taught(model_of()).state_dict(), SCALE), model_of().state_dict()
    assert {name: tensor.shape for name, tensor in found.items()} == {name: own[name].shape for name in own}


@pytest.mark.parametrize(
    ("parts", "adapters"), [(("qkv",), 3), (("project",), 3), (("mlp",), 6), (("qkv", "mlp"), 9), (ALL, 12)]
)
def test_the_parts_that_are_named_are_adapted(parts: tuple[LoraTarget, ...], adapters: int) -> None:
    model = model_of()
    add_adapters(model.blocks, parts, 2, SCALE)  # type: ignore[arg-type]
    assert sum(name.endswith("original") for name in model.state_dict()) == adapters
    assert sum(weight.requires_grad for weight in model.parameters()) == 2 * adapters


def test_every_adapter_learns_and_no_weight_under_it_does() -> None:
    model = taught(model_of())
    model(images()).square().sum().backward()
    for name, weight in model.named_parameters():
        assert (weight.grad is not None and bool(weight.grad.any())) == (
            PARAMETRIZED in name and "original" not in name
        ), name


def test_adapters_decay_and_learn_at_the_rate_of_their_layer() -> None:
    task = Classify().build(taught(model_of()), 4, (1, 1, 1, 1), CENTERED)
    groups = param_groups(task, weight_decay=0.1, layer_decay=0.5)
    assert {(group["weight_decay"], group["lr_scale"]) for group in groups} == {(0.1, 0.125), (0.1, 0.25), (0.1, 0.5)}
    assert sum(len(group["params"]) for group in groups) == 24


def test_the_memory_of_a_step_with_adapters_can_be_counted() -> None:
    plain, model = model_of(), taught(model_of())
    model.head.requires_grad_(True)
    plain.requires_grad_(True)
    precision = Precision(torch.float32, CPU)
    tasks = [Classify().build(each, 4, (1, 1, 1, 1), CENTERED) for each in (plain, model)]
    own, found = (peak_bytes(task, (3, 16, 16), 2, precision) for task in tasks)
    assert found > own  # the raised weights live beside the frozen ones

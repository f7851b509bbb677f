"""Which weights decay, how fast each layer learns, and the steps themselves in float64."""

import copy
import json
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from vitral.core.config import union_members
from vitral.models import LinearHead, PreNorm, Resnet, Tokens, Vit
from vitral.models.block import LayerScale
from vitral.training.optimizers import (
    AdamW,
    ConstantDecay,
    CosineDecay,
    Muon,
    OptimizerConfig,
    Sgd,
    set_lr,
    set_weight_decay,
    supports_fused,
)

# Parameters of two dimensions or more that must not decay: tokens, queries, positions, and colors that are looked up.
TOKENS_AND_POSITIONS = re.compile(
    r"prefix\.tokens|position\.(table|x|y)|pool\.query|.*\.relation\.(table|frequencies)|stem\.embed\.weight"
)


class Masked(nn.Module):
    """A task with a token, a convolution and a map of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small().build()
        self.mask = nn.Parameter(torch.zeros(1, 32))
        self.look = nn.Conv2d(3, 4, 3)
        self.guess = nn.Linear(32, 512)


def groups(optimizer: torch.optim.Optimizer, field: str) -> dict[str, Any]:
    """What each parameter has of a field, by the parameter's name."""
    return {name: group[field] for group in optimizer.param_groups for name in group["param_names"]}


def without_decay(optimizer: torch.optim.Optimizer) -> set[str]:
    return {name for name, decay in groups(optimizer, "weight_decay").items() if decay == 0}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", VARIANTS)
def test_kernels_decay_and_nothing_else_does(name: str) -> None:
    model = VARIANTS[name].build_empty("cpu")
    optimizer = AdamW(weight_decay=0.1).build(model)
    thin = {weight for weight, value in model.named_parameters() if value.ndim < 2}
    staying = {weight for weight, _ in model.named_parameters() if TOKENS_AND_POSITIONS.fullmatch(weight)}
    assert without_decay(optimizer) == thin | staying
    assert set(groups(optimizer, "weight_decay").values()) == {0.0, 0.1}


def test_the_decaying_weights_of_a_vision_transformer_are_these() -> None:
    config = small(depth=1, tokens=Tokens(registers=2), block=PreNorm(scale=LayerScale()))
    optimizer = AdamW(weight_decay=0.3).build(config.build())
    assert {name for name, decay in groups(optimizer, "weight_decay").items() if decay == 0.3} == {
        "stem.project.weight",
        "blocks.0.mixer.heads.qkv.weight",
        "blocks.0.mixer.project.weight",
        "blocks.0.mlp.expand.weight",
        "blocks.0.mlp.contract.weight",
        "head.linear.weight",
    }


def test_what_a_task_adds_learns_at_the_full_rate_and_its_token_does_not_decay() -> None:
    optimizer = AdamW(weight_decay=0.1, layer_decay=0.5).build(Masked())
    decay, multiplier = groups(optimizer, "weight_decay"), groups(optimizer, "lr_scale")
    added = ("mask", "look.weight", "look.bias", "guess.weight", "guess.bias")
    assert [decay[name] for name in added] == [0, 0.1, 0, 0.1, 0]
    assert [multiplier[name] for name in added] == [1, 1, 1, 1, 1]
    assert multiplier["model.stem.project.weight"] == 0.125


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stem.project.weight", 0.125),
        ("prefix.tokens", 0.125),
        ("position.table", 0.125),
        ("blocks.0.mlp.expand.bias", 0.25),
        ("blocks.1.mixer_norm.weight", 0.5),
        ("norm.weight", 1.0),
        ("head.linear.weight", 1.0),
    ],
)
def test_each_layer_learns_slower_than_the_one_above(name: str, expected: float) -> None:
    assert groups(AdamW(layer_decay=0.5).build(small().build()), "lr_scale")[name] == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name, config in VARIANTS.items() if isinstance(config, Vit)])
def test_the_rates_of_the_layers_are_those_of_mae(name: str) -> None:
    config = VARIANTS[name]
    assert isinstance(config, Vit)
    model, layers = config.build_empty("cpu"), config.depth + 1
    for weight, found in groups(AdamW(layer_decay=0.65).build(model), "lr_scale").items():
        first, *rest = weight.split(".")
        block = 1 + int(rest[0]) if first == "blocks" else 0
        layer = {"stem": 0, "prefix": 0, "position": 0, "first_norm": 0, "blocks": block}.get(first, layers)
        assert found == pytest.approx(0.65 ** (layers - layer), rel=1e-12)


def test_the_rates_of_a_deep_model_run_over_its_whole_depth() -> None:
    multipliers = groups(AdamW(layer_decay=0.65).build(small(depth=12).build_empty("cpu")), "lr_scale")
    assert multipliers["stem.project.weight"] == pytest.approx(0.0036972058910185)
    assert multipliers["blocks.0.mlp.expand.weight"] == pytest.approx(0.0056880090631054)
    assert multipliers["blocks.11.mlp.expand.weight"] == pytest.approx(0.65)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (AdamW(), 2),
        (AdamW(weight_decay=0), 1),
        (Sgd(), 1),
        (Sgd(weight_decay=0.1), 2),
        (AdamW(layer_decay=0.5), 8),  # stem, two blocks, the rest: each with and without decay
        (Sgd(layer_decay=0.5), 4),
    ],
)
def test_parameters_with_as_much_decay_and_rate_share_a_group(kind: AdamW | Sgd, count: int) -> None:
    model = small().build()
    optimizer = kind.build(model)
    assert len(optimizer.param_groups) == count
    held = [weight for group in optimizer.param_groups for weight in group["params"]]
    assert len(held) == len(set(held)) == len(list(model.parameters()))


@pytest.mark.parametrize("kind", union_members(OptimizerConfig))
def test_setting_the_rate_keeps_the_layers_apart(kind: type[AdamW | Sgd | Muon]) -> None:
    equal = {"adamw_lr": 0.8} if issubclass(kind, Muon) else {}  # the same learning rate for all weights
    optimizer = kind.parse({"lr": 0.8, "layer_decay": 0.5, **equal}).build(small().build())
    rates = groups(optimizer, "lr")
    assert (rates["stem.project.weight"], rates["norm.weight"]) == (0.1, 0.8)
    set_lr(optimizer, 0.4)
    rates = groups(optimizer, "lr")
    assert (rates["stem.project.weight"], rates["blocks.1.mlp.expand.weight"], rates["norm.weight"]) == (0.05, 0.2, 0.4)


def test_frozen_weights_are_left_out() -> None:
    model = small().build()
    model.stem.requires_grad_(False)
    names = groups(AdamW().build(model), "lr")
    assert not any(name.startswith("stem.") for name in names)
    assert "position.table" in names
    with raises("config.nothing_to_train", "task"):
        AdamW().build(model.requires_grad_(False))


def test_layers_are_counted_in_a_vision_transformer_only() -> None:
    network = Resnet(layers=(1,), root=32, head=LinearHead(num_classes=4)).build_empty("cpu")
    Sgd().build(network)
    with raises("config.unsupported", "layer_decay=1"):
        Sgd(layer_decay=0.9).build(network)


def train(kind: AdamW | Sgd, shares: list[float]) -> tuple[list[Tensor], list[Tensor], list[list[Tensor]]]:
    """Weights (kernel, bias) of a small map before and after steps at shares of the peak rate, and its gradients."""
    part = nn.Linear(3, 2)
    optimizer = kind.build(part)
    before = [weight.detach().double() for weight in part.parameters()]
    gradients = []
    for share in shares:
        set_lr(optimizer, kind.lr * share)
        gradients.append([torch.randn(weight.shape).double() for weight in part.parameters()])
        for weight, gradient in zip(part.parameters(), gradients[-1], strict=True):
            weight.grad = gradient.float()
        optimizer.step()
    return before, [weight.detach().double() for weight in part.parameters()], gradients


def adam(gradients: list[Tensor], betas: tuple[float, float], epsilon: float) -> Tensor:
    """Adam's direction after these gradients, from the definition of its two means."""
    count = len(gradients)
    first = sum((1 - betas[0]) * betas[0] ** (count - 1 - i) * g for i, g in enumerate(gradients))
    second = sum((1 - betas[1]) * betas[1] ** (count - 1 - i) * g**2 for i, g in enumerate(gradients))
    assert isinstance(first, Tensor)
    assert isinstance(second, Tensor)
    return first / (1 - betas[0] ** count) / ((second / (1 - betas[1] ** count)).sqrt() + epsilon)


def test_a_decay_of_a_tenth_is_big_visions_ten_thousandth_at_a_rate_of_a_thousandth() -> None:
    shares, rate, decay = [0.5, 1.0, 0.7, 0.3], 1e-3, 1e-4
    kind = AdamW(lr=rate, weight_decay=decay / rate, betas=(0.8, 0.95), eps=0.1)
    assert kind.weight_decay == pytest.approx(0.1)
    before, after, gradients = train(kind, shares)
    for index, decays in enumerate((True, False)):  # the kernel, the bias
        weight = before[index]
        for count, share in enumerate(shares, start=1):
            direction = adam([gradient[index] for gradient in gradients[:count]], (0.8, 0.95), 0.1)
            weight = weight - share * (rate * direction + decays * decay * weight)
        torch.testing.assert_close(after[index], weight, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("nesterov", [True, False])
def test_sgd_rolls_on_with_its_momentum(nesterov: bool) -> None:
    shares = [0.5, 1.0, 0.25]
    before, after, gradients = train(Sgd(lr=0.1, momentum=0.8, weight_decay=0.02, nesterov=nesterov), shares)
    for index, decay in enumerate((0.02, 0.0)):
        weight, speed = before[index], torch.zeros_like(before[index])
        for share, gradient in zip(shares, gradients, strict=True):
            force = gradient[index] + decay * weight
            speed = 0.8 * speed + force
            weight = weight - 0.1 * share * (force + 0.8 * speed if nesterov else speed)
        torch.testing.assert_close(after[index], weight, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("kind", union_members(OptimizerConfig))
def test_the_state_comes_back_with_names_and_multipliers_in_plain_data(kind: type[AdamW | Sgd]) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = small().build()
        return model, kind(layer_decay=0.5).build(model)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()

    model, optimizer = build()
    step(model, optimizer, 1)
    state = copy.deepcopy(optimizer.state_dict())  # torch gives and takes the very tensors
    again, resumed = build()
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict({"state": state["state"], "param_groups": json.loads(json.dumps(state["param_groups"]))})
    for one, other in ((model, optimizer), (again, resumed)):
        set_lr(other, 0.01)
        step(one, other, 2)
    for weight, twin in zip(model.parameters(), again.parameters(), strict=True):
        assert weight.equal(twin)
    assert groups(resumed, "lr_scale") == groups(optimizer, "lr_scale")


def test_a_step_of_adam_is_fused_where_torch_can() -> None:
    model, frame = small().build(), small().build_empty("meta")
    assert supports_fused(model)
    assert all(group["fused"] for group in AdamW().build(model).param_groups)
    assert not supports_fused(frame)
    assert not any(group["fused"] for group in AdamW().build(frame).param_groups)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", union_members(OptimizerConfig))
def test_a_sharded_model_takes_the_same_steps(kind: type[AdamW | Sgd]) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    whole, images = small().build(), torch.rand(2, 3, 32, 48)
    sharded = copy.deepcopy(whole)
    fully_shard(sharded)
    for model in (whole, sharded):
        optimizer = kind(layer_decay=0.5).build(model)
        for _ in range(2):
            model(images).exp().sum().backward()
            optimizer.step()
    weights = dict(sharded.named_parameters())
    assert without_decay(kind(weight_decay=0.1).build(sharded)) == without_decay(kind(weight_decay=0.1).build(whole))
    for name, weight in whole.named_parameters():
        part = weights[name]
        assert isinstance(part, DTensor)
        torch.testing.assert_close(part.full_tensor(), weight)


@pytest.mark.parametrize(
    ("kind", "fields", "code", "field"),
    [
        (AdamW, {"lr": 0.0}, "config.out_of_range", "lr"),
        (AdamW, {"betas": [0.9, 1.0]}, "config.out_of_range", "betas.1"),
        (AdamW, {"weight_decay": -0.1}, "config.out_of_range", "weight_decay"),
        (AdamW, {"layer_decay": 1.5}, "config.out_of_range", "layer_decay"),
        (AdamW, {"lr": math.inf}, "config.out_of_range", "lr"),
        (Sgd, {"momentum": 1.0}, "config.out_of_range", "momentum"),
        (Sgd, {"nesterov": True, "momentum": 0.0}, "config.conflict", "nesterov"),
    ],
)
def test_a_setting_that_cannot_learn_is_refused(
    kind: type[AdamW | Sgd], fields: dict[str, Any], code: str, field: str
) -> None:
    with raises(code) as caught:
        kind.parse(fields)
    assert caught.value.where == field


def test_matrices_or_all_parameters_may_decay_instead_of_kernels() -> None:
    task = Masked()
    names = {name: weight.ndim for name, weight in task.named_parameters()}
    matrices = AdamW(weight_decay=0.1, decayed="matrices").build(task)
    assert without_decay(matrices) == {name for name, dimensions in names.items() if dimensions == 1}
    assert "mask" in groups(matrices, "lr")
    assert without_decay(AdamW(weight_decay=0.1, decayed="all").build(task)) == set()


def test_a_weight_decay_follows_half_a_cosine_and_reaches_the_groups_that_decay() -> None:
    schedule = CosineDecay(end=0.4)
    assert [schedule.value(0.04, done) for done in (0.0, 0.5, 1.0)] == pytest.approx([0.04, 0.22, 0.4])
    assert schedule.value(0.04, 0.25) == pytest.approx(0.4 - 0.36 * (1 + math.cos(math.pi / 4)) / 2)
    assert ConstantDecay().value(0.04, 0.7) == 0.04
    optimizer = AdamW(weight_decay=0.04, decay_schedule=schedule).build(Masked())
    before = without_decay(optimizer)
    set_weight_decay(optimizer, 0.22)
    assert without_decay(optimizer) == before
    assert set(groups(optimizer, "weight_decay").values()) == {0.0, 0.22}

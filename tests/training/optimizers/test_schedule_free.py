"""Schedule-Free AdamW against its three sequences in float64, and which of them is evaluated and saved."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import small
from vitral.training.ema import Ema, NoAverage
from vitral.training.optimizers import AdamW, ScheduleFreeAdamW, build_average, set_lr
from vitral.training.optimizers.schedule_free import ScheduleFree

SHARES = [0.0, 0.5, 1.0, 1.0, 1.0]  # of the learning rate: a warmup that begins with 0


def sequences(
    start: Tensor, slopes: list[Tensor], decay: float, rate: float, power: float
) -> tuple[list[Tensor], list[Tensor]]:
    """x and y before the first step and after each, as the paper writes them; the moment as a sum."""
    beta1, beta2, eps = 0.8, 0.9, 1e-3
    z, x, total = start, start, 0.0
    xs, ys = [x], [(1 - beta1) * z + beta1 * x]
    for index, (share, slope) in enumerate(zip(SHARES, slopes, strict=True)):
        lr, count = rate * share, index + 1
        terms = [(1 - beta2) * beta2 ** (index - past) * g**2 for past, g in enumerate(slopes[:count])]
        moment = torch.stack(terms).sum(dim=0) / (1 - beta2**count)
        z = z - lr * (slope / (moment.sqrt() + eps) + decay * ys[-1])
        weight = lr**2 * count**power
        total += weight
        c = weight / total if total else 0.0
        x = (1 - c) * x + c * z
        xs.append(x)
        ys.append((1 - beta1) * z + beta1 * x)
    return xs, ys


@pytest.mark.parametrize("power", [0.0, 0.75])
def test_steps_are_those_of_the_paper(power: float) -> None:
    """With decay, a warmup and layers that learn slower; x is what is evaluated, y what trains."""
    torch.manual_seed(0)
    model = small(depth=1).build().double()
    config = {"lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-3, "weight_decay": 0.3, "layer_decay": 0.5}
    optimizer = ScheduleFreeAdamW.parse(config | {"average_power": power}).build(model)
    start = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    slopes = {name: [torch.randn_like(weight) for _ in SHARES] for name, weight in start.items()}
    found: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
    for index, share in enumerate(SHARES):
        set_lr(optimizer, 0.1 * share)
        for name, weight in model.named_parameters():
            weight.grad = slopes[name][index].clone()
        optimizer.step()
        assert isinstance(optimizer, ScheduleFree)
        found.append((optimizer.averaged_weights(), copy.deepcopy(dict(model.named_parameters()))))
    for name, value in start.items():
        layer = {"stem": 0.25, "prefix": 0.25, "position": 0.25, "blocks": 0.5}.get(name.split(".")[0], 1.0)
        decays = name.endswith(".weight") and value.ndim == 2
        xs, ys = sequences(value, slopes[name], 0.3 * decays, 0.1 * layer, power)
        for index, (averaged, own) in enumerate(found, start=1):
            torch.testing.assert_close(averaged[name], xs[index], atol=1e-12, rtol=1e-12)
            torch.testing.assert_close(own[name].detach(), ys[index], atol=1e-12, rtol=1e-12)


def test_with_an_equal_rate_x_is_the_mean_of_z() -> None:
    part = nn.Linear(3, 2).double()
    optimizer = ScheduleFreeAdamW(weight_decay=0).build(part)
    assert isinstance(optimizer, ScheduleFree)
    steps = []
    for _ in range(6):
        for weight in part.parameters():
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        steps.append(optimizer.state[part.weight]["z"].clone())
    mean = torch.stack(steps).mean(dim=0)
    torch.testing.assert_close(optimizer.averaged_weights()["weight"], mean, atol=1e-12, rtol=1e-12)


def test_x_is_evaluated_and_y_comes_back_to_the_bit() -> None:
    model = small().build()
    optimizer = ScheduleFreeAdamW().build(model)
    average = build_average(NoAverage(), optimizer, 10)
    assert average.averages() == {}  # nothing to average before the first step
    for _ in range(3):
        for weight in model.parameters():
            weight.grad = torch.randn_like(weight)
        optimizer.step()
        average.update(model, 0)
    own, expected = copy.deepcopy(model.state_dict()), average.averages()
    with average.applied_to(model):
        inside = copy.deepcopy(model.state_dict())
    assert all(inside[name].equal(tensor) for name, tensor in expected.items())
    assert not inside["head.linear.weight"].equal(own["head.linear.weight"])
    assert all(tensor.equal(own[name]) for name, tensor in model.state_dict().items())


def test_a_weight_that_began_later_counts_its_own_steps() -> None:
    part = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    optimizer = ScheduleFreeAdamW().build(part)
    for step in range(3):
        for weight in part.parameters():
            weight.grad = torch.ones_like(weight)
        if not step:
            part[1].zero_grad()
        optimizer.step()
    steps = {name: optimizer.state[weight]["step"].item() for name, weight in part.named_parameters()}
    assert steps == {"0.weight": 3, "0.bias": 3, "1.weight": 2, "1.bias": 2}


def test_other_optimizers_have_the_average_of_the_recipe() -> None:
    model = small().build()
    assert isinstance(build_average(Ema(), AdamW().build(model), 3).kind, Ema)


@pytest.mark.parametrize(("field", "value"), [("betas", [0.0, 0.9]), ("betas", [0.9, 1.0]), ("average_power", -1)])
def test_a_setting_without_meaning_is_refused(field: str, value: object) -> None:
    with raises("config.out_of_range", field):
        ScheduleFreeAdamW.parse({field: value})

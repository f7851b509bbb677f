"""Muon against its definition in float64, which weights it trains, and what its updates are."""

import copy
import re
from collections.abc import Callable
from math import sqrt

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from vitral.models import LinearHead, Resnet, Vit
from vitral.models.mlp import SwiGlu
from vitral.models.position import RelativeMlp
from vitral.training.finetune import add_adapters, freeze_all_but
from vitral.training.optimizers import Muon, set_lr
from vitral.training.optimizers.muon import hidden_matrices, orthogonalize, orthogonalize_all

MATRICES = re.compile(r"blocks\.\d+\..*(qkv|project|expand|contract)\.weight")


def trained_by_muon(model: nn.Module) -> dict[str, int]:
    """The weights that Muon trains, and how many matrices are in each."""
    groups = Muon().build(model).param_groups
    return {name: group["matrices"] for group in groups for name in group["param_names"] if group["matrices"]}


def gradients(model: nn.Module, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in model.parameters()]


def by_definition(g: Tensor) -> Tensor:
    """Five steps of the polynomial 3.4445 s - 4.775 s^3 + 2.0315 s^5 on each singular value, in float64."""
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    s = s / (s.square().sum().sqrt() + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ torch.diag(s) @ vh


@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12), (1, 7)])
def test_orthogonalizing_applies_a_polynomial_to_the_singular_values(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    for found, matrix in zip(orthogonalize(matrices), matrices, strict=True):
        torch.testing.assert_close(found, by_definition(matrix), atol=1e-12, rtol=1e-12)
        assert (torch.linalg.svdvals(found) - 1).abs().max() < 0.35


def test_a_matrix_of_zeros_stays_one_of_zeros() -> None:
    assert orthogonalize(torch.zeros(1, 3, 4)).equal(torch.zeros(1, 3, 4))


def test_weights_of_many_shapes_are_orthogonalized_as_if_each_were_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    updates = [torch.randn(shape, dtype=torch.float64) for shape in [(6, 4), (4, 6), (6, 4), (6, 4), (12, 4)]]
    monkeypatch.setattr("vitral.training.optimizers.muon.STACK", 50)  # two of the first shape at once
    found = dict(orthogonalize_all(updates, 2))
    assert sorted(found) == [0, 1, 2, 3, 4]
    for index, update in enumerate(updates):
        expected = torch.cat([by_definition(part) for part in update.chunk(2)])
        torch.testing.assert_close(found[index], expected, atol=1e-12, rtol=1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name, config in VARIANTS.items() if isinstance(config, Vit)])
def test_muon_trains_the_linear_layers_of_the_blocks_and_nothing_else(name: str) -> None:
    model = VARIANTS[name].build_empty("cpu")
    expected = {
        weight for weight, _ in model.named_parameters() if MATRICES.fullmatch(weight) and ".relation." not in weight
    }
    if expected:
        assert set(trained_by_muon(model)) == expected
    else:  # a block without a matrix
        with raises("config.unsupported", "optimizer"):
            trained_by_muon(model)


def test_fused_layers_are_taken_apart_and_positions_are_left_to_adamw() -> None:
    model = small(depth=1, mlp=SwiGlu(), position=RelativeMlp()).build()
    assert trained_by_muon(model) == {
        "blocks.0.mixer.heads.qkv.weight": 3,
        "blocks.0.mixer.project.weight": 1,
        "blocks.0.mlp.expand.weight": 2,
        "blocks.0.mlp.contract.weight": 1,
    }


def test_the_queries_of_an_adapter_are_a_matrix_of_their_own() -> None:
    model = small(depth=1).build()
    freeze_all_but(model, [model.head])
    add_adapters(model.blocks, ("qkv", "mlp"), rank=4, scale=1.0)
    layer = "parametrizations.weight.0"
    assert trained_by_muon(model) == {
        f"blocks.0.mixer.heads.qkv.{layer}.down.weight": 1,
        f"blocks.0.mixer.heads.qkv.{layer}.up.weight": 3,
        **{
            f"blocks.0.mlp.{part}.{layer}.{side}.weight": 1
            for part in ("expand", "contract")
            for side in ("down", "up")
        },
    }


def test_a_model_without_such_matrices_is_refused() -> None:
    network = Resnet(layers=(1,), root=32, head=LinearHead(num_classes=4)).build_empty("cpu")
    assert hidden_matrices(network) == {}
    probe = small().build()
    freeze_all_but(probe, [probe.head])
    for model in (network, probe):
        with raises("config.unsupported", "optimizer=adamw"):
            Muon().build(model)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["original", "match_rms_adamw"])
def test_steps_are_those_of_the_definition(nesterov: bool, adjust: str) -> None:
    """All weights of a model in float64, with layer decay, weight decay and a schedule."""
    kind = Muon.parse(
        {"lr": 0.05, "momentum": 0.8, "nesterov": nesterov, "adjust_lr": adjust, "weight_decay": 0.3, "adamw_lr": 0.01}
        | {"adamw_betas": [0.7, 0.9], "adamw_eps": 1e-3, "layer_decay": 0.5}
    )
    torch.manual_seed(0)
    model = small(depth=1, mlp=SwiGlu()).build().double()
    optimizer = kind.build(model)
    shares = [0.5, 1.0, 0.7]
    expected = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    given = [dict(zip(expected, gradients(model, seed), strict=True)) for seed in range(len(shares))]
    for share, step in zip(shares, given, strict=True):
        set_lr(optimizer, 0.05 * share)
        for name, weight in model.named_parameters():
            weight.grad = step[name].clone()
        optimizer.step()
    parts = {"qkv": 3, "expand": 2, "project": 1, "contract": 1}
    for name, start in expected.items():
        layer = {"stem": 0.25, "prefix": 0.25, "position": 0.25, "blocks": 0.5}.get(name.split(".")[0], 1.0)
        count = parts[name.split(".")[-2]] if MATRICES.fullmatch(name) else 0
        slopes = [step[name] for step in given]
        rule = muon_rule(slopes, nesterov, adjust, count) if count else adamw_rule(slopes)
        decays = name.endswith(".weight") and start.ndim == 2 and "position" not in name
        value = start
        for index, share in enumerate(shares):
            rate = share * layer * (0.05 if count else 0.01)
            value = value - rate * (decays * 0.3 * value + rule(index))
        torch.testing.assert_close(model.get_parameter(name).detach(), value, atol=1e-12, rtol=1e-12)


def muon_rule(slopes: list[Tensor], nesterov: bool, adjust: str, count: int) -> Callable[[int], Tensor]:
    """The direction of each step, from the definition of the momentum as a sum."""

    def direction(step: int) -> Tensor:
        terms = [0.2 * 0.8 ** (step - index) * slope for index, slope in enumerate(slopes[: step + 1])]
        momentum = torch.stack(terms).sum(dim=0)
        update = 0.2 * slopes[step] + 0.8 * momentum if nesterov else momentum
        rows, columns = update.shape[0] // count, update.shape[1]
        scale = sqrt(max(1, rows / columns)) if adjust == "original" else 0.2 * sqrt(max(rows, columns))
        return scale * torch.cat([by_definition(part) for part in update.chunk(count)])

    return direction


def adamw_rule(slopes: list[Tensor]) -> Callable[[int], Tensor]:
    def direction(step: int) -> Tensor:
        past = list(enumerate(slopes[: step + 1]))
        first = torch.stack([0.3 * 0.7 ** (step - index) * slope for index, slope in past]).sum(dim=0)
        second = torch.stack([0.1 * 0.9 ** (step - index) * slope**2 for index, slope in past]).sum(dim=0)
        return first / (1 - 0.7 ** (step + 1)) / ((second / (1 - 0.9 ** (step + 1))).sqrt() + 1e-3)

    return direction


def test_a_whole_matrix_takes_about_the_step_of_torch_which_iterates_in_bfloat16() -> None:
    model = small(depth=1).build()
    twin = copy.deepcopy(model)
    names = [name for name, count in trained_by_muon(model).items() if count == 1]
    ours = Muon(weight_decay=0.1).build(model)
    torchs = torch.optim.Muon([twin.get_parameter(name) for name in names], lr=0.02, weight_decay=0.1)
    for seed in range(3):
        for one in (model, twin):
            for weight, gradient in zip(one.parameters(), gradients(model, seed), strict=True):
                weight.grad = gradient
        ours.step()
        torchs.step()
    for name in names:
        torch.testing.assert_close(model.get_parameter(name), twin.get_parameter(name), atol=2e-3, rtol=0)


def test_a_weight_without_a_gradient_stays_as_it_is() -> None:
    model = small(depth=2).build()
    before = copy.deepcopy(model.state_dict())
    optimizer = Muon().build(model)
    for name, weight in model.named_parameters():
        weight.grad = torch.ones_like(weight) if name.startswith("blocks.0") else None
    optimizer.step()
    changed = {name for name, weight in model.state_dict().items() if not weight.equal(before[name])}
    assert changed == {name for name in before if name.startswith("blocks.0")}
    assert len(optimizer.state) == len(changed)

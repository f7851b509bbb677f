"""The MLPs against their formulas, number by number."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.models import Grid, Layout, Mlp, SwiGlu
from vitral.models.base import BuildContext
from vitral.models.registry import SIZES

CONFIGS = pytest.mark.parametrize(
    "config", [Mlp(activation="gelu_tanh"), Mlp(activation="gelu"), SwiGlu()], ids=["tanh", "erf", "swiglu"]
)


def built(config: Mlp | SwiGlu, width: int = 6) -> nn.Module:
    mlp = config.build(BuildContext(width, 1, Layout(1, 0, Grid(1, 1)), 1e-6)).double()
    with torch.no_grad():
        for weight in mlp.parameters():
            weight.normal_()
    return mlp


def tanh_gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def quick_gelu(x: float) -> float:
    return x / (1 + math.exp(-1.702 * x))


def erf_gelu(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def linear(mlp: nn.Module, name: str, x: Tensor) -> Tensor:
    part = mlp.get_submodule(name)
    assert isinstance(part, nn.Linear)
    return x @ part.weight.detach().T + part.bias.detach()


@pytest.mark.parametrize(
    ("config", "formula"),
    [
        (Mlp(ratio=2.5, activation="gelu_tanh"), tanh_gelu),
        (Mlp(ratio=2.5, activation="gelu"), erf_gelu),
        (Mlp(ratio=2.5, activation="quick_gelu"), quick_gelu),
    ],
)
def test_the_mlp_is_two_layers_with_the_gelu_named_between(config: Mlp, formula: Callable[[float], float]) -> None:
    mlp = built(config)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    hidden = linear(mlp, "expand", x)
    assert hidden.shape == (2, 3, 15)
    expected = linear(mlp, "contract", hidden.clone().apply_(formula))
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-10)


def test_the_two_forms_of_gelu_are_not_the_same() -> None:
    """The trap: up to 5e-4 apart, on every number of every layer."""
    x = torch.linspace(-4, 4, 999, dtype=torch.float64)
    apart = (x.clone().apply_(tanh_gelu) - x.clone().apply_(erf_gelu)).abs().max()
    assert 4e-4 < apart < 5e-4
    mlp, erf = built(Mlp()), built(Mlp(activation="gelu"))
    erf.load_state_dict(mlp.state_dict())
    tokens = torch.randn(1, 50, 6, dtype=torch.float64)
    assert 1e-4 < (mlp(tokens) - erf(tokens)).abs().max() < 5e-2


def test_the_gated_mlp_multiplies_by_the_swish_of_its_first_half() -> None:
    config = SwiGlu(ratio=2.0)
    mlp, hidden = built(config), config.hidden(6)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    both = linear(mlp, "expand", x)
    assert both.shape == (2, 3, 2 * hidden)
    gated = both[..., :hidden].clone().apply_(silu) * both[..., hidden:]
    torch.testing.assert_close(mlp(x), linear(mlp, "contract", gated), rtol=0, atol=1e-10)


@pytest.mark.parametrize("scale", SIZES.values(), ids=SIZES.keys())
def test_the_hidden_width_of_every_size_survives_the_ratio(scale: tuple[int, int, int, int, str]) -> None:
    width, _, _, hidden, _ = scale
    assert Mlp(ratio=hidden / width).hidden(width) == hidden


@pytest.mark.parametrize(
    ("width", "ratio", "hidden"),
    [(768, 4.0, 3072), (1408, 6144 / 1408, 6144), (1664, 8192 / 1664, 8192), (400, 402 / 400, 402), (3, 0.1, 1)],
)
def test_the_hidden_width_is_the_nearest_whole_number_and_at_least_one(width: int, ratio: float, hidden: int) -> None:
    assert Mlp(ratio=ratio).hidden(width) == hidden
    assert built(Mlp(ratio=ratio), 3).get_parameter("expand.weight").shape == (Mlp(ratio=ratio).hidden(3), 3)


def test_the_gated_width_is_two_thirds_of_four_times_the_width_rounded_up_to_eight() -> None:
    assert SwiGlu().hidden(1536) == 4096  # DINOv2's giant
    for width in range(4, 2049, 4):
        assert SwiGlu().hidden(width) == math.ceil(8 * width // 3 / 8) * 8


@CONFIGS
def test_a_token_thinks_alone(config: Mlp | SwiGlu) -> None:
    mlp, x = built(config), torch.randn(2, 5, 6, dtype=torch.float64)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(mlp(x)[:, order], mlp(x[:, order]), rtol=0, atol=1e-12)
    torch.testing.assert_close(mlp(x)[:, 2:3], mlp(x[:, 2:3]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", [Mlp(dropout=0.25), SwiGlu(dropout=0.25)], ids=["mlp", "swiglu"])
def test_training_drops_from_the_hidden_layer_and_from_the_result(config: Mlp | SwiGlu) -> None:
    """With every hidden number the same and every output their sum, an output counts the survivors or is zero."""
    mlp, hidden = built(config, 16), config.hidden(16)
    with torch.no_grad():
        mlp.get_parameter("expand.weight").zero_()
        mlp.get_parameter("expand.bias").fill_(1.0)
        mlp.get_parameter("contract.weight").fill_(1.0)
        mlp.get_parameter("contract.bias").zero_()
    one = float(F.gelu(torch.ones(()), approximate="tanh") if isinstance(config, Mlp) else F.silu(torch.ones(())))
    x = torch.zeros(1, 2000, 16, dtype=torch.float64)
    with torch.no_grad():
        counts = mlp.train()(x)[0] / one * 0.75**2  # (2000, 16)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-4)
    assert (counts == 0).double().mean() == pytest.approx(0.25, abs=0.01)
    survivors = counts.amax(dim=1)
    assert survivors.mean() == pytest.approx(0.75 * hidden, rel=0.01)
    assert survivors.var() == pytest.approx(0.75 * 0.25 * hidden, rel=0.15)
    torch.testing.assert_close(mlp.eval()(x) / one, torch.full_like(x, hidden), rtol=0, atol=1e-4)

"""A block in plain code, and what happens to a branch before it is added."""

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import Config, union_members
from vitral.models import Grid, LayerScale, Layout, MultiBranch, Parallel, PostNorm, PreNorm, Vit
from vitral.models.attention import SelfAttention
from vitral.models.block import BlockConfig, Branch, DropPath
from vitral.models.init import Original, initialize
from vitral.models.mlp import BaseFeedForward
from vitral.models.vit import build_blocks

KINDS = pytest.mark.parametrize("kind", union_members(BlockConfig))
LAYOUT = Layout(1, 0, Grid(4, 6))
BRANCHES: dict[type[Config], int] = {Parallel: 1, MultiBranch: 4}  # of a layer; the others have two


def layer_norm(x: Tensor, norm: nn.Module, eps: float) -> Tensor:
    centered = x - x.mean(dim=-1, keepdim=True)
    scaled = centered / (centered.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return scaled * norm.get_parameter("weight") + norm.get_parameter("bias")


def block_of(config: Vit, layer: int = 0) -> nn.Module:
    """A layer in double precision whose every parameter is random."""
    block = list(build_blocks(config, config.context()))[layer].double()
    with torch.no_grad():
        for weight in block.parameters():
            weight.normal_(std=0.5)
    return block.eval()


@pytest.mark.parametrize("keep", [1, LAYOUT.length()])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_the_norm_comes_before_each_branch_of_a_pre_norm_block(keep: int, eps: float) -> None:
    block = block_of(small(block=PreNorm(scale=LayerScale()), eps=eps))
    part, scale = block.get_submodule, block.get_parameter
    x = torch.randn(2, LAYOUT.length(), 32, dtype=torch.float64)
    gathered = part("mixer")(layer_norm(x, part("mixer_norm"), eps), LAYOUT, keep)
    middle = x[:, :keep] + gathered * scale("mixer_branch.scale.factor")
    thought = part("mlp")(layer_norm(middle, part("mlp_norm"), eps))
    expected = middle + thought * scale("mlp_branch.scale.factor")
    torch.testing.assert_close(block(x, LAYOUT, keep), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("keep", [1, LAYOUT.length()])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_the_norm_comes_after_each_sum_of_a_post_norm_block(keep: int, eps: float) -> None:
    block = block_of(small(block=PostNorm(scale=LayerScale()), eps=eps))
    part, scale = block.get_submodule, block.get_parameter
    x = torch.randn(2, LAYOUT.length(), 32, dtype=torch.float64)
    gathered = part("mixer")(x, LAYOUT, keep) * scale("mixer_branch.scale.factor")
    middle = layer_norm(x[:, :keep] + gathered, part("mixer_norm"), eps)
    thought = part("mlp")(middle) * scale("mlp_branch.scale.factor")
    expected = layer_norm(middle + thought, part("mlp_norm"), eps)
    torch.testing.assert_close(block(x, LAYOUT, keep), expected, rtol=0, atol=1e-10)


def test_only_pre_norm_ends_with_a_norm() -> None:
    assert isinstance(small(block=PreNorm()).build_empty().norm, nn.LayerNorm)
    assert isinstance(small(block=PostNorm()).build_empty().norm, nn.Identity)


def test_drop_path_drops_whole_samples_and_scales_the_rest() -> None:
    drop = DropPath(0.2).train()
    x = torch.rand(4000, 3, 2) + 1
    found = drop(x)
    survived = found[:, 0, 0] != 0
    assert not found[~survived].any()
    torch.testing.assert_close(found[survived], x[survived] / 0.8)
    assert survived.double().mean() == pytest.approx(0.8, abs=0.02)


def test_drop_path_keeps_the_mean() -> None:
    drop = DropPath(0.4).train()
    x = torch.randn(1, 3, 2).expand(20_000, -1, -1)
    torch.testing.assert_close(drop(x).mean(dim=0), x[0], rtol=0.03, atol=0.0)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_drop_path_drops_nothing_in_eval_or_at_rate_zero(rate: float) -> None:
    x = torch.randn(64, 3, 2)
    assert DropPath(rate).eval()(x).equal(x)
    assert DropPath(0.0).train()(x).equal(x)
    assert not DropPath(0.5).train()(x).equal(x)


def stepped(block: nn.Module, x: Tensor, keep: int, seed: int) -> list[Tensor]:
    """The output of a block in training, and the gradients of its input and parameters."""
    given = x.clone().requires_grad_()
    torch.manual_seed(seed)
    found = block.train()(given, LAYOUT, keep)
    found.sin().sum().backward()
    gradients = [weight.grad for weight in block.parameters() if weight.grad is not None]
    assert given.grad is not None
    return [found.detach(), given.grad, *gradients]


@KINDS
@pytest.mark.parametrize("keep", [1, LAYOUT.length()])
@pytest.mark.parametrize("rate", [0.4, 0.99])  # at the latter, no sample is kept
def test_a_skipped_branch_is_a_masked_one_that_is_not_computed(kind: type[PreNorm], keep: int, rate: float) -> None:
    """Value by value and gradient by gradient, with the same draws."""
    mask, skip = (
        block_of(small(depth=2, block=kind(scale=LayerScale(), drop_path_rate=rate, drop_path_mode=mode)), layer=1)
        for mode in ("mask", "skip")
    )
    skip.load_state_dict(mask.state_dict())
    samples: list[int] = []
    for part in skip.modules():
        if isinstance(part, SelfAttention | BaseFeedForward):
            part.register_forward_pre_hook(lambda part, given: samples.append(len(given[0])))
    x = torch.randn(9, LAYOUT.length(), 32, dtype=torch.float64)
    expected, found = (stepped(block, x, keep, seed=3) for block in (mask, skip))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9)
    assert max(samples) < 9
    samples.clear()
    assert skip.eval()(x, LAYOUT, keep).equal(mask.eval()(x, LAYOUT, keep))
    assert set(samples) == {9}


def test_a_model_without_values_skips_nothing() -> None:
    model = small(block=PreNorm(drop_path_rate=0.5, drop_path_mode="skip")).build_empty().train()
    assert model(torch.empty(3, 3, 32, 48, device="meta")).shape[0] == 3


def rates(model: nn.Module) -> list[float]:
    return [part.rate for part in model.modules() if isinstance(part, DropPath)]


@KINDS
def test_the_rate_grows_linearly_from_zero_in_the_first_layer(kind: type[PreNorm | PostNorm]) -> None:
    model = small(depth=5, block=kind(drop_path_rate=0.2)).build_empty()
    branches = BRANCHES.get(kind, 2)
    assert rates(model) == pytest.approx([rate for rate in (0, 0.05, 0.1, 0.15, 0.2) for _ in range(branches)])
    assert rates(small(depth=1, block=kind(drop_path_rate=0.2)).build_empty()) == [0] * branches


@KINDS
def test_the_two_branches_of_a_layer_are_dropped_apart(kind: type[PreNorm | PostNorm]) -> None:
    """Each kept or dropped: with two branches, four different results for the same tokens."""
    config = small(depth=2, block=kind(drop_path_rate=0.5))
    block = block_of(config, layer=1).train()
    x = torch.randn(1, LAYOUT.length(), 32, dtype=torch.float64).expand(200, -1, -1)
    assert len(block(x, LAYOUT, LAYOUT.length()).round(decimals=6).unique(dim=0)) == 2 ** BRANCHES.get(kind, 2)


@pytest.mark.parametrize("initial", [1e-5, 0.1])
def test_layer_scale_starts_every_channel_at_its_constant(initial: float) -> None:
    model = small(depth=3, block=PreNorm(scale=LayerScale(init=initial))).build()
    factors = [weight for name, weight in model.named_parameters() if name.endswith("scale.factor")]
    assert len(factors) == 2 * 3
    assert all(factor.equal(torch.full((32,), initial)) for factor in factors)


@KINDS
def test_a_branch_is_scaled_by_channel(kind: type[PreNorm | PostNorm]) -> None:
    config = small()
    branch = Branch(kind(scale=LayerScale()), config.context(), layer=0)
    initialize(branch, Original())
    with torch.no_grad():
        branch.get_parameter("scale.factor").copy_(torch.arange(32.0))
    x = torch.randn(2, 5, 32)
    assert branch(x).equal(x * torch.arange(32.0))
    assert Branch(kind(), config.context(), layer=0)(x) is x


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_a_rate_that_drops_everything_or_less_than_nothing_is_refused(rate: float) -> None:
    with raises("config.out_of_range", "drop_path", rate):
        PreNorm(drop_path_rate=rate)

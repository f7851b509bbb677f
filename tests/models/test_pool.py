"""Each pool by hand."""

import pytest
import torch
from torch import Tensor, nn

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import union_members
from vitral.models import (
    Attention,
    AttentionPool,
    ClassMeanPool,
    ClassPool,
    DistilledPool,
    Grid,
    Identity,
    Layout,
    MeanAllPool,
    MeanPool,
    Mlp,
    Tokens,
)
from vitral.models.base import BuildContext
from vitral.models.pool import AttentionPooling, Pool, PoolConfig

LAYOUTS = pytest.mark.parametrize(
    "layout", [Layout(1, 0, Grid(2, 3)), Layout(1, 2, Grid(2, 3)), Layout(0, 2, Grid(2, 3)), Layout(0, 0, Grid(1, 4))]
)
Kind = ClassPool | DistilledPool | MeanPool | ClassMeanPool | MeanAllPool | AttentionPool
WITH_CLASS = pytest.mark.parametrize("layout", [Layout(1, 0, Grid(2, 3)), Layout(1, 3, Grid(2, 3))])


def built(config: Kind, layout: Layout, width: int = 8) -> Pool:
    pool = config.build(BuildContext(width, 1, layout, 1e-6, heads=2), Mlp(ratio=2)).double()
    with torch.no_grad():
        for weight in pool.parameters():
            weight.normal_()
    return pool


def tokens_of(layout: Layout, width: int = 8) -> Tensor:
    return torch.randn(2, layout.length(), width, dtype=torch.float64)


@WITH_CLASS
def test_the_class_pool_reads_the_first_token_and_needs_no_other(layout: Layout) -> None:
    pool, tokens = built(ClassPool(), layout), tokens_of(layout)
    assert pool.keep(layout) == 1
    assert pool(tokens, layout).equal(tokens[:, 0])
    assert pool(tokens[:, :1], layout).equal(tokens[:, 0])


@LAYOUTS
def test_the_mean_pool_reads_the_patches_and_neither_class_token_nor_registers(layout: Layout) -> None:
    pool, tokens = built(MeanPool(), layout), tokens_of(layout)
    patches = [tokens[:, place] for place in range(layout.cls + layout.registers, layout.length())]
    assert pool.keep(layout) == layout.length()
    expected = torch.stack(patches).sum(dim=0) / layout.grid.cells()
    torch.testing.assert_close(pool(tokens, layout), expected, rtol=0, atol=1e-12)


@LAYOUTS
def test_the_mean_of_all_reads_every_token(layout: Layout) -> None:
    """The trap of the notes: their mean has the class token in it."""
    pool, tokens = built(MeanAllPool(), layout), tokens_of(layout)
    assert pool.keep(layout) == layout.length()
    torch.testing.assert_close(pool(tokens, layout), tokens.sum(dim=1) / layout.length(), rtol=0, atol=1e-12)


def linear(pool: nn.Module, name: str, x: Tensor) -> Tensor:
    return x @ pool.get_parameter(f"{name}.weight").T + pool.get_parameter(f"{name}.bias")


@LAYOUTS
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_attention_pool_is_one_query_looking_at_every_token(layout: Layout, heads: int) -> None:
    pool, tokens = built(AttentionPool(heads=heads), layout), tokens_of(layout)
    assert pool.keep(layout) == layout.length()
    width = 8 // heads
    q = linear(pool, "q", pool.get_parameter("query")[0, 0])  # (D)
    k, v = linear(pool, "kv", tokens).split(8, dim=-1)  # each (B, L, D)
    gathered, looks = [], []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        scores = (k[..., part] @ q[part] / width**0.5).exp()  # (B, L)
        weights = scores / scores.sum(dim=1, keepdim=True)
        gathered.append((weights[..., None] * v[..., part]).sum(dim=1))  # (B, d)
        looks.append(weights)
    x = linear(pool, "project", torch.cat(gathered, dim=-1))  # (B, D)
    expected = x + pool.get_submodule("mlp")(pool.get_submodule("norm")(x))
    torch.testing.assert_close(pool(tokens, layout), expected, rtol=0, atol=1e-10)
    assert isinstance(pool, AttentionPooling)
    found = pool.attention_weights(pool.project_qkv(tokens), layout)  # (B, H, 1, L)
    torch.testing.assert_close(found[:, :, 0], torch.stack(looks, dim=1), rtol=0, atol=1e-12)
    torch.testing.assert_close(pool.token_weights(tokens, layout), torch.stack(looks).mean(dim=0), rtol=0, atol=1e-12)


@WITH_CLASS
@pytest.mark.parametrize("kind", [ClassPool, DistilledPool, MeanPool, ClassMeanPool, MeanAllPool])
def test_what_a_pool_reads_is_what_its_vector_is_made_of(kind: type[Kind], layout: Layout) -> None:
    """Of a pool that puts two things side by side, half of each."""
    pool, tokens = built(kind(), layout), tokens_of(layout)
    shares = pool.token_weights(tokens, layout)
    torch.testing.assert_close(shares.sum(dim=1), torch.ones(2, dtype=torch.float64))
    made = (shares[:, :, None] * tokens).sum(dim=1)  # (B, D)
    torch.testing.assert_close(pool(tokens, layout).unflatten(1, (-1, 8)).mean(dim=1), made)


@pytest.mark.parametrize("kind", union_members(PoolConfig))
def test_a_pool_gives_one_vector_an_image(kind: type[Kind]) -> None:
    layout = Layout(1, 1, Grid(2, 2))
    assert built(kind(), layout, width=12)(tokens_of(layout, width=12), layout).shape == (2, kind().out_width(12))


@pytest.mark.parametrize("kind", [MeanPool, MeanAllPool, AttentionPool])
def test_the_order_of_patches_means_nothing_to_a_pool(kind: type[MeanPool | MeanAllPool | AttentionPool]) -> None:
    layout = Layout(0, 0, Grid(2, 3))
    pool, tokens = built(kind(), layout, width=12), tokens_of(layout, width=12)
    torch.testing.assert_close(pool(tokens.flip(1), layout), pool(tokens, layout), rtol=0, atol=1e-10)


def test_the_pools_for_two_put_both_side_by_side() -> None:
    layout = Layout(1, 2, Grid(2, 2))
    tokens = tokens_of(layout)
    expected = torch.cat([tokens[:, 0], tokens[:, 1]], dim=1)
    assert torch.equal(built(DistilledPool(), layout)(tokens, layout), expected)
    expected = torch.cat([tokens[:, 0], tokens[:, 3:].mean(dim=1)], dim=1)
    assert torch.equal(built(ClassMeanPool(), layout)(tokens, layout), expected)


def test_the_mean_is_normalized_where_the_pool_is_told_to() -> None:
    layout = Layout(1, 0, Grid(2, 3))
    tokens, pool = tokens_of(layout), built(MeanPool(norm="after"), layout)
    norm = pool.get_submodule("norm")
    assert isinstance(norm, nn.LayerNorm)
    mean = tokens[:, 1:].mean(dim=1)
    centered = (mean - mean.mean(dim=1, keepdim=True)) / (mean.var(dim=1, keepdim=True, correction=0) + 1e-6).sqrt()
    torch.testing.assert_close(pool(tokens, layout), centered * norm.weight + norm.bias)


def test_the_distilled_pool_is_refused_without_a_register() -> None:
    with raises("config.conflict", "pool", "tokens.cls=true", "tokens.registers=1"):
        small(pool=DistilledPool())


def test_the_class_pool_is_refused_without_a_class_token() -> None:
    with raises("config.conflict", "pool", "tokens.cls=true", "pool=mean"):
        small(tokens=Tokens(cls=False, registers=2), pool=ClassPool())


def test_heads_that_do_not_divide_the_width_are_refused_with_both_numbers() -> None:
    with raises("config.indivisible", "pool.heads", 32, 12, "1, 2"):
        small(width=32, pool=AttentionPool(heads=12))


def test_the_attention_pool_has_as_many_heads_as_the_mixer_unless_told_otherwise() -> None:
    assert small(pool=AttentionPool(), mixer=Attention(heads=4)).build().pool.heads == 4
    assert small(pool=AttentionPool(heads=8), mixer=Attention(heads=4)).build().pool.heads == 8
    with raises("config.conflict", "pool.heads", "mixer"):
        small(pool=AttentionPool(), mixer=Identity(), tokens=Tokens(cls=False))

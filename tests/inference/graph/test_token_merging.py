"""Fewer tokens: what is merged, what it counts for, and what cannot be merged.  B images, L tokens, D width."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import VARIANTS, small
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import OutputKind
from vitral.inference.graph.graph import build_graph
from vitral.inference.graph.token_merging import (
    MergedTokens,
    NoMerging,
    TokenMerging,
    bipartite_soft_matching,
    merge_tokens,
)
from vitral.models import Attention, AttentionPool, MeanPool, NoPosition, PostNorm, Resnet, Tokens, Vit
from vitral.models.attention import SelfAttention
from vitral.models.base import Grid, Layout
from vitral.models.block import EncoderBlock, PreNormBlock
from vitral.models.head import NoHead
from vitral.models.pool import ClassMeanPool, MeanAllPool
from vitral.models.vit import VisionTransformer
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel

POOLS: dict[str, dict[str, Any]] = {
    "cls": {},
    "registers": {"tokens": Tokens(registers=3)},
    "mean": {"pool": MeanPool(), "tokens": Tokens(cls=False)},
    "mean-after": {"pool": MeanPool(norm="after")},
    "cls-mean": {"pool": ClassMeanPool()},
    "mean-all": {"pool": MeanAllPool()},
    "attention": {"pool": AttentionPool(heads=2)},
    "post-norm": {"block": PostNorm()},
    "query-key-norm": {"mixer": Attention(heads=2, qk_norm=True)},
}


def loaded(config: Vit | Resnet) -> LoadedModel:
    """The model with weights that leave nothing at zero."""
    torch.manual_seed(0)
    model = config.build().eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.ndim > 1 else weight.data.uniform_(0.5, 1.5)
    answers = not isinstance(config.head, NoHead)
    needs = Preprocessing(image_size=config.image_size, decoding=Decoding(channels=config.channels))
    classes = tuple("abcd") if answers else ()
    return LoadedModel(
        model, Bundle(model=config, task="classify" if answers else "features", preprocessing=needs, classes=classes)
    )


def noise(config: Vit | Resnet, images: int = 3) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (images, *config.image_size, config.channels), dtype=torch.uint8, generator=rng)


def crowd(length: int, images: int = 2, seed: int = 0) -> tuple[MergedTokens, Tensor]:
    """Tokens that stand for up to five each, and keys."""
    rng = torch.Generator().manual_seed(seed)
    tokens = torch.randn(images, length, 6, generator=rng, dtype=torch.float64)
    sizes = torch.randint(1, 6, (images, length, 1), generator=rng).double()
    return MergedTokens(tokens, sizes), torch.randn(images, length, 4, generator=rng, dtype=torch.float64)


def merged_by_loops(tokens: Tensor, sizes: Tensor, keys: Tensor, count: int, prefix: int) -> tuple[Tensor, Tensor]:
    """One image (L, D), (L), (L, d): the words of the paper one after the other."""
    length = len(tokens)
    edges = []
    for first in range(prefix, length, 2):
        best, partner = -math.inf, -1
        for second in range(prefix + 1, length, 2):
            cosine = float(keys[first] @ keys[second] / (keys[first].norm() * keys[second].norm()))
            if cosine > best:
                best, partner = cosine, second
        edges.append((-best, first, partner))
    groups = {place: [place] for place in range(length)}
    for _, first, partner in sorted(edges)[:count]:
        groups[partner] += groups.pop(first)
    counts = [sum(float(sizes[place]) for place in group) for group in groups.values()]
    sums = [torch.stack([tokens[place] * sizes[place] for place in group]).sum(0) for group in groups.values()]
    return torch.stack([each / many for each, many in zip(sums, counts, strict=True)]), torch.tensor(counts).double()


@pytest.mark.parametrize(("length", "prefix", "count"), [(9, 1, 1), (9, 1, 4), (24, 0, 7), (25, 0, 12), (30, 4, 13)])
def test_a_merge_is_what_the_loops_of_the_paper_give(length: int, prefix: int, count: int) -> None:
    tokens, keys = crowd(length)
    found = merge_tokens(tokens, bipartite_soft_matching(keys, count, prefix))
    for image in range(2):
        values, sizes = merged_by_loops(tokens.tokens[image], tokens.sizes[image, :, 0], keys[image], count, prefix)
        torch.testing.assert_close(found.tokens[image], values)
        torch.testing.assert_close(found.sizes[image, :, 0], sizes)


@pytest.mark.parametrize("count", [1, 5, 10])
def test_nothing_is_lost_and_the_first_tokens_are_left_alone(count: int) -> None:
    tokens, keys = crowd(23)
    found = merge_tokens(tokens, bipartite_soft_matching(keys, count, 3))
    assert found.tokens.shape == (2, 23 - count, 6)
    torch.testing.assert_close(found.sizes.sum(1), tokens.sizes.sum(1))
    torch.testing.assert_close((found.tokens * found.sizes).sum(1), (tokens.tokens * tokens.sizes).sum(1))
    torch.testing.assert_close(found.tokens[:, :3], tokens.tokens[:, :3])
    assert torch.equal(found.sizes[:, :3], tokens.sizes[:, :3])


def test_tokens_that_stay_keep_their_order() -> None:
    _, keys = crowd(20)
    ordered = MergedTokens(torch.arange(20.0).expand(2, 20)[..., None], torch.ones(2, 20, 1))
    pairs = bipartite_soft_matching(keys, 6, 0)
    found = merge_tokens(ordered, pairs)
    for image in range(2):
        stay = [place for place in range(20) if place not in pairs.src[image].tolist()]
        alone = [at for at, place in enumerate(stay) if place not in pairs.dst[image].tolist()]
        assert found.tokens[image, alone, 0].tolist() == [stay[at] for at in alone]


def answered_by_loops(model: VisionTransformer, pixels: Tensor, merging: TokenMerging) -> Tensor:
    """The answers (B, K) in float64, one image and one head at a time."""
    config, own = model.config, model.double()
    layout = config.layout(config.image_size)
    tokens = own.embed(pixels.permute(0, 3, 1, 2).double() / 127.5 - 1, layout)  # (B, L, D)
    return torch.stack([image_by_loops(own, each, layout, merging) for each in tokens])


def image_by_loops(model: VisionTransformer, x: Tensor, layout: Layout, merging: TokenMerging) -> Tensor:
    sizes, prefix = torch.ones(len(x)).double(), layout.prefix()
    for block in model.blocks:
        assert isinstance(block, EncoderBlock)
        before = isinstance(block, PreNormBlock)
        gathered, keys = heads_by_loops(block, block.mixer_norm(x) if before else x, sizes)
        x = x + gathered if before else block.mixer_norm(x + gathered)
        count = min(merging.per_layer, (len(x) - prefix) // 2)
        x, sizes = merged_by_loops(x, sizes, keys, count, prefix)
        x = x + block.mlp(block.mlp_norm(x)) if before else block.mlp_norm(x + block.mlp(x))
    # Each token as often as it counts, which is what a pool that knows nothing of merging has to be shown.
    copies = [token for token, size in zip(model.norm(x), sizes, strict=True) for _ in range(int(size))]
    return model.head(model.pool(torch.stack(copies)[None], layout))[0]


def heads_by_loops(block: EncoderBlock, x: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """What attention gathers (L, D), and the mean of the heads' keys (L, d)."""
    mixer = block.mixer
    assert isinstance(mixer, SelfAttention)
    queries, all_keys, values = mixer.heads.qkv(x).chunk(3, dim=-1)
    width = mixer.heads.head_width
    found, keys = [], []
    for head in range(2):
        mine = slice(head * width, (head + 1) * width)
        q, k = mixer.heads.q_norm(queries[:, mine]), mixer.heads.k_norm(all_keys[:, mine])
        weights = sizes * (q @ k.T / math.sqrt(width)).exp()  # (L, L)
        found.append(weights / weights.sum(1, keepdim=True) @ values[:, mine])
        keys.append(k)
    return mixer.project(torch.cat(found, dim=1)), torch.stack(keys).mean(0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("per_layer", [1, 5, 40])
@pytest.mark.parametrize("name", POOLS)
def test_a_graph_answers_as_the_loops_do(name: str, per_layer: int) -> None:
    config = small(depth=3, **POOLS[name])
    whole, merging = loaded(config), TokenMerging(per_layer=per_layer)
    found = build_graph(whole, merging=merging)(noise(config))
    assert isinstance(whole.model, VisionTransformer)
    with torch.no_grad():
        truth = answered_by_loops(whole.model, noise(config), merging)
    torch.testing.assert_close(found.double(), truth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POOLS)
def test_merging_none_changes_no_bit(name: str) -> None:
    config = small(**POOLS[name])
    plain, none = (build_graph(loaded(config), merging=each) for each in (NoMerging(), TokenMerging(per_layer=0)))
    assert torch.equal(plain(noise(config)), none(noise(config)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("per_layer", [1, 6, 12])
@pytest.mark.parametrize("name", POOLS)
def test_merging_patches_that_are_the_same_changes_no_answer(name: str, per_layer: int) -> None:
    config = small(position=NoPosition(), **POOLS[name])
    whole, one = loaded(config), noise(config)[:, :8, :8]
    pixels = one.repeat(1, 4, 6, 1)
    plain, merged = (build_graph(whole, merging=each) for each in (NoMerging(), TokenMerging(per_layer=per_layer)))
    torch.testing.assert_close(merged(pixels), plain(pixels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", POOLS)
def test_merging_twins_changes_no_answer(name: str) -> None:
    """Twelve pairs of patches that are the same, six of which merge in each of two layers."""
    config = small(position=NoPosition(), **POOLS[name])
    whole = loaded(config)
    tiles = noise(config).unflatten(2, (6, 8))[:, :, ::2]  # (B, H, 3, 8, C)
    pixels = tiles.repeat_interleave(2, dim=2).flatten(2, 3)
    plain, merged = (build_graph(whole, merging=each) for each in (NoMerging(), TokenMerging(per_layer=6)))
    torch.testing.assert_close(merged(pixels), plain(pixels), rtol=1e-4, atol=1e-4)


def test_a_layer_takes_out_half_of_its_patches_at_most() -> None:
    layout = Layout(1, 4, Grid(14, 14))
    assert TokenMerging(per_layer=8).removed_per_layer(layout, 12) == (8,) * 12
    assert TokenMerging(per_layer=16).removed_per_layer(layout, 13) == (*[16] * 11, 10, 5)
    assert TokenMerging(per_layer=150).removed_per_layer(layout, 4) == (98, 49, 24, 12)
    assert TokenMerging(per_layer=3).removed_per_layer(Layout(1, 0, Grid(1, 1)), 2) == (0, 0)
    assert NoMerging().removed_per_layer(layout, 3) == (0, 0, 0)


REFUSED = {
    "mixer-causal": "model.mixer",
    "mixer-axial": "model.mixer",
    "mixer-local": "model.mixer",
    "mixer-pooling": "model.mixer",
    "mixer-identity": "model.mixer",
    "mixer-token_mlp": "model.mixer",
    "axial-rope-registers": "model.mixer",
    "axial-without-class": "model.mixer",
    "local-relative": "model.mixer",
    "position-relative1d": "model.position",
    "position-relative2d": "model.position",
    "position-rope2d": "model.position",
    "recompute-relative": "model.position",
    "position-relative_bias": "model.position",
    "position-relative_mlp": "model.position",
    "position-rope_axial": "model.position",
    "position-rope_cls": "model.position",
    "position-rope_mixed": "model.position",
    "position-combined": "model.position",
    "shared-bias": "model.position",
    "bias-of-the-mean": "model.position",
    "rope-rounded": "model.position",
    "rope-reference": "model.position",
    "table-and-bias": "model.position",
    "norm-rms_norm": "model.mixer",
    "rms-norms": "model.mixer",
    "attention-scale": "model.mixer",
    "attention-norm": "model.mixer",
    "block-residual_post": "model.block",
    "block-parallel": "model.block",
    "block-multi_branch": "model.block",
    "learned1d-layers": "model.position.where",
    "learned1d-shared": "model.position.where",
    "learned1d-registers": "model.position.where",
    "learned2d-layers": "model.position.where",
    "learned2d-shared": "model.position.where",
    "resnet": "model.kind",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_model_merges_or_the_part_that_cannot_is_named(name: str) -> None:
    config = VARIANTS[name]
    answer: OutputKind = "features" if isinstance(config.head, NoHead) else "logits"
    merging = TokenMerging(per_layer=3)
    if name in REFUSED:
        with raises("config.unsupported") as caught:
            build_graph(loaded(config), answer, merging)
        assert caught.value.where == REFUSED[name]
        return
    plain, merged = (build_graph(loaded(config), answer, each) for each in (NoMerging(), merging))
    assert merged(noise(config)).isfinite().all()
    assert merged(noise(config)).shape == plain(noise(config)).shape
    alone = name == "one-layer"  # whose only layer is the last, and makes the class token alone
    assert torch.equal(merged(noise(config)), plain(noise(config))) == alone


def test_fewer_than_none_are_refused() -> None:
    with raises("config.out_of_range", "per_layer", -1):
        TokenMerging(per_layer=-1)

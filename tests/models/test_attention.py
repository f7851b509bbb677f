"""Attention: every kernel and every scope against the plain formula."""

import math

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import small
from vitral.core.config import override
from vitral.models import (
    Attention,
    Axial,
    Causal,
    Grid,
    Layout,
    Local,
    MeanPool,
    Relative1d,
    Relative2d,
    Rope2d,
    attention_weights,
)
from vitral.models.attention import BaseAttention, SelfAttention, cached_keys
from vitral.models.base import BuildContext
from vitral.models.position import BasePosition, NoPosition

LAYOUT = Layout(cls=1, registers=1, grid=Grid(4, 6))
WHOLE = BuildContext(width=24, depth=2, layout=LAYOUT, eps=1e-6)

SCOPES: list[BaseAttention] = [Attention(heads=2), Causal(heads=2), Axial(heads=2), Local(heads=2, rows=2, columns=3)]
PLACES: list[BasePosition] = [NoPosition(), Rope2d(), Relative1d(), Relative2d()]


def attention(config: BaseAttention, place: BasePosition, layer: int = 0) -> SelfAttention:
    module = config.build(WHOLE, layer, place.build_attention(WHOLE, config.head_width_for(WHOLE.width)))
    for weight in module.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return module.double().eval()


def brute_force(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k' / sqrt(d)) v for one head, number by number."""
    result = []
    for query in q.tolist():
        logits = [sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in k.tolist()]
        powers = [math.exp(logit - max(logits)) for logit in logits]
        shares = [power / sum(powers) for power in powers]
        result.append([sum(s * row[i] for s, row in zip(shares, v.tolist(), strict=True)) for i in range(v.shape[1])])
    return torch.tensor(result, dtype=torch.float64)


def test_the_fused_kernel_equals_brute_force() -> None:
    module = attention(Attention(heads=2), NoPosition())
    x = torch.randn(1, LAYOUT.length(), 24, dtype=torch.float64)
    heads = module.heads(x, LAYOUT, LAYOUT.length())
    mixed = module.attend(heads)
    for head in range(2):
        truth = brute_force(heads.q[0, head], heads.k[0, head], heads.v[0, head])
        torch.testing.assert_close(mixed[0, head], truth, atol=1e-12, rtol=0)


def test_single_precision_stays_within_a_hundred_thousandth_of_brute_force() -> None:
    q, k, v = torch.randn(3, 1, 1, 26, 12).unbind()
    fused = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    plain = attention_weights(q, k) @ v
    truth = brute_force(q[0, 0].double(), k[0, 0].double(), v[0, 0].double())
    torch.testing.assert_close(fused[0, 0].double(), truth, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain[0, 0].double(), truth, atol=1e-5, rtol=0)


def test_q_k_and_v_are_the_thirds_of_one_map() -> None:
    module = attention(Attention(heads=2), NoPosition())
    x = torch.randn(2, LAYOUT.length(), 24, dtype=torch.float64)
    heads = module.heads(x, LAYOUT, LAYOUT.length())
    weight, bias = module.heads.qkv.weight, module.heads.qkv.bias
    for third, found in enumerate(heads):
        rows = slice(24 * third, 24 * third + 24)
        whole = x @ weight[rows].T + bias[rows]
        torch.testing.assert_close(found.transpose(1, 2).flatten(2), whole)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind)
@pytest.mark.parametrize("config", SCOPES, ids=lambda config: config.kind)
def test_what_runs_equals_the_weights_that_are_shown(config: BaseAttention, place: BasePosition, layer: int) -> None:
    module = attention(config, place, layer)
    x = torch.randn(2, LAYOUT.length(), 24, dtype=torch.float64)
    heads = module.heads(x, LAYOUT, LAYOUT.length())
    weights = module.attention_weights(heads, LAYOUT)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, LAYOUT.length(), dtype=torch.float64))
    expected = module.project((weights @ heads.v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(module(x, LAYOUT, LAYOUT.length()), expected)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.kind)
@pytest.mark.parametrize("config", SCOPES, ids=lambda config: config.kind)
def test_the_first_tokens_alone_are_the_first_of_all(config: BaseAttention, place: BasePosition) -> None:
    module = attention(config, place)
    x = torch.randn(2, LAYOUT.length(), 24, dtype=torch.float64)
    torch.testing.assert_close(module(x, LAYOUT, 1), module(x, LAYOUT, LAYOUT.length())[:, :1])


def sees(config: BaseAttention, layer: int, row: int, column: int) -> set[tuple[int, int]]:
    """The places that a patch gives any weight."""
    module = attention(config, NoPosition(), layer)
    heads = module.heads(torch.randn(1, LAYOUT.length(), 24, dtype=torch.float64), LAYOUT, LAYOUT.length())
    weights = module.attention_weights(heads, LAYOUT)[0, 0, 2 + row * 6 + column]
    assert weights[:2].gt(0).all()
    return {divmod(int(place), 6) for place in weights[2:].nonzero()[:, 0]}


def test_axial_layers_see_the_row_then_the_column() -> None:
    assert sees(Axial(heads=2), 0, row=1, column=4) == {(1, column) for column in range(6)}
    assert sees(Axial(heads=2), 1, row=1, column=4) == {(row, 4) for row in range(4)}


def test_a_local_layer_sees_its_window() -> None:
    assert sees(Local(heads=2, rows=2, columns=3), 0, row=3, column=1) == {(r, c) for r in (2, 3) for c in (0, 1, 2)}


def test_a_causal_layer_sees_what_comes_before_in_reading_order() -> None:
    assert sees(Causal(heads=2), 0, row=1, column=2) == {*((0, column) for column in range(6)), (1, 0), (1, 1), (1, 2)}
    module = attention(Causal(heads=2), NoPosition())
    heads = module.heads(torch.randn(1, LAYOUT.length(), 24, dtype=torch.float64), LAYOUT, LAYOUT.length())
    assert not module.attention_weights(heads, LAYOUT).triu(1).any()


def test_a_causal_layer_takes_a_sequence_in_pieces() -> None:
    module = attention(Causal(heads=2), NoPosition())
    x = torch.randn(2, LAYOUT.length(), 24, dtype=torch.float64)
    whole = module(x, LAYOUT, LAYOUT.length())
    with cached_keys(module):
        pieces = [
            module(part, Layout(0, 0, Grid(1, part.shape[1])), part.shape[1]) for part in x.split([5, 1, 1, 19], 1)
        ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole)
    assert torch.equal(module(x, LAYOUT, LAYOUT.length()), whole)  # nothing is left of them


@pytest.mark.parametrize(
    "settings", [{"pool": "cls"}, {"pool": "prefix"}, {"pool": "distilled", "tokens.registers": 1}]
)
def test_a_pool_of_tokens_that_see_no_patch_is_refused(settings: dict[str, object]) -> None:
    with raises("config.conflict", "causal") as caught:
        override(small(mixer=Causal(heads=2), pool=MeanPool()), settings)
    assert caught.value.where == "pool"
    assert caught.value.hint == "use pool=mean"


def test_relative_logits_are_the_query_times_the_embedding_of_the_offset() -> None:
    module = attention(Attention(heads=2), Relative2d())
    heads = module.heads(torch.randn(1, LAYOUT.length(), 24, dtype=torch.float64), LAYOUT, LAYOUT.length())
    bias = module.bias(heads.q, LAYOUT)
    assert bias is not None
    table = module.heads.relation.get_parameter("table").unflatten(0, (7, 11))  # offsets -3..3 down, -5..5 right
    down, right = 3 - 1, 0 - 4  # from the patch in row 1, column 4 to the one in row 3, column 0
    query, key = 2 + 1 * 6 + 4, 2 + 3 * 6 + 0
    expected = heads.q[0, 1, query] @ table[3 - down, 5 - right] / math.sqrt(12)
    torch.testing.assert_close(bias[0, 1, query, key], expected)
    assert not bias[..., :2, :].any()
    assert not bias[..., :, :2].any()


def test_relative_logits_in_reading_order_follow_the_offset_of_the_index() -> None:
    module = attention(Attention(heads=2), Relative1d())
    heads = module.heads(torch.randn(1, LAYOUT.length(), 24, dtype=torch.float64), LAYOUT, LAYOUT.length())
    bias = module.bias(heads.q, LAYOUT)
    assert bias is not None
    table = module.heads.relation.get_parameter("table")  # offsets -23..23
    expected = heads.q[0, 0, 2 + 7] @ table[23 + 7 - 18] / math.sqrt(12)
    torch.testing.assert_close(bias[0, 0, 2 + 7, 2 + 18], expected)


def test_dropped_weights_change_training_alone() -> None:
    module = attention(Attention(heads=2, attention_dropout=0.5), NoPosition())
    x = torch.randn(2, LAYOUT.length(), 24, dtype=torch.float64)
    kept = module(x, LAYOUT, LAYOUT.length())
    assert torch.equal(kept, module(x, LAYOUT, LAYOUT.length()))
    assert not torch.equal(kept, module.train()(x, LAYOUT, LAYOUT.length()))

"""The ledger against torch's own counter and against sums done by hand."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tests.models.variants import VARIANTS
from vitral.core.config import parse_settings
from vitral.models import Resnet, Vit, model_config
from vitral.models.hooks import FlopCounter

NAMES: dict[str, tuple[str, ...]] = {
    "B/16": (),
    "R26+S/32": (),
    "R+Ti/16": (),
    "R50x1": (),
    "S/16": ("mixer=axial", "mixer.heads=6", "depth=2"),
    "S/32": ("mixer=local", "mixer.heads=6", "depth=2", "image_size=224x448"),
    "Ti/16": ("position=relative2d", "depth=2", "pool=mean"),
    "Ti/32": ("mlp=swiglu", "pool=attention", "pool.heads=3", "depth=2"),
}
CONFIGS: dict[str, Vit | Resnet] = {
    **{name: model_config(name, settings=parse_settings([*settings])) for name, settings in NAMES.items()},
    **{name: VARIANTS[name] for name in ("mixer-token_mlp", "mixer-pooling", "local-relative", "axial-rope-registers")},
}


def ledgers_count(config: Vit | Resnet) -> int:
    """On the CPU without values, where attention is one operation, as describe has it."""
    with FakeTensorMode():
        model, images = config.build_empty("cpu"), torch.empty(2, config.channels, *config.image_size)
        with FlopCounter([*model.parameters(), images]) as ledger:
            model(images)
    return ledger.multiply_adds


def torchs_count(config: Vit | Resnet) -> int:
    """On the meta device, where attention is two products of matrices, which torch counts; two FLOPs each."""
    model, images = config.build_empty("meta"), torch.empty(2, config.channels, *config.image_size, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert counter.get_total_flops() % 2 == 0
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.sampled(3)
def test_multiply_adds_are_half_of_torchs_flops(name: str) -> None:
    assert ledgers_count(CONFIGS[name]) == torchs_count(CONFIGS[name]) > 0


def test_each_operation_counts_by_its_formula() -> None:
    a, b = torch.randn(2, 3), torch.randn(3, 5)
    batch, other = torch.randn(4, 2, 3), torch.randn(4, 3, 5)
    product, attention = 2 * 3 * 5, 2 * 4 * 7 * 7 * 16 * 2
    counts: dict[Callable[[], Tensor], int] = {
        lambda: a @ b: product,
        lambda: torch.bmm(batch, other): 4 * product,
        lambda: torch.addmm(torch.zeros(5), a, b): product,
        lambda: torch.baddbmm(torch.zeros(2, 5), batch, other): 4 * product,
        lambda: F.conv2d(torch.zeros(2, 6, 9, 9), torch.zeros(8, 3, 3, 3), groups=2): 2 * 8 * 7 * 7 * 3 * 3 * 3,
        lambda: F.scaled_dot_product_attention(*torch.zeros(3, 2, 4, 7, 16)): attention,
        lambda: a + 1: 0,
    }
    for operation, count in counts.items():
        with FlopCounter([]) as ledger:
            operation()
        assert ledger.multiply_adds == count


def test_a_backward_pass_counts_twice_what_the_forward_pass_did() -> None:
    """A layer's gradient is one product for its input and one for its weights."""
    layer, x = nn.Linear(32, 16), torch.randn(8, 32, requires_grad=True)
    with FlopCounter([]) as ledger:
        result = layer(x).sum()
        forward = ledger.multiply_adds
        result.backward()
    assert forward == 8 * 32 * 16
    assert ledger.multiply_adds == 3 * forward


def test_live_and_peak_bytes_follow_a_chain_of_operations() -> None:
    known = torch.zeros(10, 10)
    with FlopCounter([known]) as ledger:
        one = known + 1  # 400 bytes
        assert (ledger.live, ledger.peak) == (400, 400)
        two = torch.cat([one, one])  # 800 bytes
        assert (ledger.live, ledger.peak) == (1200, 1200)
        del one
        assert (ledger.live, ledger.peak) == (800, 1200)
        three = two.sum(dim=0)  # 40 bytes
        assert (ledger.live, ledger.peak) == (840, 1200)
        del two
        assert (ledger.live, ledger.peak) == (40, 1200)
        wide = three.double()  # 80 bytes
        assert (ledger.live, ledger.peak) == (120, 1200)
    assert wide.numel() == 10


def test_what_is_known_beforehand_is_not_counted() -> None:
    known = torch.zeros(10, 10)
    with FlopCounter([known]) as ledger:
        known.add_(1)
        view = known.view(100)[3:]
        assert (ledger.live, ledger.peak) == (0, 0)
    with FlopCounter([]) as stranger:
        known.add_(1)
        assert stranger.live == 400
    assert view.numel() == 97


def test_a_view_counts_once_and_keeps_the_whole_alive() -> None:
    with FlopCounter([]) as ledger:
        whole = torch.zeros(10, 10)
        row, flipped = whole[2], whole.mT.unsqueeze(0)
        whole.mul_(2)
        assert ledger.live == 400
        del whole, flipped
        assert ledger.live == 400
        del row
        assert ledger.live == 0


def test_a_copy_and_a_new_tensor_where_an_old_one_was_both_count() -> None:
    with FlopCounter([]) as ledger:
        for _ in range(20):
            value = torch.zeros(100)
            other = value.clone()
            assert ledger.live == 800
            del value, other
            assert ledger.live == 0
    assert ledger.peak == 800


def test_every_tensor_of_a_tuple_counts() -> None:
    with FlopCounter([]) as ledger:
        values, places = torch.zeros(10, 10).topk(3)
        assert ledger.live == 10 * 3 * (4 + 8)
    assert values.shape == places.shape


def test_what_autograd_holds_stays_alive_until_the_backward_pass() -> None:
    x = torch.randn(10, 10, requires_grad=True)
    with FlopCounter([x]) as ledger:
        result = (x.sin().exp() * 2).sum()  # the sine keeps x, which is known; exp keeps its result, the rest nothing
        assert ledger.live == 400 + 4
        result.backward()
        del result
        assert ledger.live == 400  # the gradient of x
    assert x.grad is not None


def test_nothing_needs_memory_or_time_on_tensors_without_values() -> None:
    with FakeTensorMode():
        huge = torch.empty(2**20, 2**20)
        with FlopCounter([huge]) as ledger:
            product = huge @ huge
        assert ledger.multiply_adds == 2**60
        assert ledger.live == product.numel() * 4 == 2**42

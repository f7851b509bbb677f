"""The residual network's parts against TensorFlow's padding rule, statistics and plain code."""

import math
import statistics

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.errors import raises
from vitral.core.config import Size
from vitral.models import Hybrid, Resnet
from vitral.models.init import Original, initialize
from vitral.models.resnet import Bottleneck, ResnetBody, StdConv2d, pad_same, standardize


def tensorflow_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Before and after, in the words of TensorFlow's guide to convolution."""
    total = max(kernel - stride, 0) if size % stride == 0 else max(kernel - size % stride, 0)
    return total // 2, total - total // 2


@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("value", [0.0, -math.inf])
def test_padding_is_tensorflows_same(kernel: int, stride: int, value: float) -> None:
    for height in range(1, 16):
        width = 17 - height
        x = torch.rand(1, 2, height, width) + 1
        (top, bottom), (left, right) = (tensorflow_padding(side, kernel, stride) for side in (height, width))
        expected = torch.full((1, 2, top + height + bottom, left + width + right), value)
        expected[:, :, top : top + height, left : left + width] = x
        padded = pad_same(x, kernel, stride, value)
        assert padded.equal(expected)
        places = [(side - kernel) // stride + 1 for side in padded.shape[-2:]]
        assert places == [math.ceil(height / stride), math.ceil(width / stride)]


def test_the_root_of_an_even_image_is_padded_by_two_above_and_three_below() -> None:
    """The trap: torch's own padding of three on each side looks at other pixels."""
    assert pad_same(torch.ones(1, 1, 224, 224), 7, 2)[0, 0, :, 100].nonzero().flatten()[[0, -1]].tolist() == [2, 225]
    assert pad_same(torch.ones(1, 1, 224, 224), 7, 2).shape[-1] == 229


@pytest.mark.parametrize("how", ["std", "variance"])
def test_each_kernel_is_standardized_by_its_own_mean_and_deviation(how: str) -> None:
    weight = torch.randn(4, 3, 5, 5, dtype=torch.float64) * 0.01 + 3
    found = standardize(weight, "std" if how == "std" else "variance")
    for kernel, result in zip(weight.flatten(1).tolist(), found.flatten(1).tolist(), strict=True):
        mean, deviation = statistics.fmean(kernel), statistics.pstdev(kernel)
        divisor = deviation + 1e-5 if how == "std" else math.sqrt(deviation**2 + 1e-8)
        assert result == pytest.approx([(number - mean) / divisor for number in kernel], rel=1e-9)


def test_the_two_guards_differ_where_kernels_are_small() -> None:
    weight = torch.randn(4, 3, 5, 5, dtype=torch.float64) * 1e-4
    assert (standardize(weight, "std") - standardize(weight, "variance")).abs().max() > 0.05
    assert not standardize(torch.ones(2, 3, 1, 1)).any()


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
def test_a_convolution_pads_and_standardizes_at_every_use(kernel: int, stride: int) -> None:
    conv = StdConv2d(3, 4, kernel, stride, "std").double()
    initialize(conv, Original())
    x = torch.randn(2, 3, 9, 12, dtype=torch.float64)
    (top, bottom), (left, right) = (tensorflow_padding(side, kernel, stride) for side in (9, 12))
    expected = F.conv2d(F.pad(x, (left, right, top, bottom)), standardize(conv.weight), stride=stride)
    torch.testing.assert_close(conv(x), expected, rtol=0, atol=1e-12)
    with torch.no_grad():
        conv.weight.mul_(3).add_(1)  # standardizing undoes this but for the guard
    torch.testing.assert_close(conv(x), expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize(
    ("layers", "stride", "outputs"),
    [((), 4, 64), ((3,), 4, 256), ((3, 4), 8, 512), ((3, 4, 9), 16, 1024), ((3, 4, 6, 3), 32, 2048)],
)
def test_each_stage_after_the_first_halves_the_map_and_doubles_its_channels(
    layers: tuple[int, ...], stride: int, outputs: int
) -> None:
    config = Hybrid(layers=layers)
    assert (config.stride(), config.out_channels()) == (stride, outputs)
    assert config.token_size() == Size(stride, stride)
    with torch.device("meta"):
        body = ResnetBody(config, 3)
    for height, width in ((224, 224), (64, 128)):
        shape = body(torch.empty(2, 3, height, width, device="meta")).shape
        assert shape == (2, outputs, height // stride, width // stride)
    parts = [[type(unit) for unit in stage.children()] for stage in body.stages.children()]
    assert parts == [[Bottleneck] * units for units in layers]


def test_the_root_sets_the_channels_of_every_stage() -> None:
    assert Resnet(root=128).out_channels() == 4096
    assert Hybrid(layers=(1, 1), root=32).out_channels() == 256


def random(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_()
    return module.double()


def conv_norm(x: Tensor, part: nn.Module, stride: int = 1, groups: int = 32, eps: float = 1e-6) -> Tensor:
    kernel, norm = part.get_parameter("0.weight"), part.get_submodule("1")
    (top, bottom), (left, right) = (tensorflow_padding(side, kernel.shape[-1], stride) for side in x.shape[-2:])
    x = F.conv2d(F.pad(x, (left, right, top, bottom)), standardize(kernel), stride=stride)
    grouped = x.unflatten(1, (groups, -1))
    mean = grouped.mean(dim=(2, 3, 4), keepdim=True)
    variance = (grouped - mean).square().mean(dim=(2, 3, 4), keepdim=True)
    x = ((grouped - mean) / (variance + eps).sqrt()).flatten(1, 2)
    return x * norm.get_parameter("weight")[:, None, None] + norm.get_parameter("bias")[:, None, None]


@pytest.mark.parametrize(("inputs", "stride", "changes"), [(128, 1, False), (32, 1, True), (128, 2, True)])
def test_a_unit_is_three_convolutions_beside_a_shortcut(inputs: int, stride: int, changes: bool) -> None:
    unit = random(Bottleneck(Hybrid(), inputs, 32, stride))
    part = unit.get_submodule
    x = torch.randn(2, inputs, 6, 6, dtype=torch.float64)
    reduced = conv_norm(x, part("reduce")).clamp(min=0)
    looked = conv_norm(reduced, part("look"), stride).clamp(min=0)
    assert isinstance(part("shortcut"), nn.Sequential) == changes
    shortcut = conv_norm(x, part("shortcut"), stride) if changes else x
    expected = (shortcut + conv_norm(looked, part("expand"))).clamp(min=0)
    torch.testing.assert_close(unit(x), expected, rtol=0, atol=1e-9)


def test_a_fresh_unit_is_its_shortcut() -> None:
    unit = Bottleneck(Hybrid(), 128, 32, 1)
    initialize(unit, Original())
    x = torch.randn(2, 128, 6, 6)
    assert unit(x).equal(x.relu())


def test_the_root_is_a_wide_convolution_and_a_maximum_of_three_by_three() -> None:
    body = random(ResnetBody(Hybrid(layers=(), root=32), 3))
    x = torch.randn(2, 3, 12, 20, dtype=torch.float64)
    root = conv_norm(x, body.get_submodule("root"), stride=2).clamp(min=0)  # (2, 32, 6, 10)
    found = body(x)
    assert found.shape == (2, 32, 3, 5)
    for row in range(3):
        for column in range(5):
            seen = root[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]  # SAME pads below and right only
            torch.testing.assert_close(found[:, :, row, column], seen.amax(dim=(2, 3)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_the_guard_of_the_group_norm_can_be_set(eps: float) -> None:
    unit = random(Bottleneck(Hybrid(group_eps=eps), 128, 32, 1))
    x = torch.randn(2, 128, 6, 6, dtype=torch.float64)
    found = unit.get_submodule("reduce")(x)
    torch.testing.assert_close(found, conv_norm(x, unit.get_submodule("reduce"), eps=eps), rtol=0, atol=1e-9)


def test_channels_that_do_not_group_and_stages_without_units_are_refused() -> None:
    for root, code in ((0, "config.out_of_range"), (48, "config.indivisible")):
        with raises(code, "root", root):
            Resnet(root=root)
    for layers in ((3, 0), (3, -1)):
        with raises("config.out_of_range", "layers.1", layers[1]):
            Resnet(layers=layers)

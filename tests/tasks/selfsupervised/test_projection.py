"""Heads against torch's own layers."""

import pytest
import torch
from torch import Tensor, nn

from vitral.tasks.selfsupervised.projection import BatchNorm, DinoHead, WeightNormLinear, batch_norm_mlp
from vitral.tasks.task import Collective


class Whole(Collective):
    """Not a single process, so that sums are computed; there is no other process."""

    size = 2


@pytest.mark.parametrize("collective", [Collective(), Whole()], ids=["fused", "sums"])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_is_that_of_torch(collective: Collective, affine: bool) -> None:
    torch.manual_seed(0)
    theirs, own = nn.BatchNorm1d(5, affine=affine).double(), BatchNorm(5, affine=affine).double()
    own._collective = collective
    if affine:
        for norm in (theirs, own):
            nn.init.constant_(norm.weight, 1.5)  # type: ignore[arg-type]
            nn.init.constant_(norm.bias, -0.5)  # type: ignore[arg-type]
    for _ in range(3):
        rows = torch.randn(7, 5, dtype=torch.float64) * 3 + 1
        one, other = rows.clone().requires_grad_(), rows.clone().requires_grad_()
        for norm, x in ((theirs, one), (own, other)):
            (norm(x) ** 3).sum().backward()
        torch.testing.assert_close(own(rows), theirs(rows), rtol=0, atol=1e-12)
        torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-10)
    torch.testing.assert_close(own.mean, theirs.running_mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.variance, theirs.running_var, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.eval()(rows), theirs.eval()(rows), rtol=0, atol=1e-12)


def test_an_empty_batch_leaves_no_trace_in_a_batch_norm() -> None:
    for collective in (Collective(), Whole()):
        norm = BatchNorm(3)
        norm._collective = collective
        norm(torch.randn(8, 3))
        before = norm.mean.clone(), norm.variance.clone()
        out = norm(torch.zeros(0, 3, requires_grad=True))
        out.sum().backward()
        assert torch.equal(norm.mean, before[0])
        assert torch.equal(norm.variance, before[1])
        assert out.shape == (0, 3)
        assert norm.weight is not None
        assert norm.weight.grad is not None


def test_a_weight_normed_layer_is_that_of_torch() -> None:
    torch.manual_seed(0)
    own = WeightNormLinear(6, 4, frozen_length=False).double()
    theirs = torch.nn.utils.parametrizations.weight_norm(nn.Linear(6, 4, bias=False).double(), dim=0)
    original: Tensor = theirs.parametrizations.weight.original1
    length: Tensor = theirs.parametrizations.weight.original0
    with torch.no_grad():
        original.copy_(own.weight)
        length.fill_(1.0)
    x = torch.randn(3, 6, dtype=torch.float64)
    for layer in (own, theirs):
        (layer(x) ** 2).sum().backward()
    torch.testing.assert_close(own(x), theirs(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(own.weight.grad, original.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.length.grad, length.grad, rtol=0, atol=1e-12)


def test_the_outputs_of_a_dino_head_are_cosines_while_the_lengths_are_1() -> None:
    head = DinoHead(16, 32, 8, 20, frozen_length=True)
    outputs = head(torch.randn(5, 16))
    assert outputs.shape == (5, 20)
    assert outputs.abs().max() <= 1 + 1e-6
    assert [name for name, weight in head.named_parameters() if not weight.requires_grad] == ["last.length"]
    assert head.last.weight.abs().max() <= 8**-0.5 + 1e-6  # torch's own init
    assert head.last.weight.std() > 0.1


def test_the_layers_of_a_mlp_with_batch_norms() -> None:
    mlp = batch_norm_mlp([6, 5, 4, 3], last_affine=False)
    assert [type(layer).__name__ for layer in mlp] == ["Linear", "BatchNorm", "ReLU"] * 2 + ["Linear", "BatchNorm"]
    assert [layer.bias is None for layer in mlp if isinstance(layer, nn.Linear)] == [True] * 3
    assert [layer.weight is None for layer in mlp if isinstance(layer, BatchNorm)] == [False, False, True]

import math

import pytest
import torch

from vitral.training.clip import PerParameterClip, apply_clip, clip_gradients


@pytest.mark.parametrize("factor", [1e-30, 0.5, 0.999999, 1.0, 1.0000001, 1.000002, 3.0, torch.inf, torch.nan])
def test_clipped_gradients_have_the_bits_of_torch(factor: float) -> None:
    torch.manual_seed(0)
    ours = [torch.zeros(3, 4, requires_grad=True), torch.zeros(5, requires_grad=True), torch.zeros(2)]
    theirs = [weight.clone().detach() for weight in ours]
    gradients = [torch.randn(3, 4), torch.randn(5)]
    norm = torch.cat([each.flatten() for each in gradients]).norm()
    for one, other, gradient in zip(ours, theirs, gradients, strict=False):
        one.grad, other.grad = gradient / norm * factor, gradient / norm * factor
    clip_gradients(ours, 1.0)
    torch.nn.utils.clip_grad_norm_(theirs, 1.0)
    for one, other in zip(ours[:2], theirs, strict=False):
        assert one.grad is not None
        assert other.grad is not None
        assert one.grad.numpy().tobytes() == other.grad.numpy().tobytes()
    assert ours[2].grad is None


def weights(*gradients: list[float]) -> list[torch.Tensor]:
    found = [torch.zeros(len(each), requires_grad=True) for each in gradients]
    for weight, each in zip(found, gradients, strict=True):
        weight.grad = torch.tensor(each)
    return found


def test_each_parameter_is_clipped_by_its_own_norm() -> None:
    long, short, none = weights([3.0, 4.0], [0.3, 0.4], [0.0, 0.0])
    apply_clip([long, torch.zeros(2), short, none], PerParameterClip(max_norm=2.0))
    expected = [torch.tensor([0.3, 0.4]).tolist(), [0.0, 0.0]]
    assert [each.grad.tolist() for each in (short, none) if each.grad is not None] == expected
    assert long.grad is not None
    assert long.grad.tolist() == pytest.approx([1.2, 1.6], rel=1e-6)


def test_an_infinite_norm_clips_nothing() -> None:
    (weight,) = weights([3e10, 4e10])
    apply_clip([weight], math.inf)
    assert weight.grad is not None
    assert weight.grad.tolist() == torch.tensor([3e10, 4e10]).tolist()

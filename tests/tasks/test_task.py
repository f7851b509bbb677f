import torch

from vitral.tasks.task import batch_mean


def test_the_mean_is_over_the_images() -> None:
    assert batch_mean(torch.tensor([1.0, 2.0, 6.0])) == 3


def test_the_mean_of_no_images_is_nought_and_passes_a_gradient() -> None:
    weight = torch.ones(3, requires_grad=True)
    mean = batch_mean(torch.zeros(0, 3) @ weight)
    assert mean == 0
    mean.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [0, 0, 0]

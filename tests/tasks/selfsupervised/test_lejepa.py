"""LeJEPA against its formula, with complex numbers and torch's own layers.  B images, V views, d outputs."""

import numpy as np
import torch
from torch import Tensor, nn

from tests.models.variants import small
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.tasks.selfsupervised.lejepa import Lejepa, NormalEmbedding, SigRegOutputs, projection, sigreg
from vitral.tasks.task import Collective


def statistic(rows: Tensor, slices: Tensor) -> Tensor:
    """The statistic of Epps and Pulley of rows (N, d), integrated over the whole line by the trapezoid rule."""
    points = torch.linspace(-3, 3, 33, dtype=torch.float64)
    found = []
    for direction in slices.unbind(dim=1):
        line = rows @ direction  # (N,)
        empirical = torch.exp(1j * points[:, None] * line).mean(dim=1)  # (T,)
        window = torch.exp(-(points**2) / 2)
        distance = (empirical - window).abs() ** 2
        found.append(len(rows) * torch.trapezoid(distance * window, points))
    return torch.stack(found).mean()


def test_sigreg_is_the_integral_over_the_whole_line() -> None:
    torch.manual_seed(0)
    views = (torch.randn(3, 20, 6, dtype=torch.float64) * 1.5 + 0.3).requires_grad_()
    slices = torch.nn.functional.normalize(torch.randn(6, 9, dtype=torch.float64), dim=0)
    expected = torch.stack([statistic(view, slices) for view in views]).mean()
    found = sigreg(views, slices, 17, Collective())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(*(torch.autograd.grad(each, views)[0] for each in (found, expected)), rtol=0, atol=1e-10)


def test_a_step_is_that_of_torchs_layers_and_the_formula() -> None:
    torch.manual_seed(0)
    model = small(image_size=Size(32, 32)).build().double()
    config = Lejepa(head=SigRegOutputs(hidden=20, outputs=6), slices=9, weight=0.3)
    task = config.build(model, 0, (), CENTERED).double()
    assert isinstance(task, NormalEmbedding)
    theirs = nn.Sequential(
        nn.Linear(model.config.width, 20), nn.BatchNorm1d(20), nn.ReLU(),
        nn.Linear(20, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 6),
    ).double()  # fmt: skip
    own = dict(task.projection.named_parameters())
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            weight.copy_(own[name])
    large, little = torch.randn(5, 2, 3, 32, 32).double(), torch.randn(5, 3, 3, 16, 16).double()
    loss = task((large, little), torch.zeros(5), np.random.default_rng(3)).loss
    loss.backward()
    gradients = {name: weight.grad for name, weight in task.named_parameters() if weight.grad is not None}

    slices = task.draw_slices(np.random.default_rng(3), 6)
    features = torch.cat([model.forward_pooled(each.flatten(0, 1)) for each in (large, little)])  # (5 V, D)
    first, rest = theirs(features).split([10, 15])
    views = [first[0::2], first[1::2], *(rest[number::3] for number in range(3))]  # each (5, d)
    center = (views[0] + views[1]) / 2
    distance = torch.stack([(view - center).square().mean() for view in views]).mean()
    normality = torch.stack([statistic(view, slices) for view in views]).mean()
    model.zero_grad()
    expected = 0.7 * distance + 0.3 * normality
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    for name, weight in [*model.named_parameters(prefix="model"), *theirs.named_parameters(prefix="projection")]:
        if weight.grad is not None:
            torch.testing.assert_close(gradients[name], weight.grad, rtol=0, atol=1e-8)


def test_the_projection_norms_all_layers_but_the_last() -> None:
    names = [type(layer).__name__ for layer in projection(32, SigRegOutputs(hidden=8, outputs=4))]
    assert names == ["Linear", "BatchNorm", "ReLU"] * 2 + ["Linear"]

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitral.tasks.task import Outcome, Task
from vitral.training.callbacks import Best, evaluate, find_best
from vitral.training.checkpoints.state import TrainingState
from vitral.training.ema import Ema
from vitral.training.loop import Microbatch
from vitral.training.metrics import MetricsLine
from vitral.training.precision import Precision


class Weighing(Task):
    """Costs its weight times the sum of the pixels; tells whether it was in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        loss = (images.flatten(1).sum(dim=1) * self.weight).mean()
        return Outcome(loss, len(images), {"training": torch.tensor(float(self.training))})


def batches(*sizes: int) -> Iterator[Sequence[Microbatch]]:
    """Batches of images of one pixel each, whose values count up from 0."""
    value = 0
    for size in sizes:
        images = torch.arange(value, value + size, dtype=torch.float32)[:, None, None, None]
        value += size
        yield [Microbatch(images, torch.zeros(size, dtype=torch.int64), 1.0, np.random.default_rng(0), 0)]


def learning(task: Task) -> TrainingState:
    average = Ema().build(10)
    precision = Precision(torch.float32, torch.device("cpu"))
    return TrainingState(task, torch.optim.SGD(task.parameters()), average, precision)


@pytest.mark.parametrize("sizes", [(10,), (4, 4, 2), (1,) * 10])
def test_the_mean_is_over_images_however_they_are_cut(sizes: tuple[int, ...]) -> None:
    task = Weighing().train()
    outcome = evaluate(learning(task), batches(*sizes))
    assert outcome.loss.item() == 9.0  # twice the mean of 0 to 9
    assert outcome.images == 10
    assert outcome.metrics["training"].item() == 0
    assert task.training


def test_the_average_is_what_is_evaluated() -> None:
    task = Weighing()
    parts = learning(task)
    parts.average.update(task, 0)
    with torch.no_grad():
        task.weight.fill_(100)
    assert evaluate(parts, batches(10)).loss.item() == 9.0
    assert task.weight.item() == 100


def lines(*scores: float, name: str = "accuracy", split: str = "val") -> list[MetricsLine]:
    return [
        MetricsLine(10 * number, number, split, {"loss": 1.0, name: score}) for number, score in enumerate(scores, 1)
    ]


def test_the_first_of_the_best_evaluations_counts() -> None:
    assert find_best(lines(0.1, 0.5, 0.3, 0.5, 0.2), "val") == Best(step=20, evaluations_since=3)
    assert find_best([], "val") == Best(0, 0)
    assert find_best(lines(0.9, split="train") + lines(0.1), "val") == Best(10, 0)


def test_without_accuracy_the_smallest_loss_is_best() -> None:
    assert find_best(lines(0.9, 0.4, 0.6, name="loss"), "val") == Best(step=20, evaluations_since=1)


def test_the_lowest_loss_is_the_best_for_a_task_that_asks_for_it() -> None:
    values = [{"loss": 0.9, "accuracy": 0.4}, {"loss": 0.4, "accuracy": 0.1}, {"loss": float("nan"), "accuracy": 0.9}]
    found = [MetricsLine(10 * step, float(step), "val", each) for step, each in enumerate(values, start=1)]
    assert find_best(found, "val", "loss") == Best(step=20, evaluations_since=1)
    assert find_best(found, "val") == Best(step=30, evaluations_since=0)

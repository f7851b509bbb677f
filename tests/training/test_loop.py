"""The loop: steps, microbatches, callbacks, losses that are not finite, and no wait for the device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.errors import raises
from vitral.tasks.task import Outcome, Task
from vitral.training import clip
from vitral.training.callbacks import Checkpointing, MetricsLogger, SignalHandler, WeightAveraging
from vitral.training.checkpoints.state import TrainingState
from vitral.training.ema import Ema
from vitral.training.loop import (
    Callback,
    Communicator,
    Diverged,
    Microbatch,
    StepHooks,
    StepResult,
    StepValues,
    UpdateRule,
    mean_outcome,
    train,
)
from vitral.training.metrics import MetricsLog
from vitral.training.optimizers import Sgd
from vitral.training.precision import Precision


class Line(Task):
    """Fits labels by a line through the mean of each image, which has a gradient that can be done by hand."""

    def __init__(self) -> None:
        super().__init__()
        line = nn.Linear(1, 1, bias=False)
        nn.init.ones_(line.weight)
        self.model = line

    def weight(self) -> float:
        return next(self.parameters()).item()

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        error = self.model(images.mean((1, 2, 3))[:, None])[:, 0] - labels
        return Outcome((error**2).mean(), len(labels), {"error": error.detach().abs().mean()})


def batch(step: int, *sizes: int) -> list[Microbatch]:
    """A batch of the given portions; images of 1, 2, 3 ... and labels of 0."""
    images = (torch.arange(sum(sizes)) + 1.0).view(-1, 1, 1, 1)
    labels = torch.zeros(sum(sizes), dtype=torch.int64)
    pieces = zip(images.split(list(sizes)), labels.split(list(sizes)), strict=True)
    return [Microbatch(*piece, len(piece[1]) / sum(sizes), np.random.default_rng(step), step) for piece in pieces]


def descent(task: Task, clip: float = 1e9) -> UpdateRule:
    optimizer = Sgd(lr=0.01, momentum=0.0)
    return UpdateRule(
        optimizer.build(task), lambda step: 0.01 * (step + 1), clip, Precision(torch.float32, torch.device("cpu"))
    )


class Notes(NamedTuple):
    """A job that is due every other step and at the end."""

    heard: list[tuple[int, float]]

    def due(self, step: int, steps: int) -> bool:
        return step % 2 == 0 or step == steps

    def run(self, step: int, result: StepResult) -> None:
        self.heard.append((step, result.read().metrics["loss"]))


def batches(*made: Sequence[Microbatch]) -> Iterator[Sequence[Microbatch]]:
    return iter(made)


def test_steps_are_those_done_by_hand() -> None:
    task, notes = Line(), Notes([])
    train(task, batches(*(batch(step, 2) for step in range(3))), descent(task), 0, 3, [notes])
    weight, losses = 1.0, []
    for step in range(3):
        losses.append(weight**2 * (1 + 4) / 2)
        weight -= 0.01 * (step + 1) * 2 * weight * (1 + 4) / 2
    assert task.weight() == pytest.approx(weight, rel=1e-6)
    assert [step for step, _ in notes.heard] == [2, 3]
    assert [loss for _, loss in notes.heard] == pytest.approx(losses[1:], rel=1e-6)


@pytest.mark.parametrize("sizes", [(6,), (3, 3), (1, 5), (2, 3, 1)])
def test_portions_of_any_sizes_take_the_step_of_the_whole(sizes: tuple[int, ...]) -> None:
    whole, parted = Line(), Line()
    train(whole, batches(batch(0, 6)), descent(whole), 0, 1, [])
    train(parted, batches(batch(0, *sizes)), descent(parted), 0, 1, [])
    assert parted.weight() == pytest.approx(whole.weight(), rel=1e-6)


def test_the_outcome_of_portions_is_the_mean_over_images() -> None:
    outcomes = [
        Outcome(torch.tensor(1.0), 1, {"a": torch.tensor(0.0)}),
        Outcome(torch.tensor(5.0), 3, {"a": torch.tensor(1.0)}),
    ]
    found = mean_outcome(outcomes)
    assert (found.loss.item(), found.images, found.metrics["a"].item()) == (4.0, 4, 0.75)


def test_a_long_gradient_is_cut() -> None:
    task = Line()
    train(task, batches(batch(0, 2)), descent(task, clip=1.0), 0, 1, [])
    assert task.weight() == pytest.approx(1 - 0.01, rel=1e-5)


def test_a_loss_that_is_not_finite_is_reported_by_its_step() -> None:
    task, notes = Line(), Notes([])
    bad = batch(1, 2)
    bad[0] = bad[0]._replace(images=bad[0].images * torch.inf)
    with raises("run.diverged", "step 1", "inf") as caught:
        train(task, batches(batch(0, 2), bad, batch(2, 2)), descent(task), 0, 3, [notes])
    assert isinstance(caught.value, Diverged)
    assert caught.value.step == 1
    assert notes.heard == []


class Pair(Communicator):
    """Notes what the loop asks of the company, and has a second process that always has 3 images of loss 10."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    @contextmanager
    def gradient_sync(self, last: bool) -> Iterator[None]:
        self.heard.append("last" if last else "passing")
        yield

    def sum(self, values: Tensor) -> Tensor:
        loss, error, images, *signals = values.tolist()
        return torch.tensor([loss + 3 * 10, error, images + 3, *signals], dtype=torch.float64)


def test_the_company_hears_of_the_last_portion_and_joins_the_outcome() -> None:
    task, pair, notes = Line(), Pair(), Notes([])
    train(task, batches(batch(0, 1, 1, 1)), descent(task)._replace(communicator=pair), 0, 1, [notes])
    assert pair.heard == ["passing", "passing", "last"]
    assert [loss for _, loss in notes.heard] == pytest.approx([((1 + 4 + 9) + 3 * 10) / 6])


class ScalarReads(TorchDispatchMode):
    """Records the operators that make a host wait for a device: those that turn a tensor into a number or a shape."""

    WAITING = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket.__name__ in self.WAITING:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_mode_notices_what_waits_for_the_device() -> None:
    with ScalarReads() as reads:
        torch.ones(1).item()
        bool(torch.ones(1).isfinite())
        torch.ones(2).nonzero()
    assert len(reads.names) == 3


class Order(Line):
    """Notes when a step begins."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        self.events.append("forward")
        return super().forward(images, labels, rng)


def test_no_step_waits_for_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events: list[str] = []
    read = StepResult.read

    def reading(result: StepResult) -> StepValues:
        events.append(f"read {result.step}")
        return read(result)

    monkeypatch.setattr(StepResult, "read", reading)
    monkeypatch.setattr(clip, "is_on_host", lambda tensor: False)  # as if it were on a device
    task, metrics = Order(events), MetricsLog(tmp_path)
    state = TrainingState(task, descent(task).optimizer, Ema().build(6), Precision(torch.float32, torch.device("cpu")))
    checkpointing = Checkpointing(1e9, lambda step: None, lambda step: False, lambda: False, SignalHandler())
    callbacks: list[Callback] = [WeightAveraging(state), MetricsLogger(metrics, 3, lambda step: 0.1), checkpointing]
    steps = batches(*(batch(step, 2, 1) for step in range(6)))
    with ScalarReads() as reads:
        train(task, steps, descent(task), 0, 6, callbacks, checkpointing.signals)
    assert reads.names == []
    assert [line.step for line in metrics.lines()] == [1, 2, 3, 4, 5, 6]
    for step in range(5):  # only the last step, which is saved, is read before the next one has begun
        begun = [number for number, event in enumerate(events) if event == "forward"][2 * (step + 1)]
        assert f"read {step}" not in events[:begun]


class Hooks(StepHooks):
    """Notes what it is called for, with the weight at that time; drops the gradients of step 1."""

    def __init__(self, task: Line) -> None:
        self.task, self.heard = task, list[tuple[str, int, float]]()
        self.step = 0

    def begin_step(self, step: int) -> None:
        self.step = step
        self.heard.append(("begin", step, self.task.weight()))

    def filter_gradients(self) -> None:
        assert all(weight.grad is not None for weight in self.task.parameters())
        if self.step == 1:
            for weight in self.task.parameters():
                weight.grad = None

    def end_step(self, step: int) -> None:
        self.heard.append(("end", step, self.task.weight()))


def test_a_task_is_called_before_and_after_the_step_of_the_optimizer_and_before_the_callbacks() -> None:
    task, notes = Line(), list[int]()
    hooks = Hooks(task)

    class After:
        def due(self, step: int, steps: int) -> bool:
            return True

        def run(self, step: int, result: StepResult) -> None:
            notes.append(len(hooks.heard))

    rule = descent(task)._replace(hooks=hooks)
    train(task, batches(batch(0, 2), batch(1, 2), batch(2, 2)), rule, 0, 3, [After()])
    assert [(name, step) for name, step, _ in hooks.heard] == [
        (name, step) for step in range(3) for name in ("begin", "end")
    ]
    weights = [weight for _, _, weight in hooks.heard]
    assert weights[0] != weights[1] == weights[2] == weights[3] == weights[4] != weights[5]  # no gradient in step 1
    assert notes == [2, 4, 6]


def test_the_weight_decay_of_a_step_is_set_in_the_groups_that_decay() -> None:
    task = Line()
    rule = descent(task)
    for group in rule.optimizer.param_groups:
        group["decays"] = True
    train(task, batches(batch(0, 2), batch(1, 2)), rule._replace(weight_decay=lambda step: 0.5 + step), 0, 2, [])
    assert [group["weight_decay"] for group in rule.optimizer.param_groups] == [1.5] * len(rule.optimizer.param_groups)

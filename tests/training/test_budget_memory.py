"""Portions that fit into memory."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import vitral
from tests.errors import raises
from vitral.core.config import parse_settings
from vitral.data.transforms.mixup import Mixup
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.hooks import FlopCounter
from vitral.tasks.classify import Classify
from vitral.tasks.selfsupervised.masked_patches import MaskedPatches
from vitral.tasks.task import Outcome, Task
from vitral.training.budget import BYTES, MemoryPlan, format_bytes, peak_bytes, persistent_bytes, plan_memory
from vitral.training.precision import Precision

CPU = torch.device("cpu")
FLOAT32 = Precision(torch.float32, CPU)
SHAPE = (3, 32, 32)
SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "recomputed": ("memory=recompute",),
    "dropout": ("block.drop_path_rate=0.2", "mlp.dropout=0.1"),
}


def test_skipped_branches_are_counted_as_if_none_were_skipped() -> None:
    rate = "block.drop_path_rate=0.2"
    skipping, masking = (task_of(rate, f"block.drop_path_mode={mode}") for mode in ("skip", "mask"))
    assert peak_bytes(skipping, SHAPE, 7, FLOAT32) == peak_bytes(masking, SHAPE, 7, FLOAT32)


def task_of(*settings: str, kind: Classify | MaskedPatches | None = None) -> Task:
    model = vitral.create_model(
        "Ti/16",
        settings=parse_settings(
            ["image_size=32", "stem.patch=8", "width=48", "depth=2", "mixer.heads=3", "head.num_classes=5", *settings]
        ),
    )
    return (kind or Classify(mixing=Mixup(alpha=0.5))).build(model, 5, [1] * 5, CENTERED)


def really(task: Task, images: int) -> int:
    """What lives at once in a step that is computed, on a copy of nothing: weights' gradients are dropped."""
    for weight in task.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    inputs, labels = torch.rand(images, *SHAPE), torch.zeros(images, dtype=torch.int64)
    with FlopCounter([*task.parameters(), *task.buffers(), inputs, labels]) as ledger:
        task.train()(inputs, labels, np.random.default_rng(0)).loss.backward()
    return ledger.peak


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_the_bytes_of_a_step_are_those_of_one_that_is_computed(settings: tuple[str, ...]) -> None:
    computed = really(task_of(*settings), 7)
    assert abs(peak_bytes(task_of(*settings), SHAPE, 7, FLOAT32) - computed) <= 8  # a constant or two


def test_a_task_of_another_kind_is_measured_too() -> None:
    small, large = (peak_bytes(task_of(kind=MaskedPatches()), SHAPE, images, FLOAT32) for images in (10, 20))
    assert 1.5 * small < large < 2.1 * small


class Wide(Task):
    """Keeps a thousand numbers an image, and has two thousand more for a moment on the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(3 * 32 * 32, 1000, bias=False)

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        return Outcome(self.model(images.flatten(1)).exp().mean(), len(images), {})


def test_the_bytes_of_a_step_are_those_counted_by_hand() -> None:
    fewer, more = (peak_bytes(Wide(), SHAPE, images, FLOAT32) for images in (10_000, 20_000))
    # the result of exp, its gradient and their product; what entered exp is not kept
    assert more - fewer == 10_000 * 3 * 1000 * BYTES
    assert persistent_bytes(Wide(), CPU) == 8 * 3072 * 1000 * BYTES


@pytest.mark.parametrize("task", [Wide(), task_of("memory=recompute")], ids=["wide", "recomputed"])
def test_the_largest_portion_fits_and_two_thirds_are_all_that_is_taken(task: Task) -> None:
    batch, share = 10_000, 0.3
    fixed = persistent_bytes(task, CPU) + batch * 3 * 32 * 32 * BYTES
    memory = int(1.5 * (fixed + share * peak_bytes(task, SHAPE, batch, FLOAT32)))
    portions = plan_memory(task, SHAPE, batch, memory, FLOAT32).microbatches
    assert 1 / share <= portions <= 2 / share
    assert fixed + peak_bytes(task, SHAPE, -(-batch // portions), FLOAT32) <= memory * 2 / 3


def test_a_batch_that_fits_is_taken_whole_and_nothing_is_said() -> None:
    task = Wide()
    enough = (
        int(1.5 * (persistent_bytes(task, CPU) + 16 * 3 * 32 * 32 * BYTES + peak_bytes(task, SHAPE, 16, FLOAT32))) + 2
    )
    assert plan_memory(task, SHAPE, 16, enough, FLOAT32) == MemoryPlan(1)
    fewer = plan_memory(task, SHAPE, 16, enough - 4, FLOAT32)
    assert fewer.microbatches == 2
    assert fewer.message.count(format_bytes(enough)) == 2  # what is needed, and what is free
    assert "2 microbatches" in fewer.message


@pytest.mark.parametrize("batch", [1, 16])
def test_when_not_even_one_image_fits_it_is_said_what_is_needed(batch: int) -> None:
    with raises("config.out_of_memory", "1.0 MB", "memory=recompute") as caught:
        plan_memory(Wide(), SHAPE, batch, 10**6, FLOAT32)
    assert caught.value.where == "batch_size"


def test_sixteen_bits_take_less() -> None:
    half = Precision(torch.bfloat16, CPU)
    assert peak_bytes(task_of(), SHAPE, 64, half) < 0.8 * peak_bytes(task_of(), SHAPE, 64, FLOAT32)


class Counting(Task):
    """Counts its images in a buffer as it goes, and rolls torch's own generator."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), nn.Dropout(0.5))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, images: Tensor, labels: Tensor, rng: np.random.Generator) -> Outcome:
        self.count += len(images)
        return Outcome(self.model(images).square().mean(), len(images), {})


def test_the_task_and_the_random_numbers_stay_as_they_were() -> None:
    task = Counting()
    task.model[1].eval()  # type: ignore[index]
    for weight in task.parameters():
        weight.grad = torch.rand_like(weight)
    state = {name: tensor.clone() for name, tensor in task.state_dict().items()}
    gradients = [(weight, weight.grad, weight.grad.clone()) for weight in task.parameters() if weight.grad is not None]
    modes = [part.training for part in task.modules()]
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]
    memory = int(
        1.5 * (persistent_bytes(task, CPU) + 9000 * 3 * 32 * 32 * BYTES + 0.6 * peak_bytes(task, SHAPE, 9000, FLOAT32))
    )
    assert plan_memory(task, SHAPE, 9000, memory, FLOAT32).microbatches > 1
    assert [part.training for part in task.modules()] == modes
    assert torch.get_rng_state().equal(torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # type: ignore[index]
    for name, tensor in task.state_dict().items():
        assert tensor.equal(state[name]), name
    for weight, gradient, values in gradients:
        assert weight.grad is gradient
        assert gradient.equal(values)
        assert not weight._post_accumulate_grad_hooks


@pytest.mark.parametrize(
    ("size", "words"),
    [(2e5, "0.2 MB"), (9.94e6, "9.9 MB"), (9.96e6, "10 MB"), (9.6e8, "1.0 GB"), (61.2e9, "61 GB"), (2e12, "2,000 GB")],
)
def test_amounts_are_said_as_people_do(size: float, words: str) -> None:
    assert format_bytes(size) == words

"""What two processes share of a batch, and the gradients that pass through it."""

import json
from pathlib import Path

import torch

from vitral.tasks.task import Collective


def test_two_processes_have_the_sums_rows_and_gradients_of_the_whole_batch(played: Path) -> None:
    whole = torch.arange(12, dtype=torch.float64).reshape(6, 2).requires_grad_()
    # The loss of each process counts half; what both have in common counts once.
    ranks = torch.tensor([1.0, 2.0]).repeat(3)[:, None]
    total = whole.square().sum(0)
    loss = (total * torch.tensor([1.0, 2.0])).sum() + (whole.cumsum(0) ** 2).sum() + (0.5 * ranks * whole).sum()
    loss.backward()
    assert whole.grad is not None
    for rank in range(2):
        found = json.loads((played / f"shares-{rank}.json").read_text())
        assert found == [total.tolist(), whole.tolist(), whole[rank::2].tolist(), whole.grad[rank::2].tolist()]


def test_one_process_has_the_whole_batch() -> None:
    rows = torch.randn(3, 2)
    single = Collective()
    assert single.sum(rows) is rows
    assert single.gather(rows) is rows
    assert single.places(3).tolist() == [0, 1, 2]

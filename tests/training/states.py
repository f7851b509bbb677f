"""Small states to save, and what is left of them."""

from pathlib import Path

import torch
from pydantic import JsonValue
from torch import Tensor

from vitral.core.storage import STORAGE, Storage
from vitral.training.checkpoints.checkpoint import (
    CheckpointContents,
    find_newest,
    open_checkpoint,
    save_checkpoint,
)

Tensors = dict[str, dict[str, Tensor]]


def state_of(step: int) -> tuple[Tensors, JsonValue]:
    """What a tiny run has at a step: no two steps have a tensor in common."""
    weights = {"head.weight": torch.full((3, 2), float(step)), "head.bias": torch.full((3,), step, dtype=torch.int64)}
    moments = {"head.weight": torch.full((3, 2), step / 2, dtype=torch.bfloat16)}
    return {"model": weights, "optimizer": moments}, {"step": step, "dice": [step, 2**100], "rate": 0.1 * step}


def save_step(folder: Path, step: int, keep: int = 2, best: int | None = None, disk: Storage = STORAGE) -> Path:
    tensors, state = state_of(step)
    return save_checkpoint(folder, step, tensors, state, keep, best, disk)


def same(loaded: CheckpointContents, step: int) -> bool:
    """Whether that is to the bit what a step has."""
    tensors, state = state_of(step)
    return loaded.state == state and identical(loaded.tensors, tensors)


def identical(some: Tensors, others: Tensors) -> bool:
    if {stem: set(group) for stem, group in some.items()} != {stem: set(group) for stem, group in others.items()}:
        return False
    pairs = [(tensor, others[stem][name]) for stem, group in some.items() for name, tensor in group.items()]
    return all(raw(one) == raw(other) for one, other in pairs)


def raw(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tensor.shape, data.numpy().tobytes()


def surviving(folder: Path) -> int | None:
    """The step of the newest checkpoint, with its content proved; None when there is none. All that are there open."""
    for path in folder.glob("step-" + "[0-9]" * 8):
        open_checkpoint(path)
    found = find_newest(folder)
    assert found.rejected == ()
    if found.checkpoint is None:
        return None
    assert same(found.checkpoint.load(), found.checkpoint.step)
    return found.checkpoint.step


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def name(step: int) -> str:
    return f"step-{step:08}"


def two(folder: Path) -> Path:
    """A folder with the checkpoints 1 and 2; the newer one is given."""
    save_step(folder, 1)
    return save_step(folder, 2)


def passed_over(folder: Path) -> str:
    """Why 2 was passed over for 1, which is whole."""
    found = find_newest(folder)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 1
    assert same(found.checkpoint.load(), 1)
    (why,) = found.rejected
    return why

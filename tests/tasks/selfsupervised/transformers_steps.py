"""Steps of transformers' models, from `tests/fixtures/make_selfsupervised.py`, in the names of tasks here."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from vitral.tasks.task import Task

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "selfsupervised"
EXACTLY = 1e-8
Rules = Sequence[tuple[str, str]]  # patterns of names and what they become; `{QKV}` marks one of three stacked parts


class Step(NamedTuple):
    """What a model was given, and what came out."""

    inputs: dict[str, Tensor]
    weights: dict[str, Tensor]
    grads: dict[str, Tensor]
    loss: Tensor


def load_step(name: str) -> Step:
    found = load_file(FOLDER / f"{name}.safetensors")

    def part(prefix: str) -> dict[str, Tensor]:
        return {key.removeprefix(prefix): value for key, value in found.items() if key.startswith(prefix)}

    return Step(part("inputs."), part("weights."), part("grads."), found["loss"])


def renamed(tensors: dict[str, Tensor], rules: Rules) -> dict[str, Tensor]:
    """The tensors by our names; those of queries, keys and values stacked, zeros for a missing bias of keys."""
    result: dict[str, Tensor] = {}
    stacked: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        new = next(re.sub(pattern, ours, name) for pattern, ours in rules if re.fullmatch(pattern, name))
        if match := re.fullmatch(r"(.*)\{(\w)\w*\}(.*)", new):
            stacked.setdefault(match[1] + "qkv" + match[3], {})[match[2]] = tensor
        elif new:
            result[new] = tensor
    for name, parts in stacked.items():
        result[name] = torch.cat([parts.get(letter, torch.zeros_like(parts["q"])) for letter in "qkv"])
    return result


def shaped(tensors: dict[str, Tensor], task: Task) -> Iterator[tuple[str, Tensor]]:
    """The tensors in the shapes that the weights of the task have."""
    own = task.state_dict()
    for name, tensor in tensors.items():
        yield name, tensor.reshape(own[name].shape)


def load_weights(task: Task, step: Step, rules: Rules, unknown: set[str]) -> None:
    """Load the weights of a step; only these tensors of the task are not among them."""
    found = task.load_state_dict(dict(shaped(renamed(step.weights, rules), task)), strict=False)
    assert set(found.missing_keys) == unknown
    assert not found.unexpected_keys


def assert_same_step(task: Task, loss: Tensor, step: Step, rules: Rules) -> None:
    """The loss, and the gradient of every weight that learns."""
    torch.testing.assert_close(loss, step.loss, rtol=0, atol=EXACTLY)
    loss.backward()
    learning = {name: weight for name, weight in task.named_parameters() if weight.requires_grad}
    expected = dict(shaped(renamed(step.grads, rules), task))
    assert learning.keys() == expected.keys()
    for name, weight in learning.items():
        assert weight.grad is not None, name
        torch.testing.assert_close(weight.grad, expected[name], rtol=0, atol=EXACTLY, msg=name)

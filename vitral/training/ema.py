"""Averages of the weights over steps: exponential moving average (EMA) and Polyak averaging."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import WeightsError


class BaseAverage(Config):
    """Which steps enter the average and with what weight; these defaults average nothing."""

    def includes(self, step: int, steps: int) -> bool:
        """Whether the weights after a step, counted from 0, enter the average."""
        return False

    def decay_at(self, count: int) -> float:
        """The factor of the average when weights are added to `count` earlier ones."""
        return 0.0

    def build(self, steps: int) -> "WeightAverage":
        """The empty average of a run of `steps` steps."""
        return WeightAverage(self, steps)


class NoAverage(BaseAverage):
    """No average: the last weights are used."""

    kind: Literal["none"] = "none"


class Ema(BaseAverage):
    """Exponential moving average; the paper calls it Polyak averaging, with a decay of 0.9999.

    The decay grows to its full value, min(decay, (1 + n) / (10 + n)), so that the initial weights are soon forgotten.
    """

    kind: Literal["ema"] = "ema"
    decay: float = Field(default=0.9999, ge=0, lt=1)

    def includes(self, step: int, steps: int) -> bool:
        return True

    def decay_at(self, count: int) -> float:
        return min(self.decay, (1 + count) / (10 + count))


class Polyak(BaseAverage):
    """The mean of the weights from a fraction of the run on."""

    kind: Literal["polyak"] = "polyak"
    start: float = Field(default=0.75, ge=0, lt=1)

    def includes(self, step: int, steps: int) -> bool:
        return step >= int(self.start * steps)

    def decay_at(self, count: int) -> float:
        return count / (count + 1)


AverageConfig = Annotated[NoAverage | Ema | Polyak, OpenUnion()]


class WeightAverage:
    """Averages of the trainable parameters, by name, over `count` steps; empty before the first of them.

    `tensors` and `count` are its state. Buffers are not averaged: an evaluation uses those of the model.
    """

    def __init__(self, kind: BaseAverage, steps: int) -> None:
        self.kind, self.steps = kind, steps
        self.first = 0  # the step from which on it counts: the begin of a stage of fine-tuning
        self.tensors: dict[str, Tensor] = {}
        self.count = 0
        self._model: nn.Module | None = None
        self._weights: list[Tensor] = []  # of that model, in the order of `tensors`

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Add the weights after a step, counted from 0."""
        if not self.kind.includes(step - self.first, self.steps - self.first):
            return
        if self.count:
            add = get_ema_multi_avg_fn(self.kind.decay_at(self.count))
            add(list(self.tensors.values()), self._weights_of(model), self.count)
        else:
            self.tensors = {name: weight.detach().clone() for name, weight in trainable_parameters(model).items()}
        self.count += 1

    def _weights_of(self, model: nn.Module) -> list[Tensor]:
        """The weights that are averaged. Looked up once: a walk through all modules takes longer than the sum."""
        if self._model is not model:
            weights = trainable_parameters(model)
            self._model, self._weights = model, [weights[name] for name in self.tensors]
        return self._weights

    @torch.no_grad()
    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor], count: int) -> None:
        """Load saved averages, copied to the device of the model. Those of another model raise an error."""
        weights = trainable_parameters(model) if count else {}
        if shapes(tensors) != shapes(weights):
            name = min(name for name, _ in shapes(tensors).items() ^ shapes(weights).items())
            message = f"the saved averages do not fit the model: {name} is missing, unknown or of another shape"
            hint = "resume with the model that was saved"
            raise WeightsError(message, code="weights.mismatch", where="averages", hint=hint)
        self.tensors = {name: torch.empty_like(weight).copy_(tensors[name]) for name, weight in weights.items()}
        self.count = count
        self._model = None

    def averages(self) -> dict[str, Tensor]:
        """The averages by name."""
        return self.tensors

    @contextmanager
    def applied_to(self, model: nn.Module) -> Iterator[None]:
        """Context in which the model has the averaged weights, if any; afterwards it has its own, to the bit.

        A model sharded by `fully_shard` must reshard after each forward pass, the root too
        (`reshard_after_forward=True`), else it would keep the averages that it gathered.
        """
        averages = self.averages()
        weights = {name: weight for name, weight in trainable_parameters(model).items() if name in averages}
        own = {name: weight.detach().clone() for name, weight in weights.items()}
        copy_weights(averages, weights)
        try:
            yield
        finally:
            copy_weights(own, weights)
            now = trainable_parameters(model)
            assert all(now[name] is weight for name, weight in weights.items()), "sharded weights were not resharded"


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@torch.no_grad()
def copy_weights(values: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy values into weights in place, since a sharded model refers to its weights by storage."""
    for name, weight in weights.items():
        weight.copy_(values[name])

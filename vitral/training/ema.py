"""The average of the weights over steps, which often does better than the last of them, and evaluating on it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vitral.core.config import Config
from vitral.core.errors import WeightsError


class AverageKind(Config):
    """Which steps count and how much; the hooks of a kind that averages nothing."""

    def counts(self, step: int, steps: int) -> bool:
        """Whether the weights after a step, counted from 0, enter the average."""
        return False

    def kept(self, count: int) -> float:
        """How much of the average stays when weights are added to `count` earlier ones."""
        return 0.0

    def build(self, steps: int) -> "Average":
        """The average over a run of so many steps, before the first of them."""
        return Average(self, steps)


class NoAverage(AverageKind):
    """The last weights stand for themselves."""

    kind: Literal["none"] = "none"


class Exponential(AverageKind):
    """Recent weights count most: what the paper calls Polyak averaging, with a decay of 0.9999.

    The decay grows from little to its full value, so that the first weights, which know nothing, are soon forgotten.
    """

    kind: Literal["ema"] = "ema"
    decay: float = Field(default=0.9999, ge=0, lt=1)

    def counts(self, step: int, steps: int) -> bool:
        return True

    def kept(self, count: int) -> float:
        return min(self.decay, (1 + count) / (10 + count))


class Polyak(AverageKind):
    """The plain mean of the weights from a share of the run on."""

    kind: Literal["polyak"] = "polyak"
    start: float = Field(default=0.75, ge=0, lt=1)

    def counts(self, step: int, steps: int) -> bool:
        return step >= int(self.start * steps)

    def kept(self, count: int) -> float:
        return count / (count + 1)


AverageConfig = Annotated[NoAverage | Exponential | Polyak, Field(discriminator="kind")]


class Average:
    """Averages of the parameters that learn, by name, over `count` steps; nothing until the first step that counts.

    `tensors` and `count` are all of its state. Buffers are not averaged: an evaluation sees the model's own.
    """

    def __init__(self, kind: AverageKind, steps: int) -> None:
        self.kind, self.steps = kind, steps
        self.tensors: dict[str, Tensor] = {}
        self.count = 0

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the weights as they are after a step, counted from 0."""
        if not self.kind.counts(step, self.steps):
            return
        weights = learning(model)
        if self.count:
            add = get_ema_multi_avg_fn(self.kind.kept(self.count))
            add(list(self.tensors.values()), [weights[name] for name in self.tensors], self.count)
        else:
            self.tensors = {name: weight.detach().clone() for name, weight in weights.items()}
        self.count += 1

    @torch.no_grad()
    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor], count: int) -> None:
        """Go on from saved averages, copied to where the model is. Those of another model are refused."""
        weights = learning(model) if count else {}
        if shapes(tensors) != shapes(weights):
            odd = sorted(name for name, _ in shapes(tensors).items() ^ shapes(weights).items())
            raise WeightsError(
                f"the saved averages do not fit the model: {odd[0]} is missing, unknown or of another shape",
                code="weights.mismatch",
                where="averages",
                hint="resume with the model that was saved",
            )
        self.tensors = {name: torch.empty_like(weight).copy_(tensors[name]) for name, weight in weights.items()}
        self.count = count

    @contextmanager
    def averaged(self, model: nn.Module) -> Iterator[None]:
        """Inside the `with` the model has the averages, where there are any; after it, its own weights to the bit.

        A model that `fully_shard` divides must put its weights away after each forward pass, the root's too
        (`reshard_after_forward=True`), or it would go on with the averages that it gathered.
        """
        weights = {name: weight for name, weight in learning(model).items() if name in self.tensors}
        own = {name: weight.detach().clone() for name, weight in weights.items()}
        put(self.tensors, weights)
        try:
            yield
        finally:
            put(own, weights)
            now = learning(model)
            assert all(now[name] is weight for name, weight in weights.items()), "weights were left gathered"


def learning(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@torch.no_grad()
def put(values: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy values into weights in place: a sharded model knows its weights by where they lie."""
    for name, weight in weights.items():
        weight.copy_(values[name])

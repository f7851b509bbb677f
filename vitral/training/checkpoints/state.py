"""The state that a run needs to resume to the same bits: tensors by name, and the rest as JSON.

Random numbers and the learning rate are functions of the step, so they have no state.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import Optimizer

from vitral.core import formats
from vitral.core.config import Config
from vitral.core.errors import WeightsError
from vitral.core.jsonl import LogDigest
from vitral.data.loading.sampler import SamplerState, SamplingPlan
from vitral.tasks.task import Task
from vitral.training.ema import WeightAverage
from vitral.training.precision import Precision
from vitral.training.time_limit import PlanChange

Tensors = dict[str, dict[str, Tensor]]
SCALARS = {"step", "weight_sum"}  # in the state of a weight; all else has the shape of the weight


class TrainingState(NamedTuple):
    """The parts of a run that change as it goes on."""

    task: Task
    optimizer: Optimizer
    average: WeightAverage
    precision: Precision


class SavedState(Config):
    """The contents of state.json."""

    format: Literal[3] = 3  # of state.json; core/formats.py reads format 1
    position: SamplerState
    averaged: int  # steps in the average
    precision: dict[str, float]  # of the gradient scaler, if one is used
    content: str = ""  # hash of the data; empty while it is not known yet
    changes: tuple[PlanChange, ...] = ()  # of the plan of a run with a time limit, so far
    tensors: dict[str, int] = Field(default_factory=dict)  # how many each group has; formats 1 and 2 do not say
    metrics: LogDigest | None = None  # of metrics.jsonl when this was saved; null in formats 1 and 2


def parse_state(document: dict[str, Any]) -> SavedState:
    """Parse `state.json` of any format."""
    current = document if "format" in document else formats.upgrade(document, formats.STATE)
    return SavedState.parse(current | ({"format": 3} if document.get("format", 1) in (1, 2) else {}))


def state_tensors(learning: TrainingState) -> Tensors:
    """The tensors of the state, not copied."""
    return {
        "task": dict(learning.task.state_dict()),
        "optimizer": optimizer_tensors(learning.optimizer),
        "average": dict(learning.average.averages()),
    }


def saved_state(
    learning: TrainingState,
    plan: SamplingPlan,
    step: int,
    changes: Sequence[PlanChange] = (),
    content: str = "",
    metrics: LogDigest | None = None,
) -> SavedState:
    """The JSON state after `step` steps, with the digest of the metrics so far in the process that writes them."""
    return SavedState(
        position=plan.state(step),
        averaged=learning.average.count,
        precision=learning.precision.state(),
        content=content,
        changes=tuple(changes),
        tensors={group: len(tensors) for group, tensors in state_tensors(learning).items()},
        metrics=metrics,
    )


def restore_state(
    learning: TrainingState, plan: SamplingPlan, tensors: Mapping[str, Mapping[str, Tensor]], saved: SavedState
) -> int:
    """Restore everything, and return the step to continue with."""
    step = plan.resume_step(saved.position)
    learning.task.load_state_dict(tensors["task"])
    restore_optimizer(learning.optimizer, tensors.get("optimizer", {}))  # an empty group has no shards
    learning.average.restore(learning.task, tensors.get("average", {}), saved.averaged)
    learning.precision.restore(saved.precision)
    return step


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The optimizer state of each weight, as `blocks.0.mlp.up.weight/exp_avg`."""
    return {
        f"{name}/{key}": value
        for name, weight in named_weights(optimizer).items()
        for key, value in optimizer.state[weight].items()
        if isinstance(value, Tensor)
    }


def named_weights(optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        name: weight
        for group in optimizer.param_groups
        for name, weight in zip(group["param_names"], group["params"], strict=True)
    }


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace the optimizer state by copies of these tensors, on the devices of the weights."""
    weights = named_weights(optimizer)
    optimizer.state.clear()
    for address, value in tensors.items():
        name, _, key = address.rpartition("/")
        if name not in weights:
            message = f"the saved state has {name}, which this model lacks or does not train"
            raise WeightsError(message, code="weights.mismatch", where="optimizer", hint="resume with the saved model")
        weight = weights[name]
        if key in SCALARS:  # a fused optimizer needs its step on the device of the weight
            kept = value.to(weight.device if optimizer.defaults.get("fused") else "cpu", copy=True)
        else:
            kept = torch.empty_like(weight).copy_(value)
        optimizer.state[weight][key] = kept

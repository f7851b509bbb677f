"""Schedule-Free AdamW: an average of the weights in place of a decaying learning rate (arXiv 2405.15682).

With z the weights that take the steps, x their average, and the gradient g taken at y, which the model trains with,

    y  = (1 - beta1) z + beta1 x
    v <- beta2 v + (1 - beta2) g^2
    z <- z - lr (g / (sqrt(v / (1 - beta2^k)) + eps) + weight_decay y)
    x <- (1 - c) x + c z,    c = w_k / (w_1 + ... + w_k),    w_k = lr_k^2 k^average_power

x is evaluated and saved. Only y, z and v are kept, since x = (y - (1 - beta1) z) / beta1.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from vitral.training.ema import BaseAverage, NoAverage, WeightAverage
from vitral.training.optimizers.base import BaseOptimizer, Fraction, GroupOptimizer, param_groups, set_lr


class ScheduleFreeAdamW(BaseOptimizer):
    """AdamW that evaluates an average of its weights: the learning rate stays constant after the warmup.

    It needs schedule=constant and average=none. The best learning rate is 1 to 10 times that of AdamW.
    """

    kind: Literal["schedule_free_adamw"] = "schedule_free_adamw"
    lr: float = Field(default=2.5e-3, gt=0)  # after the warmup
    betas: tuple[Annotated[float, Field(gt=0, lt=1)], Fraction] = (0.9, 0.999)  # how close y is to x; as in Adam
    weight_decay: float = Field(default=0.1, ge=0)
    eps: float = Field(default=1e-8, gt=0)
    average_power: float = Field(default=0.0, ge=0)  # more weight for later steps in x

    def build(self, task: nn.Module) -> Optimizer:
        groups = param_groups(task, self.weight_decay, self.layer_decay, self.decayed)
        options = self.model_dump(include={"lr", "betas", "eps", "average_power"})
        optimizer = ScheduleFree(groups, options)
        set_lr(optimizer, self.lr)
        return optimizer


class ScheduleFree(GroupOptimizer):
    """The weights are y; z and v are in the state, with the number of steps and the sum of their weights w."""

    def step_group(self, group: dict[str, Any]) -> None:
        alike: dict[tuple[float, float], list[Tensor]] = defaultdict(list)  # by their past steps
        for weight in group["params"]:
            if weight.grad is not None:
                state = self._state_of(weight)
                alike[state["step"].item(), state["weight_sum"].item()].append(weight)
        for (past, weight_sum), weights in alike.items():
            self._step_weights(weights, group, past + 1, weight_sum)

    def _state_of(self, weight: Tensor) -> dict[str, Tensor]:
        state = self.state[weight]
        if not state:
            state["z"] = weight.detach().clone(memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["step"] = torch.zeros((), dtype=torch.float64)
            state["weight_sum"] = torch.zeros((), dtype=torch.float64)
        return cast(dict[str, Tensor], state)

    def _step_weights(self, y: list[Tensor], group: dict[str, Any], step: float, weight_sum: float) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        new = lr**2 * step ** group["average_power"]
        weight_sum += new
        c = new / weight_sum if weight_sum else 0.0  # a warmup begins with a learning rate of 0
        states = [self.state[weight] for weight in y]
        z, v = ([state[key] for state in states] for key in ("z", "exp_avg_sq"))
        gradients = [cast(Tensor, weight.grad) for weight in y]
        torch._foreach_mul_(v, beta2)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
        root = torch._foreach_sqrt(torch._foreach_div(v, 1 - beta2**step))
        torch._foreach_add_(root, group["eps"])
        update = torch._foreach_div(gradients, root)
        torch._foreach_add_(update, y, alpha=group["weight_decay"])
        torch._foreach_lerp_(y, z, c)
        torch._foreach_add_(y, update, alpha=lr * (beta1 * (1 - c) - 1))
        torch._foreach_sub_(z, update, alpha=lr)
        for state in states:
            state["step"].fill_(step)
            state["weight_sum"].fill_(weight_sum)

    @torch.no_grad()
    def averaged_weights(self) -> dict[str, Tensor]:
        """x of each weight that has taken a step, by name."""
        return {
            name: weight.detach().lerp(self.state[weight]["z"], 1 - 1 / group["betas"][0])
            for group in self.param_groups
            for name, weight in zip(group["param_names"], group["params"], strict=True)
            if "z" in self.state.get(weight, {})
        }


class ScheduleFreeAverage(WeightAverage):
    """x of the optimizer, which takes the place of an average. It is restored with the optimizer."""

    def __init__(self, optimizer: ScheduleFree, steps: int) -> None:
        super().__init__(NoAverage(), steps)
        self.optimizer = optimizer

    def averages(self) -> dict[str, Tensor]:
        return self.optimizer.averaged_weights()

    def restore(self, model: nn.Module, tensors: Mapping[str, Tensor], count: int) -> None:
        """Nothing to restore: z is part of the state of the optimizer."""


def build_average(average: BaseAverage, optimizer: Optimizer, steps: int) -> WeightAverage:
    """What is evaluated and saved: the average, or that which the optimizer computes itself."""
    if isinstance(optimizer, ScheduleFree):
        return ScheduleFreeAverage(optimizer, steps)
    return average.build(steps)

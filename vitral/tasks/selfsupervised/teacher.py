"""A teacher: a moving average of the student, which gives targets and is never trained itself."""

from copy import deepcopy
from typing import Self

import torch
from torch import Tensor, nn

from vitral.models.base import Model
from vitral.tasks.selfsupervised.projection import BatchNorm


class Teacher(nn.Module):
    """A copy of a model and of its head that follows them slowly. It is part of the task's state.

        weight <- momentum * weight + (1 - momentum) * weight of the student

    It starts equal to the student and has no gradients, no dropout and no stochastic depth. Batch norms of a teacher in
    training use the batch, as those of its student do; their running averages are its own.
    """

    model: Model
    head: nn.Module

    def __init__(self, model: Model, head: nn.Module) -> None:
        super().__init__()
        self.model, self.head = deepcopy(model), deepcopy(head)
        self.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the batch norms; all else is in evaluation mode."""
        super().train(mode)
        for module in self.modules():
            if module is not self and not isinstance(module, BatchNorm):
                module.training = False
        return self

    def forward(self, images: Tensor) -> Tensor:
        """The outputs of the head (B, K) for the pooled features of images (B, C, H, W)."""
        return self.head(self.model.forward_pooled(images))

    @torch.no_grad()
    def follow(self, momentum: float, model: Model, head: nn.Module) -> None:
        """Move towards the student."""
        own: list[Tensor] = [*self.model.parameters(), *self.head.parameters()]
        students = [*model.parameters(), *head.parameters()]
        torch._foreach_lerp_(own, [weight.detach() for weight in students], 1 - momentum)

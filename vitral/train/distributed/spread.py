"""A task that the processes of a run train together."""

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn

from vitral.tasks.task import Outcome, Task
from vitral.train.distributed.group import Group


class Spread:
    """What differs for the loop. Here it is a task of one process, with nothing to spread.

    `module` is to be called in training in the place of the task. The task keeps its names, and is what is saved,
    averaged and evaluated.
    """

    module: nn.Module

    def __init__(self, task: Task, group: Group) -> None:
        self.module = self.task = task
        self.group = group

    def passing(self, last: bool) -> AbstractContextManager[None]:
        """Around the passes of a portion; with those of the last the gradients become sums over all processes."""
        return nullcontext()

    def joined(self, outcome: Outcome) -> Outcome:
        """The outcome of the whole batch, from that of this process's part of it."""
        return self.group.joined(outcome)

    def whole(self, part: nn.Module) -> dict[str, Tensor]:
        """A copy of the state of the task or of a part of it, as one process would have it; for all to call."""
        return {name: tensor.detach().clone() for name, tensor in part.state_dict().items()}

"""The tokens of frozen layers, computed once for each view of each image and kept in memory.

While only the last layers train, what comes before them does not change: a step that starts from their tokens costs as
many layers as train.  V views, N images, L tokens, D width.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.data.loading.loader import Batch, Loader
from vitral.data.loading.sampler import SamplingPlan
from vitral.models.hooks import eval_mode
from vitral.models.vit import LastBlocks
from vitral.training.loop import Microbatch, MicrobatchConfig, split_batch, to_device


class View(NamedTuple):
    """One view of every image: an epoch of a sequential loader."""

    loader: Loader
    epoch: int


class TokenCache:
    """The tokens of the views of the images of a split, in all processes. A view is computed when it is first used.

    It is computed in the batches of its loader, whichever step needs it: so a run that resumes, and has to compute it
    again, gets the same bits.
    """

    def __init__(
        self,
        model: LastBlocks,
        views: Sequence[View],
        config: MicrobatchConfig,
        gather: Callable[[Tensor], Tensor],
    ) -> None:
        self.model, self.views, self.config, self.gather = model, views, config, gather
        self.labels = views[0].loader.labels  # (N,)
        self._tokens: dict[int, Tensor] = {}

    def tokens(self, view: int) -> Tensor:
        """The tokens (N, L, D) of a view of all images, on the CPU. A collective when they are first used."""
        if view not in self._tokens:
            self._tokens[view] = self._compute(self.views[view])
        return self._tokens[view]

    def batches(self, plan: SamplingPlan, start: int, stop: int) -> Generator[Sequence[Microbatch]]:
        """Yield the microbatches of the steps of a plan, with tokens as images: another view in each epoch."""
        for step in range(start, stop):
            indices = torch.from_numpy(plan.indices(step).copy())  # (B,)
            tokens = self.tokens(plan.epoch(step) % len(self.views))[indices]  # (B, L, D)
            yield split_batch(Batch(tokens, self.labels[indices], indices), step, plan, self.config)

    def _compute(self, view: View) -> Tensor:
        layout, config = self.model.image_layout, self.config
        found = torch.empty(len(self.labels), layout.length(), self.model.config.width)  # (N, L, D)
        with eval_mode(self.model):
            for batch in view.loader.epoch(view.epoch):
                images = config.normalize.prepare(to_device(batch.images, config.device))  # (B, C, H, W)
                tokens = self.gather(self.model.forward_tokens(images))  # (B, L, D) of all processes
                found[self.gather(batch.indices)] = tokens.cpu()
        return found

"""What training keeps of a block's activations."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitral.config import Config
from vitral.model.shapes import Layout


class KeepActivations(Config):
    """Everything that the backward pass needs is kept: the fastest."""

    kind: Literal["keep"] = "keep"

    def run(self, block: nn.Module, x: Tensor, layout: Layout, keep: int) -> Tensor:
        return block(x, layout, keep)


class Recompute(Config):
    """Only a block's input is kept, and its inside computed again: less memory for a third more work."""

    kind: Literal["recompute"] = "recompute"

    def run(self, block: nn.Module, x: Tensor, layout: Layout, keep: int) -> Tensor:
        if not torch.is_grad_enabled() or torch.compiler.is_exporting():
            return block(x, layout, keep)
        return checkpoint(block, x, layout, keep, use_reentrant=False)


MemoryConfig = Annotated[KeepActivations | Recompute, Field(discriminator="kind")]

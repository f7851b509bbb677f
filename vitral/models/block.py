"""Encoder blocks: token mixers and MLPs on residual branches; gradient checkpointing.

B images, L tokens, D width.  A block returns its first `keep` tokens: in the last layer only those that are pooled.
"""

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitral.core.config import Config, OpenUnion
from vitral.models.base import BuildContext, Layout
from vitral.models.init import BaseInit, InitModule


class KeepActivations(Config):
    """Keep all activations for the backward pass: the fastest."""

    kind: Literal["keep"] = "keep"

    def run(self, block: nn.Module, x: Tensor, layout: Layout, keep: int) -> Tensor:
        return block(x, layout, keep)


class GradientCheckpointing(Config):
    """Keep only each block's input and recompute the rest: less memory for a third more compute."""

    kind: Literal["recompute"] = "recompute"

    def run(self, block: nn.Module, x: Tensor, layout: Layout, keep: int) -> Tensor:
        if not torch.is_grad_enabled() or torch.compiler.is_exporting():
            return block(x, layout, keep)
        return checkpoint(block, x, layout, keep, use_reentrant=False)


MemoryConfig = Annotated[KeepActivations | GradientCheckpointing, OpenUnion()]


class NoScale(Config):
    """Branches are added unscaled."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


class LayerScale(Config):
    """Branches are scaled by a learned factor per channel (arXiv 2103.17239)."""

    kind: Literal["layer_scale"] = "layer_scale"
    init: float = 1e-5

    def build(self, width: int) -> nn.Module:
        return ChannelScale(width, self.init)


ScaleConfig = Annotated[NoScale | LayerScale, OpenUnion()]


class ChannelScale(InitModule):
    def __init__(self, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.factor = nn.Parameter(torch.empty(width))

    def initialize(self, init: BaseInit) -> None:
        nn.init.constant_(self.factor, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class DropPath(nn.Module):
    """Stochastic depth (arXiv 1603.09382): drop the branch of a sample at this rate, and rescale the others."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def drops(self) -> bool:
        """Whether any branch may be dropped now."""
        return self.training and self.rate > 0

    def draw(self, x: Tensor) -> Tensor:
        """1 for the samples whose branch is kept, 0 for the others, (B, 1, 1)."""
        return x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.rate)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.draw(x) / (1 - self.rate) if self.drops else x


class BaseBlock(Config):
    """Where the norms are, and how branches are scaled and dropped."""

    final_norm: ClassVar[bool]
    scale: ScaleConfig = NoScale()
    drop_path_rate: float = Field(default=0.0, ge=0, lt=1)  # of the last layer
    drop_path_schedule: Literal["linear", "constant"] = "linear"  # linear: it grows from 0 in the first layer
    drop_path_mode: Literal["mask", "skip"] = "mask"  # skip: a dropped branch is not computed, so steps are cheaper


class Branch(nn.Module):
    """Scales and drops a branch before it is added.

    With `skip` the branch is computed for the samples that keep it (as in DINOv2, arXiv 2304.07193), with the draws of
    `mask`, so the two differ by rounding, and by the draws of a dropout within the branch. A compiled model masks:
    shapes that are drawn would be compiled again and again. So does one that is given tensors without values.
    """

    def __init__(self, config: BaseBlock, context: BuildContext, layer: int) -> None:
        super().__init__()
        self.scale = config.scale.build(context.width)
        share = 1.0 if config.drop_path_schedule == "constant" else layer / max(1, context.depth - 1)
        self.drop = DropPath(config.drop_path_rate * share)
        self.skips = config.drop_path_mode == "skip"

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.scale(x))

    def of(self, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """The branch that `compute` gives for x (B, L, D), scaled and dropped: (B, keep, D)."""
        has_values = type(x) is Tensor and not x.is_meta  # a fake tensor is of another type
        if not (self.skips and self.drop.drops and has_values) or torch.compiler.is_compiling():
            return self(compute(x))
        kept = self.drop.draw(x)[:, 0, 0].nonzero()[:, 0]  # (samples,)
        branch = self.scale(compute(x.index_select(0, kept))) / (1 - self.drop.rate)  # (samples, keep, D)
        return branch.new_zeros(len(x), *branch.shape[1:]).index_copy(0, kept, branch)


class BlockParts(NamedTuple):
    """What a block is made of; each call builds a new module."""

    context: BuildContext
    layer: int
    mixer: Callable[[], nn.Module]
    mlp: Callable[[], nn.Module]


class EncoderBlock(nn.Module):
    """A mixer and an MLP, each with a norm; subclasses define `forward`."""

    def __init__(self, config: BaseBlock, parts: BlockParts) -> None:
        super().__init__()
        context, layer = parts.context, parts.layer
        self.mixer_norm = context.build_norm()
        self.mixer = parts.mixer()
        self.mixer_branch = Branch(config, context, layer)
        self.mlp_norm = context.build_norm()
        self.mlp = parts.mlp()
        self.mlp_branch = Branch(config, context, layer)


class PreNorm(BaseBlock):
    """Norm before each branch and after the last layer, as in the paper."""

    kind: Literal["pre"] = "pre"
    final_norm: ClassVar[bool] = True

    def build(self, parts: BlockParts) -> nn.Module:
        return PreNormBlock(self, parts)


class PreNormBlock(EncoderBlock):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        x = x[:, :keep] + self.mixer_branch.of(x, lambda x: self.mixer(self.mixer_norm(x), layout, keep))  # eq. 2
        return x + self.mlp_branch.of(x, lambda x: self.mlp(self.mlp_norm(x)))  # eq. 3


class PostNorm(BaseBlock):
    """Norm after each residual sum and none at the end, as in the original Transformer."""

    kind: Literal["post"] = "post"
    final_norm: ClassVar[bool] = False

    def build(self, parts: BlockParts) -> nn.Module:
        return PostNormBlock(self, parts)


class PostNormBlock(EncoderBlock):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        x = self.mixer_norm(x[:, :keep] + self.mixer_branch.of(x, lambda x: self.mixer(x, layout, keep)))
        return self.mlp_norm(x + self.mlp_branch.of(x, self.mlp))


class ResidualPostNorm(BaseBlock):
    """Norm of each branch's output, before it is added, and after the last layer (Swin v2, arXiv 2111.09883)."""

    kind: Literal["residual_post"] = "residual_post"
    final_norm: ClassVar[bool] = True

    def build(self, parts: BlockParts) -> nn.Module:
        return ResidualPostNormBlock(self, parts)


class ResidualPostNormBlock(EncoderBlock):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        x = x[:, :keep] + self.mixer_branch.of(x, lambda x: self.mixer_norm(self.mixer(x, layout, keep)))
        return x + self.mlp_branch.of(x, lambda x: self.mlp_norm(self.mlp(x)))


class Parallel(BaseBlock):
    """Mixer and MLP read the same norm and are added together (ViT-22B, arXiv 2302.05442)."""

    kind: Literal["parallel"] = "parallel"
    final_norm: ClassVar[bool] = True

    def build(self, parts: BlockParts) -> nn.Module:
        return ParallelBlock(self, parts)


class ParallelBlock(nn.Module):
    def __init__(self, config: Parallel, parts: BlockParts) -> None:
        super().__init__()
        self.norm, self.mixer, self.mlp = parts.context.build_norm(), parts.mixer(), parts.mlp()
        self.branch = Branch(config, parts.context, parts.layer)

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        def both(x: Tensor) -> Tensor:
            normed = self.norm(x)
            return self.mixer(normed, layout, keep) + self.mlp(normed[:, :keep])

        return x[:, :keep] + self.branch.of(x, both)


class MultiBranch(BaseBlock):
    """Several mixers side by side, then as many MLPs, each with a norm before it (arXiv 2203.09795)."""

    kind: Literal["multi_branch"] = "multi_branch"
    branches: int = Field(default=2, ge=1, le=100)
    final_norm: ClassVar[bool] = True

    def build(self, parts: BlockParts) -> nn.Module:
        return MultiBranchBlock(self, parts)


class MultiBranchBlock(nn.Module):
    def __init__(self, config: MultiBranch, parts: BlockParts) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(MixerBranch(config, parts) for _ in range(config.branches))
        self.mlps = nn.ModuleList(MlpBranch(config, parts) for _ in range(config.branches))

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        mixed = x[:, :keep]
        for mixer in self.mixers:
            mixed = mixed + mixer(x, layout, keep)
        expanded = mixed
        for mlp in self.mlps:
            expanded = expanded + mlp(mixed)
        return expanded


class MixerBranch(nn.Module):
    def __init__(self, config: BaseBlock, parts: BlockParts) -> None:
        super().__init__()
        self.norm, self.mixer = parts.context.build_norm(), parts.mixer()
        self.branch = Branch(config, parts.context, parts.layer)

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        return self.branch.of(x, lambda x: self.mixer(self.norm(x), layout, keep))  # (B, keep, D)


class MlpBranch(nn.Module):
    def __init__(self, config: BaseBlock, parts: BlockParts) -> None:
        super().__init__()
        self.norm, self.mlp = parts.context.build_norm(), parts.mlp()
        self.branch = Branch(config, parts.context, parts.layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.branch.of(x, lambda x: self.mlp(self.norm(x)))  # (B, keep, D)


def block_branches(block: nn.Module) -> tuple[list[nn.Module], list[nn.Module]]:
    """The modules whose outputs a block adds to the tokens: those of its mixers, and those of its MLPs."""
    if isinstance(block, MultiBranchBlock):
        return list(block.mixers), list(block.mlps)
    if isinstance(block, ParallelBlock):  # which scales their sum
        return [block.mixer], [block.mlp]
    return [block.get_submodule("mixer_branch")], [block.get_submodule("mlp_branch")]


BlockConfig = Annotated[PreNorm | PostNorm | ResidualPostNorm | Parallel | MultiBranch, OpenUnion()]

"""The Vision Transformer.  B images, C channels, N patches, L tokens, D width."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitral.core.config import Config, Size
from vitral.core.errors import ConfigError
from vitral.models.attention import Attention, BaseAttention, Causal, MixerConfig
from vitral.models.base import BuildContext, Features, Grid, Layout, Model, check_images, split_tokens
from vitral.models.block import BlockConfig, BlockParts, KeepActivations, MemoryConfig, PreNorm
from vitral.models.embed import Patches, StemConfig
from vitral.models.head import DistilledHead, HeadConfig, LinearHead
from vitral.models.hooks import attention_maps
from vitral.models.init import BaseInit, InitConfig, InitModule, Original, allocate, initialize, rescale_outputs
from vitral.models.mlp import Mlp, MlpConfig
from vitral.models.norm import LayerNorm, NormConfig
from vitral.models.pool import ClassPool, DistilledPool, PoolConfig, PrefixPool
from vitral.models.position import (
    AttentionPosition,
    BaseRelativeBias,
    Learned1d,
    PositionConfig,
    inside_attention,
)


class Tokens(Config):
    """Class token, registers, and what is applied to the input sequence."""

    cls: bool = True
    registers: int = Field(default=0, ge=0, le=1_000)  # arXiv 2309.16588
    norm: bool = False  # LayerNorm before the first layer, as in CLIP
    dropout: float = Field(default=0.0, ge=0, lt=1)


class Vit(Config):
    """A Vision Transformer. The default is ViT-B/16."""

    kind: Literal["vit"] = "vit"
    image_size: Size = Size(224, 224)
    any_size: bool = True  # accept other image sizes by resampling position embeddings
    channels: int = Field(default=3, ge=1, le=10_000)  # the upper limits catch typing errors
    width: int = Field(default=768, ge=1, le=100_000)
    depth: int = Field(default=12, ge=1, le=1_000)
    stem: StemConfig = Patches()
    tokens: Tokens = Tokens()
    position: PositionConfig = Learned1d()
    block: BlockConfig = PreNorm()
    mixer: MixerConfig = Attention()
    mlp: MlpConfig = Mlp()
    pool: PoolConfig = ClassPool()
    head: HeadConfig = LinearHead()
    norm: NormConfig = LayerNorm()  # everywhere
    eps: float = Field(default=1e-6, gt=0)  # of every norm
    init: InitConfig = Original()
    memory: MemoryConfig = KeepActivations()

    def token_size(self) -> Size:
        """The pixels that one token covers."""
        return self.stem.token_size()

    def layout(self, image: Size) -> Layout:
        """The sequence for an image of this size."""
        return Layout(int(self.tokens.cls), self.tokens.registers, self.stem.grid(image))

    def context(self) -> BuildContext:
        mixer, layout = self.mixer, self.layout(self.image_size)
        heads = (mixer.heads, mixer.head_width_for(self.width)) if isinstance(mixer, BaseAttention) else (0, self.width)
        return BuildContext(self.width, self.depth, layout, self.eps, *heads, norm=self.norm)

    @model_validator(mode="after")
    def parts_fit(self) -> Self:
        context = self.context()
        self.stem.check(self.width)
        self.mixer.check(context)
        self.pool.check(context)
        if self.position.applies_to == "attention" and not context.heads:
            message = f"{self.position.kind} positions need attention, and the {self.mixer.kind} mixer has none"
            hint = "use position=learned1d or mixer=attention"
            raise ConfigError(message, code="config.conflict", where="position", hint=hint)
        self.position.check(self.width, context.head_width)
        if isinstance(inside_attention(self.position), BaseRelativeBias) and not isinstance(self.mixer, Attention):
            message = f"{self.position.kind} positions need global attention, and the mixer is {self.mixer.kind}"
            raise ConfigError(message, code="config.conflict", where="position", hint="use mixer=attention")
        if isinstance(self.mixer, Causal) and isinstance(self.pool, ClassPool | DistilledPool | PrefixPool):
            message = f"the {self.pool.kind} pool reads the first tokens, which see no patch with the causal mixer"
            raise ConfigError(message, code="config.conflict", where="pool", hint="use pool=mean")
        if isinstance(self.head, DistilledHead) and not isinstance(self.pool, DistilledPool):
            message = f"the distilled head reads two tokens, and the {self.pool.kind} pool gives one vector"
            raise ConfigError(message, code="config.conflict", where="head", hint="use pool=distilled")
        return self

    def build_empty(self, device: str = "meta") -> "VisionTransformer":
        """The model without weight values: for its shapes, or to load weights into."""
        with torch.device(device):
            return VisionTransformer(self)

    def build(self) -> "VisionTransformer":
        """The model with initialized weights."""
        model = initialize(allocate(self.build_empty(), torch.get_default_device()), self.init)
        rescale_outputs(model.blocks, self.init)
        return model


class PrefixTokens(InitModule):
    """Prepends the class token and the registers."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        self.cls = context.layout.cls
        self.tokens = nn.Parameter(torch.empty(context.layout.prefix(), context.width))

    def initialize(self, init: BaseInit) -> None:
        init.token(self.tokens[: self.cls])
        init.register(self.tokens[self.cls :])

    def forward(self, patches: Tensor) -> Tensor:
        first = self.tokens.expand(patches.shape[0], -1, -1)  # (B, prefix, D)
        return torch.cat([first, patches], dim=1)  # (B, L, D)


class VisionTransformer(Model):
    """Patch embedding, encoder blocks, pooling and head."""

    config: Vit

    def __init__(self, config: Vit) -> None:
        super().__init__()
        context = config.context()
        self.config = config
        self.patch_drop_rate = 0.0  # of a training step, set by the task
        self.stem = config.stem.build(config.channels, context)
        self.prefix = PrefixTokens(context) if context.layout.prefix() else nn.Identity()
        self.position = config.position.build(context)
        self.dropout = nn.Dropout(config.tokens.dropout)
        self.first_norm = context.build_norm() if config.tokens.norm else nn.Identity()
        self.blocks = nn.ModuleList(build_blocks(config, context))
        normed = config.block.final_norm and not config.pool.normalizes()
        self.norm = context.build_norm() if normed else nn.Identity()
        self.pool = config.pool.build(context, config.mlp)
        self.head = config.head.build(config.pool.out_width(config.width))

    def forward_features(self, images: Tensor) -> Features:
        layout = self.layout(images)
        tokens = self.embed(images, layout)
        return split_tokens(self.encode(tokens, layout, layout.length()), layout)

    def forward_pooled(self, images: Tensor) -> Tensor:
        layout = self.layout(images)
        tokens = self.embed(images, layout)
        if self.training and self.patch_drop_rate:
            tokens, layout = drop_patches(tokens, layout, self.patch_drop_rate)
        return self.pool(self.encode(tokens, layout, self.pool.keep(layout)), layout)  # (B, D)

    def forward_kept(self, images: Tensor, kept: Tensor) -> Tensor:
        """The tokens after the last layer and norm of some patches of each image, by their indices (B, M).

        The others are left out before the first layer, so that they cost nothing: (B, prefix + M, D), prefix tokens
        first. For models that `check_patch_drop` accepts.
        """
        layout = self.layout(images)
        tokens, layout = keep_patches(self.embed(images, layout), layout, kept)
        return self.encode(tokens, layout, layout.length())

    def forward_intermediates(self, images: Tensor, layers: Sequence[int]) -> list[Features]:
        depth, layout = len(self.blocks), self.layout(images)
        if wrong := [layer for layer in layers if not -depth <= layer < depth]:
            message = f"expected layers from 0 to {depth - 1}, or -1 for the last, got {wrong[0]}"
            raise ConfigError(message, code="config.out_of_range", where="layers")
        indices = [layer % depth for layer in layers]
        tokens, found = self.embed(images, layout), {}
        for layer in range(max(indices, default=-1) + 1):
            tokens = self.run_layer(layer, tokens, layout, layout.length())
            if layer in indices:
                found[layer] = split_tokens(tokens, layout)
        return [found[layer] for layer in indices]

    def attention(self, images: Tensor) -> list[Tensor]:
        return attention_maps(self, images)

    def layout(self, images: Tensor) -> Layout:
        size = check_images(images, self.config.channels)
        if size != self.config.image_size and not self.config.any_size:
            message = f"the model takes {self.config.image_size} images only, got {size}"
            hint = "resize the images, or build the model with any_size=true"
            raise ConfigError(message, code="config.size_mismatch", where="images", hint=hint)
        return self.config.layout(size)

    def embed(self, images: Tensor, layout: Layout) -> Tensor:
        """Images to the first layer's tokens (eq. 1)."""
        return self.embed_patches(self.stem(images), layout)

    def embed_patches(self, patches: Tensor, layout: Layout) -> Tensor:
        """Embedded patches (B, N, D) to the first layer's tokens: prefix tokens prepended, positions added."""
        tokens = self.prefix(patches)  # (B, L, D)
        return self.first_norm(self.dropout(self.position(tokens, layout, 0)))

    def encode(self, tokens: Tensor, layout: Layout, keep: int, first: int = 0) -> Tensor:
        """The first `keep` tokens after the last layer and norm, of tokens that enter layer `first`."""
        last = len(self.blocks) - 1
        for layer in range(first, len(self.blocks)):
            tokens = self.run_layer(layer, tokens, layout, keep if layer == last else layout.length())
        return self.norm(tokens)  # (B, keep, D)

    def run_layer(self, layer: int, tokens: Tensor, layout: Layout, keep: int) -> Tensor:
        """The first `keep` tokens after this layer."""
        if layer:
            tokens = self.position(tokens, layout, layer)
        return self.config.memory.run(self.blocks[layer], tokens, layout, keep)  # (B, keep, D)


class LastBlocks(Model):
    """The last layers of a Vision Transformer, with its weights: tokens (B, L, D) of its image size to logits.

    It trains those layers on tokens that the layers before them have computed once.
    """

    config: Vit

    def __init__(self, model: VisionTransformer, count: int) -> None:
        super().__init__()
        self.config, self.model, self.head = model.config, model, model.head
        self.first = model.config.depth - count
        self.image_layout = model.config.layout(model.config.image_size)

    @torch.no_grad()
    def forward_tokens(self, images: Tensor) -> Tensor:
        """The tokens (B, L, D) of images, as the first of these layers is given them."""
        tokens = self.model.embed(images, self.image_layout)
        for layer in range(self.first):
            tokens = self.model.run_layer(layer, tokens, self.image_layout, self.image_layout.length())
        return tokens

    def forward_pooled(self, tokens: Tensor) -> Tensor:
        layout = self.image_layout
        return self.model.pool(self.model.encode(tokens, layout, self.model.pool.keep(layout), self.first), layout)

    def empty_batch(self) -> Tensor:
        return torch.zeros(0, self.image_layout.length(), self.config.width)  # (0, L, D)


def drop_patches(tokens: Tensor, layout: Layout, rate: float) -> tuple[Tensor, Layout]:
    """Keep a random part of each image's patches (PatchDropout, arXiv 2208.07220)."""
    kept = max(1, round(layout.grid.cells() * (1 - rate)))
    numbers = torch.rand(len(tokens), layout.grid.cells(), device=tokens.device)  # (B, N)
    return keep_patches(tokens, layout, numbers.argsort(dim=1)[:, :kept])


def keep_patches(tokens: Tensor, layout: Layout, kept: Tensor) -> tuple[Tensor, Layout]:
    """The prefix tokens and the patches of these indices (B, M), which have their positions already.

    The layout of the result is one row: what is left has no grid.
    """
    prefix, patches = tokens.split([layout.prefix(), layout.grid.cells()], dim=1)  # (B, N, D)
    left = patches.gather(1, kept.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))  # (B, M, D)
    return torch.cat([prefix, left], dim=1), layout._replace(grid=Grid(1, kept.shape[1]))


def check_patch_drop(config: Config, where: str) -> None:
    """Raise ConfigError unless a model works on any subset of its patches: their positions enter before the blocks."""
    reason = ""
    if not isinstance(config, Vit):
        reason = "the model has no tokens"
    elif not isinstance(config.mixer, Attention):
        reason = f"the {config.mixer.kind} mixer needs the whole grid"
    elif config.position.applies_to == "attention" or getattr(config.position, "where", "stem") != "stem":
        reason = f"{config.position.kind} positions are applied in every layer"
    if reason:
        hint = "set it to none, or use mixer=attention and position=learned1d or sincos2d"
        raise ConfigError(f"patches cannot be dropped: {reason}", code="config.conflict", where=where, hint=hint)


def build_blocks(config: Vit, context: BuildContext) -> Iterator[nn.Module]:
    """The blocks in order. Their position inside attention is one module if all layers share it."""
    relation = partial(config.position.build_attention, context, context.head_width)
    if config.position.shares_layers():
        shared = relation()
        relation = partial(lambda: shared)
    for layer in range(config.depth):
        mixer = partial(build_mixer, config, context, layer, relation)
        yield config.block.build(BlockParts(context, layer, mixer, partial(config.mlp.build, context)))


def build_mixer(config: Vit, context: BuildContext, layer: int, relation: Callable[[], AttentionPosition]) -> nn.Module:
    return config.mixer.build(context, layer, relation())

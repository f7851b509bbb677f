"""The inference graph: normalization and model as one module, from uint8 pixels to logits or features.

B images, H x W pixels, C channels, N patches, L tokens, D width, K outputs.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.inference.engines.engine import OutputKind
from vitral.inference.graph.layers import (
    Block,
    ConstantsModule,
    LayerNormStem,
    LinearStem,
    ModelBlock,
    NormalizePixels,
    fold_standardization,
)
from vitral.inference.graph.token_merging import MergedTokens, Merging, NoMerging
from vitral.models.base import Layout, Model
from vitral.models.block import PostNormBlock, PreNormBlock
from vitral.models.embed import PatchStem
from vitral.models.head import NoHead, Projection
from vitral.models.position import AdditivePosition, Position
from vitral.models.resnet import ResidualNetwork, Resnet
from vitral.models.vit import VisionTransformer, Vit
from vitral.weights.load import LoadedModel

NO_MERGING = NoMerging()


class Graph(nn.Module):
    """Pixels uint8 (B, H, W, C) of one size to logits or pooled features (B, K) float32."""

    def __init__(self, body: nn.Module, head: nn.Module, image_size: Size, channels: int, outputs: int) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.image_size, self.channels, self.outputs = image_size, channels, outputs
        self.requires_grad_(False).eval()

    @property
    def answer(self) -> OutputKind:
        """What comes out."""
        return "features" if isinstance(self.head, nn.Identity | Projection) else "logits"

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels))  # (B, K)

    def copy_sharing_weights(self) -> "Graph":
        """A copy with modules of its own around the same weights."""
        return deepcopy(self, {id(each): each for each in (*self.parameters(), *self.buffers())})


def build_graph(loaded: LoadedModel, answer: OutputKind = "logits", merging: Merging = NO_MERGING) -> Graph:
    """The graph of a model for images of its preprocessing's size. Weights are copied."""
    return build_graph_sharing_weights(LoadedModel(deepcopy(loaded.model), loaded.bundle), answer, merging)


def build_graph_sharing_weights(
    loaded: LoadedModel, answer: OutputKind = "logits", merging: Merging = NO_MERGING
) -> Graph:
    """The same, built faster: weights that nothing is folded into are the model's own, and must not change later."""
    config, needs = loaded.bundle.model, loaded.bundle.preprocessing
    if answer == "logits" and isinstance(config.head, NoHead):
        message = "the model has no head, so it has no logits"
        raise ConfigError(message, code="config.unsupported", where="model.head", hint="use its features")
    merging.check(config)
    weights = {id(each): nn.Parameter(each.detach().float(), requires_grad=False) for each in loaded.model.parameters()}
    with torch.no_grad():
        model: Model = deepcopy(loaded.model, weights).eval()  # modules of its own around the same weights
        fold_standardization(model)
        body: nn.Module
        if isinstance(model, ResidualNetwork):
            body = PooledResnet(NormalizePixels(needs.normalize, config.channels), model.body)
        else:
            assert isinstance(model, VisionTransformer)
            body = Encoder(model, needs.normalize, needs.image_size, merging)
    if answer == "features" or isinstance(config.head, NoHead):
        head = model.head if isinstance(config.head, NoHead) else nn.Identity()
        return Graph(body, head, needs.image_size, config.channels, feature_width(config))
    return Graph(body, model.head, needs.image_size, config.channels, config.head.num_classes)


def feature_width(config: Vit | Resnet) -> int:
    """The width of the features: the pooled ones, or their projection."""
    pooled = config.out_channels() if isinstance(config, Resnet) else config.pool.out_width(config.width)
    return config.head.out_width(pooled) if isinstance(config.head, NoHead) else pooled


class PooledResnet(nn.Module):
    """A ResNet up to its global average pooling."""

    def __init__(self, normalize: NormalizePixels, body: nn.Module) -> None:
        super().__init__()
        self.normalize, self.body = normalize, body

    def forward(self, pixels: Tensor) -> Tensor:
        return self.body(self.normalize(pixels)).mean(dim=(2, 3))  # (B, D)


class NormalizedStem(nn.Module):
    """Normalization, then the model's own stem."""

    def __init__(self, stem: nn.Module, normalize: Normalize, channels: int, width: int) -> None:
        super().__init__()
        self.normalize, self.stem = NormalizePixels(normalize, channels), stem
        self.bias = torch.zeros(width)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.stem(self.normalize(pixels))  # (B, N, D)


class Encoder(ConstantsModule):
    """A Vision Transformer up to its pooling. All that is added before the first block is one table."""

    table: Tensor  # (L, D): prefix tokens, position embeddings and the bias of the stem

    def __init__(self, model: VisionTransformer, normalize: Normalize, image_size: Size, merging: Merging) -> None:
        super().__init__()
        config, stem = model.config, model.stem
        self.layout, self.merging = config.layout(image_size), merging
        self.stem: LinearStem | LayerNormStem | NormalizedStem  # its bias is added with the position embeddings
        if isinstance(stem, PatchStem) and stem.config.covered(image_size) == image_size and foldable(stem):
            kind = LayerNormStem if isinstance(stem.before, nn.LayerNorm) else LinearStem
            self.stem = kind(stem, normalize, image_size, config.channels)
        else:
            self.stem = NormalizedStem(stem, normalize, config.channels, config.width)
        bias = self.stem.bias.expand(self.layout.grid.cells(), -1)  # (N, D)
        first = model.prefix(bias[None])[0]  # (L, D)
        self.add_constant("table", first + position_table(model.position, self.layout, config.width, 0))
        self.first_norm, self.norm, self.pool = model.first_norm, model.norm, model.pool
        self.blocks = nn.ModuleList(build_blocks(model, self.layout, merging))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.stem(pixels)  # (B, N, D)
        tokens = F.pad(patches, (0, 0, self.layout.prefix(), 0)) + self.table  # (B, L, D)
        tokens, sizes = self.first_norm(tokens), None
        for block in self.blocks:
            tokens, sizes = block(tokens, sizes)
        tokens = self.norm(tokens)  # (B, keep, D)
        if sizes is None:
            return self.pool(tokens, self.layout)  # (B, D)
        return self.merging.pool(self.pool, MergedTokens(tokens, sizes), self.layout)  # (B, D)


def foldable(stem: PatchStem) -> bool:
    """Whether normalization can be folded into a stem, or its norms are the kind that the graph knows."""
    norms = isinstance(stem.before, nn.LayerNorm), isinstance(stem.after, nn.LayerNorm)
    plain = isinstance(stem.before, nn.Identity) and isinstance(stem.after, nn.Identity)
    return plain or all(norms)


def position_table(position: Position, layout: Layout, width: int, layer: int) -> Tensor:
    """The position embeddings that are added before a block (L, D)."""
    return position(torch.zeros(1, layout.length(), width), layout, layer)[0]


def build_blocks(model: VisionTransformer, layout: Layout, merging: Merging) -> list[nn.Module]:
    """The blocks, with position embeddings where they are added in every block."""
    depth, position = len(model.blocks), model.position
    removed = merging.removed_per_layer(layout, depth)
    blocks: list[nn.Module] = []
    for layer, block in enumerate(model.blocks):
        keep = model.pool.keep(layout) if layer == depth - 1 else layout.length()
        if isinstance(block, PreNormBlock | PostNormBlock):
            blocks.append(Block(block, layout, keep, merging, removed[layer] if keep == layout.length() else 0))
        else:
            blocks.append(ModelBlock(block, layout, keep))
        if layer and isinstance(position, AdditivePosition) and position.where != "stem":
            blocks[-1] = PositionedBlock(position_table(position, layout, model.config.width, layer), blocks[-1])
    return blocks


class PositionedBlock(ConstantsModule):
    """A block with position embeddings added before it."""

    rows: Tensor  # (L, D)

    def __init__(self, rows: Tensor, block: nn.Module) -> None:
        super().__init__()
        self.block = block
        self.add_constant("rows", rows)

    def forward(self, x: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.block(x + self.rows, sizes)

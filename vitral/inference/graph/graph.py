"""The graph: a model and its scaling as one module from bytes to answers, shaped for inference.

B images, H x W pixels, C channels, N patches, L tokens, D width, K numbers.
"""

from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.core.config import Size
from vitral.core.errors import ConfigError
from vitral.data.transforms.preprocessing import Normalize
from vitral.inference.engines.engine import OutputKind
from vitral.inference.graph.layers import Block, Held, LinearStem, NormedStem, Scaled, fix_convolutions
from vitral.inference.graph.token_merging import Merged, Merging, NoMerging
from vitral.models.base import Layout, Model
from vitral.models.block import EncoderBlock
from vitral.models.embed import PatchStem
from vitral.models.head import NoHead
from vitral.models.position import AdditivePosition, Position
from vitral.models.resnet import ResidualNetwork, Resnet
from vitral.models.vit import VisionTransformer, Vit
from vitral.weights.load import Loaded

EVERY_TOKEN = NoMerging()


class Graph(nn.Module):
    """Pixels uint8 (B, H, W, C) of one size to logits, or to the vectors behind them, (B, K) float32."""

    def __init__(self, body: nn.Module, head: nn.Module, image: Size, channels: int, outputs: int) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.image, self.channels, self.outputs = image, channels, outputs
        self.requires_grad_(False).eval()

    @property
    def answer(self) -> OutputKind:
        """What comes out."""
        return "features" if isinstance(self.head, nn.Identity) else "logits"

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.body(pixels))  # (B, K)

    def again(self) -> "Graph":
        """The graph once more, in parts of its own around the same weights."""
        return deepcopy(self, {id(each): each for each in (*self.parameters(), *self.buffers())})


def graph_of(loaded: Loaded, answer: OutputKind = "logits", merging: Merging = EVERY_TOKEN) -> Graph:
    """The graph of a model, for images of the size that its preprocessing makes; its weights are copies."""
    return graph_around(Loaded(deepcopy(loaded.model), loaded.bundle), answer, merging)


def graph_around(loaded: Loaded, answer: OutputKind = "logits", merging: Merging = EVERY_TOKEN) -> Graph:
    """The same, ready sooner: weights that nothing is worked into are the model's own, and must not change any more."""
    config, needs = loaded.bundle.model, loaded.bundle.preprocessing
    if answer == "logits" and isinstance(config.head, NoHead):
        message = "this model has no head, and gives no logits"
        raise ConfigError(message, code="config.unsupported", where="model.head", hint="ask for its features")
    merging.check(config)
    with torch.no_grad():
        model = shared(loaded.model).eval()
        body = body_of(model, needs.normalize, needs.image_size, merging)
    if answer == "features" or isinstance(config.head, NoHead):
        return Graph(body, nn.Identity(), needs.image_size, config.channels, width_of(config))
    return Graph(body, model.head, needs.image_size, config.channels, config.head.num_classes)


def shared(model: Model) -> Model:
    """The model once more, in parts of its own around the same weights, in float32."""
    weights = {id(each): nn.Parameter(each.detach().float(), requires_grad=False) for each in model.parameters()}
    return deepcopy(model, weights)


def width_of(config: Vit | Resnet) -> int:
    """How many numbers the vector behind the logits has."""
    return config.outputs() if isinstance(config, Resnet) else config.pool.outputs(config.width)


def body_of(model: Model, scaling: Normalize, image: Size, merging: Merging) -> nn.Module:
    """From bytes to one vector an image."""
    fix_convolutions(model)
    if isinstance(model, ResidualNetwork):
        return Places(Scaled(scaling, model.config.channels), model.body)
    assert isinstance(model, VisionTransformer)
    return Encoder(model, scaling, image, merging)


class Places(nn.Module):
    """The mean over the last map of a residual network."""

    def __init__(self, scaled: Scaled, body: nn.Module) -> None:
        super().__init__()
        self.scaled, self.body = scaled, body

    def forward(self, pixels: Tensor) -> Tensor:
        return self.body(self.scaled(pixels)).mean(dim=(2, 3))  # (B, D)


class ScaledStem(nn.Module):
    """A stem of the model as it is, behind its scaling."""

    def __init__(self, stem: nn.Module, scaling: Normalize, channels: int, width: int) -> None:
        super().__init__()
        self.scaled, self.stem = Scaled(scaling, channels), stem
        self.bias = torch.zeros(width)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.stem(self.scaled(pixels))  # (B, N, D)


def stem_of(model: VisionTransformer, scaling: Normalize, image: Size) -> LinearStem | NormedStem | ScaledStem:
    """The leanest form of a stem that gives the same; its `bias` is left to be added with the positions."""
    stem, channels = model.stem, model.config.channels
    if not isinstance(stem, PatchStem):
        return ScaledStem(stem, scaling, channels, model.config.width)
    kind = NormedStem if isinstance(stem.before, nn.LayerNorm) else LinearStem
    return kind(stem, scaling, image, channels)


class Encoder(Held):
    """A Vision Transformer up to its pool. All that is added before the first layer is in one table."""

    table: Tensor  # (L, D), the tokens that are no patches, the positions, and the bias of the stem

    def __init__(self, model: VisionTransformer, scaling: Normalize, image: Size, merging: Merging) -> None:
        super().__init__()
        config = model.config
        self.layout, self.merging = config.layout(image), merging
        self.stem = stem_of(model, scaling, image)
        bias = self.stem.bias.expand(self.layout.grid.cells(), -1)  # (N, D)
        first = model.prefix(bias[None])[0]  # (L, D)
        self.hold("table", first + placed(model.position, self.layout, config.width, 0))
        self.first_norm, self.norm, self.pool = model.first_norm, model.norm, model.pool
        self.blocks = nn.ModuleList(blocks_of(model, self.layout, merging))

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.stem(pixels)  # (B, N, D)
        tokens = F.pad(patches, (0, 0, self.layout.prefix(), 0)) + self.table  # (B, L, D)
        tokens, sizes = self.first_norm(tokens), None
        for block in self.blocks:
            tokens, sizes = block(tokens, sizes)
        tokens = self.norm(tokens)  # (B, keep, D)
        if sizes is None:
            return self.pool(tokens, self.layout)  # (B, D)
        return self.merging.pooled(self.pool, Merged(tokens, sizes), self.layout)  # (B, D)


def placed(position: Position, layout: Layout, width: int, layer: int) -> Tensor:
    """What the positions add to the tokens of a layer (L, D)."""
    return position(torch.zeros(1, layout.length(), width), layout, layer)[0]


def blocks_of(model: VisionTransformer, layout: Layout, merging: Merging) -> list[nn.Module]:
    """The layers, each behind the positions that are added there."""
    depth, position = len(model.blocks), model.position
    removed = merging.removed(layout, depth)
    found: list[nn.Module] = []
    for layer, block in enumerate(model.blocks):
        assert isinstance(block, EncoderBlock)
        keep = model.pool.keep(layout) if layer == depth - 1 else layout.length()
        own = Block(block, layout, keep, merging, removed[layer] if keep == layout.length() else 0)
        again = layer and isinstance(position, AdditivePosition) and position.where != "stem"
        found.append(PlacedBlock(placed(position, layout, model.config.width, layer), own) if again else own)
    return found


class PlacedBlock(Held):
    """A layer that is told places anew."""

    rows: Tensor  # (L, D)

    def __init__(self, rows: Tensor, block: Block) -> None:
        super().__init__()
        self.block = block
        self.hold("rows", rows)

    def forward(self, x: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.block(x + self.rows, sizes)

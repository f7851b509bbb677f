"""Token mixers: multi-head self-attention, global or in windows, and its replacements (MetaFormer, arXiv 2111.11418).

B images, L tokens (prefix + N patches), D width, H heads, d head width, G windows of n patches.
A window is a row, a column or a rectangle of patches of the R x S grid. A mixer returns the first `keep` tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.base import BuildContext, Grid, Layout, check_heads
from vitral.models.init import BaseInit, InitModule
from vitral.models.position import AttentionPosition


def split_windows(x: Tensor, grid: Grid, window: Grid) -> Tensor:
    """Group patches (B, H, N, d) by window."""
    tiles = x.unflatten(2, (grid.rows // window.rows, window.rows, grid.columns // window.columns, window.columns))
    return tiles.permute(0, 2, 4, 1, 3, 5, 6).flatten(4, 5).flatten(0, 2)  # (B G, H, n, d)


def join_windows(x: Tensor, grid: Grid, window: Grid) -> Tensor:
    """Patches of windows back in row-major order."""
    down, right = grid.rows // window.rows, grid.columns // window.columns
    tiles = x.unflatten(2, window).unflatten(0, (-1, down, right))  # (B, R/r, S/s, H, r, s, d)
    return tiles.permute(0, 3, 1, 4, 2, 5, 6).flatten(2, 5)  # (B, H, N, d)


def window_mask(grid: Grid, window: Grid) -> Tensor:
    """Whether two patches share a window."""
    index = torch.arange(grid.cells())
    row, column = index // grid.columns // window.rows, index % grid.columns // window.columns  # each (N)
    return (row[:, None] == row) & (column[:, None] == column)  # (N, N)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """softmax(q k^T scale + bias), by default with a scale of 1 / sqrt(d): rows sum to one.

    The reference for every kernel.
    """
    logits = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)  # (B, H, queries, keys)
    return (logits if bias is None else logits + bias).softmax(dim=-1)


class BaseAttention(Config):
    """Multi-head self-attention; subclasses differ in the window of patches that a patch attends to."""

    heads: int = Field(default=12, ge=1, le=1_000)
    head_width: Annotated[int, Field(ge=1, le=10_000)] | Literal["width/heads"] = "width/heads"
    qkv_bias: bool = True
    qk_norm: bool = False
    qk_norm_over: Literal["head", "width"] = "head"  # width: of all heads together, as in InternVL
    scale: Annotated[float, Field(gt=0)] | Literal["1/sqrt(d)"] = "1/sqrt(d)"  # of the product of q and k
    output_norm: bool = False  # of the heads' output, before the projection, as in EVA-02's CLIP
    project: bool = True  # vit-pytorch has no output projection if a single head has the model's width
    project_bias: bool = True
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def window(self, grid: Grid, layer: int) -> Grid:
        """The window within which patches of this layer attend to each other."""
        return grid

    def head_width_for(self, width: int) -> int:
        if self.head_width != "width/heads":
            return self.head_width
        check_heads(width, self.heads, where="mixer.heads")
        return width // self.heads

    def check(self, context: BuildContext) -> None:
        """Raise ConfigError if the model cannot be built."""
        inner = self.heads * self.head_width_for(context.width)
        if not self.project and inner != context.width:
            message = f"without an output projection the heads must fill width {context.width}, but they have {inner}"
            hint = "set it to true, or mixer.head_width to width/heads"
            raise ConfigError(message, code="config.conflict", where="mixer.project", hint=hint)
        for layer in range(context.depth):
            self.checked_window(context.layout.grid, layer)

    def checked_window(self, grid: Grid, layer: int) -> Grid:
        window = self.window(grid, layer)
        for axis, side, part in zip(("rows", "columns"), grid, window, strict=True):
            if side % part:
                fitting = ", ".join(str(count) for count in range(1, side + 1) if side % count == 0)
                message = f"a {grid} grid of patches does not divide into {window} windows"
                hint = f"use one of {fitting}, or another image size"
                raise ConfigError(message, code="config.indivisible", where=f"mixer.{axis}", hint=hint)
        return window

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> "SelfAttention":
        return SelfAttention(self, context, layer, relation)


class Attention(BaseAttention):
    """Global attention, as in the paper."""

    kind: Literal["attention"] = "attention"


class Axial(BaseAttention):
    """Axial attention: rows in even layers, columns in odd layers (appendix D.6).

    A block of the appendix has row attention with an MLP, then column attention with an MLP: two layers here.
    Axial-ViT-B/16 is `B/16` with `mixer=axial` and `depth=24`.
    """

    kind: Literal["axial"] = "axial"

    def check(self, context: BuildContext) -> None:
        super().check(context)
        if context.depth % 2:
            message = f"axial layers come in pairs, rows then columns, but depth is {context.depth}"
            raise ConfigError(message, code="config.indivisible", where="depth", hint=f"use {context.depth + 1}")

    def window(self, grid: Grid, layer: int) -> Grid:
        return Grid(grid.rows, 1) if layer % 2 else Grid(1, grid.columns)


class Local(BaseAttention):
    """Attention within non-overlapping windows."""

    kind: Literal["local"] = "local"
    rows: int = Field(default=7, ge=1)
    columns: int = Field(default=7, ge=1)

    def window(self, grid: Grid, layer: int) -> Grid:
        return Grid(self.rows, self.columns)


class Causal(BaseAttention):
    """Attention of each token to itself and the tokens before it, in reading order (iGPT, Chen et al., ICML 2020).

        A_ij = softmax_j (q_i k_j / sqrt(d)) for j <= i, and 0 for j > i

    The class token and registers come first: they see no patch.
    """

    kind: Literal["causal"] = "causal"

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> "SelfAttention":
        return CausalAttention(self, context, layer, relation)


class Qkv(NamedTuple):
    """Queries, keys and values of all heads."""

    q: Tensor  # (B, H, keep, d)
    k: Tensor  # (B, H, L, d)
    v: Tensor  # (B, H, L, d)


class QkvProjection(InitModule):
    """Projects tokens to q, k and v. A forward hook on this module sees them for any attention kernel."""

    def __init__(self, config: BaseAttention, context: BuildContext, relation: AttentionPosition) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.head_width_for(context.width)
        self.qkv = nn.Linear(context.width, 3 * self.heads * self.head_width, bias=config.qkv_bias)
        self.norm_all = config.qk_norm and config.qk_norm_over == "width"
        normed = self.heads * self.head_width if self.norm_all else self.head_width
        self.q_norm = context.build_norm(normed) if config.qk_norm else nn.Identity()
        self.k_norm = context.build_norm(normed) if config.qk_norm else nn.Identity()
        self.relation = relation

    def initialize(self, init: BaseInit) -> None:
        init.attention(self.qkv, parts=3)

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Qkv:
        """Queries of the first `keep` tokens, keys and values of all."""
        if keep == layout.length() or not isinstance(self.qkv, nn.Linear):  # a packed layer has no rows to choose from
            q, k, v = self.qkv(x).chunk(3, dim=-1)  # each (B, L, H d)
            q = q[:, :keep]
        else:
            inner = self.heads * self.head_width
            weight, bias = self.qkv.weight, self.qkv.bias
            first, rest = (None, None) if bias is None else (bias[:inner], bias[inner:])
            q = F.linear(x[:, :keep], weight[:inner], first)  # (B, keep, H d)
            k, v = F.linear(x, weight[inner:], rest).chunk(2, dim=-1)  # each (B, L, H d)
        if self.norm_all:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))  # each (B, H, ., d)
        if not self.norm_all:
            q, k = self.q_norm(q), self.k_norm(k)
        return Qkv(self.relation.rotate(q, layout), self.relation.rotate(k, layout), v)


class SelfAttention(InitModule):
    """MSA of eq. 2. Class token and registers attend to all tokens; a patch attends to them and to its window."""

    output_part = "attention"

    def __init__(self, config: BaseAttention, context: BuildContext, layer: int, relation: AttentionPosition) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.heads = QkvProjection(config, context, relation)
        inner = self.heads.heads * self.heads.head_width
        self.scale = None if config.scale == "1/sqrt(d)" else config.scale
        self.output_norm = context.build_norm(inner) if config.output_norm else nn.Identity()
        self.project = nn.Linear(inner, context.width, bias=config.project_bias) if config.project else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def initialize(self, init: BaseInit) -> None:
        if isinstance(self.project, nn.Linear):
            init.attention(self.project)

    def output_weights(self) -> list[Tensor]:
        return [self.project.weight] if isinstance(self.project, nn.Linear) else []

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        """The output (B, keep, D) for the first `keep` tokens."""
        heads = self.heads(x, layout, keep)
        if keep <= layout.prefix() or (window := self.config.checked_window(layout.grid, self.layer)) == layout.grid:
            mixed = self.attend(heads, self.bias(heads.q, layout))
        else:
            mixed = self.windowed_attention(heads, layout, window)
        return self.dropout(self.project(self.output_norm(mixed.transpose(1, 2).flatten(2))))  # (B, keep, D)

    def attend(self, heads: Qkv, bias: Tensor | None = None) -> Tensor:
        dropout = self.config.attention_dropout if self.training else 0.0
        return F.scaled_dot_product_attention(
            *heads, attn_mask=bias, dropout_p=dropout, scale=self.scale
        )  # (B, H, keep, d)

    def bias(self, q: Tensor, layout: Layout) -> Tensor | None:
        """The relative position bias of the first tokens as queries, if any."""
        return self.heads.relation.token_bias(q, layout)  # (..., queries, L)

    def windowed_attention(self, heads: Qkv, layout: Layout, window: Grid) -> Tensor:
        prefix, grid = layout.prefix(), layout.grid
        first = self.attend(Qkv(heads.q[:, :, :prefix], heads.k, heads.v))  # (B, H, prefix, d)
        q, k, v = (split_windows(x[:, :, prefix:], grid, window) for x in heads)  # each (B G, H, n, d)
        count = grid.cells() // window.cells()
        shared = (x[:, :, :prefix].repeat_interleave(count, dim=0) for x in heads[1:])  # each (B G, H, prefix, d)
        k, v = (torch.cat(pair, dim=2) for pair in zip(shared, (k, v), strict=True))  # each (B G, H, prefix + n, d)
        bias = self.heads.relation.bias(q, grid, window)  # (B G, H, n, n)
        padded = None if bias is None else F.pad(bias, (prefix, 0))
        patches = join_windows(self.attend(Qkv(q, k, v), padded), grid, window)  # (B, H, N, d)
        return torch.cat([first, patches], dim=2)  # (B, H, L, d)

    def attention_weights(self, heads: Qkv, layout: Layout) -> Tensor:
        """The attention weights of this layer (B, H, keep, L), computed from recorded q and k."""
        bias, queries = self.bias(heads.q, layout), heads.q.shape[-2]  # in the last layer possibly the class token only
        mask = self.visible(layout)[:queries]
        blocked = torch.zeros(mask.shape, dtype=heads.q.dtype).masked_fill(~mask, float("-inf")).to(heads.q.device)
        return attention_weights(heads.q, heads.k, blocked if bias is None else blocked + bias, self.scale)

    def visible(self, layout: Layout) -> Tensor:
        """Whether each token attends to each other (L, L)."""
        prefix, window = layout.prefix(), self.config.checked_window(layout.grid, self.layer)
        return F.pad(window_mask(layout.grid, window), (prefix, 0, prefix, 0), value=True)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Whether each of the last tokens of a sequence, as query, sees each token as key (queries, keys)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class CausalAttention(SelfAttention):
    """Each token attends to itself and those before it. Inside of `cached_keys` it takes a sequence piece by piece."""

    def __init__(self, config: BaseAttention, context: BuildContext, layer: int, relation: AttentionPosition) -> None:
        super().__init__(config, context, layer, relation)
        self.cache: list[tuple[Tensor, Tensor]] | None = None  # keys and values (B, H, ., d) of the pieces so far

    def attend(self, heads: Qkv, bias: Tensor | None = None) -> Tensor:
        (q, k, v), dropout = heads, self.config.attention_dropout if self.training else 0.0
        if self.cache is not None:
            assert bias is None, "places inside of attention are those of the whole sequence"
            self.cache.append((k, v))
            k, v = (torch.cat(parts, dim=2) for parts in zip(*self.cache, strict=True))
            self.cache[:] = [(k, v)]
            mask = causal_mask(q.shape[2], k.shape[2], q.device)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        if bias is None:  # the first queries of a sequence, which torch counts from the upper left
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=self.scale)
        hidden = ~causal_mask(k.shape[2], k.shape[2], q.device)[: q.shape[2]]
        blocked = bias.masked_fill(hidden, float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=blocked, dropout_p=dropout, scale=self.scale)

    def visible(self, layout: Layout) -> Tensor:
        return causal_mask(layout.length(), layout.length(), self.heads.qkv.weight.device)


@contextmanager
def cached_keys(model: nn.Module) -> Iterator[None]:
    """Inside the `with`, each call of causal attention is given the next tokens of one sequence."""
    layers = [part for part in model.modules() if isinstance(part, CausalAttention)]
    for layer in layers:
        layer.cache = []
    try:
        yield
    finally:
        for layer in layers:
            layer.cache = None


class BaseMixer(Config):
    """A mixer without attention."""

    mixes_prefix: ClassVar[bool] = False

    def check(self, context: BuildContext) -> None:
        """Raise ConfigError if the model cannot be built."""
        if context.layout.prefix() and not self.mixes_prefix:
            message = f"the {type(self).__name__.lower()} mixer does not mix the class token or registers"
            hint = "set tokens.cls=false, tokens.registers=0 and pool=mean, or use mixer=attention"
            raise ConfigError(message, code="config.conflict", where="mixer", hint=hint)


class Pooling(BaseMixer):
    """The mean of each patch's 3 x 3 neighborhood minus the patch (PoolFormer)."""

    kind: Literal["pooling"] = "pooling"

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> nn.Module:
        return PoolingMixer()


class PoolingMixer(nn.Module):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        image = x.mT.unflatten(2, layout.grid)  # (B, D, R, S)
        mean = F.avg_pool2d(image, 3, stride=1, padding=1, count_include_pad=False)
        return mean.flatten(2).mT - x  # (B, N, D)


class Identity(BaseMixer):
    """No mixing: an MLP on each patch alone."""

    kind: Literal["identity"] = "identity"

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> nn.Module:
        return IdentityMixer()


class IdentityMixer(nn.Module):
    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        return x[:, :keep]


class TokenMlp(BaseMixer):
    """An MLP across tokens, shared by all channels (MLP-Mixer, arXiv 2105.01601). The grid is fixed."""

    kind: Literal["token_mlp"] = "token_mlp"
    hidden: int = Field(default=256, ge=1, le=100_000)
    mixes_prefix: ClassVar[bool] = True

    def build(self, context: BuildContext, layer: int, relation: AttentionPosition) -> nn.Module:
        return TokenMlpMixer(context.layout, self.hidden)


class TokenMlpMixer(InitModule):
    def __init__(self, layout: Layout, hidden: int) -> None:
        super().__init__()
        self.grid: Grid = layout.grid
        self.expand = nn.Linear(layout.length(), hidden)
        self.contract = nn.Linear(hidden, layout.length())

    def initialize(self, init: BaseInit) -> None:
        init.mlp(self.expand)
        init.mlp(self.contract)

    def forward(self, x: Tensor, layout: Layout, keep: int) -> Tensor:
        if layout.grid != self.grid:
            message = f"the token_mlp mixer was built for a {self.grid} grid of patches, got {layout.grid}"
            hint = "use images of that size, or mixer=attention"
            raise ConfigError(message, code="config.size_mismatch", where="image_size", hint=hint)
        hidden = F.gelu(self.expand(x.mT), approximate="tanh")  # (B, D, hidden)
        return self.contract(hidden).mT[:, :keep]  # (B, keep, D)


MixerConfig = Annotated[Attention | Causal | Axial | Local | Pooling | Identity | TokenMlp, OpenUnion()]

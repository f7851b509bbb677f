"""Tokens before the patches, and learned positions, which libraries keep in different ways.  N patches, D width."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitral.model.position import Learned1d
from vitral.model.vit import Vit
from vitral.weights.formats.rule import Rule, same

TABLE, TOKENS = "position.table", "prefix.tokens"


def place_rules(model: Vit, tokens: Sequence[str], table: str) -> list[Rule]:
    """The rules for tokens of the shape (1, count, D), by their names, and for a table (1, rows, D).

    Where the class token has a row of its own, so has each register in the libraries. Such a row is always added to
    the same token, so ours hold the sum of both; it is written as the token beside a row of zeros.
    """
    layout = model.layout(model.image)
    counts = [count for count in (layout.cls, layout.registers) if count]
    assert len(counts) == len(tokens)
    learned, rows = isinstance(model.position, Learned1d), isinstance(model.position, Learned1d) and model.position.cls
    if not counts:
        return [same(TABLE, table)] if learned else []
    if not learned or not (rows and layout.registers):
        apart = Rule((TOKENS,), tuple(tokens), joined, lambda own: lifted_parts(own[0], counts))
        return [apart, same(TABLE, table)] if learned else [apart]
    cls, registers = layout.cls, layout.registers

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        first, others, rest = found[-1].split([cls, registers, found[-1].shape[1] - cls - registers], dim=1)
        named = [*found[: len(counts) - 1], found[len(counts) - 1] + others]
        return [*joined(named), torch.cat([first, rest], dim=1)]

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        none = own[1].new_zeros(1, registers, own[1].shape[2])
        rows = torch.cat([own[1][:, :cls], none, own[1][:, cls:]], dim=1)  # (1, cls + registers + N, D)
        return [*lifted_parts(own[0], counts), rows]

    return [Rule((TOKENS, TABLE), (*tokens, table), read, write)]


def joined(found: Sequence[Tensor]) -> list[Tensor]:
    """Tokens (1, count, D) as one tensor of ours (prefix, D)."""
    return [torch.cat([each.flatten(0, 1) for each in found])]


def lifted_parts(tokens: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Our tokens (prefix, D) as theirs, (1, count, D) each."""
    return [part[None] for part in tokens.split(list(counts))]


def halved_heads(ours: str, theirs: Sequence[str]) -> list[Rule]:
    """DeiT's two heads, whose answers have a mean, as one head on both tokens side by side."""
    weight = Rule(
        (f"{ours}.weight",),
        tuple(f"{head}.weight" for head in theirs),
        lambda found: [torch.cat(list(found), dim=1) / 2],
        lambda own: [2 * part for part in own[0].chunk(2, dim=1)],
    )
    bias = Rule(
        (f"{ours}.bias",),
        tuple(f"{head}.bias" for head in theirs),
        lambda found: [(found[0] + found[1]) / 2],
        lambda own: [own[0], own[0]],
    )
    return [weight, bias]

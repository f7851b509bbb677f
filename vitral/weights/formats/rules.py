"""Rules: which tensors of ours hold the numbers of which tensors of another library, in both directions.

Also the rules that libraries share: prefix tokens, learned positions, the ResNet of a hybrid.  N patches, D width.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.models.base import Mismatch, raise_mismatches
from vitral.models.embed import kernel_to_linear, linear_to_kernel
from vitral.models.position import Learned1d
from vitral.models.resnet import BaseResnet
from vitral.models.vit import Vit

Change = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """Some tensors of ours, the tensors of theirs that hold the same numbers, and the way from each to the other."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Change  # theirs to ours
    write: Change  # ours to theirs


def same(ours: str, theirs: str) -> Rule:
    """A tensor that differs in its name alone."""
    return Rule((ours,), (theirs,), lambda found: found, lambda own: own)


def mapped(ours: str, theirs: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    """A tensor that is laid out otherwise."""
    return Rule((ours,), (theirs,), lambda found: [read(found[0])], lambda own: [write(own[0])])


def affine(ours: str, theirs: str, bias: bool = True) -> list[Rule]:
    """The weight and the bias of a linear map or a norm."""
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in ("weight", "bias")[: 1 + bias]]


def concatenated(ours: str, theirs: Sequence[str]) -> Rule:
    """Maps that stand apart in their files and above one another in ours."""
    return Rule((ours,), tuple(theirs), lambda found: [torch.cat(list(found))], lambda own: own[0].chunk(len(theirs)))


def split(ours: Sequence[str], theirs: str, sizes: Sequence[int]) -> Rule:
    """Rows that stand above one another in their files and apart in ours."""
    return Rule(tuple(ours), (theirs,), lambda found: found[0].split(list(sizes)), lambda own: [torch.cat(list(own))])


def patch_kernel(ours: str, theirs: str, patch: Size) -> Rule:
    """A strided convolution in their files, a map of flattened patches in ours."""
    return mapped(ours, theirs, kernel_to_linear, lambda weight: linear_to_kernel(weight, patch))


def constant(ours: str, shape: Sequence[int], value: float, message: str) -> Rule:
    """A tensor that their files have no place for, since it is always the same there."""

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        if not own[0].is_meta and not bool((own[0] == value).all()):
            fault = f"{message}, which is not {value:g} in this model, has no counterpart"
            raise WeightsError(fault, code="weights.no_counterpart", where=ours)
        return []

    return Rule((ours,), (), lambda found: [torch.full(tuple(shape), value)], write)


def expected_shapes(rules: Iterable[Rule], own: Weights) -> dict[str, torch.Size]:
    """The names and shapes of theirs, for a model of ours with these tensors, which may be a skeleton's."""
    return {name: tensor.shape for name, tensor in _written(rules, own)}


def export_tensors(rules: Iterable[Rule], own: Weights) -> dict[str, Tensor]:
    """Our tensors as theirs."""
    return {name: tensor.contiguous() for name, tensor in _written(rules, own)}


def import_tensors(rules: Sequence[Rule], own: Weights, found: Weights, where: str, hint: str) -> dict[str, Tensor]:
    """Their tensors as ours; what is missing, not expected or of another shape is refused, by their names."""
    expected = expected_shapes(rules, own)
    faults = [Mismatch(f"{name} is missing", "weights.missing_tensor") for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    faults += [Mismatch(f"{name} is not expected", "weights.unexpected_tensor") for name in unknown]
    for name, shape in expected.items():
        if name not in found:
            continue
        if not found[name].is_floating_point():
            message = f"{name} holds {found[name].dtype}, expected floating point"
            faults.append(Mismatch(message, "weights.wrong_type"))
        elif found[name].shape != shape:
            message = f"{name} has shape {tuple(found[name].shape)}, expected {tuple(shape)}"
            faults.append(Mismatch(message, "weights.shape_mismatch"))
    raise_mismatches(faults, where, hint)
    return {
        name: tensor
        for rule in rules
        for name, tensor in zip(rule.ours, rule.read([found[each] for each in rule.theirs]), strict=True)
    }


def _written(rules: Iterable[Rule], own: Weights) -> Iterator[tuple[str, Tensor]]:
    for rule in rules:
        yield from zip(rule.theirs, rule.write([own[name] for name in rule.ours]), strict=True)


TABLE, TOKENS = "position.table", "prefix.tokens"


def position_rules(model: Vit, tokens: Sequence[str], table: str) -> list[Rule]:
    """The rules for tokens of the shape (1, count, D), by their names, and for a table (1, rows, D).

    Where the class token has a row of its own, so has each register in the libraries. Such a row is always added to
    the same token, so ours hold the sum of both; it is written as the token beside a row of zeros.
    """
    layout = model.layout(model.image_size)
    counts = [count for count in (layout.cls, layout.registers) if count]
    assert len(counts) == len(tokens)
    learned, rows = isinstance(model.position, Learned1d), isinstance(model.position, Learned1d) and model.position.cls
    if not counts:
        return [same(TABLE, table)] if learned else []
    if not learned or not (rows and layout.registers):
        apart = Rule((TOKENS,), tuple(tokens), concat_tokens, lambda own: split_tokens(own[0], counts))
        return [apart, same(TABLE, table)] if learned else [apart]
    cls, registers = layout.cls, layout.registers

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        first, others, rest = found[-1].split([cls, registers, found[-1].shape[1] - cls - registers], dim=1)
        named = [*found[: len(counts) - 1], found[len(counts) - 1] + others]
        return [*concat_tokens(named), torch.cat([first, rest], dim=1)]

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        none = own[1].new_zeros(1, registers, own[1].shape[2])
        rows = torch.cat([own[1][:, :cls], none, own[1][:, cls:]], dim=1)  # (1, cls + registers + N, D)
        return [*split_tokens(own[0], counts), rows]

    return [Rule((TOKENS, TABLE), (*tokens, table), read, write)]


def concat_tokens(found: Sequence[Tensor]) -> list[Tensor]:
    """Tokens (1, count, D) as one tensor of ours (prefix, D)."""
    return [torch.cat([each.flatten(0, 1) for each in found])]


def split_tokens(tokens: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Our tokens (prefix, D) as theirs, (1, count, D) each."""
    return [part[None] for part in tokens.split(list(counts))]


def averaged_heads(ours: str, theirs: Sequence[str]) -> list[Rule]:
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


class UnitNames(NamedTuple):
    """What a library calls the parts of a bottleneck, and the convolution and the norm in each."""

    reduce: tuple[str, str]
    look: tuple[str, str]
    expand: tuple[str, str]
    shortcut: tuple[str, str]


class UnitPart(NamedTuple):
    """A convolution and its norm: where they stand, counted from 0, and what they are called in a library."""

    stage: int
    unit: int
    ours: str
    conv: str
    norm: str


def unit_parts(body: BaseResnet, ours: str, names: UnitNames) -> Iterator[UnitPart]:
    """Every part of every unit; only the first of a stage, which changes the number of channels, has a shortcut."""
    for stage, units in enumerate(body.layers):
        for unit in range(units):
            for part, (conv, norm) in names._asdict().items():
                if part != "shortcut" or unit == 0:
                    yield UnitPart(stage, unit, f"{ours}.stages.{stage}.{unit}.{part}", conv, norm)


def count_units(names: Iterable[str], pattern: re.Pattern[str], first: int) -> tuple[int, ...]:
    """How many units each stage has, by names with both numbers, counted from `first`; 1 for a stage unheard of."""
    units: dict[int, int] = {}
    for match in filter(None, map(pattern.match, names)):
        stage, unit = int(match[1]) - first, int(match[2]) - first
        units[stage] = max(units.get(stage, 1), unit + 1)
    return tuple(units.get(stage, 1) for stage in range(max(units, default=-1) + 1))


TIMM_UNIT = UnitNames(
    ("conv1", "norm1"), ("conv2", "norm2"), ("conv3", "norm3"), ("downsample.conv", "downsample.norm")
)


def resnet_rules(body: BaseResnet, ours: str, theirs: str) -> list[Rule]:
    """The rules of a body in timm's names: `stem.conv`, `stages.0.blocks.1.conv2`."""
    rules = conv_norm(f"{ours}.root", f"{theirs}.stem.conv", f"{theirs}.stem.norm")
    for part in unit_parts(body, ours, TIMM_UNIT):
        other = f"{theirs}.stages.{part.stage}.blocks.{part.unit}"
        rules += conv_norm(part.ours, f"{other}.{part.conv}", f"{other}.{part.norm}")
    return rules


def conv_norm(ours: str, conv: str, norm: str) -> list[Rule]:
    return [same(f"{ours}.0.weight", f"{conv}.weight"), *affine(f"{ours}.1", norm)]


def resnet_layers(names: Iterable[str], theirs: str) -> tuple[int, ...]:
    """How many units each stage has, by timm's names of the tensors."""
    return count_units(names, re.compile(re.escape(theirs) + r"\.stages\.(\d{1,3})\.blocks\.(\d{1,3})\."), 0)

"""Rules: which tensors of ours hold the values of which tensors of another library, in both directions.

A format names its tensors in one table, ours to theirs, which `named_rules` expands for a model. The functions below it
are the exceptions that several libraries share: prefix tokens, learned positions, DeiT's two heads.  D width.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.models.base import find_mismatches, raise_mismatches
from vitral.models.embed import kernel_to_linear, linear_to_kernel
from vitral.models.position import learned_table
from vitral.models.vit import Vit

Change = Callable[[Sequence[Tensor]], Sequence[Tensor]]
Weights = Mapping[str, Tensor]
# Names of our tensors or modules, and theirs. `*` is the number of a layer, stage or unit; in their names, `+` is that
# number counted from 1. Several names of theirs are concatenated in ours.
Names = Mapping[str, str | tuple[str, ...]]
REPEATED = re.compile(r"blocks\.(\d+)|stages\.(\d+)\.(\d+)")
NUMBER = re.compile(r"(?<![^./_])\d+(?![^./_])")
TABLE, TOKENS, STEM = "position.table", "prefix.tokens", "stem.project"


@dataclass(frozen=True)
class Rule:
    """Some tensors of ours, the tensors of theirs that hold the same values, and how to compute each from the other."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Change  # theirs to ours
    write: Change  # ours to theirs


def same(ours: str, theirs: str) -> Rule:
    """A tensor that only has another name."""
    return Rule((ours,), (theirs,), lambda found: found, lambda own: own)


def mapped(ours: str, theirs: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    """A tensor with another memory layout."""
    return Rule((ours,), (theirs,), lambda found: [read(found[0])], lambda own: [write(own[0])])


def unsqueezed(ours: str, theirs: str) -> Rule:
    """A tensor that has an additional first dimension, of one, in ours."""
    return mapped(ours, theirs, lambda found: found[None], lambda own: own[0])


def concatenated(ours: str, theirs: Sequence[str]) -> Rule:
    """Tensors that are separate in theirs and concatenated in ours."""
    return Rule((ours,), tuple(theirs), lambda found: [torch.cat(list(found))], lambda own: own[0].chunk(len(theirs)))


def split(ours: Sequence[str], theirs: str, sizes: Sequence[int]) -> Rule:
    """Tensors that are concatenated in theirs and separate in ours."""
    return Rule(tuple(ours), (theirs,), lambda found: found[0].split(list(sizes)), lambda own: [concat(own)])


def concat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """`torch.cat`, for what is written: for shapes alone, on the meta device, torch would import its compiler (2 s)."""
    first = tensors[0]
    if not first.is_meta:
        return torch.cat(list(tensors), dim)
    sizes = [
        sum(each.shape[dim] for each in tensors) if place == dim else size for place, size in enumerate(first.shape)
    ]
    return first.new_empty(sizes)


def patch_kernel(ours: str, theirs: str, patch: Size) -> Rule:
    """A strided convolution in theirs, a linear map of flattened patches in ours."""
    return mapped(ours, theirs, kernel_to_linear, lambda weight: linear_to_kernel(weight, patch))


def constant(ours: str, shape: Sequence[int], value: float, message: str) -> Rule:
    """A tensor that theirs do not have, because it is constant there."""

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        if not own[0].is_meta and not bool((own[0] == value).all()):
            fault = f"{message}, which is not {value:g} in this model, has no counterpart"
            raise WeightsError(fault, code="weights.no_counterpart", where=ours)
        return []

    return Rule((ours,), (), lambda found: [torch.full(tuple(shape), value)], write)


def layer_names(layer: str, parts: Names) -> dict[str, str | tuple[str, ...]]:
    """The table of the parts of a layer, which theirs call `encoder.layer.*.`, for example."""
    return {
        f"blocks.*.{ours}": layer + theirs if isinstance(theirs, str) else tuple(layer + each for each in theirs)
        for ours, theirs in parts.items()
    }


# The names in a layer of timm, which facebook's repositories and others share.
TIMM_LAYER: Names = layer_names(
    "blocks.*.",
    {
        "mixer_norm": "norm1",
        "mixer.heads.qkv": "attn.qkv",
        "mixer.project": "attn.proj",
        "mixer_branch.scale.factor": "ls1.gamma",
        "mlp_norm": "norm2",
        "mlp.expand": "mlp.fc1",
        "mlp.contract": "mlp.fc2",
        "mlp_branch.scale.factor": "ls2.gamma",
    },
)


def match_names(own: Iterable[str], names: Names) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Our tensors that the table names, directly or by their module, each with theirs."""
    for name in own:
        key, numbers = name, list[int]()
        if name not in names and (match := REPEATED.search(name)):
            key = name.replace(match[0], re.sub(r"\d+", "*", match[0]), 1)
            numbers = [int(number) for number in match.groups() if number]
        module, _, part = key.rpartition(".")
        if key in names or module in names:
            theirs, suffix = (names[key], "") if key in names else (names[module], f".{part}")
            listed = (theirs,) if isinstance(theirs, str) else theirs
            yield name, tuple(fill_numbers(each, numbers) + suffix for each in listed)


def fill_numbers(name: str, numbers: Sequence[int]) -> str:
    """A name of the table with the numbers in their places: `block+/unit+` with 0, 2 is `block1/unit3`."""
    rest = iter(numbers)
    return re.sub(r"[*+]", lambda match: str(next(rest) + (match[0] == "+")), name)


def number_pattern(name: str) -> str:
    """A name with `*` for its numbers: `blocks.*.norm1.weight`."""
    return NUMBER.sub("*", name)


def named_rules(own: Iterable[str], names: Names, special: Sequence[Rule] = ()) -> list[Rule]:
    """The special rules, and one for every other tensor of ours that the table names.

    A tensor without a rule is found when the weights are loaded, or by the comparison after a conversion.
    """
    done = {name for rule in special for name in rule.ours}
    pairs = match_names((name for name in own if name not in done), names)
    rest = [concatenated(ours, theirs) if len(theirs) > 1 else same(ours, theirs[0]) for ours, theirs in pairs]
    return [*special, *rest]


def expected_shapes(rules: Iterable[Rule], own: Weights) -> dict[str, torch.Size]:
    """The names and shapes of theirs, for a model of ours with these tensors, which may be on the meta device."""
    return {name: tensor.shape for name, tensor in written_tensors(rules, own)}


def export_tensors(rules: Iterable[Rule], own: Weights) -> dict[str, Tensor]:
    """Our tensors as theirs."""
    return {name: tensor.contiguous() for name, tensor in written_tensors(rules, own)}


def import_tensors(rules: Sequence[Rule], own: Weights, found: Weights, where: str, hint: str) -> dict[str, Tensor]:
    """Their tensors as ours; missing, unexpected and wrongly shaped tensors are refused, by their names."""
    raise_mismatches(find_mismatches(dict(written_tensors(rules, own)), found), where, hint)
    return {
        name: tensor
        for rule in rules
        for name, tensor in zip(rule.ours, rule.read([found[each] for each in rule.theirs]), strict=True)
    }


def written_tensors(rules: Iterable[Rule], own: Weights) -> Iterator[tuple[str, Tensor]]:
    """Our tensors as theirs, one after the other."""
    for rule in rules:
        yield from zip(rule.theirs, rule.write([own[name] for name in rule.ours]), strict=True)


def token_rules(model: Vit, tokens: Sequence[str]) -> list[Rule]:
    """The rule for the class token and the registers, (1, count, D) each in theirs."""
    layout = model.layout(model.image_size)
    present = [(name, count) for name, count in zip(tokens, (layout.cls, layout.registers), strict=False) if count]
    counts = [count for _, count in present]
    names = tuple(name for name, _ in present)
    return [Rule((TOKENS,), names, _join_tokens, lambda own: _divide_tokens(own[0], counts))] if counts else []


def _join_tokens(found: Sequence[Tensor]) -> list[Tensor]:
    return [torch.cat([each.flatten(0, 1) for each in found])]  # (prefix, D)


def _divide_tokens(own: Tensor, counts: Sequence[int]) -> list[Tensor]:
    return [part[None] for part in own.split(list(counts))]  # (1, count, D) each


def position_rules(model: Vit, tokens: Sequence[str], table: str, register_rows: bool = True) -> list[Rule]:
    """The rules for the class token and the registers, (1, count, D) each, and for a table (1, rows, D).

    In timm and its relatives, registers have rows in the table where the class token has one. Such a row is always
    added to the same token, so ours hold the sum of both; it is written as the token and a row of zeros.
    """
    layout, learned = model.layout(model.image_size), learned_table(model.position)
    cls, registers = layout.cls, layout.registers
    if learned is None or learned.register_rows or not (learned.cls and registers and register_rows):
        return [*token_rules(model, tokens), *([same(TABLE, table)] if learned else [])]
    counts = [count for count in (cls, registers) if count]
    names = tokens[:2] if cls else tokens[1:2]

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        first, others, rest = found[-1].split([cls, registers, found[-1].shape[1] - cls - registers], dim=1)
        return [*_join_tokens([*found[:-2], found[-2] + others]), torch.cat([first, rest], dim=1)]

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        zeros = own[1].new_zeros(1, registers, own[1].shape[2])
        rows = concat([own[1][:, :cls], zeros, own[1][:, cls:]], dim=1)  # (1, cls + registers + N, D)
        return [*_divide_tokens(own[0], counts), rows]

    return [Rule((TOKENS, TABLE), (*names, table), read, write)]


def averaged_heads(ours: str, theirs: Sequence[str]) -> list[Rule]:
    """DeiT's two heads, whose outputs are averaged, as one head on both tokens concatenated."""
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


def resnet_names(root: tuple[str, str], unit: str, parts: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """The table of a hybrid's ResNet: the convolution and the norm of its root, and of each part of a unit."""
    names = {"stem.body.root.0": root[0], "stem.body.root.1": root[1]}
    for part, (conv, norm) in parts.items():
        ours = f"stem.body.stages.*.*.{part}"
        names |= {f"{ours}.0": f"{unit}{conv}", f"{ours}.1": f"{unit}{norm}"}
    return names


def count_units(names: Iterable[str], pattern: re.Pattern[str], first: int) -> tuple[int, ...]:
    """The number of units in each stage, from names with both numbers, counted from `first`; at least 1."""
    units: dict[int, int] = {}
    for match in filter(None, map(pattern.match, names)):
        stage, unit = int(match[1]) - first, int(match[2]) - first
        units[stage] = max(units.get(stage, 1), unit + 1)
    return tuple(units.get(stage, 1) for stage in range(max(units, default=-1) + 1))

"""The ResNet of a hybrid: what is alike in all libraries, and timm's names for it."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from vitral.model.resnet import BodyKind
from vitral.weights.formats.rule import Rule, affine, same


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


def unit_parts(body: BodyKind, ours: str, names: UnitNames) -> Iterator[UnitPart]:
    """Every part of every unit; only the first of a stage, which changes the number of channels, has a shortcut."""
    for stage, units in enumerate(body.layers):
        for unit in range(units):
            for part, (conv, norm) in names._asdict().items():
                if part != "shortcut" or unit == 0:
                    yield UnitPart(stage, unit, f"{ours}.stages.{stage}.{unit}.{part}", conv, norm)


def units_of_stages(names: Iterable[str], pattern: re.Pattern[str], first: int) -> tuple[int, ...]:
    """How many units each stage has, by names with both numbers, counted from `first`; 1 for a stage unheard of."""
    units: dict[int, int] = {}
    for match in filter(None, map(pattern.match, names)):
        stage, unit = int(match[1]) - first, int(match[2]) - first
        units[stage] = max(units.get(stage, 1), unit + 1)
    return tuple(units.get(stage, 1) for stage in range(max(units, default=-1) + 1))


TIMM = UnitNames(("conv1", "norm1"), ("conv2", "norm2"), ("conv3", "norm3"), ("downsample.conv", "downsample.norm"))


def resnet_rules(body: BodyKind, ours: str, theirs: str) -> list[Rule]:
    """The rules of a body in timm's names: `stem.conv`, `stages.0.blocks.1.conv2`."""
    rules = conv_norm(f"{ours}.root", f"{theirs}.stem.conv", f"{theirs}.stem.norm")
    for part in unit_parts(body, ours, TIMM):
        other = f"{theirs}.stages.{part.stage}.blocks.{part.unit}"
        rules += conv_norm(part.ours, f"{other}.{part.conv}", f"{other}.{part.norm}")
    return rules


def conv_norm(ours: str, conv: str, norm: str) -> list[Rule]:
    return [same(f"{ours}.0.weight", f"{conv}.weight"), *affine(f"{ours}.1", norm)]


def resnet_layers(names: Iterable[str], theirs: str) -> tuple[int, ...]:
    """How many units each stage has, by timm's names of the tensors."""
    return units_of_stages(names, re.compile(re.escape(theirs) + r"\.stages\.(\d{1,3})\.blocks\.(\d{1,3})\."), 0)

"""The ResNet of a hybrid, in names like timm's.  The names of its parts are handed in by who reads or writes it."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from vitral.model.resnet import BodyKind
from vitral.weights.formats.rule import Rule, affine, same


class UnitNames(NamedTuple):
    """What a library calls the parts of a bottleneck, and the convolution and the norm in each."""

    reduce: tuple[str, str]
    look: tuple[str, str]
    expand: tuple[str, str]
    shortcut: tuple[str, str]


TIMM = UnitNames(("conv1", "norm1"), ("conv2", "norm2"), ("conv3", "norm3"), ("downsample.conv", "downsample.norm"))


def resnet_rules(body: BodyKind, ours: str, theirs: str) -> list[Rule]:
    """The rules of a body in timm's names: `stem.conv`, `stages.0.blocks.1.conv2`."""
    rules = conv_norm(f"{ours}.root", f"{theirs}.stem.conv", f"{theirs}.stem.norm")
    for stage, units in enumerate(body.layers):
        for unit in range(units):
            own, other = f"{ours}.stages.{stage}.{unit}", f"{theirs}.stages.{stage}.blocks.{unit}"
            for part, (conv, norm) in TIMM._asdict().items():
                if part != "shortcut" or unit == 0:  # a stage always changes the number of channels
                    rules += conv_norm(f"{own}.{part}", f"{other}.{conv}", f"{other}.{norm}")
    return rules


def conv_norm(ours: str, conv: str, norm: str) -> list[Rule]:
    return [same(f"{ours}.0.weight", f"{conv}.weight"), *affine(f"{ours}.1", norm)]


def resnet_layers(names: Iterable[str], theirs: str) -> tuple[int, ...]:
    """How many units each stage has, by the names of the tensors."""
    pattern = re.compile(re.escape(theirs) + r"\.stages\.(\d+)\.blocks\.(\d+)\.")
    units: dict[int, int] = {}
    for name in names:
        if match := pattern.match(name):
            stage, unit = int(match[1]), int(match[2])
            units[stage] = max(units.get(stage, 0), unit + 1)
    return tuple(units[stage] for stage in sorted(units))

"""The ResNet of Google's hybrids: `conv_root`, `gn_root`, `block1/unit1/conv1` and so on.

D outputs, C inputs, P x Q pixels of a kernel.
"""

import re
from collections.abc import Iterable

from torch import Tensor

from vitral.model.resnet import BodyKind
from vitral.weights.formats.resnet import UnitNames, unit_parts, units_of_stages
from vitral.weights.formats.rule import Rule, changed, same

ROOT = "conv_root/kernel"
UNIT = re.compile(r"block(\d{1,3})/unit(\d{1,3})/")
NAMES = UnitNames(("conv1", "gn1"), ("conv2", "gn2"), ("conv3", "gn3"), ("conv_proj", "gn_proj"))


def body_rules(body: BodyKind, ours: str) -> list[Rule]:
    """The rules of a body."""
    rules = conv_norm(f"{ours}.root", "conv_root", "gn_root")
    for part in unit_parts(body, ours, NAMES):
        other = f"block{part.stage + 1}/unit{part.unit + 1}"
        rules += conv_norm(part.ours, f"{other}/{part.conv}", f"{other}/{part.norm}")
    return rules


def conv_norm(ours: str, conv: str, norm: str) -> list[Rule]:
    return [
        changed(f"{ours}.0.weight", f"{conv}/kernel", to_convolution, to_kernel),
        same(f"{ours}.1.weight", f"{norm}/scale"),
        same(f"{ours}.1.bias", f"{norm}/bias"),
    ]


def body_layers(names: Iterable[str]) -> tuple[int, ...]:
    """How many units each stage has, by the names of the tensors; none where the root is all."""
    return units_of_stages(names, UNIT, 1)


def to_convolution(kernel: Tensor) -> Tensor:
    """A kernel (P, Q, C, D) as torch has it, (D, C, P, Q)."""
    return kernel.permute(3, 2, 0, 1).contiguous()


def to_kernel(weight: Tensor) -> Tensor:
    """The way back."""
    return weight.permute(2, 3, 1, 0).contiguous()

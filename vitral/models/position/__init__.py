"""Position embeddings, and the list of kinds that ship."""

from typing import Annotated, ClassVar, Literal

from vitral.core.config import OpenUnion
from vitral.models.base import BuildContext
from vitral.models.position.additive import (
    AdditivePosition,
    Learned1d,
    Learned2d,
    SinCos1d,
    SinCos2d,
    Where,
    sincos_1d,
    sincos_2d,
)
from vitral.models.position.base import (
    AppliesTo,
    AttentionPosition,
    BasePosition,
    GridDependent,
    NoPosition,
    Position,
    check_divisible,
)
from vitral.models.position.relative import (
    BaseRelative,
    BaseRelativeBias,
    Relative1d,
    Relative2d,
    RelativeBias,
    RelativeBiasMlp,
    RelativeBiasTable,
    RelativeMlp,
    RelativePosition,
    geometric_weights,
)
from vitral.models.position.resample import Resampling, interpolate, resample_axis, resample_grid
from vitral.models.position.rotary import (
    Rope2d,
    RopeAxial,
    RopeCls,
    RopeMixed,
    RotaryPosition,
    RotaryPosition2d,
    rotary_angles,
    rotate,
)


class Combined(BasePosition):
    """A learned embedding of each token, and a position inside attention, as in EVA-02 (arXiv 2303.11331)."""

    kind: Literal["combined"] = "combined"
    added: Learned1d = Learned1d()
    inside: Annotated[Rope2d | RopeAxial | RopeMixed | RelativeBias | RelativeMlp, OpenUnion()] = RopeAxial()
    applies_to: ClassVar[AppliesTo] = "attention"

    def shares_layers(self) -> bool:
        return self.inside.shares_layers()

    def check(self, width: int, head_width: int) -> None:
        self.added.check(width, head_width)
        self.inside.check(width, head_width)

    def build(self, context: BuildContext) -> Position:
        return self.added.build(context)

    def build_attention(self, context: BuildContext, head_width: int) -> AttentionPosition:
        return self.inside.build_attention(context, head_width)


PositionConfig = Annotated[
    NoPosition
    | Learned1d
    | Learned2d
    | SinCos1d
    | SinCos2d
    | Relative1d
    | Relative2d
    | RelativeBias
    | RelativeMlp
    | Rope2d
    | RopeAxial
    | RopeCls
    | RopeMixed
    | Combined,
    OpenUnion(),
]


def learned_table(position: PositionConfig) -> Learned1d | None:
    """The learned embedding of each token, if there is one."""
    if isinstance(position, Combined):
        return position.added
    return position if isinstance(position, Learned1d) else None


def inside_attention(position: PositionConfig) -> BasePosition:
    """What acts inside attention; none for an embedding that is only added."""
    if isinstance(position, Combined):
        return position.inside
    return position if position.applies_to == "attention" else NoPosition()


__all__ = [
    "AdditivePosition",
    "AttentionPosition",
    "BasePosition",
    "BaseRelative",
    "BaseRelativeBias",
    "Combined",
    "GridDependent",
    "Learned1d",
    "Learned2d",
    "NoPosition",
    "Position",
    "PositionConfig",
    "Relative1d",
    "Relative2d",
    "RelativeBias",
    "RelativeBiasMlp",
    "RelativeBiasTable",
    "RelativeMlp",
    "RelativePosition",
    "Resampling",
    "Rope2d",
    "RopeAxial",
    "RopeCls",
    "RopeMixed",
    "RotaryPosition",
    "RotaryPosition2d",
    "SinCos1d",
    "SinCos2d",
    "Where",
    "check_divisible",
    "geometric_weights",
    "inside_attention",
    "interpolate",
    "learned_table",
    "resample_axis",
    "resample_grid",
    "rotary_angles",
    "rotate",
    "sincos_1d",
    "sincos_2d",
]

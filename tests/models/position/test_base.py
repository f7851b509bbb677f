"""A position that says nothing of itself does nothing, and one that is added leaves the other tokens alone."""

import torch
from torch import Tensor

from tests.errors import raises
from vitral.models.base import BuildContext, Grid, Layout
from vitral.models.position import AdditivePosition, AttentionPosition, BasePosition, Position, check_divisible

LAYOUT = Layout(cls=1, registers=2, grid=Grid(2, 3))
WHOLE = BuildContext(width=4, depth=3, layout=LAYOUT, eps=1e-6)


class Ones(AdditivePosition):
    """Ones for the class token, twos for the patches."""

    def rows(self, layout: Layout, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ones(1, 4) + 10 * layer, 2 * torch.ones(6, 4) + 10 * layer


def test_a_kind_without_hooks_of_its_own_changes_nothing() -> None:
    kind, tokens = BasePosition(), torch.randn(2, 9, 4)
    assert type(kind.build(WHOLE)) is Position
    assert kind.build(WHOLE)(tokens, LAYOUT, 0) is tokens
    relation = kind.build_attention(WHOLE, 4)
    assert type(relation) is AttentionPosition
    assert relation.rotate(tokens, LAYOUT) is tokens
    assert relation.bias(tokens, LAYOUT.grid, LAYOUT.grid) is None


def test_registers_between_the_class_token_and_the_patches_get_nothing() -> None:
    rows = Ones("stem")(torch.zeros(1, 9, 4), LAYOUT, 0)[0]
    assert rows[:, 0].tolist() == [1, 0, 0, 2, 2, 2, 2, 2, 2]


def test_rows_are_added_once_or_in_every_layer_or_in_every_layer_alike() -> None:
    zeros = torch.zeros(1, 9, 4)
    for where, patches in (("stem", [2, 0]), ("layers", [2, 12]), ("shared", [2, 2])):
        position = Ones(where)  # type: ignore[arg-type]
        assert [float(position(zeros, LAYOUT, layer)[0, -1, 0]) for layer in range(2)] == patches


def test_a_width_that_does_not_divide_is_refused_with_the_next_that_does() -> None:
    check_divisible("width", 12, 4, "pairs on two axes")
    with raises("config.indivisible", "width", 14, 4, 16):
        check_divisible("width", 14, 4, "pairs on two axes")

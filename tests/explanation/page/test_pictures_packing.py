"""What is packed comes back: unpacked here with numpy alone, and on the page by its script."""

import zlib
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.explanation.stand_in import stand_in, stand_in_resnet
from vitral.explanation.explanation import Array, Explanation
from vitral.explanation.page.pictures import STEPS, UINT16_MAX, PackedAttention, coarsen_similarity, pack_attention
from vitral.models.base import Grid

PLENTY = 100_000_000


def unpacked(found: PackedAttention, prefix: int) -> Array:
    """The attention (L, H, T, T) as the script reads it."""
    cells = found.grid.cells()
    shape = (len(found.heads), found.heads[0], prefix + cells)
    rows = np.frombuffer(inflated(found.rows), "<u2").reshape(*shape, 1 + prefix) / UINT16_MAX
    levels = np.frombuffer(inflated(found.cells), np.uint8).reshape(*shape, cells) / found.steps
    return np.concatenate([rows[..., 1:], levels**2 * rows[..., :1]], axis=-1).astype(np.float32)


def inflated(text: str) -> bytes:
    return zlib.decompress(b64decode(text))


def attention(explanation: Explanation) -> Array:
    return np.stack([layer.attention for layer in explanation.layers])


@pytest.mark.parametrize("registers", [0, 2])
def test_attention_comes_back_as_fine_as_its_steps(registers: int) -> None:
    explanation = stand_in(registers=registers)
    prefix = explanation.layout.prefix()
    found = pack_attention(explanation, PLENTY)
    assert found.steps == STEPS[0]
    assert found.heads == (2, 2, 2)
    truth, back = attention(explanation), unpacked(found, prefix)
    most = truth[..., prefix:].max(axis=-1, keepdims=True)
    # The root is off by half a step at most, so a weight by that times twice its root.
    allowed = most * (np.sqrt(truth / most) / found.steps + 0.25 / found.steps**2) + 2 / UINT16_MAX
    assert (np.abs(back - truth) <= allowed)[..., prefix:].all()
    np.testing.assert_allclose(back[..., :prefix], truth[..., :prefix], atol=1 / UINT16_MAX)
    np.testing.assert_allclose(back.sum(axis=-1), 1, atol=0.03)


def test_the_steps_are_the_finest_that_fit() -> None:
    explanation = stand_in(Grid(8, 8), 4, 4)
    sizes: dict[int, int] = {}
    for steps in STEPS[:3]:
        found = pack_attention(explanation, min(sizes.values(), default=PLENTY) - 1)
        assert found.steps == steps
        assert found.grid == Grid(8, 8)
        sizes[steps] = len(found.cells) + len(found.rows)
    assert pack_attention(explanation, sizes[STEPS[2]]).steps == STEPS[2]


def test_where_the_coarsest_steps_do_not_fit_cells_are_joined_and_the_page_says_so() -> None:
    explanation = stand_in(Grid(7, 8), registers=1)
    found = pack_attention(explanation, 7000)
    assert found.grid == Grid(4, 4)
    assert len(found.cells) + len(found.rows) <= 7000
    truth = attention(explanation)
    back = unpacked(found, prefix=2)
    # The class token looks at the first cell as much as at the four patches in it.
    four = [2 + 0, 2 + 1, 2 + 8, 2 + 9]
    np.testing.assert_allclose(back[..., 0, 2], truth[..., 0, :][..., four].sum(axis=-1), rtol=0.15, atol=1e-3)
    # The last cell has one row of two patches: it looks as they look in the mean.
    pair = truth[:, :, [2 + 6 * 8 + 6, 2 + 6 * 8 + 7]].mean(axis=2)
    np.testing.assert_allclose(back[..., -1, 0], pair[..., 0], atol=1e-4)
    np.testing.assert_allclose(back.sum(axis=-1), 1, atol=0.1)


def test_a_budget_that_nothing_fits_ends_at_a_single_cell() -> None:
    assert pack_attention(stand_in(), 1).grid == Grid(1, 1)


def test_similarity_comes_back_and_is_joined_as_a_mean() -> None:
    explanation = stand_in()
    found = pack_attention(explanation, PLENTY)
    back = np.frombuffer(inflated(found.similarity), np.uint8).reshape(48, 48) / 127.5 - 1
    np.testing.assert_allclose(back, explanation.similarity, atol=0.5 / 127.5 + 1e-6)
    few = coarsen_similarity(explanation.similarity, Grid(6, 8), Grid(3, 4))
    assert few.shape == (12, 12)
    np.testing.assert_allclose(few[0, 1], brute(explanation.similarity, [0, 1, 8, 9], [2, 3, 10, 11]), rtol=1e-5)


def brute(similarity: Array, first: list[int], second: list[int]) -> float:
    return float(np.mean([similarity[a, b] for a in first for b in second]))


def test_what_a_model_lacks_takes_no_bytes() -> None:
    found = pack_attention(stand_in_resnet(), PLENTY)
    assert (found.heads, found.cells, found.rows) == ((), "", "")
    none: NDArray[np.float32] = np.zeros((0, 0), np.float32)
    assert pack_attention(replace(stand_in_resnet(), similarity=none), PLENTY).similarity == ""
    bare = stand_in()
    empty = bare.layers[0]._replace(attention=np.zeros((0, 49, 49), np.float32), distance=none[0:0].ravel())
    assert pack_attention(replace(bare, layers=(empty, *bare.layers[1:])), PLENTY).heads == (2, 2)

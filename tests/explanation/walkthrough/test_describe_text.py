"""The table on the terminal says what the description holds, and stands straight."""

import re

import pytest

from tests.models.variants import VARIANTS, small
from vitral.explanation.walkthrough.describe import (
    Description,
    MemoryUse,
    Part,
    describe,
    format_bytes,
)
from vitral.models import MeanPool, Resnet, Tokens, Vit


@pytest.fixture(scope="module")
def tiny() -> Description:
    return describe(small(depth=4, tokens=Tokens(registers=2)))


def by_hand(parts: tuple[Part, ...], config: Vit | Resnet) -> Description:
    return Description(
        image=config.image_size,
        channels=3,
        tokens=(1, 0, 4, 6),
        parts=parts,
        parameters=1_234_567,
        multiply_adds=7_000,
        multiply_adds_in_full=7_000,
        kept=2_500_000,
        needs=(
            MemoryUse(batch=1, inference=999, training=1_000),
            MemoryUse(batch=64, inference=12_340, training=5_600_000_000),
        ),
        equations=("one equation", "another"),
        config=config,
    )


def part(name: str, level: int = 0, parameters: int = 0, multiply_adds: int = 0, kept: int = 0) -> Part:
    return Part(name=name, level=level, shape=(25, 32), parameters=parameters, multiply_adds=multiply_adds, kept=kept)


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 KB"),
        (1_550, "1.6 KB"),
        (605_184, "605.2 KB"),
        (1_000_000, "1.0 MB"),
        (346_270_624, "346.3 MB"),
        (8_237_904_008, "8.2 GB"),
    ],
)
def test_bytes_are_said_as_people_say_them(size: int, words: str) -> None:
    assert format_bytes(size) == words


def test_an_amount_is_near_its_bytes() -> None:
    units = {"bytes": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    for size in (7, 1_049, 12_345, 987_654, 1_999_999, 123_456_789, 98_765_432_100):
        number, unit = format_bytes(size).split()
        assert float(number) * units[unit] == pytest.approx(size, rel=0.06)
        assert 1 <= float(number) < 1000


def test_a_table_made_by_hand() -> None:
    parts = (
        part("stem", parameters=1_000, multiply_adds=7_000, kept=3_200),
        part("project", level=1, parameters=1_000),
        part("idle"),
        part("pool"),
    )
    table, sequence, needs, equations = str(by_hand(parts, small())).split("\n\n")
    assert table.splitlines() == [
        "part                 passes on    parameters  multiply-adds  kept in training",
        "image                3 x 32 x 48",
        "stem                 25 x 32           1,000          7,000            3.2 KB",
        "  project            25 x 32           1,000",
        "pool                 25 x 32",
        "total for one image                1,234,567          7,000            2.5 MB",
    ]
    assert sequence == "sequence: 1 class token + 4 x 6 patches = 25 tokens"
    assert needs.splitlines() == [
        "a batch of  inference  training",
        "1           999 bytes    1.0 KB",
        "64            12.3 KB    5.6 GB",
    ]
    assert equations == "one equation\nanother"


def test_the_numbers_in_the_table_are_those_of_the_description(tiny: Description) -> None:
    cells = [re.split(r"\s{2,}", line.strip()) for line in str(tiny).split("\n\n")[0].splitlines()]
    rows = {row[0]: row[1:] for row in cells}
    for found in tiny.parts:
        if found.parameters and found.multiply_adds:
            shape = " x ".join(map(str, found.shape))
            numbers = [f"{found.parameters:,}", f"{found.multiply_adds:,}", format_bytes(found.kept)]
            assert rows[found.name] == [shape, *numbers]
    assert rows["total for one image"] == [f"{tiny.parameters:,}", f"{tiny.multiply_adds:,}", format_bytes(tiny.kept)]


def test_every_part_that_does_something_has_a_line(tiny: Description) -> None:
    lines = str(tiny).splitlines()
    for found in tiny.parts:
        shown = any(line.startswith("  " * found.level + found.name) for line in lines)
        assert shown == (found.name == "pool" or bool(found.parameters or found.multiply_adds or found.kept))
    assert not any(line != line.rstrip() for line in lines)


def test_registers_and_missing_class_tokens_are_in_the_sequence(tiny: Description) -> None:
    assert "sequence: 1 class token + 2 registers + 4 x 6 patches = 27 tokens" in str(tiny)
    bare = describe(VARIANTS["no-class-token"])
    assert "sequence: 4 x 6 patches = 24 tokens" in str(bare)


def test_the_work_that_is_spared_is_told_only_where_some_is(tiny: Description) -> None:
    note = f"in full: {tiny.multiply_adds_in_full:,} multiply-adds."
    assert note in str(tiny)
    assert tiny.multiply_adds_in_full > tiny.multiply_adds
    full = describe(small(depth=1, pool=MeanPool()))
    assert full.multiply_adds_in_full == full.multiply_adds
    assert "in full" not in str(full)


def test_the_equations_come_last(tiny: Description) -> None:
    assert str(tiny).endswith("\n".join(tiny.equations))

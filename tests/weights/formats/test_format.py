"""What formats have in common."""

from pathlib import Path

import pytest
import torch

from tests.errors import raises
from vitral.core.config import Size, override
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models import Vit
from vitral.weights.formats.format import (
    HEADS,
    Checkpoint,
    count_layers,
    parse_positive_int,
)
from vitral.weights.formats.timm import Timm

RAW = Checkpoint(Path("a/file"), {"table": torch.zeros(1, 5, 8), "empty": torch.zeros(0, 8)}, {}, {})
PATCH = Size(8, 4)


def test_the_last_of_several_settings_counts() -> None:
    ckpt = RAW._replace(settings=("mixer.heads=3", "image_size=32", "mixer.heads=6"))
    assert (ckpt.setting("mixer.heads"), ckpt.setting("image_size"), ckpt.setting("width")) == ("6", "32", "")


def test_heads_are_told_or_those_of_the_published_width() -> None:
    assert [RAW.infer_heads(width) for width in (192, 384, 768, 1024, 1280)] == [3, 6, 12, 16, 16]
    assert RAW._replace(settings=("mixer.heads=4",)).infer_heads(768) == 4
    assert 36 not in HEADS
    with raises("weights.missing_setting", "a/file", 36, "--set mixer.heads=N"):
        RAW.infer_heads(36)


@pytest.mark.parametrize(
    ("rows", "prefixes", "told", "expected"),
    [
        (16, [0], "", (Size(32, 16), 0)),
        (17, [0, 1], "", (Size(32, 16), 1)),
        (18, [0, 2], "", (Size(32, 16), 2)),
        (24, [0], "32x24", (Size(32, 24), 0)),
        (25, [0, 1], "32x24", (Size(32, 24), 1)),
    ],
)
def test_a_table_tells_the_image_and_the_rows_that_are_no_patches(
    rows: int, prefixes: list[int], told: str, expected: tuple[Size, int]
) -> None:
    ckpt = RAW._replace(settings=(f"image_size={told}",) if told else ())
    assert ckpt.infer_image_size(rows, prefixes, PATCH) == expected


@pytest.mark.parametrize(
    ("rows", "prefixes", "told"), [(24, [0], ""), (1, [0, 1], "8x8"), (17, [0, 1], "64x64"), (0, [1], "")]
)
def test_a_table_that_fits_no_image_is_refused(rows: int, prefixes: list[int], told: str) -> None:
    with raises("weights.bad_setting" if told else "weights.missing_setting", rows, "image_size=HEIGHTxWIDTH"):
        RAW._replace(settings=(f"image_size={told}",) if told else ()).infer_image_size(rows, prefixes, PATCH)


def test_two_squares_that_fit_are_one_too_many() -> None:
    with raises("weights.missing_setting", 1, "image_size=HEIGHTxWIDTH"):
        RAW.infer_image_size(1, [0, -3], PATCH)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", ""])
def test_a_number_is_whole_and_from_one_on(text: str) -> None:
    assert parse_positive_int("12", "mixer.heads") == 12
    with raises("config.out_of_range", "mixer.heads", repr(text)):
        parse_positive_int(text, "mixer.heads")


def test_layers_are_counted_by_the_largest_number() -> None:
    names = ["blocks.0.a", "blocks.10.b", "blocks.x.c", "more.99.d"]
    assert count_layers(names, "blocks.") == 11
    assert count_layers(names, "none.") == 0


def test_a_shape_is_that_of_a_tensor_that_is_there() -> None:
    assert RAW.shape("table", 3) == (1, 5, 8)
    for name, dims, code, value in (
        ("other", 1, "weights.missing_tensor", "other"),
        ("table", 2, "weights.shape_mismatch", "(1, 5, 8)"),
        ("empty", 2, "weights.shape_mismatch", "(0, 8)"),
    ):
        with raises(code, f"a/file: {name} ", value):
            RAW.shape(name, dims)


def test_classes_without_names_have_numbers() -> None:
    model = override(Vit(), ["head.num_classes=3"])
    found = Timm().detected(RAW, model, Preprocessing())
    assert found.classes == ("0", "1", "2")
    assert len(found.assumptions) == 1
    assert Timm().detected(RAW, override(model, ["head=none"]), Preprocessing()).classes == ()


def test_labels_are_used_if_there_is_one_for_each_class() -> None:
    model = override(Vit(), ["head.num_classes=2"])
    assert Timm().detected(RAW, model, Preprocessing(), labels=("a", "b")).classes == ("a", "b")
    assert Timm().detected(RAW, model, Preprocessing(), labels=("a",)).classes == ("0", "1")

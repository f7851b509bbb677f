from typing import Any

import pyarrow as pa
import pytest

from tests.data.tables import CLASSES, IMAGE, features, noted
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.huggingface import Columns, choose_columns

LABELS = {"names": ["x", "y"], "_type": "ClassLabel"}
TEXT = {"dtype": "string", "_type": "Value"}


def schema(note: dict[str, Any] | None, **columns: pa.DataType) -> pa.Schema:
    bare = pa.schema(list(columns.items()))
    return noted(bare.empty_table(), note).schema if note is not None else bare


PLAIN = {"image": IMAGE, "label": pa.int64()}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (schema(features(), **PLAIN), Columns("image", "label", CLASSES)),
        (schema(features(), **PLAIN, caption=pa.string()), Columns("image", "label", CLASSES)),
        (schema(None, **PLAIN), Columns("image", "label", ())),
        (schema({}, **PLAIN), Columns("image", "label", ())),
        (schema(None, photo=pa.binary(), kind=pa.string()), Columns("photo", "kind", ())),
        (schema(None, photo=pa.large_binary(), kind=pa.large_string()), Columns("photo", "kind", ())),
        (schema(None, photo=IMAGE, kind=pa.dictionary(pa.int8(), pa.string())), Columns("photo", "kind", ())),
        (schema(None, img=IMAGE, mask=IMAGE, labels=pa.uint8(), width=pa.int32()), Columns("img", "labels", ())),
        (
            schema(None, Image=IMAGE, thumb=pa.binary(), Label=pa.string(), id=pa.string()),
            Columns("Image", "Label", ()),
        ),
        (
            schema(
                {"fine_label": LABELS, "coarse_label": LABELS},
                img=IMAGE,
                fine_label=pa.int64(),
                coarse_label=pa.int64(),
            ),
            Columns("img", "fine_label", ("x", "y")),
        ),
        (
            schema({"kind": LABELS, "label": TEXT}, image=IMAGE, kind=pa.int64(), label=pa.string()),
            Columns("image", "kind", ("x", "y")),
        ),
        (
            schema({"mask": {"_type": "Image"}}, image=IMAGE, mask=IMAGE, label=pa.string()),
            Columns("mask", "label", ()),
        ),
    ],
)
def test_the_columns_are_those_that_were_noted_or_that_look_like_it(found: pa.Schema, expected: Columns) -> None:
    assert choose_columns(found, "part.parquet") == expected


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (schema(None, left=IMAGE, right=IMAGE, label=pa.string()), ("data.ambiguous_column", "image", "left, right")),
        (schema(None, image=IMAGE, img=IMAGE, label=pa.string()), ("data.ambiguous_column", "image, img")),
        (schema(None, image=IMAGE, age=pa.int8(), name=pa.string()), ("data.ambiguous_column", "label", "age, name")),
        (
            schema({"a": LABELS, "b": LABELS}, image=IMAGE, a=pa.int8(), b=pa.int8()),
            ("data.ambiguous_column", "label", "a, b"),
        ),
        (schema(None, image=pa.string(), label=pa.string()), ("data.missing_column", "image", "label")),
        (schema(None, image=pa.struct([("path", pa.string())]), label=pa.string()), ("data.missing_column", "image")),
        (schema(None, image=IMAGE, label=pa.float32()), ("data.missing_column", "image", "label")),
        (schema(None, image=IMAGE, label=pa.list_(pa.int64())), ("data.missing_column", "label")),
        (schema(None), ("data.missing_column", "image")),
        (schema(None, **PLAIN).with_metadata({"huggingface": "{not"}), ("data.bad_table", "JSON")),
    ],
)
def test_what_is_not_clear_is_refused_with_the_columns(found: pa.Schema, error: tuple[str, ...]) -> None:
    with raises(*error) as caught:
        choose_columns(found, "part.parquet")
    assert refused_at(caught) == "part.parquet"


@pytest.mark.parametrize("note", ["[]", "1", '{"info": null}', '{"info": {"features": null}}', '{"info": []}'])
def test_a_note_that_says_nothing_of_columns_is_passed_over(note: str) -> None:
    found = schema(None, **PLAIN).with_metadata({"huggingface": note})
    assert choose_columns(found, "part.parquet") == Columns("image", "label", ())

"""Which columns of a table hold the images and their labels."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from vitral.errors import DataError, either

IMAGE_NAMES = ("image", "img")
LABEL_NAMES = ("label", "labels", "fine_label")


class Columns(NamedTuple):
    """The two columns, and the names of the classes by number; no names where the labels are names or mere numbers."""

    image: str
    label: str
    classes: tuple[str, ...]


def choose_columns(schema: Any, where: str) -> Columns:
    """The columns that `datasets` noted as image and label in the schema, else those that look like them."""
    features = _features(schema, where)
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    images = [name for name in schema.names if kinds.get(name) == "Image"]
    images = images or [field.name for field in schema if _may_be_image(field.type)]
    image = _only("image", images, IMAGE_NAMES, schema.names, where)
    labels = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    labels = labels or [field.name for field in schema if field.name != image and _may_be_label(field.type)]
    label = _only("label", labels, LABEL_NAMES, schema.names, where)
    classes = features[label].get("names") or () if kinds.get(label) == "ClassLabel" else ()
    return Columns(image, label, tuple(map(str, classes)))


def _features(schema: Any, where: str) -> dict[str, Any]:
    """What `datasets` noted of each column; nothing in tables of other origin."""
    noted = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        found = json.loads(noted)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"its note on columns is not JSON: {error}", code="data.bad_table", where=where, remedy="save the set anew"
        ) from None
    for field in ("info", "features"):
        found = found.get(field) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _only(what: str, candidates: Sequence[str], usual: Sequence[str], names: Sequence[str], where: str) -> str:
    """The candidate, or of several the one with a usual name."""
    found = [name for name in candidates if name.lower() in usual] if len(candidates) > 1 else candidates
    if len(found) == 1:
        return found[0]
    if not candidates:
        raise DataError(
            f"no column of {what}s among {either(names) if names else 'its columns, of which there are none'}",
            code="data.missing_column",
            where=where,
            remedy=f"give a table with a column called {usual[0]}",
        )
    raise DataError(
        f"several columns may be the {what}: {', '.join(candidates)}",
        code="data.ambiguous_column",
        where=where,
        remedy=f"keep one of them, or call it {usual[0]}",
    )


def _may_be_image(kind: Any) -> bool:
    """Whether values are encoded images: binary, or a structure with binary `bytes` in it."""
    from pyarrow import types

    if types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return "bytes" in fields and _may_be_image(fields["bytes"])
    return types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)


def _may_be_label(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _may_be_label(kind.value_type)
    return any(of(kind) for of in (types.is_integer, types.is_string, types.is_large_string, types.is_string_view))

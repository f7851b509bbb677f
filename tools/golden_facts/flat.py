"""Plain data as a flat table of paths and leaves, and what differs from run to run taken out of it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Keys whose numbers are measured on a machine, and texts that differ from place to place.
MEASURED = re.compile(r"(^|\.)(seconds|milliseconds|rate|started|processor|platform|python)(\.\d+)*$")
VERSION = re.compile(r"\b\d+\.\d+\.\d+(?:\+\w+)?\b")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*")


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every leaf with its path; a `kind` stands in the path, and an empty container is a leaf."""
    if isinstance(value, dict) and value:
        home = f"{path}:{value['kind']}" if isinstance(value.get("kind"), str) else path
        if home != path and len(value) == 1:
            yield home, True
        for name, inner in value.items():
            if name != "kind" or home == path:
                yield from leaves(inner, f"{home}.{name}" if home else str(name))
    elif isinstance(value, list | tuple) and value and not _is_plain(value):
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{place}")
    else:
        yield path, value


def _is_plain(values: list[Any] | tuple[Any, ...]) -> bool:
    return not any(isinstance(value, dict | list | tuple) for value in values)


def masked(path: str, value: Any, places: Mapping[str, str]) -> Any:
    """A leaf without times, versions and places on this disk."""
    if MEASURED.search(path):
        return "<measured>"
    if isinstance(value, list):
        return [masked(path, each, places) for each in value]
    if not isinstance(value, str):
        return value
    for place, name in places.items():
        value = value.replace(place, name)
    return VERSION.sub("<version>", MOMENT.sub("<moment>", value))

"""JSON and YAML documents: read into plain data within a budget, and plain data written as YAML."""

import json
import re
from pathlib import Path
from typing import Any

from vitral.core.errors import ConfigError, format_choices
from vitral.core.files import FileTooLarge, read_file
from vitral.core.storage import os_error_message

SUFFIXES = (".json", ".yaml", ".yml")
MAX_BYTES = 4 * 2**20
MAX_DEPTH = 100  # of lists and objects in each other
MAX_CONTAINERS = 100_000  # lists and objects of a document
# A string, up to the end of the text if it is not closed: each byte is looked at once.
STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
BRACKETS = {ord("{"): "[", ord("}"): "]"}
# YAML 1.2 and JSON read 3e-4 as a number; PyYAML, which follows YAML 1.1, as text.
FLOAT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$")


def is_document(name: object) -> bool:
    """Whether a name is that of a JSON or YAML file."""
    return isinstance(name, str | Path) and str(name).lower().endswith(SUFFIXES)


def read_document(path: Path) -> dict[str, Any]:
    """The fields of a JSON or YAML file; ConfigError says what is wrong with it."""
    if path.suffix.lower() not in SUFFIXES:
        message = f"expected a file that ends in {format_choices(SUFFIXES)}"
        raise ConfigError(message, code="config.unknown_format", where=path, hint="rename it, or give a name")
    try:
        text = read_file(path, MAX_BYTES)
    except FileTooLarge as error:
        message = os_error_message(error)
        raise ConfigError(message, code="config.too_large", where=path, hint="give a file of settings") from None
    except OSError as error:
        message = f"cannot be read: {os_error_message(error)}"
        raise ConfigError(message, code="config.not_found", where=path, hint="check the path") from None
    try:
        data = parse_json(text) if path.suffix.lower() == ".json" else parse_yaml(text)
    except (ValueError, RecursionError) as error:  # the latter of YAML
        reason = " ".join(str(error).split())
        message = f"not valid {'JSON' if path.suffix.lower() == '.json' else 'YAML'}: {reason}"
        raise ConfigError(message, code="config.bad_document", where=path, hint="correct it") from None
    if not isinstance(data, dict):
        message = f"expected fields by name, got {type(data).__name__}"
        raise ConfigError(message, code="config.bad_document", where=path, hint="write `name: value` on each line")
    return data


def parse_json(text: str | bytes) -> Any:
    """The data of a JSON document; ValueError if it is none, is nested too deeply or has too many lists and objects.

    The depth is counted before anything is parsed, since the parser calls itself for each level.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        for part in (text[: 2**20], text):  # the beginning of a hostile text tells
            _check_depth(STRING.sub("", part).translate(BRACKETS))
    return json.loads(text)


def _check_depth(text: str) -> None:
    """Raise ValueError where brackets are too many or too deep; the text has no strings."""
    if (count := text.count("[")) > MAX_CONTAINERS:
        raise ValueError(f"{count:,} lists and objects, the limit is {MAX_CONTAINERS:,}")
    depth = 0
    for part in text.split("[")[:-1]:  # a bracket opens after each of them
        depth += 1 - part.count("]")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} levels deep")


def parse_yaml(text: str | bytes) -> Any:
    """The data of a YAML document. Aliases, tags, and keys that are given twice raise ValueError."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError(f"aliases are not supported (line {self.line + 1})")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value]
            if twice := [key for key in keys if keys.count(key) > 1]:
                raise ValueError(f"{twice[0]} is given twice (line {node.start_mark.line + 1})")
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+0123456789."))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def to_yaml(data: Any) -> str:
    """Plain data as YAML, in the order of its fields; lists of numbers stand on one line."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    def represent_list(dumper: Any, value: list[Any]) -> Any:
        plain = not any(isinstance(item, dict | list) for item in value)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=plain)

    Dumper.add_representer(list, represent_list)
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=120)

"""Config: the frozen, checked value behind every choice, its JSON and its overrides by path.

A union of configs is open: besides its members it takes a user's own class that has what all of them have.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from types import UnionType
from typing import Annotated, Any, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema, to_json

from vitral.core.custom import class_reference, find_class, is_reference
from vitral.core.documents import parse_json
from vitral.core.errors import ConfigError, did_you_mean, format_choices, suggest_choice

C = TypeVar("C", bound="Config")

# What a field expects, by the type of pydantic's error; for other types the message is pydantic's.
EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "fields by name",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_type": "a whole number",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_attributes_type": "fields by name",
    "model_type": "fields by name",
    "string_type": "text",
    "tuple_type": "a list",
}
SYNONYMS = {"learning_rate": "lr", "patch_size": "patch"}  # names that other libraries give to a setting
OUT_OF_RANGE = {"finite_number", "greater_than", "greater_than_equal", "less_than", "less_than_equal"}


class Size(NamedTuple):
    """Height and width in pixels or patches, written `224x320`; a field of this type also takes 224 or [224, 320]."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.height}x{self.width}"

    @classmethod
    def parse(cls, value: object) -> "Size":
        """The size of `224`, `"224"`, `"224x320"` or `[224, 320]`."""
        sides: object = value
        if isinstance(value, str) and re.fullmatch(r"[0-9]+(x[0-9]+)?", value):
            sides = [int(side) for side in value.split("x")]
        elif isinstance(value, int):
            sides = [value]
        if isinstance(sides, list | tuple) and len(sides) in {1, 2} and all(type(side) is int for side in sides):
            size = cls(sides[0], sides[-1])
            if min(size) > 0:
                return size
        raise ConfigError(f"expected a size such as 224 or 224x320, got {_brief(value)}", code="config.wrong_type")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.plain_serializer_function_ser_schema(list)
        )


class Config(BaseModel):
    """A frozen group of fields. Unknown fields, wrong types and numbers that are not finite raise ConfigError."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _explain(error, type(self)) from None

    # Without this mark pydantic would call __init__ for nested configs too, and report them without their path.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Give a user's own class a kind to be named by in messages and reports."""
        if "kind" not in cls.model_fields and not cls.__module__.startswith("vitral."):
            cls.kind = cls.__name__  # type: ignore[attr-defined]

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """The config of plain data, as read from JSON or TOML: lists become tuples, text becomes paths."""
        return cls.from_json(to_json(data))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The config that `to_json` wrote."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise _explain(error, cls) from None

    def to_json(self) -> str:
        """Indented JSON of every field, in the order of the class."""
        return self.model_dump_json(indent=2)


CUSTOM = "custom"  # how pydantic calls the member of a union that a user's class is


class OpenUnion:
    """Marks a union of configs whose `kind` says which one is meant: `Annotated[AdamW | Sgd, OpenUnion()]`.

    A user's own class is written with a kind that says where to import it from: `path/file.py:Lion`.
    """

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        kinds = _kinds(source)
        members = {kind: handler.generate_schema(member) for kind, member in kinds.items()}

        def tag(value: Any) -> Any:
            kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
            custom = isinstance(value, Config) and type(value) not in kinds.values()
            return CUSTOM if custom or is_reference(kind) else kind

        def validate_custom(value: Any) -> Config:
            if not isinstance(value, Config):
                fields = {name: field for name, field in value.items() if name != "kind"}
                return _custom_class(value["kind"], kinds).parse(fields)
            _check_interface(type(value), kinds)
            return value

        def serialize(value: Any, inner: Any, info: Any) -> Any:
            if type(value) in kinds.values():
                return inner(value)
            return {"kind": class_reference(type(value))} | value.model_dump(mode=info.mode, exclude={"kind"})

        known = core_schema.tagged_union_schema(members, discriminator="kind")
        custom = core_schema.no_info_plain_validator_function(validate_custom)
        written = core_schema.wrap_serializer_function_ser_schema(serialize, info_arg=True, schema=known)
        return core_schema.tagged_union_schema({**members, CUSTOM: custom}, discriminator=tag, serialization=written)


def _custom_class(reference: str, kinds: Mapping[str, type[Config]]) -> type[Config]:
    """The class of a user that a kind names; ConfigError unless it has what the members of the union have."""
    cls: type[Config] = find_class(reference, Config)
    _check_interface(cls, kinds)
    return cls


def _check_interface(cls: type[Config], kinds: Mapping[str, type[Config]]) -> None:
    shared = set.intersection(*({*dir(member)} for member in kinds.values())) - {*dir(Config)}
    if missing := sorted(name for name in shared if not name.startswith("_") and not hasattr(cls, name)):
        message = f"{cls.__name__} has no {', '.join(missing)}, which {format_choices(kinds)} have"
        raise ConfigError(message, code="config.wrong_class", hint="derive it from the same class as they are")


def union_members(union: object) -> tuple[type[Any], ...]:
    """The classes of a union such as `PositionConfig`, in its order; a class by itself is its only member."""
    return get_args(_bare(union)) if _is_union(union) else (_bare(union),)


def override(config: C, settings: Iterable[str] | Mapping[str, object]) -> C:
    """The config with settings applied in turn, and checked once all of them are in.

    Settings are values by path, or text as in `parse_settings`. The end of a path suffices where it fits one field:
    `lr` for `optimizer.lr`. A union is named by its kind (`position=rope2d`): another kind keeps the fields that both
    share by descent and has its own defaults for the rest.
    """
    data = config.model_dump(mode="json")
    given = settings.items() if isinstance(settings, Mapping) else map(_parse_setting, settings)
    for path, value in given:
        _assign(type(config), data, _full_path(type(config), data, path), to_plain(value))
    return type(config).parse(data)


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """Settings of a command line, `path=value`, by path; a value is JSON where it parses as JSON, else text.

    A path that is given again replaces what was given for it and below it before.
    """
    found: dict[str, Any] = {}
    for path, value in map(_parse_setting, settings):
        if path in found:
            found = {other: given for other, given in found.items() if not f"{other}.".startswith(f"{path}.")}
        found[path] = value
    return found


def _parse_setting(setting: str) -> tuple[str, Any]:
    path, equals, text = setting.partition("=")
    if not path or not equals:
        raise ConfigError(f"expected field=value, got {setting!r}", code="config.bad_setting")
    try:
        return path, parse_json(text)
    except ValueError:
        return path, text


def to_plain(value: object) -> Any:
    """An object as the data of a setting: configs become their fields by name, paths become text."""
    if isinstance(value, Config):
        if type(value).__module__.startswith("vitral."):
            return value.model_dump(mode="json")
        return {"kind": class_reference(type(value))} | value.model_dump(mode="json", exclude={"kind"})
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, PurePath) else value


def _full_path(config: type[Config], data: dict[str, Any], path: str) -> str:
    """The whole path of a field that is named by the end of its path; the path itself if nothing ends like it."""
    if path.partition(".")[0] in config.model_fields:
        return path
    ends = [whole for whole in _paths(data) if whole.endswith(f".{path}")]
    if len(ends) > 1:
        message = f"several settings end like this: {', '.join(ends)}"
        raise ConfigError(message, code="config.ambiguous_setting", where=path, hint="give the whole path")
    return ends[0] if ends else path


def _paths(data: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    for name, value in data.items():
        yield prefix + name
        if isinstance(value, dict):
            yield from _paths(value, f"{prefix}{name}.")


def _assign(config: type[Config], data: dict[str, Any], path: str, value: Any) -> None:
    """Put the value at a dotted path of a config's plain data."""
    names = path.split(".")
    siblings: dict[str, type[Config]] = {}  # the union that `config` was chosen from, by kind
    for depth, name in enumerate(names, start=1):
        place = ".".join(names[:depth])
        if name not in config.model_fields:
            ends = [whole.rpartition(".")[2] for whole in _paths(data)] if path == name else []
            raise _unknown(config, name, place, siblings, ends)
        field = config.model_fields[name].annotation
        kinds = _kinds(field)
        inner = data.get(name)
        if depth == len(names) or (kinds and names[depth:] == ["kind"]):
            data[name] = _chosen(field, inner, value, place)
            return
        if not isinstance(inner, dict):
            message = f"{place} is {_brief(inner)}, which has no fields"
            raise ConfigError(message, code="config.unknown_field", where=path, hint=f"set it as {place}=VALUE")
        config = _member(kinds, inner["kind"]) if kinds else union_members(field)[0]
        data, siblings = inner, kinds


def _chosen(field: object, current: Any, value: Any, where: str) -> Any:
    """The plain data of a field that is set to a value: a kind and fields by name are completed by the defaults."""
    kinds = _kinds(field)
    named = isinstance(value, dict)
    if kinds:
        kind = value.get("kind") if named else value
        if kind not in list(kinds) and not is_reference(kind):
            raise _no_such_kind(kinds, kind, where)
        chosen = _member(kinds, kind)
        if not named and isinstance(current, dict) and _member(kinds, current["kind"]) is chosen:
            return current
        kept = _inherited(kinds, current, chosen)
        kind = next((known for known, member in kinds.items() if member is chosen), class_reference(chosen))
        return {"kind": kind} | _defaults(chosen) | kept | (value if named else {}) | {"kind": kind}
    return _defaults(field) | value if named and _is_config(field) else value


def _inherited(kinds: dict[str, type[Config]], current: Any, new: type[Config]) -> dict[str, Any]:
    """What a change of kind leaves as it was: fields that both kinds have from one base mean the same in both."""
    if not isinstance(current, dict):
        return {}
    old = _member(kinds, current["kind"])
    bases = [base for base in old.__mro__ if issubclass(base, Config) and base is not Config and issubclass(new, base)]
    return {name: current[name] for base in bases for name in base.model_fields if name != "kind"}


def _defaults(config: Any) -> dict[str, Any]:
    """The plain data of a config before anything is set; a field that must be given is left out."""
    return config.model_construct().model_dump(mode="json")


def _explain(error: ValidationError, config: type[Config]) -> ConfigError:
    """The errors of pydantic as one ConfigError."""
    fields: dict[str, list[ErrorDetails]] = {}  # pydantic reports an error for each type that a field may have
    for details in error.errors(include_url=False):
        path, _, _ = _locate(config, details["loc"])
        fields.setdefault(".".join(path), []).append(details)
    problems: list[ConfigError] = []
    for where, errors in fields.items():
        all_expected = all(each["type"] in EXPECTED for each in errors)
        problems += [_mismatch(errors, where)] if all_expected else [_problem(each, config) for each in errors]
    return ConfigError.join(problems)


def _mismatch(errors: Sequence[ErrorDetails], where: str) -> ConfigError:
    """The error for a value that is none of what a field expects."""
    expected = [EXPECTED[each["type"]].format(**each.get("ctx", {})).replace("'", "") for each in errors]
    types = {each["type"] for each in errors}
    code = "config.unknown_name" if types == {"literal_error"} else "config.wrong_type"
    code = "config.out_of_range" if types <= OUT_OF_RANGE else code
    message = f"expected {format_choices(dict.fromkeys(expected))}, got {_brief(errors[0]['input'])}"
    return ConfigError(message, code=code, where=where)


def _problem(details: ErrorDetails, config: type[Config]) -> ConfigError:
    complaint, loc, context = details["type"], details["loc"], details.get("ctx", {})
    if complaint == "extra_forbidden":
        path, holder, siblings = _locate(config, loc[:-1])
        return _unknown(holder, str(loc[-1]), ".".join([*path, str(loc[-1])]), siblings)
    path, expected_type, _ = _locate(config, loc)
    where = ".".join(path)
    match complaint:
        case "value_error":
            # The garbage collector does not look into pydantic's error, which holds this one: if this one led back to
            # it, by its traceback or by being raised again, all that the frames refer to would stay in memory.
            inner = context["error"].with_traceback(None)
            known = inner if isinstance(inner, ConfigError) else ConfigError(str(inner), code="config.bad_value")
            return known.within(where)
        case "missing":
            return ConfigError("a value is required, none was given", code="config.missing_value", where=where)
        case "json_invalid":
            return ConfigError(f"not valid JSON: {context['error']}", code="config.bad_json")
        case "union_tag_invalid" | "union_tag_not_found":
            return _no_such_kind(_kinds(expected_type), context.get("tag"), where)
    if complaint in EXPECTED:
        return _mismatch([details], where)
    return ConfigError(f"{details['msg']}, got {_brief(details['input'])}", code="config.bad_value", where=where)


def _unknown(
    config: type[Config], name: str, where: str, siblings: Mapping[str, type[Config]], ends: Sequence[str] = ()
) -> ConfigError:
    """The error for a field that the config, perhaps chosen from a union, does not have.

    `ends` are the last names of paths, which are enough to name a setting.
    """
    if not siblings:
        near = did_you_mean(SYNONYMS.get(name, name), [*config.model_fields, *ends])
        hint = near or suggest_choice(name, config.model_fields)
        return ConfigError("unknown field", code="config.unknown_field", where=where, hint=hint)
    fields = [field for field in config.model_fields if field != "kind"]
    owners = [kind for kind, sibling in siblings.items() if name in sibling.model_fields]
    message = f"unknown field of {_kind(config)} (its fields: {', '.join(fields) or 'none'})"
    hint = f"{name} is a field of {format_choices(owners)}" if owners else did_you_mean(name, fields)
    return ConfigError(message, code="config.unknown_field", where=where, hint=hint)


def _no_such_kind(kinds: Mapping[str, type[Config]], kind: object, where: str) -> ConfigError:
    found = "no kind" if kind is None else _brief(kind)
    message = f"expected {format_choices(kinds)}, got {found}"
    return ConfigError(message, code="config.unknown_name", where=where, hint=did_you_mean(str(kind), kinds))


def _locate(config: type[Config], loc: Iterable[int | str]) -> tuple[list[str], Any, dict[str, type[Config]]]:
    """The names on the way to pydantic's location, the type found there, and the union it was chosen from, by kind."""
    path: list[str] = []
    here: Any = config
    siblings: dict[str, type[Config]] = {}
    for step in loc:
        if _is_union(here):  # the step says which member was tried; it is no part of the path
            siblings = _kinds(here)
            here = siblings.get(str(step))
        else:
            path.append(str(step))
            here, siblings = _inside(here, str(step)), {}
    return path, here, siblings


def _inside(holder: Any, name: str) -> Any:
    """The type of a config's field or of a container's items; None where there is nothing more to know."""
    if _is_config(holder):
        return holder.model_fields[name].annotation if name in holder.model_fields else None
    return next((item for item in reversed(get_args(_bare(holder))) if item is not Ellipsis), None)


def _kinds(union: object) -> dict[str, type[Config]]:
    """The members of a union by kind; empty when it is not a union of configs with kinds."""
    kinds = {_kind(member): member for member in union_members(union) if _is_config(member)}
    return kinds if all(kinds) and len(kinds) == len(union_members(union)) else {}


def _member(kinds: Mapping[str, type[Config]], kind: str) -> type[Config]:
    """The class of a kind: a member of the union, or a class of a user."""
    return kinds[kind] if kind in kinds else _custom_class(kind, kinds)


def _kind(config: type[Config]) -> str:
    return config.model_fields["kind"].default if "kind" in config.model_fields else ""


def _is_config(value: Any) -> bool:
    return isinstance(value, type) and get_origin(value) is None and issubclass(value, Config)


def _is_union(value: object) -> bool:
    return get_origin(_bare(value)) in {Union, UnionType}


def _bare(value: object) -> Any:
    return get_args(value)[0] if get_origin(value) is Annotated else value


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

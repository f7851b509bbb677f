"""Mistakes on the command line, as errors with a code."""

from collections.abc import Sequence
from typing import Any

from typer import TyperException

from vitral.core.errors import ConfigError, format_choices


def usage_error(error: TyperException) -> ConfigError:
    """An error of typer as ours: what was expected, which option, and what to type."""
    name = type(error).__name__  # only the base class is public
    hint, message = _usage(getattr(error, "ctx", None)), error.format_message()
    where = str(getattr(error, "option_name", ""))
    if name == "NoSuchOption":
        return _unknown_option(where, getattr(error, "possibilities", None) or (), hint)
    if name == "MissingParameter":
        missing = _parameter_name(getattr(error, "param", None))
        return ConfigError(f"{missing} is missing", code="config.missing_value", hint=hint)
    if name == "BadParameter":
        return _wrong_value(error)
    if name == "BadOptionUsage" and "requires" in message:
        return ConfigError("no value is given", code="config.missing_value", where=where, hint=hint)
    return ConfigError(f"{message[0].lower()}{message[1:]}".rstrip("."), code="config.usage", where=where, hint=hint)


def _usage(context: Any) -> str:
    """The line of usage of a verb, and where to find more."""
    if context is None or context.parent is None:
        return "vitral --help lists the verbs and options"
    usage = " ".join(context.get_usage().split()).removeprefix("Usage: ")
    return f"usage: {usage}; vitral {context.info_name} --help lists the options"


def _unknown_option(option: str, near: Sequence[str], usage: str) -> ConfigError:
    hint = f"did you mean {format_choices(near)}?" if near else usage
    return ConfigError("unknown option", code="config.unknown_option", where=option, hint=hint)


def _parameter_name(parameter: Any) -> str:
    """`--top` or `MODEL`."""
    if parameter is None:
        return "a value"
    return str(parameter.opts[0] if parameter.param_type_name == "option" else parameter.display_name_raw)


def _wrong_value(error: TyperException) -> ConfigError:
    """The error of a number that is none, or too small."""
    parameter, where = getattr(error, "param", None), _parameter_name(getattr(error, "param", None))
    problems: list[Any] = getattr(error.__cause__, "errors", list)()  # of pydantic, which typer parses with
    if parameter is None or not problems:
        return ConfigError(error.format_message(), code="config.usage", where=where)
    annotation, least = str(parameter.type_descriptor.annotation), parameter.min
    kind = "a whole number" if "int" in annotation else "a number"
    limit = f" of at least {least}" if least is not None else ""
    message = f"expected {kind}{limit}, got {str(problems[0]['input'])!r}"
    if "parsing" in problems[0]["type"]:
        return ConfigError(message, code="config.wrong_type", where=where)
    return ConfigError(message, code="config.out_of_range", where=where)

"""The help of the program and of its verbs.

Typer's own help cuts the summaries of verbs, shows Python types of arguments and hides empty defaults.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from vitral.core.errors import ConfigError, suggest_choice

VERB_GROUPS = {  # in the order of use
    "Prepare data": ("check", "pack"),
    "Train": ("train", "sweep", "selftrain", "demo"),
    "Look at a model": ("evaluate", "explain", "describe", "models"),
    "Explore images": ("search", "cluster", "curate"),
    "Study": ("paper",),
    "Use a model": ("predict", "serve", "export", "convert", "merge", "sign", "bench"),
}
REST = "More"  # verbs of no group
WIDEST = 100  # columns of the help on a wide terminal
NO_BREAK = "\N{NO-BREAK SPACE}"  # between two words that stay on one line


class Verbs(Mapping[str, Any]):
    """The registered verbs, each built when it is asked for: building the options of all takes 6 ms."""

    def __init__(self) -> None:
        self.registered: dict[str, CommandInfo] = {}
        self.built: dict[str, Any] = {}

    def register(self, info: CommandInfo) -> None:
        """Add the verb that is named as its function."""
        assert info.callback
        self.registered[info.callback.__name__] = info

    def summary(self, name: str) -> str:
        """The first line of a verb's docstring."""
        return (inspect.getdoc(self.registered[name].callback) or "").partition("\n")[0]

    def __getitem__(self, name: str) -> Any:
        if name not in self.built:
            info = self.registered[name]
            self.built[name] = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
        return self.built[name]

    def __contains__(self, name: object) -> bool:
        return name in self.registered  # without building it

    def __iter__(self) -> Iterator[str]:
        return iter(self.registered)

    def __len__(self) -> int:
        return len(self.registered)


VERBS = Verbs()


class Program(TyperGroup):
    """`vitral`, whose help groups the verbs in the order of use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = VERBS  # type: ignore[assignment]  # typer only reads it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the global options; but print the help of a verb first, which needs none of them.

        Typer imports pydantic to check their values, and that takes as long as the rest of the help.
        """
        if args[1:2] and args[0] in self.commands and args[1] in ctx.help_option_names:
            self.commands[args[0]].make_context(args[0], args[1:], parent=ctx)  # prints, and exits as after --version
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of the help."""
        return [name for names in self.grouped().values() for name in names]

    def grouped(self) -> dict[str, list[str]]:
        """The registered verbs of each group that has any."""
        known = {name for names in VERB_GROUPS.values() for name in names}
        groups = {group: [name for name in names if name in self.commands] for group, names in VERB_GROUPS.items()}
        groups[REST] = [name for name in self.commands if name not in known]
        return {group: names for group, names in groups.items() if names}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group; a summary that is too long for the line is wrapped."""
        width = max(map(len, self.commands))
        for group, names in self.grouped().items():
            rows = [(f"{name:<{width}}", VERBS.summary(name)) for name in names]
            with formatter.section(group):
                formatter.write_dl(rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs first: they are what a new user looks for."""
        self.format_commands(ctx, formatter)
        _format_parameters(self, ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb that the arguments begin with."""
        if args[0] not in self.commands and not ctx.resilient_parsing and not args[0].startswith("-"):
            message, hint = f"unknown verb {args[0]!r}", suggest_choice(args[0], self.list_commands(ctx))
            raise ConfigError(message, code="config.unknown_verb", hint=hint)
        return super().resolve_command(ctx, args)


class Verb(TyperCommand):
    """A verb, whose help shows the default of each option and ends with examples."""

    def get_help(self, ctx: Any) -> str:
        """The help as text."""
        return super().get_help(ctx).replace(NO_BREAK, " ")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the verb in the line of usage: `[OPTIONS] MODEL IMAGE...`."""
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return [*([self.options_metavar] if self.options_metavar else []), *map(_argument_name, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        _format_parameters(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one on each line."""
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _format_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            rows["Arguments"].append((_argument_name(parameter), parameter.help or ""))
        elif (record := parameter.get_help_record(ctx)) is not None:
            rows["Options"].append((record[0], option_help(parameter)))
    for section, records in rows.items():
        if records:
            with formatter.section(section):
                formatter.write_dl(records)


def _argument_name(parameter: Any) -> str:
    """`IMAGE...` for one or more, `[DATA]` where it may be left out."""
    name = parameter.display_name_raw.strip("[]") + ("..." if parameter.nargs != 1 else "")
    return name if parameter.required else f"[{name}]"


def option_help(parameter: Any) -> str:
    """What an option does, and its default."""
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if parameter.is_flag:
        default = "" if parameter.callback else "off"  # such as --help and --version, which are no settings
    if default in (None, "", []) or callable(default):
        return str(parameter.help or "")
    return f"{parameter.help} [default:{NO_BREAK}{default}]"

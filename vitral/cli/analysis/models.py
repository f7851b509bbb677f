"""`vitral models`: architectures, recipes and published weights."""

import shutil
import textwrap
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitral.cli.terminal.app import verb
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

if TYPE_CHECKING:
    from vitral.explanation.walkthrough.cost import ModelCost
    from vitral.recipes.registry import RecipeNote
    from vitral.weights.pretrained import PretrainedWeights

PATTERN_HELP = "Show only names that match, such as 'dinov2*' or B/16; without * any name that contains it."
MORE_NAMES = "vitral models --architectures lists all names; vitral describe NAME shows one."
WIDTH = 100  # columns at most, and in a pipe
MIN_WIDTH = 60
# Shown if no pattern is given: the sizes of the paper and of published weights.
COMMON = ("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "L/14", "H/14", "g/14", "G/14", "R26+S/32",
          "R50+B/16", "R50x1")  # fmt: skip


@verb("vitral models", "vitral models 'dinov2*'", "vitral models --recipes")
def models(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help=PATTERN_HELP, show_default=False)] = "",
    architectures: Annotated[bool, typer.Option("--architectures", help="Show all architectures.")] = False,
    recipes: Annotated[bool, typer.Option("--recipes", help="Show recipes, with their full notes.")] = False,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Show published weights, with hub ids.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")] = False,
) -> None:
    """List architectures, recipes and published weights.

    Without options it prints an overview. Any published name can be given to --weights and wherever a command takes a
    model: vitral train photos/ --weights dinov2-small
    """
    chosen = architectures or recipes or pretrained
    names = _find_architectures(pattern, architectures) if architectures or not chosen else {}
    notes = _find_recipes(pattern) if recipes or not chosen else []
    weights = _find_weights(pattern) if pretrained or not chosen else []
    if not (names or notes or weights):
        hint = "vitral models lists the common names, vitral models --architectures all of them"
        raise ConfigError(f"no name matches {pattern!r}", code="config.unknown_name", where="PATTERN", hint=hint)
    if json:
        tables: dict[str, list[Any]] = {
            "architectures": [{"name": name, **cost._asdict()} for name, cost in names.items()],
            "recipes": [note._asdict() for note in notes],
            "pretrained": [each.to_dict() for each in weights],
        }
        from json import dumps  # after --help, which does not need it

        echo(dumps(tables, indent=2))
        return
    sections = []
    if names:
        more = "" if architectures or pattern else MORE_NAMES
        sections.append(_section("Architectures", "224x224 pixels, 1,000 classes", _architecture_table(names), more))
    if notes:
        body = _notes(notes) if recipes or pattern else _notes_in_brief(notes)
        more = "" if recipes or pattern else "vitral models --recipes shows the full notes."
        sections.append(_section("Recipes", "vitral train DATA --recipe NAME", body, more))
    if weights:
        more = "" if pretrained else "vitral models --pretrained shows the hub ids."
        body = _weights_table(weights, hub_ids=pretrained)
        sections.append(_section("Published weights", "--weights NAME, vitral.load(NAME)", body, more))
    echo("\n\n".join(sections))


def _matches(pattern: str, *texts: str) -> bool:
    """Whether a text matches the pattern, or contains it if it has no wildcard."""
    whole = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    return any(fnmatchcase(text, whole) for text in texts)


def _find_architectures(pattern: str, every: bool) -> "dict[str, ModelCost]":
    """The cost of each architecture that matches; the names of timm only where the pattern asks for them."""
    from vitral.explanation.walkthrough.cost import model_cost
    from vitral.models.registry import list_models, model_config

    known = list_models() if every or pattern else COMMON
    found = [name for name in known if _matches(pattern, name) and (pattern or not name.startswith("vit_"))]
    return {name: model_cost(model_config(name)) for name in found}


def _find_recipes(pattern: str) -> "list[RecipeNote]":
    from vitral.recipes.registry import recipe_notes

    return [note for note in recipe_notes() if _matches(pattern, note.name)]


def _find_weights(pattern: str) -> "list[PretrainedWeights]":
    """Published weights whose name, hub id or architecture matches."""
    from vitral.weights.pretrained import list_pretrained

    return [each for each in list_pretrained() if _matches(pattern, each.name, each.hub_id, each.architecture)]


def _section(title: str, use: str, body: str, more: str) -> str:
    """A titled part of the output, with a line on where the rest is."""
    return "\n".join(filter(None, (f"{title} ({use})", body, more)))


def _architecture_table(costs: "dict[str, ModelCost]") -> str:
    from vitral.html.text import align_columns

    rows = [("name", "parameters", "multiply-adds")]
    rows += [
        (name, f"{cost.parameters / 1e6:,.1f} M", f"{cost.multiply_adds / 1e9:,.2f} G") for name, cost in costs.items()
    ]
    return "\n".join(f"  {line}" for line in align_columns(rows, right=(1, 2)))


def _wrap(text: str, first: str, indent: int) -> str:
    width = max(MIN_WIDTH, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))
    return textwrap.fill(text, width, initial_indent=first, subsequent_indent=" " * indent, break_long_words=False)


def _notes_in_brief(notes: "list[RecipeNote]") -> str:
    """What each measured recipe reaches, and the names of the others."""
    indent = max(len(note.name) for note in notes if note.measured) + 4
    lines = [_wrap(note.reaches, f"  {note.name}".ljust(indent), indent) for note in notes if note.measured]
    others = ", ".join(note.name for note in notes if not note.measured)
    return "\n".join([*lines, _wrap(f"not measured here: {others}", "  ", 4)])


def _notes(notes: "list[RecipeNote]") -> str:
    """The whole note of each recipe."""
    blocks = []
    for note in notes:
        lines = [f"  {note.name}", _wrap(note.purpose, "    ", 4)]
        parts = {"run": note.run, "takes": note.takes, "reaches": note.reaches}
        lines += [_wrap(text, f"    {label}:".ljust(13), 13) for label, text in parts.items()]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _weights_table(weights: "Iterable[PretrainedWeights]", hub_ids: bool) -> str:
    """A row for each of the weights, and their hub id below it."""
    from vitral.html.text import align_columns
    from vitral.weights.pretrained import COLUMNS

    found = list(weights)
    head, *lines = align_columns([COLUMNS, *(each.row() for each in found)], right=(2, 3))
    if hub_ids:
        lines = [f"{line}\n    {each.source}" for line, each in zip(lines, found, strict=True)]
    return "\n".join(f"  {line}" for line in (head, *lines))

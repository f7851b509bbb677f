"""Text on its way to the terminal: no control code of a file or a name reaches it.

A class folder, a tensor or the Exif of a photo may be named such that a terminal moves its cursor, changes its title or
shows letters in another order. Errors and log lines pass `printable_text` here, tables where they are made. Data on
stdout is unchanged in a pipe, where a program reads it.
"""

import logging
import sys
from typing import Any

import typer


class PrintableFormatter(logging.Formatter):
    """Formats log records without control codes."""

    def format(self, record: logging.LogRecord) -> str:
        from vitral.html.page import printable_text  # here and below after --help, which does not need it

        return printable_text(super().format(record))


def error_lines(code: str, message: str, where: str, hint: str) -> list[str]:
    """An error in three parts: the message, where, and the hint."""
    from vitral.html.page import printable

    parts = {f"error[{code}]": _indent(message), "where": printable(where), "hint": _indent(hint)}
    return [f"{name}: {text}" for name, text in parts.items() if text]


def _indent(text: str) -> str:
    """Text whose later lines are indented, so that none of them can look like a line of its own."""
    from vitral.html.page import printable_text

    first, *rest = printable_text(text).split("\n")
    return "\n".join([first, *(line if line.startswith("  ") else f"  {line}" for line in rest)])


def echo(text: object, nl: bool = True, **options: Any) -> None:
    """Print data on stdout; on a terminal with control codes escaped as in JSON, which stays the same to a reader."""
    shown = str(text)
    if sys.stdout.isatty():
        import json

        keep = "\n\t"
        shown = "".join(each if each.isprintable() or each in keep else json.dumps(each)[1:-1] for each in shown)
    typer.echo(shown, nl=nl, **options)

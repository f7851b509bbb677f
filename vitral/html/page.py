"""HTML pages: one self-contained file each, with a shared style sheet."""

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

LOOK = Path(__file__).parent  # where look.css is


def printable(name: str) -> str:
    """The name with control codes and broken Unicode escaped, safe for a terminal or a page."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def printable_text(text: str) -> str:
    """Text of several lines with control codes and broken Unicode escaped, except line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


def _finalize(value: object) -> object:
    """What a template shows for a value: no control codes. Markup is our own."""
    return printable_text(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def plural(count: int, noun: str, nouns: str = "") -> str:
    """`1 file`, `2,000 files`."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def render(template: Path, **values: object) -> str:
    """Render a template; all values are escaped. It may include `look.css` and files beside it."""
    return _environment(template.parent).get_template(template.name).render(values)


def script_json(value: object) -> Markup:
    """JSON that is safe inside a script element: nothing in it can end the script."""
    script = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(script.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


@cache
def _environment(folder: Path) -> "Environment":
    """The environment of the templates in a folder; each is compiled once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, LOOK]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["printable"] = printable
    return environment

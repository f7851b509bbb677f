"""Pages: one file each, which needs no network, in the one look that they share."""

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vitral.core.errors import VitralError

if TYPE_CHECKING:
    from jinja2 import Environment

LOOK = Path(__file__).parent  # where look.css is


def printable(name: str) -> str:
    """The name with what would disturb a terminal or a page (control codes, broken unicode) written out."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def render(template: Path, **values: object) -> str:
    """The page that a template makes of the values, all escaped; it may include `look.css` and its own siblings."""
    return _environment(template.parent).get_template(template.name).render(values)


@cache
def _environment(folder: Path) -> "Environment":
    """Where the templates of a folder are compiled, each once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, LOOK]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    return environment


def write_whole(path: Path, text: str) -> None:
    """Write a file; whoever looks finds the whole file or the one before it."""
    draft = path.with_name(f"{path.name}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise VitralError(
            f"cannot be written: {(error.strerror or str(error)).lower()}",
            code="file.write_failed",
            where=str(path),
            hint="make room, or name a file in a folder that you may write to",
        ) from None

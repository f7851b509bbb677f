"""What several verbs take alike, and the bar that shows their progress."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

log = logging.getLogger("vitral")

DATA_HELP = (
    "A folder, a manifest, shards, Parquet or Arrow files, or a name: sample, fashion-mnist, mnist, cifar10, cifar100, "
    "digits."
)
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Change a setting, by its path and its value; may be repeated.",
        default_factory=list,
        show_default=False,
    ),
]
Root = Annotated[str, typer.Option(metavar="FOLDER", help="Where the files of a set known by name are.")]


@contextmanager
def bar(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, to be advanced by so many; nothing is drawn for a pipe or with --quiet."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not console.is_terminal or not log.isEnabledFor(logging.INFO)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(message, total=total)
        yield lambda count: progress.advance(task, count)

"""Options that several verbs share, and their progress bar."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

log = logging.getLogger("vitral")

DATA_HELP = (
    "Folder of images, manifest, tar shards, Parquet or Arrow files, or a dataset: sample, fashion-mnist, mnist, "
    "cifar10, cifar100, digits."
)
Data = Annotated[str, typer.Argument(metavar="DATA", help=DATA_HELP)]
Settings = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Set any setting by its path, such as optimizer.lr=1e-3; repeatable.",
        default_factory=list,
        show_default=False,
    ),
]
Root = Annotated[str, typer.Option(metavar="FOLDER", help="Folder with the files of a named dataset.")]


@contextmanager
def progress_bar(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; call the result with the number of items done. Hidden in a pipe or with --quiet."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = not console.is_terminal or not log.isEnabledFor(logging.INFO)
    with Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(message, total=total)
        yield lambda count: progress.advance(task, count)

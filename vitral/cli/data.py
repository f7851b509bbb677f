"""The verbs of data: pack and check."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from vitral.cli.options import Data, Root, bar
from vitral.cli.program import app
from vitral.errors import DataError
from vitral.machine import cores

log = logging.getLogger("vitral")


@app.command()
def pack(
    data: Data,
    out: Annotated[str, typer.Argument(metavar="OUT", help="The folder for the shards: new, empty, or begun before.")],
    shard_size: Annotated[str, typer.Option(metavar="SIZE", help="How large a shard may grow.")] = "256MB",
    root: Root = "",
) -> None:
    """Write a data set as tar shards (WebDataset) with an index; run it again to go on after a stop."""
    from vitral.data.sources.pack import pack as packed
    from vitral.data.sources.shards.plan import byte_count
    from vitral.data.sources.source import open_data

    most = byte_count(shard_size)
    samples = open_data(data, root=root)
    with bar("packing", len(samples.items)) as advance:
        index = packed(samples, Path(out).expanduser(), most, advance)
    size = sum(shard.bytes for shard in index.shards)
    log.info(f"packed {len(samples.items):,} images into {len(index.shards):,} shards of {size / 1e6:,.1f} MB in all")
    typer.echo(out)


@app.command()
def check(
    data: Data,
    workers: Annotated[
        int, typer.Option(help="Processes that read files.", min=0, default_factory=cores, show_default="one a core")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every example.")] = False,
    html: Annotated[str, typer.Option(metavar="PAGE", help="Also write a page with the pictures at fault.")] = "",
    root: Root = "",
) -> None:
    """Find what would make accuracy wrong: damage, copies, leaks, bad labels, imbalance.

    Ends with 3 where something is an error: a file that cannot be read, one picture in two splits or under two
    labels. Warnings and notes end with 0.
    """
    from json import dumps

    from rich.console import Console

    from vitral.data.doctor.check import check as checked
    from vitral.data.doctor.diagnosis import as_data
    from vitral.data.doctor.page import write_page
    from vitral.data.doctor.report import as_text, show
    from vitral.data.sources.source import open_data

    diagnosis = checked(open_data(data, root=root), workers)
    if json:
        typer.echo(dumps(as_data(diagnosis), indent=2))
    else:
        show(as_text(diagnosis), Console())
    if html:  # last: where it cannot be written, the answer is not lost
        write_page(Path(html).expanduser(), diagnosis)
    if diagnosis.count("error"):
        raise typer.Exit(DataError.exit_code)

"""`vitral pack`."""

import logging
from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo

log = logging.getLogger("vitral")


OUT_HELP = "The folder to write to: new, empty, or left by an interrupted pack."


@verb("vitral pack photos/ shards/", "vitral pack cifar10 shards/ --shard-size 1GB")
def pack(
    data: options.Data,
    out: Annotated[str, typer.Argument(metavar="OUT", help=OUT_HELP)],
    shard_size: Annotated[str, option("SIZE", "Largest size of a shard, such as 64MB or 1GB.")] = "256MB",
    root: options.Root = "",
) -> None:
    """Write a dataset as tar shards (WebDataset) with an index.

    After an interruption, the same command continues.
    """
    from vitral.data.datasets.pack import pack as packed
    from vitral.data.datasets.pack import parse_size
    from vitral.data.datasets.source import open_data

    most = parse_size(shard_size)
    samples = open_data(data, root=root)
    with progress_bar("packing", len(samples.items)) as advance:
        index = packed(samples, out, most, advance)
    size = sum(shard.bytes for shard in index.shards)
    log.info(f"packed {len(samples.items):,} images into {len(index.shards):,} shards of {size / 1e6:,.1f} MB in all")
    echo(out)

"""`vitral curate`."""

from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo

DATA_HELP = "The images: folders (with subfolders), files, quoted patterns or manifests."
OUT_HELP = "The manifest to write, which vitral train accepts as DATA."
HTML_HELP = "Also write a page that shows which images were kept and which were left out, such as curated.html."


@verb(
    "vitral curate runs/pile pile/ --keep 500 --html curated.html",
    "vitral curate dinov2-small pile/ --keep 500 --out chosen.csv --json",
)
def curate(  # noqa: PLR0913, PLR0917, one parameter per option
    model: options.Model,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=options.complete_data)],
    keep: Annotated[int, option("N", "Number of images to keep.", "required", min=1)],
    out: Annotated[str, option("FILE", OUT_HELP, "DATA.curated.csv")] = "",
    html: Annotated[str, option("FILE", HTML_HELP, "no page")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the summary.")] = False,
    skip_bad: options.SkipBad = False,
    batch_size: Annotated[int, option("N", "Images per batch.", min=1)] = 32,
    no_cache: options.NoCache = False,
) -> None:
    """Choose a diverse subset of images, without near duplicates.

    Near duplicates are found by their pixels. Then images are chosen one by one: each is the image whose features are
    farthest from those of all images chosen before. So rare kinds of images are kept. Nothing is random.
    """
    from vitral.runs.similarity.collection import CollectionOptions
    from vitral.runs.similarity.curate import curate as curate_images

    common: CollectionOptions = {"batch_size": batch_size, "cache": not no_cache, "skip_bad": skip_bad}
    common["progress"] = progress_bar
    found = curate_images(model, data, keep, out=out, html=html, **common)
    echo(found.to_json() if json else str(found))

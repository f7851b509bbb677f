"""`vitral search`."""

from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.completion import TABLE_FORMATS, complete_from
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError, did_you_mean, format_choices

IMAGE_HELP = "The query images: files, folders, quoted patterns, manifests or a named dataset."
PILE_HELP = (
    "The images to search: a folder (with subfolders), a quoted pattern, a manifest, tar shards or a named dataset."
)
FORMAT_HELP = f"The output format: {format_choices(TABLE_FORMATS)}."
INDEX_HELP = "Use a faiss index: faster for many queries, but it may miss some neighbors. Its recall is measured."
HTML_HELP = "Also write a page with thumbnails, such as similar.html."


@verb(
    "vitral search runs/pile cat.jpg pile/",
    "vitral search runs/pile cat.jpg dog.jpg pile/ --top 20 --html similar.html",
    "vitral search dinov2-small queries/ pile/ --format csv",
)
def search(  # noqa: PLR0913, PLR0917, one parameter per option
    model: options.Model,
    image: Annotated[list[str], typer.Argument(metavar="IMAGE", help=IMAGE_HELP, autocompletion=options.complete_data)],
    data: Annotated[str, typer.Argument(metavar="DATA", help=PILE_HELP, autocompletion=options.complete_data)],
    top: Annotated[int, option("N", "Number of similar images per query image.", min=1)] = 10,
    format: Annotated[str, option("NAME", FORMAT_HELP, True, complete_from(TABLE_FORMATS))] = "table",
    html: Annotated[str, option("FILE", HTML_HELP, "no page")] = "",
    index: Annotated[bool, typer.Option("--index", help=INDEX_HELP)] = False,
    skip_bad: options.SkipBad = False,
    batch_size: Annotated[int, option("N", "Images per batch.", min=1)] = 32,
    no_cache: options.NoCache = False,
) -> None:
    """Find the images that are most similar to given images.

    Similarity is the cosine between the features of a model. No labels are needed. Features are cached in the user's
    cache folder for the next search.
    """
    if format not in TABLE_FORMATS:
        hint = did_you_mean(format, TABLE_FORMATS) or "choose one of them"
        message = f"expected {format_choices(TABLE_FORMATS)}, got {format!r}"
        raise ConfigError(message, code="config.unknown_name", where="--format", hint=hint)
    from vitral.runs.similarity.collection import CollectionOptions
    from vitral.runs.similarity.search import search as search_images

    common: CollectionOptions = {"batch_size": batch_size, "cache": not no_cache, "skip_bad": skip_bad}
    common["progress"] = progress_bar
    found = search_images(model, image, data, top=top, index=index, html=html, **common)
    texts = {"table": found.__str__, "json": found.to_json, "csv": found.to_csv}
    echo(texts[format]().rstrip("\n"))

"""`vitral cluster`."""

from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo

DATA_HELP = "The images: folders (with subfolders), files, quoted patterns or manifests."
OUT_HELP = (
    "The manifest to write: for each image its path, its cluster, and its similarity to the center of the cluster."
)
HTML_HELP = "Also write a page with a map of the images and typical images of each cluster, such as clusters.html."


@verb(
    "vitral cluster runs/pile pile/ --clusters 20 --html clusters.html",
    "vitral cluster dinov2-small pile/ --clusters 50 --out groups.csv --json",
)
def cluster(  # noqa: PLR0913, PLR0917, one parameter per option
    model: options.Model,
    data: Annotated[list[str], typer.Argument(metavar="DATA", help=DATA_HELP, autocompletion=options.complete_data)],
    clusters: Annotated[int, option("N", "Number of clusters.", min=1)] = 20,
    out: Annotated[str, option("FILE", OUT_HELP, "DATA.clusters.csv")] = "",
    html: Annotated[str, option("FILE", HTML_HELP, "no page")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
    seed: Annotated[int, option("N", "Random seed of the first centers.", min=0)] = 0,
    skip_bad: options.SkipBad = False,
    batch_size: Annotated[int, option("N", "Images per batch.", min=1)] = 32,
    no_cache: options.NoCache = False,
) -> None:
    """Group images by the features of a model.

    The clusters are found by k-means, which needs no labels. The same features and the same seed always give the same
    clusters. Features are cached in the user's cache folder.
    """
    from vitral.runs.similarity.cluster import cluster as cluster_images
    from vitral.runs.similarity.collection import CollectionOptions

    common: CollectionOptions = {"batch_size": batch_size, "cache": not no_cache, "skip_bad": skip_bad}
    common["progress"] = progress_bar
    found = cluster_images(model, data, clusters, seed=seed, out=out, html=html, **common)
    echo(found.to_json() if json else str(found))

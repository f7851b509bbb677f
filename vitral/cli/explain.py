"""The verb of explanations."""

import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.app import app
from vitral.cli.options import progress_bar
from vitral.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitral.explanation.explain import Explainer, Progress
    from vitral.explanation.explanation import Explanation

log = logging.getLogger("vitral")

MOST = 24  # images on a page: more of them make it slow to open
ENDING = ".explain.html"


@app.command()
def explain(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a bundle, or weights of another library.")],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Pictures, or folders of them.")],
    out: Annotated[str, typer.Option(metavar="FILE", help="The page; by itself IMAGE.explain.html, here.")] = "",
    class_: Annotated[str, typer.Option("--class", metavar="NAME", help="Ask about this class, not the answer.")] = "",
    layers: Annotated[str, typer.Option(metavar="LIST", help="Keep some layers only: 1,6,12 or 1-4,12.")] = "",
    png: Annotated[str, typer.Option(metavar="FOLDER", help="Write the figures too, as PNG.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Leave out occlusion and the test of the maps.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print answers and areas for a program to read.")] = False,
) -> None:
    """Show what a model sees in pictures: one page that needs no network.

    Attention of every layer and head, maps of what the answer hangs on and whether to believe them, and the way from
    pixels to probabilities, step by step.
    """
    from vitral.core.machine import keep_freed_memory
    from vitral.explanation.explain import Explainer, share_distances
    from vitral.explanation.page.page import write_page
    from vitral.explanation.summary import Summary, summarize

    page = page_of(out, images, model)
    paths = list(pictures(images))
    explainer = Explainer.of(model, class_, layers, quick)
    keep_freed_memory()
    explained, refused = told(explainer, paths)
    found = share_distances(explained)
    write_page(page, found)
    drawn = []
    if png:
        from vitral.explanation.figures.figures import write_figures

        drawn = write_figures(Path(png).expanduser(), found)
    if json:
        summary = Summary(
            model=model,
            page=str(page),
            figures=tuple(map(str, drawn)),
            images=tuple(map(summarize, found)),
            refused=tuple(map(str, refused)),
        )
        typer.echo(summary.to_json())
    else:
        typer.echo(page)
    if refused:
        raise typer.Exit(DataError.exit_code)


def page_of(out: str, images: list[str], model: str) -> Path:
    """Where the page goes: as told, or by the one picture or folder, or by the model. No other file is overwritten."""
    named = images[0] if len(images) == 1 else model
    name = f"{Path(named).expanduser().resolve().stem or 'images'}{ENDING}"
    page = Path(out).expanduser() if out else Path(name)
    if page.is_dir():
        page /= name
    if not page.parent.is_dir():
        message, hint = "there is no such folder", "make it, or give another --out"
        raise ConfigError(message, code="config.not_found", where=str(page.parent), hint=hint)
    if page.exists() and not is_page(page):
        message = "there is another file of this name, and it is no page of this kind"
        hint = "give another name: --out FILE"
        raise ConfigError(message, code="config.path_exists", where=str(page), hint=hint)
    return page


def is_page(path: Path) -> bool:
    """Whether a file is a page that was made here before, so that a new one may take its place."""
    from vitral.data.datasets.files import read_bytes

    return path.is_file() and b"<title>What " in read_bytes(path)[:2000]


def pictures(images: list[str]) -> Iterator[Path]:
    """Every file that is named, and the first images of every folder."""
    for word in images:
        path = Path(word).expanduser()
        if not path.is_dir():
            yield path
            continue
        found = list(islice(image_files(path), MOST + 1))
        if not found:
            message, hint = "no images in it or in its folders", "give a folder with JPEG or PNG"
            raise DataError(message, code="data.empty", where=word, hint=hint)
        if len(found) > MOST:
            log.info(f"{word}: the first {MOST} of its images; name others by themselves")
        yield from found[:MOST]


def image_files(folder: Path) -> Iterator[Path]:
    """The image files in a folder and in those inside, as `predict` lists them."""
    from vitral.inference.image_refs import FileSource
    from vitral.inference.inputs import images_below

    sources = (image.source for image in images_below(str(folder)))
    return (Path(source.path) for source in sources if isinstance(source, FileSource))


def told(explainer: "Explainer", paths: list[Path]) -> "tuple[list[Explanation], list[DataError]]":
    """What is seen of each image, and why some could not be read: one bad file among several stops no other."""
    from vitral.html.page import printable

    explained: list[Explanation] = []
    refused: list[DataError] = []
    for number, path in enumerate(paths, start=1):
        count = f" ({number} of {len(paths)})" if len(paths) > 1 else ""
        try:
            explained.append(explainer.explain(path, counted(count)))
        except DataError as error:
            if len(paths) == 1:
                raise
            log.error(printable(f"left out: {error}"))
            refused.append(error)
    if not explained:
        message = f"none of the {len(paths)} images can be read"
        hint = "see above what is wrong with each"
        raise DataError(message, code="data.bad_files", where=str(paths[0].parent), hint=hint)
    return explained, refused


def counted(count: str) -> "Progress":
    """The bar with a count after the name of what it is about."""
    return lambda message, total: progress_bar(f"{message}{count}", total)

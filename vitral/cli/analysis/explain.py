"""`vitral explain`."""

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import progress_bar, verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError, DataError, format_choices

if TYPE_CHECKING:
    from vitral.explanation.explain import EncodedImage, Explainer, Progress
    from vitral.explanation.explanation import Explanation

log = logging.getLogger("vitral")

MOST = 24  # images on a page: more make it slow to open
ENDING = ".explain.html"
SUFFIXES = (".html", ".htm")
PAGE_MARK = b"<title>What "  # near the beginning of a page


IMAGE_HELP = "Image files, folders of images, or a named dataset such as sample."
LAYERS_HELP = "Show only these layers, counted from 1, such as 1,6,12 or 1-4,12."
PNG_HELP = "Also write the figures as PNG files to this folder."


@verb("vitral explain runs/photos cat.jpg", "vitral explain runs/photos cat.jpg --class dog --out dog.html")
def explain(
    model: options.Model,
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help=IMAGE_HELP, autocompletion=options.complete_data)
    ],
    out: Annotated[str, option("FILE", "The page to write, or an existing folder for it.", "IMAGE.explain.html")] = "",
    class_: Annotated[str, option("NAME", "The class to explain.", "the predicted one", None, "--class")] = "",
    layers: Annotated[str, option("LIST", LAYERS_HELP, "all")] = "",
    png: Annotated[str, option("FOLDER", PNG_HELP, "no PNG files")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Skip occlusion and the faithfulness test.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print predictions and faithfulness as JSON.")] = False,
) -> None:
    """Explain predictions on images in one offline HTML page.

    Attention of every layer and head, maps of the patches that matter with a faithfulness test, the logit lens, and a
    walkthrough from pixels to probabilities.
    """
    from vitral.core.machine import keep_freed_memory
    from vitral.explanation.explain import Explainer, share_distances
    from vitral.explanation.explanation import Summary, summarize
    from vitral.explanation.page.page import write_page

    page = page_path(out, images, model)
    found = list(find_images(images))
    explainer = Explainer(model, class_, layers, quick)
    keep_freed_memory()
    explanations, errors = explain_all(explainer, found)
    explanations = share_distances(explanations)
    write_page(page, explanations)
    figures: list[Path] = []
    if png:
        from vitral.explanation.figures import write_figures

        figures = write_figures(Path(png).expanduser(), explanations)
    if json:
        summary = Summary(
            model=model,
            page=str(page),
            figures=tuple(map(str, figures)),
            images=tuple(map(summarize, explanations)),
            errors=tuple(map(str, errors)),
        )
        echo(summary.to_json())
    else:
        echo(page)
    if errors:
        raise typer.Exit(DataError.exit_code)


def page_path(out: str, images: list[str], model: str) -> Path:
    """The path of the page: `out`, or named after the image, the folder or the model. Only pages are replaced."""
    from vitral.data.datasets.files import read_bytes

    named = images[0] if len(images) == 1 else model
    name = f"{Path(named).expanduser().resolve().stem or 'images'}{ENDING}"
    page = Path(out).expanduser() if out else Path(name)
    if page.is_dir():
        page /= name
    if not page.parent.is_dir():
        hint = "create it, or pass another --out"
        raise ConfigError("no such folder", code="config.not_found", where=page.parent, hint=hint)
    if page.exists() and not (page.is_file() and PAGE_MARK in read_bytes(page)[:2000]):
        message = "this file exists and is not a page of `vitral explain`"
        raise ConfigError(message, code="config.path_exists", where=page, hint="pass another name: --out FILE")
    if page.suffix.lower() not in SUFFIXES:
        message = f"expected a FILE that ends in {format_choices(SUFFIXES)}, or a folder that exists, got {out!r}"
        raise ConfigError(message, code="config.unknown_format", where="--out", hint=f"use {out}.html")
    return page


def find_images(images: list[str]) -> "Iterator[Path | EncodedImage]":
    """The given files, the first images of the given folders, and some images of the given datasets."""
    from vitral.data.datasets.named import NAMED_DATASETS
    from vitral.data.datasets.source import SAMPLE
    from vitral.inference.inputs import FileSource, images_below

    for word in images:
        if word == SAMPLE or word in NAMED_DATASETS:
            yield from dataset_images(word)
            continue
        path = Path(word).expanduser()
        if not path.is_dir():
            yield path
            continue
        sources = (image.source for image in images_below(str(path)))
        files = (Path(source.path) for source in sources if isinstance(source, FileSource))
        found = list(islice(files, MOST + 1))
        if not found:
            hint = "pass a folder with JPEG or PNG files"
            raise DataError("no images in this folder", code="data.empty", where=word, hint=hint)
        if len(found) > MOST:
            log.info(f"{word}: using the first {MOST} images; pass others by name")
        yield from found[:MOST]


def dataset_images(name: str) -> "Iterator[EncodedImage]":
    """The first image of each class of a dataset, of the split that it is tested on."""
    from vitral.data.datasets.source import open_data
    from vitral.explanation.explain import EncodedImage

    samples = open_data(name)
    items = samples.of("test") or samples.of("val")
    first = {item.label: item for item in reversed(items)}
    for _, item in sorted(first.items())[:MOST]:
        yield EncodedImage(f"{name}/{item.name}", samples.read(item))


def explain_all(
    explainer: "Explainer", images: "list[Path | EncodedImage]"
) -> "tuple[Sequence[Explanation], list[DataError]]":
    """The explanation of each image, and the errors of unreadable files, which are reported and skipped."""
    from vitral.html.page import printable

    explanations: list[Explanation] = []
    errors: list[DataError] = []
    for number, image in enumerate(images, start=1):
        count = f" ({number} of {len(images)})" if len(images) > 1 else ""
        try:
            explanations.append(explainer.explain(image, numbered_bar(count)))
        except DataError as error:
            if len(images) == 1:
                raise
            log.error(printable(f"skipped: {error}"))
            errors.append(error)
    if not explanations:
        message, first = f"none of the {len(images)} images is readable", images[0]
        where = first.parent if isinstance(first, Path) else first.name
        raise DataError(message, code="data.bad_files", where=where, hint="see the errors above")
    return explanations, errors


def numbered_bar(count: str) -> "Progress":
    """A progress bar with a count after its name."""
    return lambda message, total: progress_bar(f"{message}{count}", total)

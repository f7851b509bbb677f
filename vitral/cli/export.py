"""The verb export."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import app
from vitral.cli.options import DATA_HELP, Root

log = logging.getLogger("vitral")

IMAGE_HELP = "The size of the pictures that come in, or dynamic: the graph resizes them. By itself the model's own."
OUT_HELP = "The new folder; by itself exports/NAME-FORMAT, or exports/NAME-FORMAT-int8."
JUDGES_HELP = f"The images that judge it; by itself those of the run for validation, or sample. {DATA_HELP}"


@app.command()
def export(  # noqa: PLR0913, PLR0917, one option a wish
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, a bundle, or weights of another library.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="onnx, openvino or torch.")] = "onnx",
    int8: Annotated[bool, typer.Option("--int8", help="In bytes, but for what is sensitive; not for torch.")] = False,
    batch_size: Annotated[
        str, typer.Option(metavar="N", help="How many images at a time, or dynamic for any.")
    ] = "dynamic",
    image_size: Annotated[str, typer.Option(metavar="SIZE", help=IMAGE_HELP)] = "",
    data: Annotated[str, typer.Option(metavar="DATA", help=JUDGES_HELP)] = "",
    root: Root = "",
    images: Annotated[int, typer.Option(metavar="N", help="How many images judge it.")] = 500,
    out: Annotated[str, typer.Option(metavar="FOLDER", help=OUT_HELP)] = "",
) -> None:
    """Write a model as files that others run, with a runner that needs no Vitral; refused unless it answers alike.

    It is run on real images before it gets its name: what was found is printed, and written into export.json.
    """
    from vitral.runs.export import export as exported

    found = exported(
        model,
        to,
        int8=int8,
        batch_size=batch_size,
        image_size=image_size,
        data=data,
        root=root,
        out=out,
        images=images,
    )
    notes = found.notes
    tried = notes.runner.line() if notes.runner else ""
    quantized = notes.quantization.lines() if notes.quantization else ()
    for line in (*found.told, *quantized, *notes.certificate.lines(), tried):
        log.info(line)
    typer.echo(found.folder)

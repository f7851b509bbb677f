"""`vitral export`."""

import logging
from typing import Annotated

import typer

from vitral.cli.app import DATA_HELP, Root, app

log = logging.getLogger("vitral")

IMAGE_HELP = (
    "Size of the images that the exported model takes and resizes, or dynamic. "
    "Default: preprocessed pixels. Example: 480x640."
)
OUT_HELP = "New folder. Default: exports/NAME-FORMAT, or exports/NAME-FORMAT-int8."
VERIFY_HELP = f"Images to verify the export with. Default: the validation images of the run, else sample. {DATA_HELP}"


@app.command()
def export(  # noqa: PLR0913, PLR0917, one parameter per option
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Run, bundle, or weights of another library.")],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="Format: onnx, openvino or torch.")] = "onnx",
    int8: Annotated[
        bool, typer.Option("--int8", help="Quantize to int8, except sensitive layers. Not for torch.")
    ] = False,
    batch_size: Annotated[
        str, typer.Option(metavar="N", help="Batch size of the exported model, or dynamic.")
    ] = "dynamic",
    image_size: Annotated[str, typer.Option(metavar="SIZE", help=IMAGE_HELP)] = "",
    data: Annotated[str, typer.Option(metavar="DATA", help=VERIFY_HELP)] = "",
    root: Root = "",
    images: Annotated[int, typer.Option(metavar="N", help="How many images to verify with.")] = 500,
    out: Annotated[str, typer.Option(metavar="FOLDER", help=OUT_HELP)] = "",
) -> None:
    """Export a model to files that run without Vitral. Refused unless the outputs agree with the model.

    The export is compared with the model on real images. The result is printed and written to export.json.
    """
    from vitral.runs.export import export as run_export

    sizes = {"batch_size": batch_size, "image_size": image_size}
    result = run_export(model, to, int8=int8, **sizes, data=data, root=root, out=out, images=images)
    metadata = result.metadata
    runner = metadata.runner.line() if metadata.runner else ""
    quantization = metadata.quantization.lines() if metadata.quantization else ()
    for line in (*result.messages, *quantization, *metadata.certificate.lines(), runner):
        log.info(line)
    typer.echo(result.folder)
